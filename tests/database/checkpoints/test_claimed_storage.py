"""A storage that is not the job's, as a share that is not mounted where the workers run.

Nothing is taken for deleted there, no checkpoint is settled by it, and no tombstone is written.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

import pytest

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, CoordinatorRow
from checkpoints.operations import savepoints
from checkpoints.retention import discards, finalization, sweep
from checkpoints.verdict import queries
from controlplane.base import clock
from jobs.models import Job, Operation
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.storage import files, manifest
from tests.database.checkpoints.test_discards import completed
from tests.database.jobs import builders as jobs
from weir.config import Retention
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import CheckpointRequested, JobEnded
from weir.storage.attempt_claims import ManagedClaim
from weir.storage.manifest import dump

pytestmark = pytest.mark.django_db

COPY = "https://copy.example"


@contextmanager
def unmounted(storage: Path) -> Iterator[None]:
    """An empty directory in the storage's place, which stays empty."""
    aside = storage.with_name("aside")
    storage.rename(aside)
    storage.mkdir()
    yield
    assert list(storage.iterdir()) == []
    storage.rmdir()
    aside.rename(storage)


def let_due(line: Line, number: int) -> None:
    jobs.pass_time(line.checkpoint(number), 60, "discard_due_at")


def test_files_are_deleted_once_the_storage_is_the_jobs(db: None, storage: Path) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1, 2)
    with unmounted(storage):
        assert discards.discard_due() == 0
        row = line.checkpoint(1)
        assert (row.status, row.discarded_at) == ("subsumed", None)
        assert f"see {storage} without attempt 1 of the job" in row.discard_error
        let_due(line, 1)
    assert {path.split("/")[0] for path in files(line.job)} == {"chk-1", "chk-2"}
    assert discards.discard_due() == 1
    assert {path.split("/")[0] for path in files(line.job)} == {"chk-2"}
    assert line.checkpoint(1).discard_error == ""


def test_a_copy_from_before_the_newest_attempt_is_not_the_storage(db: None, storage: Path) -> None:
    line = Line.running(attempt=2, retained_max=1)
    for number in (1, 2):
        line.post(CheckpointRequested(f"r{number}"))
        line.complete(number, attempt=2)
    claim = storage / line.job_id / "attempts"
    (claim / "2").rename(claim / "1")
    assert discards.discard_due() == 0
    assert "without attempt 2 of the job" in line.checkpoint(1).discard_error
    (claim / "1").rename(claim / "2")
    let_due(line, 1)
    assert discards.discard_due() == 1


@pytest.mark.parametrize("is_cancelled", [True, False])
def test_files_that_another_control_planes_driver_may_restore_are_not_deleted(
    db: None, storage: Path, *, is_cancelled: bool
) -> None:
    line = Line.running(retained_max=1, retention=Retention.DELETE_ON_CANCELLATION)
    completed(line, 1, 2)
    attempts = storage / line.job_id / "attempts"
    (attempts / "2").write_bytes(ManagedClaim.with_token(COPY, "its driver's token").dump())
    if is_cancelled:
        ended = JobStatus.CANCELED
        line.post(jobs.changed(JobStatus.CANCELLING), jobs.changed(ended), JobEnded(ended))
        assert line.checkpoint(2).discard_due_at is not None, "there was something to delete"
    assert discards.discard_due() == 0
    error = line.checkpoint(1).discard_error
    assert "attempt 2 of the job was claimed" in error
    assert f"a driver of the control plane at {COPY}" in error
    assert {path.split("/")[0] for path in files(line.job)} == {"chk-1", "chk-2"}
    (attempts / "3").write_bytes(ManagedClaim.with_token("", line.token).dump())
    for number in (1, 2)[: 1 + is_cancelled]:
        let_due(line, number)
    assert discards.discard_due() == 1 + is_cancelled
    assert "chk-1" not in {path.split("/")[0] for path in files(line.job)}


def test_a_checkpoint_is_settled_though_another_control_planes_driver_has_the_job(
    line: Line, storage: Path
) -> None:
    """The job's next driver waits for that, as one that lost its newest commits would for ever."""
    line.post(CheckpointRequested("r1"), *protocol.acks(1))
    claim = ManagedClaim.with_token(COPY, "its driver's token")
    (storage / line.job_id / "attempts" / "2").write_bytes(claim.dump())
    jobs.lose(line.job)
    assert finalization.settle_driverless() == 1
    assert line.statuses() == {1: "failed"}


def test_a_claim_of_an_older_version_holds_nothing_up(db: None, storage: Path) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1, 2)
    (storage / line.job_id / "attempts" / "2").write_bytes(b'{"managed": true}')
    assert discards.discard_due() == 1


def test_the_deletion_of_a_savepoint_succeeds_once_its_files_are_gone(
    line: Line, storage: Path
) -> None:
    savepoints.take(None, line.job_id, name="before")
    line.complete(1)
    directory = storage / "savepoints" / line.job_id / "before"
    directory.mkdir(parents=True)
    (directory / "manifest").write_bytes(dump(manifest(line.job_id, 1)))
    operation = savepoints.delete(None, line.checkpoint(1).savepoint.pk)
    with unmounted(storage):
        discards.discard_due()
        assert Operation.objects.get(pk=operation.pk).status == "running"
        let_due(line, 1)
    assert directory.exists()
    discards.discard_due()
    assert Operation.objects.get(pk=operation.pk).status == "succeeded"
    assert not directory.exists()


@pytest.mark.parametrize("is_written", [True, False])
def test_a_lost_drivers_manifest_is_looked_for_in_the_jobs_storage(
    line: Line, storage: Path, *, is_written: bool
) -> None:
    line.post(CheckpointRequested("r1"), *protocol.acks(1))
    path = locations.layout_of(line.job).manifest(CheckpointId(1))
    if is_written:
        locations.store_of(line.job).put(path, dump(manifest(line.job_id, 1)))
    jobs.lose(line.job)
    with unmounted(storage):
        assert finalization.settle_driverless() == 0
        assert line.statuses() == {1: "finalizing"}
        verdict = queries.of_checkpoint(line.checkpoint(1))
        assert verdict.headline.startswith("The checkpoint cannot be settled yet: ")
        assert "without attempt 1 of the job" in verdict.headline
    assert finalization.settle_driverless() == 1
    assert line.statuses() == {1: "completed" if is_written else "failed"}


def test_no_savepoint_is_given_up_in_another_storage(line: Line, storage: Path) -> None:
    """Its manifest may exist: a tombstone in its place would say that it never will."""
    savepoints.take(None, line.job_id)
    line.post(*protocol.acks(1), protocol.not_written(1, may_exist=True))
    jobs.pass_time(line.checkpoint(1), sweep.LATE_S, "settled_at")
    with unmounted(storage):
        assert sweep.clean_next() == line.job_id
        assert line.checkpoint(1).discard_due_at is None
    CoordinatorRow.objects.update(swept_at=None)
    sweep.clean_next()
    assert line.checkpoint(1).discard_due_at is not None


def test_a_directory_that_was_cleared_after_the_jobs_end_holds_nothing_up(
    db: None, storage: Path
) -> None:
    line = Line.running(retained_max=1)
    completed(line, 1, 2)
    line.post(jobs.changed(JobStatus.FAILED))
    shutil.rmtree(storage / line.job_id)
    assert discards.discard_due() == 0
    assert "attempt 1" in line.checkpoint(1).discard_error
    let_due(line, 1)
    Job.objects.update(ended_at=clock.now() - locations.CLEARED_AFTER - timedelta(seconds=1))
    assert discards.discard_due() == 1
    assert line.checkpoint(1).status == "discarded"


def test_without_a_checkpoint_no_claim_is_asked_for(line: Line, storage: Path) -> None:
    """An upgrade may have led the job to a storage in which it has not begun."""
    shutil.rmtree(storage)
    assert not Checkpoint.objects.exists()
    store = locations.claimed_store_of(line.job)
    assert not store.exists(locations.layout_of(line.job).attempt(AttemptNumber(1)))
