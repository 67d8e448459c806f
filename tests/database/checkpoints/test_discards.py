"""Files of checkpoints are deleted once unused, and not before."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, CoordinatorRow, SubtaskAck
from checkpoints.operations import previews
from checkpoints.retention import discards, sweep
from controlplane.base import clock
from jobs import operations
from jobs.models import Attempt, Job, Operation
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.storage import files, put_shared, put_state, shared_name
from tests.database.jobs import builders as jobs
from weir.errors import StorageError
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.messages import CheckpointGivenUp, CheckpointRequested
from weir.storage.local import LocalStore
from weir.storage.manifest import Tombstone, dump, load

pytestmark = pytest.mark.django_db

STATE = "sink-0-counts"


def completed(line: Line, *numbers: int) -> None:
    """Checkpoints that completed, with a file each."""
    for number in numbers:
        put_state(line.job, number)
        line.post(CheckpointRequested(f"r{number}"))
        line.complete(number)


def aborted(line: Line, number: int) -> None:
    """A checkpoint that was given up by the driver while the control plane could not reach it."""
    put_state(line.job, number, complete=False)
    line.post(CheckpointRequested(f"r{number}"))
    reason = FailureReason.CONTROL_PLANE_AWAY
    line.post(CheckpointGivenUp(1, number, reason, "away"))  # type: ignore[arg-type]


def test_what_was_let_go_is_deleted(db: None) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1, 2)
    assert discards.discard_due() == 1
    assert files(line.job) == [f"chk-2/1/{STATE}", "chk-2/manifest"]
    row = line.checkpoint(1)
    assert (row.status, row.discard_due_at) == ("discarded", None)
    assert row.discarded_at is not None
    assert discards.discard_due() == 0


def test_the_manifest_goes_first(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker is killed in between: what is left must not look like a checkpoint."""
    line = Line.running(retained_max=1)
    completed(line, 1, 2)

    def killed(store: LocalStore, directory: str) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete_prefix", killed)
        with pytest.raises(KeyboardInterrupt):
            discards.discard_due()
    assert f"chk-1/1/{STATE}" in files(line.job)
    assert "chk-1/manifest" not in files(line.job)
    assert discards.discard_due() == 0, "the killed worker's lease still runs"
    jobs.pass_time(line.checkpoint(1), discards.LEASE_S, "discard_due_at")
    assert discards.discard_due() == 1
    assert line.statuses()[1] == "discarded"


def test_an_aborted_one_loses_its_attempts_files_and_keeps_its_tombstone(line: Line) -> None:
    aborted(line, 1)
    store, layout = locations.store_of(line.job), locations.layout_of(line.job)
    store.put(f"{layout.checkpoint(1)}/manifest", b"a tombstone")  # type: ignore[arg-type]
    assert discards.discard_due() == 1
    assert files(line.job) == ["chk-1/manifest"]
    row = line.checkpoint(1)
    assert row.status == "aborted"
    assert row.discarded_at is not None


def test_a_failure_is_noted_and_tried_again_later(
    db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1, 2)
    waits = []
    with monkeypatch.context() as patch:

        def broken(store: LocalStore, directory: str) -> None:
            raise StorageError("the bucket is away")

        patch.setattr(LocalStore, "delete_prefix", broken)
        for _ in range(3):
            before = clock.now()
            assert discards.discard_due() == 0
            after = clock.now()
            row = line.checkpoint(1)
            assert row.discard_error == "the bucket is away"
            assert row.status == "subsumed"
            waits.append((row.discard_due_at - after, row.discard_due_at - before))
            jobs.pass_time(row, waits[-1][1].total_seconds() + 1, "discard_due_at")
    for (least, most), factor in zip(waits, (1, 2, 4), strict=True):
        assert least <= factor * timedelta(seconds=discards.BACKOFF_MIN_S) <= most
    assert discards.discard_due() == 1
    row = line.checkpoint(1)
    assert (row.status, row.discard_error, row.discard_tries) == ("discarded", "", 0)


def test_nothing_that_is_needed_is_deleted(db: None) -> None:
    """Due rows of what is retained, restored from, or built upon: a bug, and still no loss."""
    line = Line.running(retained_max=2)
    completed(line, 1, 2, 3)
    Attempt.objects.filter(job=line.job_id).update(restored_checkpoint=1)
    Checkpoint.objects.filter(number__in=(2, 3)).update(discard_due_at=clock.now())
    assert discards.discard_due() == 0
    assert len(files(line.job)) == 6
    assert Checkpoint.objects.filter(discard_due_at__gt=clock.now()).count() == 3
    Attempt.objects.filter(job=line.job_id).update(ended_at=clock.now())
    jobs.pass_time(line.checkpoint(1), 60, "discard_due_at")
    assert discards.discard_due() == 1


@pytest.mark.parametrize(
    "preview",
    [
        lambda job: previews.restore(None, job, restore=1),
        lambda job: previews.rollback(None, job, checkpoint=1),
    ],
    ids=["restore", "rollback"],
)
def test_a_checkpoint_stays_until_its_preview_has_ended(
    db: None, preview: Callable[[str], Operation]
) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1)
    operation = preview(line.job_id)
    completed(line, 2)
    assert line.statuses()[1] == "subsumed"
    assert discards.discard_due() == 0
    assert f"chk-1/1/{STATE}" in files(line.job)
    operations.succeed(operation, {})
    jobs.pass_time(line.checkpoint(1), discards.NEEDED_AGAIN_S, "discard_due_at")
    assert discards.discard_due() == 1
    assert line.statuses()[1] == "discarded"


def test_completed_ones_stay_while_a_driver_may_be_restoring(db: None) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1, 2)
    line.post(jobs.changed(JobStatus.FAILING))
    assert discards.discard_due() == 0
    line.post(jobs.changed(JobStatus.RESTARTING), *jobs.coming_up(2))
    assert discards.discard_due() == 1


def test_a_locked_job_is_left_for_later(
    transactional_db: None,
) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1, 2)

    def hold() -> int:
        from django.db import transaction

        with transaction.atomic():
            Job.objects.select_for_update().get(pk=line.job_id)
            (count,) = jobs.at_once(discards.discard_due)
            return int(count)

    assert hold() == 0
    assert sum(jobs.at_once(*[discards.discard_due] * 4)) == 1
    connection.close()


def test_stray_files_of_given_up_checkpoints_are_found(line: Line) -> None:
    """A subtask was still writing when the directory was deleted."""
    aborted(line, 1)
    discards.discard_due()
    put_state(line.job, 1, complete=False)
    sweep.clean_next()
    assert discards.discard_due() == 0, "a late writer may not be done"
    jobs.pass_time(line.checkpoint(1), sweep.LATE_S, "settled_at")
    CoordinatorRow.objects.update(swept_at=None)
    sweep.clean_next()
    assert discards.discard_due() == 1
    assert files(line.job) == []


def test_files_that_may_belong_to_a_manifest_are_kept_until_that_is_known(line: Line) -> None:
    for number, is_written in ((1, True), (2, False)):
        put_state(line.job, number, complete=is_written)
        line.post(CheckpointRequested(f"r{number}"), *protocol.acks(number))
        line.post(protocol.not_written(number, may_exist=True))
        jobs.pass_time(line.checkpoint(number), sweep.LATE_S, "settled_at")
    # The first failure made the driver restart its attempt; the coordinator goes on regardless.
    sweep.clean_next()
    discards.discard_due()
    assert files(line.job) == [f"chk-1/1/{STATE}", "chk-1/manifest", "chk-2/manifest"]
    store, layout = locations.store_of(line.job), locations.layout_of(line.job)
    assert isinstance(load(store.read(layout.manifest(2))), Tombstone)  # type: ignore[arg-type]


def test_a_shared_file_goes_with_the_last_checkpoint_that_names_it(db: None) -> None:
    line = Line.running(retained_max=1)
    for number, named in ((1, ()), (2, (1,)), (3, (2,))):
        put_shared(line.job, number, *named)
        line.post(CheckpointRequested(f"r{number}"))
        line.complete(number)
        discards.discard_due()
        kept = {shared_name(number), *map(shared_name, named)}
        assert {path for path in files(line.job) if path.startswith("shared/")} == kept
    assert line.statuses() == {1: "discarded", 2: "discarded", 3: "completed"}


def test_shared_files_of_a_checkpoint_that_came_to_nothing_go_and_no_others(line: Line) -> None:
    put_shared(line.job, 1)
    line.post(CheckpointRequested("r1"))
    line.complete(1)
    line.post(CheckpointRequested("r2"))
    put_shared(line.job, 2, complete=False)
    reason = FailureReason.CONTROL_PLANE_AWAY
    line.post(CheckpointGivenUp(1, 2, reason, "away"))  # type: ignore[arg-type]
    assert discards.discard_due() == 1
    assert files(line.job) == ["chk-1/manifest", shared_name(1)]


def test_shared_files_that_a_crash_left_are_found(line: Line) -> None:
    """A worker died between a manifest and the files that it shared; another was late."""
    for number in (1, 2):
        put_shared(line.job, number, *range(1, number))
        line.post(CheckpointRequested(f"r{number}"))
        line.complete(number)
    put_shared(line.job, 3, complete=False)  # Of a checkpoint under way.
    line.post(CheckpointRequested("r3"))
    locations.store_of(line.job).put(f"{line.job_id}/{shared_name(1)}-late", b"")
    everything = files(line.job)
    sweep.clean_next()
    assert files(line.job) == everything, "a late writer may not be done"
    for number in (1, 2):
        jobs.pass_time(line.checkpoint(number), sweep.LATE_S, "settled_at")
    CoordinatorRow.objects.update(swept_at=None)
    sweep.clean_next()
    assert [path for path in everything if path not in files(line.job)] == [
        f"{shared_name(1)}-late"
    ]


def test_files_without_a_row_go_where_their_number_was_used(line: Line) -> None:
    completed(line, 1)
    line.post(CheckpointRequested("r2"))
    Checkpoint.objects.filter(number=2).delete()
    put_state(line.job, 2, complete=False)
    put_state(line.job, 9, complete=False)
    sweep.clean_next()
    assert files(line.job) == [f"chk-1/1/{STATE}", "chk-1/manifest", f"chk-9/1/{STATE}"]


def test_each_job_gets_its_turn(db: None) -> None:
    lines = [Line.running(), Line.running()]
    turns = {sweep.clean_next(), sweep.clean_next()}
    assert turns == {line.job_id for line in lines}
    assert sweep.clean_next() is None
    lines[0].post(jobs.changed(JobStatus.FINISHED))
    row = CoordinatorRow.objects.get(job=lines[0].job_id)
    jobs.pass_time(row, sweep.CLEANED_EVERY_S, "swept_at")
    assert sweep.clean_next() == lines[0].job_id
    jobs.pass_time(row, sweep.CLEANED_EVERY_S, "swept_at")
    jobs.pass_time(lines[0].job, 2 * sweep.CLEANED_AFTER_END_S, "ended_at")
    assert sweep.clean_next() is None


def test_a_storage_that_cannot_be_listed_holds_up_no_other_job(line: Line, storage: Path) -> None:
    storage.rename(storage.with_name("aside"))
    storage.write_text("no directory")
    assert sweep.clean_next() == line.job_id
    assert discards.discard_due() == 0


def test_details_are_kept_for_the_newest_the_failed_and_savepoints(db: None, settings: Any) -> None:
    settings.WEIR_DETAILED_CHECKPOINTS = 2
    line = Line.running()
    completed(line, 1, 2)
    aborted(line, 3)
    completed(line, 4, 5)
    Checkpoint.objects.filter(number=1).update(kind="savepoint")
    assert sweep.trim_details() == 1
    detailed = Checkpoint.objects.filter(has_details=True).order_by("number")
    assert list(detailed.values_list("number", flat=True)) == [1, 3, 4, 5]
    assert set(SubtaskAck.objects.values_list("checkpoint__number", flat=True)) == {1, 4, 5}
    assert sweep.trim_details() == 0


def test_a_tombstone_stays_for_who_comes_late(line: Line) -> None:
    aborted(line, 1)
    layout = locations.layout_of(line.job)
    tombstone = Tombstone(
        job_id=line.job_id,  # type: ignore[arg-type]
        checkpoint_id=1,  # type: ignore[arg-type]
        attempt=1,  # type: ignore[arg-type]
        given_up_ms=0,
        reason="",
    )
    locations.store_of(line.job).put(layout.manifest(1), dump(tombstone))  # type: ignore[arg-type]
    discards.discard_due()
    jobs.pass_time(line.checkpoint(1), sweep.LATE_S, "settled_at")
    sweep.clean_next()
    assert discards.discard_due() == 0
    assert files(line.job) == ["chk-1/manifest"]
