"""The checkpoints of a job, and those that the job master restores."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.builders import subtask
from tests.unit.jobmaster.job_harness import (
    GRAPH,
    JOB,
    LAYOUT,
    NO_RESTART,
    JobHarness,
    delayed,
    exited,
    state_file,
    stored_checkpoint,
)
from weir.config import RestartConfig, Retention
from weir.errors import StorageError
from weir.graph.logical import JobGraph
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.jobmaster.restorer import JobProgress
from weir.protocol.events import AttemptStarted, CaughtUp, JobChanged, Recovered
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import SubtaskMetrics
from weir.storage.attempt_bases import bases_of
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import in_job
from weir.storage.local import LocalStore
from weir.storage.memory import MemoryStore
from weir.storage.store import WriteRefusedError


def test_a_failed_job_comes_back_from_its_last_checkpoint() -> None:
    job = JobHarness().running()
    assert [job.checkpointed(), job.checkpointed()] == [1, 2]
    assert job.completions == [(1, False), (2, False)]
    job.master.on_slot(exited(0))
    job.restarted()
    assert job.deploys[-1].restored_checkpoint == 2
    assert [e.restored_checkpoint for e in job.happened(AttemptStarted)] == [None, 2]
    assert job.checkpointed() == 3


def test_a_failure_while_the_manifest_is_written_restores_that_checkpoint() -> None:
    """A reader of the storage must find what the manifest's writer leaves there."""
    job = JobHarness().running()
    job.wait(1_000)
    job.acknowledge(1)
    job.master.on_slot(exited(0))  # The manifest is still to be written.
    job.wait(0)
    job.ready(0, 1)
    job.cluster.run()
    assert job.completions == []  # The old attempt commits nothing any more.
    assert job.deploys[-1].restored_checkpoint == 1


def test_a_storage_that_lost_the_newest_checkpoint_delays_the_job() -> None:
    """Nothing is restored, nor noted as restored, until it is there again."""
    job = JobHarness().running()
    assert [job.checkpointed(), job.checkpointed()] == [1, 2]
    manifest = LAYOUT.manifest(CheckpointId(2))
    data = job.store.read(manifest)
    job.store.delete(manifest)
    job.master.on_slot(exited(0))
    job.wait(0)
    job.cluster.run()
    assert job.statuses[-1] == "restarting"
    assert "checkpoint 2 was completed" in job.happened(JobChanged)[-2].cause
    assert sorted(bases_of(job.store, JOB)) == [1]
    job.store.put(manifest, data)
    job.alive()
    job.restarted(2_000)
    assert job.deploys[-1].restored_checkpoint == 2


def test_no_checkpoint_completes_in_another_directory_than_the_jobs() -> None:
    """As where the share with the storage was unmounted while the job runs."""
    job = JobHarness().running()
    assert job.checkpointed() == 1
    mounted = {path: job.store.read(path) for path in job.store.list()}
    for path in mounted:
        job.store.delete(path)
    job.wait(1_000)
    job.acknowledge(2)
    job.cluster.run()
    assert job.completions == [(1, False)]
    assert job.store.list() == []
    assert job.statuses[-1] == "restarting"
    assert any("lost the claim of attempt 1" in e.cause for e in job.happened(JobChanged))
    for path, data in mounted.items():
        job.store.put(path, data)
    job.alive()
    job.restarted(2_000)
    assert job.deploys[-1].restored_checkpoint == 1
    assert job.checkpointed() == 3


def writing_to(output: Path) -> JobGraph:
    """The harness's job, whose sink commits files."""
    source, sink = GRAPH.operators
    return replace(GRAPH, operators=(source, replace(sink, files=str(output))))


def test_each_attempt_is_claimed_in_the_output_before_it_is_deployed(tmp_path: Path) -> None:
    output, claims = tmp_path / "out", tmp_path / "out" / "_claims" / JOB
    job = JobHarness(job=writing_to(output)).deployed()
    assert {deploy.claimed_output for deploy in job.deploys} == {(str(output),)}
    assert [path.name for path in claims.iterdir()] == ["1"]
    job.subtasks(SubtaskStatus.RUNNING)
    job.master.on_slot(exited(0))
    job.restarted()
    assert job.deploys[-1].claimed_output == (str(output),)
    assert [path.name for path in claims.iterdir()] == ["2"]
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.status is JobStatus.FINISHED
    assert list(output.iterdir()) == []


def test_output_that_the_driver_does_not_see_is_written_unchecked(tmp_path: Path) -> None:
    """And the user is told, once."""
    tmp_path.joinpath("share").touch()  # No directory can be made below it.
    job = JobHarness(job=writing_to(tmp_path / "share" / "out")).running()
    job.master.on_slot(exited(0))
    job.restarted()
    assert {deploy.claimed_output for deploy in job.deploys} == {()}
    told = [notice for notice in job.notices if "nothing checks that all machines" in notice]
    assert len(told) == 1


def test_a_driver_goes_on_behind_what_the_control_plane_knows_of_earlier_ones() -> None:
    """Its storage is not the job's, and is mounted later."""
    mounted = MemoryStore()
    stored_checkpoint(mounted, 7)
    job = JobHarness(progress=JobProgress(attempt=4, checkpoint=7))
    job.master.start()
    job.register(0, 1)
    job.cluster.run()
    assert job.statuses[-1] == "restarting"
    assert "none of the job's is there" in job.happened(JobChanged)[-2].cause
    assert job.attempt == 5
    assert job.deploys == []
    for path in mounted.list():
        job.store.put(path, mounted.read(path))
    job.alive()
    job.restarted(2_000)
    assert job.deploys[-1].restored_checkpoint == 7


def test_replayed_records_and_catching_up_are_reported() -> None:
    def emitted(attempt: int, records: int) -> SubtaskMetrics:
        return SubtaskMetrics(
            AttemptNumber(attempt), subtask("source-0"), records, records, 0, 0, 0.0, 0.0, 0.0, None
        )

    job = JobHarness().running()
    job.checkpointed()  # At 20 records.
    job.master.on_worker(0, emitted(1, 50))
    job.master.on_slot(exited(0))
    job.restarted()
    assert job.happened(Recovered)[0].replayed_records == 30
    job.clock.ms += 40
    job.master.on_worker(0, emitted(2, 29))
    assert job.happened(CaughtUp) == []
    job.master.on_worker(0, emitted(2, 30))
    assert job.happened(CaughtUp)[0].catch_up_ms == 40


def test_a_driver_that_comes_later_goes_on_from_the_storage(tmp_path: Path) -> None:
    first = JobHarness(store=LocalStore(tmp_path)).running()
    first.checkpointed()
    second = JobHarness(store=LocalStore(tmp_path)).running()
    assert second.attempt == 2
    assert second.deploys[-1].restored_checkpoint == 1
    assert second.checkpointed() == 2


def test_of_two_drivers_the_older_one_stops_and_deletes_nothing(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"retention": Retention.NO_EXTERNALIZED_CHECKPOINTS}
    first = JobHarness(store=LocalStore(tmp_path), checkpoints=settings).running()
    first.checkpointed()
    second = JobHarness(store=LocalStore(tmp_path), checkpoints=settings).running()
    first.checkpointed()
    assert first.status is JobStatus.FAILED
    assert "another driver runs job now" in first.master.cause
    assert first.completions == [(1, False)]
    assert first.statuses[-2:] == ["failing", "failed"]
    assert LocalStore(tmp_path).exists(LAYOUT.manifest(CheckpointId(1)))
    assert second.checkpointed() == 2
    assert second.completions == [(2, False)]


def test_a_driver_that_lost_the_race_for_an_attempt_stops(tmp_path: Path) -> None:
    first, second = (JobHarness(store=LocalStore(tmp_path)) for _ in range(2))
    for job in (first, second):
        job.master.start()
        job.cluster.run(1)  # Both see no attempt.
    for job in (first, second):
        job.cluster.run()
    assert first.status is JobStatus.INITIALIZING
    assert second.status is JobStatus.FAILED


def test_a_driver_that_was_replaced_while_it_looked_for_a_checkpoint_deploys_nothing(
    tmp_path: Path,
) -> None:
    """Its sinks would take back what those of its successor have committed meanwhile."""
    first = JobHarness(store=LocalStore(tmp_path))
    first.master.start()
    first.register(0, 1)
    first.ready(0, 1)
    first.cluster.run(2)  # It has seen no attempt, and claimed the first.
    second = JobHarness(store=LocalStore(tmp_path)).running()
    assert second.checkpointed() == 1
    first.cluster.run()
    assert "another driver runs job now" in first.master.cause
    assert first.deploys == []
    assert second.checkpointed() == 2


def test_a_fork_that_fails_before_its_own_checkpoint_starts_from_the_fork_again(
    tmp_path: Path,
) -> None:
    other = JobId("other")
    handle = state_file(MemoryStore())
    LocalStore(tmp_path).put("other/chk-1/1/sink-0-x", b"state")
    stored_checkpoint(LocalStore(tmp_path), 7, handle, job=other)
    request = RestoreRequest(str(tmp_path), other, CheckpointId(7))
    job = JobHarness(restore_from=request, restart=delayed(0)).running()
    assert (job.deploys[-1].restored_directory, job.deploys[-1].restored_checkpoint) == ("other", 7)
    job.master.on_slot(exited(0))
    job.restarted()
    assert (job.deploys[-1].restored_directory, job.deploys[-1].restored_checkpoint) == ("other", 7)
    assert job.checkpointed() == 8, "output is named by numbers, and 7 is the fork's"
    job.master.on_slot(exited(0, attempt=2))
    job.restarted()
    assert (job.deploys[-1].restored_directory, job.deploys[-1].restored_checkpoint) == (JOB, 8)


def test_a_first_checkpoint_written_during_the_failure_replaces_the_one_asked_for(
    tmp_path: Path,
) -> None:
    stored_checkpoint(LocalStore(tmp_path), 7, job=JobId("other"))
    request = RestoreRequest(str(tmp_path), JobId("other"), CheckpointId(7))
    job = JobHarness(restore_from=request).running()
    job.wait(1_000)
    job.acknowledge(8)
    job.master.on_slot(exited(0))
    job.wait(0)
    job.ready(0, 1)
    job.cluster.run()
    assert job.deploys[-1].restored_directory == JOB


def test_a_damaged_checkpoint_is_told_of_once_however_often_the_job_restarts() -> None:
    job = JobHarness(restart=delayed(0))
    stored_checkpoint(job.store, 1)
    job.store.put(LAYOUT.manifest(CheckpointId(2)), b"half")
    job.running()
    for attempt in (1, 2):
        job.master.on_slot(exited(0, attempt=attempt))
        job.restarted()
    assert len([note for note in job.notices if "checkpoint 2 is passed over" in note]) == 1
    assert job.deploys[-1].restored_checkpoint == 1
    assert job.checkpointed() == 3


def test_a_damaged_checkpoint_is_told_of_although_the_attempt_fails_while_it_chooses() -> None:
    """The next attempt goes on from the base of that one, and never looks at the damaged one."""
    job = JobHarness(restart=delayed(0))
    stored_checkpoint(job.store, 1)
    job.running()
    damaged = state_file(job.store, "chk-2/1/sink-0-x")
    stored_checkpoint(job.store, 2, damaged)
    job.store.delete(in_job(JOB, "chk-2/1/sink-0-x"))
    job.master.on_slot(exited(0))
    job.wait(0)
    base = LAYOUT.base(AttemptNumber(2), CheckpointId(1))
    while not job.store.exists(base):
        work, done = job.cluster.waiting.popleft()
        outcome = work()
        if job.store.exists(base):
            job.master.on_slot(exited(0, attempt=2))
        done(outcome)
    job.restarted()
    assert (job.deploys[-1].attempt, job.deploys[-1].restored_checkpoint) == (3, 1)
    assert len([note for note in job.notices if "checkpoint 2 is passed over" in note]) == 1


def with_damaged_file(restart: RestartConfig = NO_RESTART) -> JobHarness:
    """The newest checkpoint has a file of the right size and other bytes."""
    job = JobHarness(restart=restart)
    stored_checkpoint(job.store, 1)
    stored_checkpoint(job.store, 2, state_file(job.store, "chk-2/1/sink-0-x"))
    state_file(job.store, "chk-2/1/sink-0-x", b"other")
    return job


def test_a_damaged_file_that_a_worker_meets_first_is_no_failure_to_the_restart_strategy() -> None:
    job = with_damaged_file().deployed()
    assert job.deploys[-1].restored_checkpoint == 2
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="its checksum", damaged_state=True)
    assert job.status is JobStatus.RESTARTING
    job.restarted()
    assert (job.deploys[-1].attempt, job.deploys[-1].restored_checkpoint) == (2, 1)
    assert job.status is JobStatus.RUNNING
    assert len([note for note in job.notices if "checkpoint 2 is passed over" in note]) == 1
    assert job.happened(Recovered)[0].cause == "sink-0 failed\nits checksum"


def test_damage_that_is_met_once_more_is_a_failure_like_any_other() -> None:
    """The files were read meanwhile and are whole, so another attempt would end the same way."""
    job = with_damaged_file().deployed()
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="cannot be read", damaged_state=True)
    job.redeployed()
    assert job.deploys[-1].attempt == 2
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="cannot be read", damaged_state=True)
    assert job.status is JobStatus.FAILED
    assert job.master.cause == "sink-0 failed\ncannot be read"


def test_damage_that_is_met_by_a_running_attempt_is_a_failure_like_any_other() -> None:
    job = with_damaged_file().running()
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="cannot be read", damaged_state=True)
    assert job.status is JobStatus.FAILED


def test_all_files_are_read_behind_an_attempt_that_did_not_run() -> None:
    job = with_damaged_file(delayed(0)).deployed()
    job.master.on_slot(exited(0))
    job.restarted()
    assert (job.deploys[-1].attempt, job.deploys[-1].restored_checkpoint) == (2, 1)


def test_nothing_whole_to_restore_fails_the_job() -> None:
    job = JobHarness()
    job.store.put(LAYOUT.manifest(CheckpointId(1)), b"half")
    job.deployed()
    assert job.status is JobStatus.FAILED
    assert job.master.cause.startswith("cannot restore: ")


class AwayStore(MemoryStore):
    """Raises ``error`` instead of claiming an attempt, while there is one."""

    error: Exception | None = None

    def create_if_absent(self, path: str, data: bytes) -> bool:
        if self.error is not None and "/attempts/" in path:
            raise self.error
        return super().create_if_absent(path, data)


@pytest.mark.parametrize(
    "error",
    [StorageError("stale handle"), WriteRefusedError("cannot write /x: Read-only file system")],
    ids=["away", "refuses"],
)
def test_a_storage_that_took_an_attempt_and_does_not_take_the_next_delays_the_job(
    error: StorageError,
) -> None:
    """It may be away, mounted read-only, or changing hands, for some seconds."""
    store = AwayStore()
    job = JobHarness(store=store).running()
    store.error = error
    job.master.on_slot(exited(0))
    job.wait(0)
    job.cluster.run()
    assert job.statuses[-1] == "restarting"
    store.error = None
    job.alive()
    job.restarted(2_000)
    assert job.status is JobStatus.RUNNING


class UnreadableStore(MemoryStore):
    """Raises ``error`` instead of listing, while there is one."""

    error: Exception | None = None

    def list(self, directory: str = "") -> list[str]:
        if self.error is not None:
            raise self.error
        return super().list(directory)


def test_a_driver_that_cannot_read_the_storage_at_its_start_tries_again() -> None:
    """An earlier driver had attempts: none of their numbers may be used again."""
    store = UnreadableStore()
    before = JobHarness(store=store).running()
    assert before.attempt == 1
    store.error = StorageError("cannot list /x: Stale file handle")
    job = JobHarness(store=store)
    job.master.start()
    job.cluster.run()
    assert job.statuses[-1] == "restarting"
    causes = [event.cause for event in job.happened(JobChanged)]
    assert "checkpoint storage: cannot list /x: Stale file handle" in causes
    store.error = None
    job.register(0, 1)
    job.alive()
    job.restarted(2_000)
    assert job.status is JobStatus.RUNNING
    assert job.attempt == 2


def test_a_storage_that_may_not_be_read_ends_the_job_with_its_advice() -> None:
    store = UnreadableStore()
    store.error = WriteRefusedError("cannot list /x: Permission denied; give that user access")
    job = JobHarness(store=store)
    job.master.start()
    job.cluster.run()
    assert job.status is JobStatus.FAILED
    assert "give that user access" in job.master.cause


def test_a_storage_that_refuses_ends_the_job_with_its_advice() -> None:
    store = AwayStore()
    store.error = WriteRefusedError(
        "cannot write /x: Permission denied; give that user write access"
    )
    job = JobHarness(store=store)
    job.master.start()
    job.cluster.run()
    assert job.status is JobStatus.FAILED
    assert "give that user write access" in job.master.cause
