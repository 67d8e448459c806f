"""Lost drivers, ended and reopened jobs, and manifests that no driver will report."""

import shutil
import threading
from pathlib import Path
from typing import Any

import pytest

from checkpoints import job_hooks
from checkpoints.catalog import locations
from checkpoints.models import CoordinatorRow
from checkpoints.operations import savepoints
from checkpoints.retention import discards, finalization, sweep
from controlplane.accounts.models import User
from controlplane.base.errors import DriverFenced, WrongState
from jobs import due_jobs as job_recovery
from jobs import services as job_services
from jobs.drivers import driver_files
from jobs.drivers.driver_account import driver_account
from jobs.models import Driver, DriverStatus
from tests import builders as protocol
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.storage import files, manifest, put_state
from tests.database.jobs import builders as jobs
from weir.config import Retention
from weir.errors import StorageError
from weir.jobmaster.restorer import JobProgress
from weir.managed.job_file import read_job_file
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import CheckpointRequested, CheckpointsRestored, JobEnded
from weir.storage.local import LocalStore
from weir.storage.manifest import Tombstone, dump, load

pytestmark = pytest.mark.django_db


def finalizing(line: Line, number: int = 1) -> None:
    """Everybody has acknowledged; the driver is writing the manifest."""
    line.post(CheckpointRequested(f"r{number}"), *protocol.acks(number))
    assert line.statuses()[number] == "finalizing"


def path_of(line: Line, number: int = 1) -> str:
    return locations.layout_of(line.job).manifest(number)  # type: ignore[arg-type]


def test_a_lost_driver_gives_up_what_is_pending(line: Line, operator: User) -> None:

    operation = savepoints.request_checkpoint(operator, line.job_id)
    jobs.lose(line.job)
    row = line.checkpoint(1)
    assert (row.status, row.reason) == ("failed", "job_failover")
    operation.refresh_from_db()
    assert operation.status == "failed"
    assert "job failover" in operation.error
    assert line.state.plan is None


def test_no_driver_is_launched_before_the_manifest_is_settled(line: Line) -> None:
    finalizing(line)
    jobs.lose(line.job)
    assert jobs.driver_of(line.job).number == 1
    assert job_recovery.relaunch_due() == 0
    assert finalization.settle_driverless() == 1
    assert job_recovery.relaunch_due() == 1
    assert jobs.driver_of(line.job).number == 2


def test_a_manifest_that_was_written_completes_its_checkpoint(line: Line) -> None:
    finalizing(line)
    store = locations.store_of(line.job)
    assert store.create_if_absent(path_of(line), dump(manifest(line.job_id, 1)))
    jobs.lose(line.job)
    finalization.settle_driverless()
    assert line.statuses() == {1: "completed"}
    assert line.state.latest_completed_id == 1


def test_a_manifest_that_was_not_written_never_will_be(line: Line) -> None:
    """The driver was frozen while it wrote, was given up, and goes on: it finds the key taken."""
    finalizing(line)
    jobs.lose(line.job)
    assert finalization.settle_driverless() == 1
    row = line.checkpoint(1)
    assert (row.status, row.reason) == ("failed", "finalize_checkpoint_failure")
    assert row.discard_due_at is not None
    store = locations.store_of(line.job)
    assert not store.create_if_absent(path_of(line), dump(manifest(line.job_id, 1)))
    assert isinstance(load(store.read(path_of(line))), Tombstone)
    with pytest.raises(DriverFenced):
        line.post(protocol.written(1))
    assert line.statuses() == {1: "failed"}


def test_settling_and_a_zombies_write_agree_in_either_order(db: None) -> None:
    """Both at once, again and again: what the row says is what lies in the storage."""
    for _ in range(10):
        line = Line.running()
        finalizing(line)
        jobs.lose(line.job)
        store = locations.store_of(line.job)
        gate = threading.Barrier(2)
        created: list[bool] = []

        def write(store: Any = store, line: Line = line, gate: Any = gate) -> None:
            data, path = dump(manifest(line.job_id, 1)), f"{line.job_id}/chk-1/manifest"
            gate.wait(10)
            created.append(store.create_if_absent(path, data))  # noqa: B023 - joined below.

        zombie = threading.Thread(target=write)
        zombie.start()
        gate.wait(10)
        finalization.settle_driverless()
        zombie.join(10)
        assert line.statuses() == {1: "completed" if created[0] else "failed"}


def test_a_damaged_manifest_aborts_and_keeps_the_files(line: Line) -> None:
    finalizing(line)
    locations.store_of(line.job).put(path_of(line), b"half of")
    jobs.lose(line.job)
    finalization.settle_driverless()
    row = line.checkpoint(1)
    assert (row.status, row.discard_due_at) == ("failed", None)


def test_a_storage_that_is_away_leaves_the_checkpoint_and_says_so(
    line: Line, storage: Path
) -> None:
    finalizing(line)
    jobs.lose(line.job)
    aside = storage.rename(storage.with_name("aside"))
    storage.write_text("a file where the directory should be")
    assert finalization.settle_driverless() == 0
    row = line.checkpoint(1)
    assert row.status == "finalizing"
    assert "cannot be settled yet" in row.cause
    storage.unlink()
    aside.rename(storage)
    assert finalization.settle_driverless() == 1
    assert "cannot be settled" not in line.checkpoint(1).cause
    assert line.statuses() == {1: "failed"}


def test_a_live_driver_settles_its_own(line: Line) -> None:
    finalizing(line)
    assert finalization.settle_driverless() == 0


def test_a_driver_that_winds_up_is_waited_for(line: Line) -> None:
    finalizing(line)
    line.post(jobs.changed(JobStatus.FINISHED))
    assert line.driver.status == DriverStatus.ENDED
    assert finalization.settle_driverless() == 0
    line.post(protocol.written(1), JobEnded(JobStatus.FINISHED))
    assert line.statuses() == {1: "completed"}

    other = Line.running()
    finalizing(other)
    other.post(jobs.changed(JobStatus.FINISHED))
    jobs.pass_time(other.driver, 60, "heard_at")
    assert finalization.settle_driverless() == 1


def test_the_end_is_told_where_the_driver_could_not(line: Line) -> None:
    line.post(CheckpointRequested("r1"), jobs.changed(JobStatus.FINISHED))
    assert sweep.end_driverless() == 0
    jobs.pass_time(line.driver, 60, "heard_at")
    assert sweep.end_driverless() == 1
    assert line.state.ended is JobStatus.FINISHED
    assert line.statuses() == {1: "aborted"}
    assert sweep.end_driverless() == 0


def test_a_job_ended_from_here_keeps_its_checkpoints(line: Line, operator: User) -> None:
    line.post(CheckpointRequested("r1"), *protocol.acks(1), protocol.written(1))
    line.post(CheckpointRequested("r2"))
    job_services.cancel(operator, line.job_id)
    jobs.pass_time(line.job, 60, "cancel_due_at")
    assert job_recovery.cancel_due() == 1
    assert line.job.status == JobStatus.CANCELED
    assert line.statuses() == {1: "completed", 2: "aborted"}
    assert line.checkpoint(1).discard_due_at is None
    assert line.state.ended is JobStatus.CANCELED


def test_a_cancelled_job_goes_on_from_what_was_kept(line: Line, operator: User) -> None:
    line.post(CheckpointRequested("r1"), *protocol.acks(1), protocol.written(1))
    line.post(
        jobs.changed(JobStatus.CANCELLING),
        jobs.changed(JobStatus.CANCELED),
        JobEnded(JobStatus.CANCELED),
    )
    job_services.restart(operator, line.job_id)
    assert line.state.ended is None
    again = Line.for_job(line.job)
    again.come_up(2, restored=1)
    again.post(CheckpointRequested("r2"))
    again.complete(2, attempt=2)
    assert again.statuses() == {1: "completed", 2: "completed"}
    assert again.checkpoint(2).parent == again.checkpoint(1)


def test_the_next_driver_is_told_what_the_storage_has_to_hold(line: Line, tmp_path: Path) -> None:
    def told() -> JobProgress:
        account = driver_account()
        driver = jobs.driver_of(line.job)
        made = driver_files.prepare(line.job, driver, "a token", account, shipped=False)
        return read_job_file(made / driver_files.JOB_FILE_NAME).progress

    line.post(CheckpointRequested("r1"), *protocol.acks(1))
    assert told() == JobProgress(attempt=1, checkpoint=0)
    shutil.rmtree(tmp_path / "drivers")
    line.post(protocol.written(1))
    line.post(CheckpointRequested("r2"))
    line.complete(2)
    line.post(CheckpointRequested("r3"))
    jobs.lose(line.job)
    assert jobs.driver_of(line.job).number == 2
    assert told() == JobProgress(attempt=1, checkpoint=2)


def test_the_first_driver_is_told_of_none_before_it(db: None) -> None:
    """A driver of an earlier version refuses a field that it does not know."""
    job = jobs.submitted()
    driver = jobs.driver_of(job)
    assert "progress" not in driver_files.job_file(job, driver, "a token", shipped=False)


def test_a_checkpoint_that_the_end_let_go_is_not_asked_for(operator: User) -> None:
    line = cancelled_with_deletion(operator)
    assert job_hooks.newest_kept(line.job) == 0
    assert discards.discard_due() == 1
    told = driver_files.job_file(line.job, jobs.driver_of(line.job), "a token", shipped=False)
    assert told["progress"] == {"attempt": 1, "checkpoint": 0}


def test_a_restart_waits_for_a_manifest_of_the_end(line: Line, operator: User) -> None:
    finalizing(line)
    line.post(
        jobs.changed(JobStatus.CANCELLING),
        jobs.changed(JobStatus.CANCELED),
        JobEnded(JobStatus.CANCELED),
    )
    with pytest.raises(WrongState, match="still being settled"):
        job_services.restart(operator, line.job_id)
    jobs.pass_time(line.driver, 60, "heard_at")
    finalization.settle_driverless()
    job_services.restart(operator, line.job_id)


def test_a_job_whose_driver_never_spoke_ends_without_a_coordinator(
    operator: User, db: None
) -> None:
    job = jobs.submitted()
    job_services.cancel(operator, job.pk)
    assert not CoordinatorRow.objects.filter(job=job).exists()
    job_services.restart(operator, job.pk)
    assert Driver.objects.filter(job=job).count() == 2


def cancelled_with_deletion(operator: User) -> Line:
    """A job with one checkpoint, which the job's end lets go; and it is wanted again at once."""
    line = Line.running(retention=Retention.DELETE_ON_CANCELLATION)
    line.post(CheckpointRequested("r1"), *protocol.acks(1), protocol.written(1))
    put_state(line.job, 1)
    line.post(
        jobs.changed(JobStatus.CANCELLING),
        jobs.changed(JobStatus.CANCELED),
        JobEnded(JobStatus.CANCELED),
    )
    job_services.restart(operator, line.job_id)
    return line


def test_a_driver_is_not_launched_into_a_deletion(operator: User) -> None:
    """The new driver must not find a checkpoint whose files are about to go."""
    line = cancelled_with_deletion(operator)
    assert job_recovery.relaunch_due() == 0
    assert discards.discard_due() == 1
    assert files(line.job) == []
    assert job_recovery.relaunch_due() == 1


def test_what_could_not_be_deleted_is_of_use_again(
    operator: User, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = cancelled_with_deletion(operator)

    def broken(store: LocalStore, path: str) -> None:
        raise StorageError("the disk is broken")

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "delete", broken)
        assert discards.discard_due() == 0
    assert job_recovery.relaunch_due() == 1, "it holds up no relaunch"
    jobs.pass_time(line.checkpoint(1), 60, "discard_due_at")
    assert discards.discard_due() == 0, "the driver may be restoring from it"
    again = Line.for_job(line.job)
    again.post(
        jobs.planned(),
        CheckpointsRestored((protocol.completed(1),), 2),  # type: ignore[arg-type]
    )
    assert again.checkpoint(1).discard_due_at is None
    assert again.state.latest_completed_id == 1
