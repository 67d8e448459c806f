"""Savepoints and stops that the job master is asked for."""

from pathlib import Path
from typing import Any

from tests.builders import decline, line
from tests.unit.jobmaster.job_harness import JOB, LAYOUT, JobHarness, abandoned_ids, delayed, exited
from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.mailbox_poll import POLL_MS
from weir.jobmaster.savepoint_mailbox import Answer, Mailbox, SavepointRequest
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import TriggerCheckpoint
from weir.storage.catalog import RestoreRequest
from weir.storage.local import LocalStore

SAVEPOINT, STOP = CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND


class Saving(JobHarness):
    """A running job whose storage is a directory, and what those who ask for savepoints hear."""

    def __init__(self, root: Path, **settings: Any) -> None:
        storage = str(root / "storage")
        settings["checkpoints"] = {"storage": storage, **settings.get("checkpoints", {})}
        super().__init__(store=LocalStore(storage), **settings)
        self.root = root
        self.target = str(root / "one")
        self.heard: list[str] = []

    def ask(self, kind: CheckpointKind = SAVEPOINT, target: str | None = None) -> None:
        self.master.savepoint(
            f"r{len(self.heard)}", kind, target or self.target,
            done=lambda uri: self.heard.append(f"done: {uri}"),
            failed=lambda error: self.heard.append(f"failed: {error}"),
        )  # fmt: skip
        self.cluster.run()

    def save(self, kind: CheckpointKind = SAVEPOINT) -> None:
        """Ask, and everybody acknowledges."""
        self.ask(kind)
        self.acknowledge(self.told(TriggerCheckpoint)[-1].barrier.checkpoint_id)
        self.cluster.run()

    def exists(self, checkpoint_id: int) -> bool:
        return self.store.exists(LAYOUT.manifest(CheckpointId(checkpoint_id)))

    @property
    def abandoned(self) -> list[int]:
        return abandoned_ids(self.master)


def test_a_savepoint_is_taken_and_the_job_goes_on(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save()
    assert job.heard == [f"done: {job.target}"]
    assert job.status is JobStatus.RUNNING
    assert job.checkpointed() == 2


def test_savepoints_and_stops_are_taken_though_nothing_is_checkpointed_by_the_clock(
    tmp_path: Path,
) -> None:
    job = Saving(tmp_path, checkpoints={"interval_ms": None})
    job.running()
    job.save()
    assert job.heard == [f"done: {job.target}"]
    job.target = str(tmp_path / "two")
    job.save(STOP)
    assert job.completions == [(2, True)]
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.heard[1:] == [f"done: {job.target}"]
    assert job.status is JobStatus.FINISHED


def test_a_savepoint_needs_a_place_that_is_free_and_can_be_written(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save()
    job.ask(CheckpointKind.STOP_DRAIN)
    (tmp_path / "file").touch()
    job.ask(target=str(tmp_path / "file"))
    assert "holds a savepoint already" in job.heard[1]
    assert "a file stands where a directory is needed" in job.heard[2]
    assert len(job.told(TriggerCheckpoint)) == 1, "the job has noticed nothing of it"


def test_where_checkpoints_are_kept_in_memory_a_savepoint_needs_a_directory(
    tmp_path: Path,
) -> None:
    job = JobHarness().running()
    heard: list[str] = []
    job.master.savepoint("r", SAVEPOINT, None, done=heard.append, failed=heard.append)
    assert "keeps its checkpoints in memory, so a savepoint needs a directory" in heard[0]
    target = str(tmp_path / "one")
    job.master.savepoint("s", SAVEPOINT, target, done=heard.append, failed=heard.append)
    job.cluster.run()
    job.acknowledge(1)
    job.cluster.run()
    assert heard[1:] == [target]


def test_a_savepoint_without_a_name_is_named_after_its_request(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.master.savepoint("r", SAVEPOINT, None, done=job.heard.append, failed=job.heard.append)
    job.cluster.run()
    job.acknowledge(1)
    job.cluster.run()
    assert job.heard == [f"{tmp_path}/storage/savepoints/{JOB}/r"]


def test_a_savepoint_that_is_declined_leaves_the_job_running(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.ask(STOP)
    job.master.on_worker(0, decline("sink-0", 1, cause="disk full"))
    job.cluster.run()
    assert "disk full" in job.heard[0]
    assert job.status is JobStatus.RUNNING


def test_a_stop_ends_the_job_once_everybody_committed(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save(STOP)
    assert job.completions == [(1, True)]
    assert job.heard == [], "the job has not ended"
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.heard == [f"done: {job.target}"]
    assert job.status is JobStatus.FINISHED
    assert job.store.exists(LAYOUT.finished)
    assert job.store.exists(LAYOUT.manifest(CheckpointId(1))), "a savepoint is not the job's"


def test_a_stop_whose_attempt_failed_is_completed_by_the_next_one(tmp_path: Path) -> None:
    job = Saving(tmp_path, restart=delayed(0))
    job.running()
    job.checkpointed()
    job.save(STOP)
    job.master.on_slot(exited(0))
    job.redeployed()
    deploy = job.deploys[-1]
    assert (deploy.restored_checkpoint, deploy.completes_stop) == (2, True)
    assert (deploy.restored_storage, deploy.restored_directory) == (job.target, "")
    job.subtasks(SubtaskStatus.RUNNING)
    job.wait(5_000)
    assert len(job.told(TriggerCheckpoint)) == 2, "there is nothing left to take a checkpoint of"
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.heard == [f"done: {job.target}"]
    assert job.statuses[-1] == "finished"


def test_a_stop_whose_job_failed_names_the_savepoint_that_is_kept(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.save(STOP)
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="boom", restarts_help=False)
    job.cluster.run()
    (heard,) = job.heard
    assert heard.startswith("failed: the job is failed: sink-0 failed")
    assert heard.endswith(f"the savepoint was taken and is kept: {job.target}")


def test_a_drain_that_fails_brings_the_job_back_from_its_newest_checkpoint(
    tmp_path: Path,
) -> None:
    job = Saving(tmp_path, restart=delayed(0))
    job.running()
    job.checkpointed()
    job.ask(CheckpointKind.STOP_DRAIN)
    job.master.on_worker(0, decline("sink-0", 2, cause="disk full"))
    job.redeployed()
    assert "disk full" in job.heard[0]
    deploy = job.deploys[-1]
    assert (deploy.restored_checkpoint, deploy.completes_stop) == (1, False)


def test_going_back_tells_workers_and_coordinator_the_line(tmp_path: Path) -> None:
    first = Saving(tmp_path)
    first.running()
    for _ in range(3):
        first.checkpointed()
    request = RestoreRequest(f"{tmp_path}/storage", JOB, CheckpointId(1), rewinds_output=False)
    job = Saving(tmp_path, restore_from=request, restart=delayed(0))
    job.running()
    assert (job.deploys[-1].lineage, job.deploys[-1].rewinds_output) == (line((1, 1, 1)), False)
    assert job.abandoned == [2, 3]
    assert job.checkpointed() == 4
    job.master.on_slot(exited(0, attempt=2))
    job.restarted()
    deploy = job.deploys[-1]
    assert (deploy.lineage, deploy.rewinds_output) == (line((2, 4, 4), (1, 1, 1)), True)
    forward = RestoreRequest(f"{tmp_path}/storage", JOB, CheckpointId(3))
    back = Saving(tmp_path, restore_from=forward)
    back.running()
    assert back.abandoned == [4]
    assert back.checkpointed() == 5


def test_what_was_abandoned_goes_when_its_time_is_over(tmp_path: Path) -> None:
    first = Saving(tmp_path)
    first.running()
    for _ in range(3):
        first.checkpointed()
    request = RestoreRequest(f"{tmp_path}/storage", JOB, CheckpointId(1))
    settings = {"abandoned_ttl_ms": 1_500, "retained_max": 1}
    job = Saving(tmp_path, restore_from=request, checkpoints=settings)
    job.running()
    job.checkpointed()
    assert [n for n in (1, 2, 3, 4) if job.exists(n)] == [2, 3, 4]
    job.wait(500)
    job.cluster.run()
    assert [n for n in (1, 2, 3, 4) if job.exists(n)] == [4]


def posted(job: Saving, kind: CheckpointKind = SAVEPOINT, *, name: str = "m") -> Mailbox:
    mailbox = Mailbox(job.store, JOB)
    mailbox.post(SavepointRequest(name, kind, job.target, job.clock.ms + 60_000))
    return mailbox


def test_a_request_in_the_mailbox_is_carried_out_and_answered(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    mailbox = posted(job)
    due = job.master.next_due_ms()
    assert due is not None
    assert due <= job.clock.ms + POLL_MS
    job.alive()
    job.wait(POLL_MS)
    job.cluster.run()
    assert mailbox.await_answer("m") is None
    for trigger in job.told(TriggerCheckpoint):
        job.acknowledge(trigger.barrier.checkpoint_id)
        job.cluster.run()
    assert mailbox.await_answer("m") == Answer("m", ok=True, uri=job.target)


def test_requests_wait_while_the_job_does_not_run(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.deployed()
    mailbox = posted(job)
    job.alive()
    job.wait(POLL_MS)
    job.cluster.run()
    assert not mailbox.was_taken("m")
    job.subtasks(SubtaskStatus.RUNNING)
    job.wait(0)
    job.cluster.run()
    assert mailbox.was_taken("m")


def test_a_request_to_a_job_that_ends_is_answered_before_the_driver_goes(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    job.wait(0)
    job.cluster.run()
    early = posted(job)
    job.master.cancel()
    assert not job.master.is_over
    job.cluster.run()
    assert job.master.is_over
    assert early.await_answer("m") == Answer("m", ok=False, error="the job is canceled")


def test_a_driver_that_was_replaced_leaves_the_mailbox_to_its_successor(tmp_path: Path) -> None:
    job = Saving(tmp_path)
    job.running()
    mailbox = posted(job)
    job.store.create_if_absent(LAYOUT.attempt(AttemptNumber(2)), b"")
    job.wait(1_000)
    job.acknowledge(1)
    job.cluster.run()
    assert job.status is JobStatus.FAILED
    assert mailbox.await_answer("m") is None
