"""Savepoints through the control plane: taken, described, deleted; and who needs them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, CoordinatorRow, Savepoint
from checkpoints.operations import savepoints
from checkpoints.retention import discards, finalization, sweep
from controlplane.accounts.models import User
from controlplane.audit.models import AuditEntry
from controlplane.base.errors import Busy, Invalid, KeyReused, NotFound, Refusal, WrongState
from jobs import services
from jobs.models import Job, Operation
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.storage import manifest
from tests.database.jobs import builders as jobs
from weir.errors import StorageError
from weir.ids import CheckpointId
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import Acknowledged, CheckpointRequested, TriggerCheckpoint
from weir.storage.manifest import Tombstone, dump, load
from weir.storage.store import store_for

pytestmark = pytest.mark.django_db


def taken(line: Line, actor: User | None = None, **given: Any) -> Savepoint:
    """A savepoint of the line's job that completed."""
    operation = savepoints.take(actor, line.job_id, **given)
    (number,) = line.triggered()
    line.complete(number)
    return Savepoint.objects.get(operation=operation)


def put_files(savepoint: Savepoint) -> None:
    """A savepoint's files and its key, as a driver writes them."""
    checkpoint = savepoint.checkpoint
    assert checkpoint is not None
    data = dump(manifest(savepoint.job_id, checkpoint.number))
    store = store_for(savepoint.location)
    store.put(f"1-{checkpoint.number}/sink-0-counts", b"state")
    store.put("manifest", data)
    job = savepoint.job
    key = locations.layout_of(job).manifest(CheckpointId(checkpoint.number))
    locations.store_of(job).put(key, data)


def ended(operation: Operation) -> Operation:
    return Operation.objects.get(pk=operation.pk)


# Taking ---------------------------------------------------------------------------------------


def test_savepoint_is_triggered_into_its_directory_and_answered(line: Line, operator: User) -> None:
    operation = savepoints.take(
        operator, line.job_id, name="before", note="prices change", labels={"release": "7"}
    )
    (trigger,) = [c for c in line.poll() if isinstance(c, TriggerCheckpoint)]
    savepoint = Savepoint.objects.get(operation=operation)
    assert trigger.barrier.options.kind is CheckpointKind.SAVEPOINT
    assert trigger.barrier.options.target == savepoint.location
    assert savepoint.location == f"{line.job.storage}/savepoints/{line.job_id}/before"
    assert savepoint.checkpoint == line.checkpoint(1)
    assert line.checkpoint(1).location == savepoint.location
    assert (operation.status, operation.progress["phase"]) == ("running", "saving")

    line.complete(1)
    assert ended(operation).status == "succeeded"
    assert ended(operation).result == {
        "job": line.job_id,
        "savepoint": str(savepoint.pk),
        "checkpoint": 1,
        "path": savepoint.location,
        "duration_ms": line.checkpoint(1).duration_ms,
    }
    assert (savepoint.name, savepoint.note, savepoint.labels) == (
        "before",
        "prices change",
        {"release": "7"},
    )
    entry = AuditEntry.objects.get(action="job.savepoint")
    assert (entry.actor, entry.after["name"]) == (operator, "before")
    assert line.state.completed == ()  # Retention knows nothing of it.


def test_savepoint_runs_beside_a_checkpoint(db: None, operator: User) -> None:
    line = Line.running(interval_ms=None, concurrent_max=1)
    line.post(CheckpointRequested("periodic-like"))
    assert line.triggered() == [1]
    operation = savepoints.take(operator, line.job_id)
    assert line.triggered() == [2]
    line.complete(1)
    line.complete(2)
    assert ended(operation).result["checkpoint"] == 2


def test_failed_savepoint_leaves_the_job_and_frees_its_name(line: Line, operator: User) -> None:
    operation = savepoints.take(operator, line.job_id, name="before")
    line.post(protocol.decline("source-0"))
    assert ended(operation).status == "failed"
    assert "savepoint 1 failed" in ended(operation).error
    assert not Savepoint.objects.exists()
    assert line.job.status == JobStatus.RUNNING
    assert taken_again(line, operator, "before").checkpoint == line.checkpoint(2)


def taken_again(line: Line, operator: User, name: str) -> Savepoint:
    line.poll()
    return taken(line, operator, name=name)


def test_savepoint_of_a_lost_driver_fails(line: Line, operator: User) -> None:
    operation = savepoints.take(operator, line.job_id)
    jobs.lose(line.job)
    assert ended(operation).status == "failed"
    assert not Savepoint.objects.exists()


def test_savepoint_whose_manifest_a_lost_driver_wrote_is_kept(line: Line, operator: User) -> None:
    operation = savepoints.take(operator, line.job_id, name="before")
    line.post(*protocol.acks(1))
    jobs.lose(line.job)
    assert ended(operation).status == "running"  # The storage will say.
    key = locations.layout_of(line.job).manifest(CheckpointId(1))
    locations.store_of(line.job).put(key, dump(manifest(line.job_id, 1)))
    assert finalization.settle_driverless() == 1
    assert ended(operation).status == "succeeded"
    assert Savepoint.objects.get().checkpoint == line.checkpoint(1)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a/b"),
        ("name", ".."),
        ("name", "chk-7"),
        ("name", "x" * 81),
        ("name", "two words"),
        ("note", "x" * 10_001),
        ("labels", {"a": "x" * 201}),
        ("labels", {"": "x"}),
        ("labels", {str(n): "" for n in range(33)}),
        ("location", "relative/path"),
        ("location", "s3://bucket/place"),
    ],
)
def test_words_that_cannot_be_are_refused_by_name(line: Line, field: str, value: Any) -> None:
    with pytest.raises(Invalid) as refused:
        savepoints.take(None, line.job_id, **{field: value})
    assert list(refused.value.extra["errors"]) == [field]
    assert not Operation.objects.filter(kind="savepoint").exists()


def test_name_in_use_and_place_in_use_are_refused(line: Line, tmp_path: Path) -> None:
    taken(line, name="before", location=str(tmp_path / "mine"))
    with pytest.raises(Invalid, match="named before"):
        savepoints.take(None, line.job_id, name="before")
    with pytest.raises(Invalid) as refused:
        savepoints.take(None, line.job_id, location=f"{tmp_path}/mine/")
    assert list(refused.value.extra["errors"]) == ["location"]


def test_second_savepoint_is_refused_naming_the_first(line: Line) -> None:
    first = savepoints.take(None, line.job_id)
    with pytest.raises(Busy, match=f"savepoint {first.pk}"):
        savepoints.take(None, line.job_id)


def test_job_that_does_not_run_gives_no_savepoint(line: Line) -> None:
    jobs.lose(line.job)
    with pytest.raises(WrongState) as refused:
        savepoints.take(None, line.job_id)
    assert (refused.value.extra["state"], refused.value.extra["allowed"]) == (
        "restarting",
        ["running"],
    )
    with pytest.raises(NotFound):
        savepoints.take(None, "unknown")


def test_request_repeated_with_its_key_is_one_savepoint(line: Line, operator: User) -> None:
    first = savepoints.take(operator, line.job_id, note="a", key="k")
    assert savepoints.take(operator, line.job_id, note="a", key="k") == first
    assert Savepoint.objects.count() == 1
    with pytest.raises(KeyReused):
        savepoints.take(operator, line.job_id, note="b", key="k")


def test_cancellation_overtakes_a_savepoint(line: Line, operator: User) -> None:
    operation = savepoints.take(operator, line.job_id)
    cancelling = services.cancel(operator, line.job_id)
    assert ended(operation).status == "cancelled"
    assert str(cancelling.pk) in ended(operation).error


def test_savepoint_asked_for_at_the_driver_gets_a_row(line: Line, tmp_path: Path) -> None:
    target = str(tmp_path / "elsewhere")
    line.post(CheckpointRequested("cli-1", CheckpointKind.SAVEPOINT, target))
    line.complete(1)
    savepoint = Savepoint.objects.get()
    assert (savepoint.name, savepoint.location) == ("elsewhere", target)
    assert (savepoint.operation, savepoint.checkpoint) == (None, line.checkpoint(1))


def test_end_of_the_job_keeps_savepoints(line: Line) -> None:
    savepoint = taken(line)
    line.post(jobs.changed(JobStatus.FINISHED))
    assert Checkpoint.objects.get(pk=savepoint.checkpoint_id).discard_due_at is None


def test_event_time_is_that_of_the_slowest_source(line: Line) -> None:
    line.post(CheckpointRequested("r"))
    for ack, reached in zip(protocol.acks(1), (70, 50, 10, 20), strict=False):
        assert isinstance(ack, Acknowledged)
        head, *others = ack.operators
        metrics = replace(head.metrics, watermark_ms=reached)
        line.post(replace(ack, operators=(replace(head, metrics=metrics), *others)))
    assert line.checkpoint(1).watermark_ms == 50


# Describing ------------------------------------------------------------------------------------


def test_describing_changes_words_and_no_place(line: Line, operator: User) -> None:
    savepoint = taken(line, name="before")
    other = taken(line, name="other")
    changed = savepoints.describe(operator, savepoint.pk, name="after", labels={"keep": "yes"})
    assert (changed.name, changed.note, changed.labels) == ("after", "", {"keep": "yes"})
    assert changed.location == savepoint.location
    with pytest.raises(Invalid, match="named after"):
        savepoints.describe(operator, other.pk, name="after")
    entry = AuditEntry.objects.get(action="savepoint.describe")
    assert (entry.before["name"], entry.after["name"]) == ("before", "after")


def test_name_of_one_that_was_renamed_is_used_again_elsewhere(line: Line) -> None:
    first = taken(line, name="before")
    savepoints.describe(None, first.pk, name="older")
    second = taken(line, name="before")
    assert second.location != first.location


# Deleting --------------------------------------------------------------------------------------


def test_deleting_removes_files_and_key_and_nothing_else(line: Line, operator: User) -> None:
    savepoint = taken(line, name="before")
    put_files(savepoint)
    place = store_for(savepoint.location)
    place.put("notes.txt", b"a user's")
    operation = savepoints.delete(operator, savepoint.pk)
    assert operation.status == "running"
    assert discards.discard_due() == 1
    assert ended(operation).status == "succeeded"
    assert place.list() == ["notes.txt"]
    key = locations.layout_of(line.job).manifest(CheckpointId(1))
    assert not locations.store_of(line.job).exists(key)
    assert line.statuses() == {1: "discarded"}
    with pytest.raises(NotFound, match="deleted already"):
        savepoints.delete(operator, savepoint.pk)
    assert AuditEntry.objects.get(action="savepoint.delete").before["name"] == "before"


def test_directory_with_nothing_else_goes_as_a_whole(line: Line) -> None:
    savepoint = taken(line, name="before")
    put_files(savepoint)
    savepoints.delete(None, savepoint.pk)
    discards.discard_due()
    assert not Path(savepoint.location).exists()
    again = taken(line, name="before")  # The name is free.
    assert again.location != savepoint.location


def test_manifest_of_another_savepoint_in_the_same_place_stays(line: Line) -> None:
    savepoint = taken(line, name="before")
    put_files(savepoint)
    place = store_for(savepoint.location)
    place.put("manifest", dump(manifest("another-job", 9)))
    savepoints.delete(None, savepoint.pk)
    discards.discard_due()
    assert place.list() == ["manifest"]


def test_aborted_savepoint_takes_its_own_files_along_only(line: Line, tmp_path: Path) -> None:
    place = store_for(str(tmp_path / "mine"))
    place.put("1-1/sink-0-counts", b"state")
    place.put("1-9/sink-0-counts", b"another's")
    place.put("manifest", dump(manifest("another-job", 9)))
    savepoints.take(None, line.job_id, location=str(tmp_path / "mine"))
    line.post(protocol.decline("source-0"))
    assert discards.discard_due() == 1
    assert place.list() == ["1-9/sink-0-counts", "manifest"]


def test_files_of_a_savepoint_that_may_exist_are_kept_until_that_is_known(
    line: Line, tmp_path: Path
) -> None:
    """The storage failed while two manifests were written; one of them is there all the same."""
    stores = {}
    for number, is_written in ((1, True), (2, False)):
        location = str(tmp_path / f"mine-{number}")
        savepoints.take(None, line.job_id, location=location)
        line.post(*protocol.acks(number), protocol.not_written(number, may_exist=True))
        data = dump(manifest(line.job_id, number))
        stores[number] = store_for(location)
        stores[number].put(f"1-{number}/sink-0-counts", b"state")
        stores[number].put("manifest", data)  # The copy, which is written first, decides nothing.
        if is_written:
            locations.store_of(line.job).put(locations.layout_of(line.job).manifest(number), data)  # type: ignore[arg-type]
    sweep.clean_next()
    assert discards.discard_due() == 0, "a late writer may not be done"
    for number in stores:
        jobs.pass_time(line.checkpoint(number), sweep.LATE_S, "settled_at")
    CoordinatorRow.objects.update(swept_at=None)
    sweep.clean_next()
    assert discards.discard_due() == 1
    assert stores[1].list() == ["1-1/sink-0-counts", "manifest"]
    assert stores[2].list() == []
    key = locations.layout_of(line.job).manifest(CheckpointId(2))
    assert isinstance(load(locations.store_of(line.job).read(key), key), Tombstone)


def test_place_of_another_jobs_savepoint_is_refused_for_good(line: Line, tmp_path: Path) -> None:
    """Late deletions for the first savepoint go by names that the second's files may have too."""
    location = str(tmp_path / "mine")
    savepoints.take(None, line.job_id, location=location)
    line.post(protocol.decline("source-0"))
    discards.discard_due()
    other = Line.running()
    with pytest.raises(Invalid) as refused:
        savepoints.take(None, other.job_id, location=f"{tmp_path}//mine/")
    assert list(refused.value.extra["errors"]) == ["location"]
    assert savepoints.take(None, line.job_id, location=location).status == "running"


def test_place_is_free_again_once_its_savepoint_is_gone(line: Line, tmp_path: Path) -> None:
    location = str(tmp_path / "mine")
    first = taken(line, location=location)
    with pytest.raises(Invalid, match="cannot be taken into"):
        savepoints.take(None, line.job_id, location=location)
    savepoints.delete(None, first.pk)
    with pytest.raises(Invalid, match="cannot be taken into"):  # Its files are still there.
        savepoints.take(None, line.job_id, location=location)
    discards.discard_due()
    assert taken(line, location=location).checkpoint == line.checkpoint(2)


def test_deleting_what_cannot_be_deleted_is_tried_again(
    line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    savepoint = taken(line)
    operation = savepoints.delete(None, savepoint.pk)

    def fail(*_: Any) -> None:
        raise StorageError("the disk is away")

    with monkeypatch.context() as broken:
        broken.setattr(discards, "delete_files", fail)
        discards.discard_due()
    assert ended(operation).status == "running"
    assert "the disk is away" in line.checkpoint(1).discard_error
    jobs.pass_time(line.checkpoint(1), 60, "discard_due_at")
    discards.discard_due()
    assert ended(operation).status == "succeeded"


def test_savepoint_being_taken_is_not_deleted(line: Line) -> None:
    savepoints.take(None, line.job_id)
    with pytest.raises(WrongState, match="pending"):
        savepoints.delete(None, Savepoint.objects.get().pk)


def needed_by(savepoint: Savepoint) -> list[str]:
    with pytest.raises(WrongState) as refused:
        savepoints.delete(None, savepoint.pk)
    needed: list[str] = refused.value.extra["needed_by"]
    return needed


def test_savepoint_that_a_job_begins_with_is_needed(line: Line) -> None:
    savepoint = taken(line)
    other = jobs.submitted(options={"restore": savepoint.location})
    assert needed_by(savepoint) == [
        f"{other.pk} begins with it until it has a checkpoint of its own from there"
    ]
    assert (other.restore_job, other.restore_number) == (line.job, 1)
    assert (other.origin, other.origin_uri) == (line.job, savepoint.location)


@pytest.mark.parametrize("spelling", ["file://{}", "/{}/", "{}/manifest", "file://localhost{}"])
def test_savepoint_is_known_by_every_name_of_its_place(line: Line, spelling: str) -> None:
    savepoint = taken(line)
    other = jobs.submitted(options={"restore": spelling.format(savepoint.location)})
    assert (other.restore_job, other.restore_number) == (line.job, 1)


def test_claimed_savepoint_is_no_other_jobs_to_claim(line: Line) -> None:
    savepoint = taken(line)
    options = {"restore": savepoint.location, "claims": True}
    first = jobs.submitted(options=options)
    with pytest.raises(Invalid, match=f"claimed by {first.pk}"):
        jobs.submitted(options=options)
    services.cancel(None, first.pk)
    second = jobs.submitted(options=options)
    assert Savepoint.objects.get().claimed_by == second


def test_claimed_savepoint_is_needed_until_its_claimant_is_over(line: Line) -> None:
    savepoint = taken(line)
    other = jobs.submitted(options={"restore": savepoint.location, "claims": True})
    Job.objects.filter(pk=other.pk).update(restore_job=None, restore_number=None)
    assert needed_by(savepoint) == [f"{other.pk} has claimed it and is created"]
    services.cancel(None, other.pk)
    assert savepoints.delete(None, savepoint.pk).status == "running"


def test_claimed_savepoint_goes_once_its_claimant_has_enough_checkpoints(line: Line) -> None:
    savepoint = taken(line)
    put_files(savepoint)
    job = jobs.submitted(options={"restore": savepoint.location, "claims": True})
    claimant = Line.for_job(job)
    claimant.come_up(1, restored=1, retained_max=2)
    for number in (1, 2):
        assert savepoints.let_claimed_go() == 0
        claimant.post(CheckpointRequested(f"r{number}"))
        claimant.complete(number)
    assert savepoints.let_claimed_go() == 1
    assert discards.discard_due() == 1
    assert not Path(savepoint.location).exists()
    assert savepoints.let_claimed_go() == 0


def test_job_does_not_begin_with_what_was_deleted(line: Line) -> None:
    savepoint = taken(line)
    savepoints.delete(None, savepoint.pk)
    with pytest.raises(Invalid, match="was deleted"):
        jobs.submitted(options={"restore": savepoint.location})


@pytest.mark.django_db(transaction=True)
def test_one_of_two_wins_who_want_a_savepoint_gone_and_to_begin_with_it() -> None:
    line = Line.running()
    for name in ("a", "b", "c"):
        savepoint = taken(line, name=name)
        outcomes = jobs.at_once(
            partial(savepoints.delete, None, savepoint.pk),
            partial(jobs.submitted, options={"restore": savepoint.location}),
        )
        refused = [outcome for outcome in outcomes if isinstance(outcome, Refusal)]
        assert len(refused) == 1, outcomes
        is_gone = Savepoint.objects.get(name=name).deleted_at is not None
        assert is_gone is isinstance(refused[0], Invalid)
    connection.close()


@pytest.mark.django_db(transaction=True)
def test_two_jobs_at_the_same_moment_do_not_save_into_one_place(tmp_path: Path) -> None:
    lines = [Line.running(), Line.running()]
    takes = [
        partial(savepoints.take, None, line.job_id, location=str(tmp_path / "mine"))
        for line in lines
    ]
    outcomes = jobs.at_once(*takes)
    assert sorted(isinstance(outcome, Invalid) for outcome in outcomes) == [False, True]
    connection.close()


def test_checkpoint_that_another_job_begins_with_is_not_discarded(db: None) -> None:
    line = Line.running(retained_max=1)
    for number in (1, 2):
        line.post(CheckpointRequested(f"r{number}"))
        if number == 1:
            line.complete(1)
            other = jobs.submitted(
                options={"restore": locations.path_of(line.job, CheckpointId(1))}
            )
    line.complete(2)
    assert line.statuses() == {1: "subsumed", 2: "completed"}
    assert discards.discard_due() == 0
    assert line.checkpoint(1).discarded_at is None
    Job.objects.filter(pk=other.pk).update(restore_job=None, restore_number=None)
    jobs.pass_time(line.checkpoint(1), 60, "discard_due_at")
    assert discards.discard_due() == 1
