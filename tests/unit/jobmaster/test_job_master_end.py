"""The output of a job and its end, as the job master sees to them."""

import pytest

from tests.builders import subtask
from tests.unit.jobmaster.job_harness import LAYOUT, VERSIONS, JobHarness, delayed, exited
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.deployment import Delivered, ReleaseSlot, StopProcess
from weir.protocol.events import SlotChanged
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import TriggerCheckpoint

# Output.


def test_what_a_restore_delivers_again_is_dropped() -> None:
    job = JobHarness().running()

    def deliver(attempt: int, name: str, checkpoint_id: int, payload: bytes) -> None:
        delivered = Delivered(
            AttemptNumber(attempt), subtask(name), CheckpointId(checkpoint_id), payload
        )
        job.master.on_worker(0, delivered)

    deliver(1, "sink-0", 1, b"a")
    deliver(1, "sink-1", 1, b"b")
    job.master.on_slot(exited(0))
    deliver(1, "sink-0", 2, b"c")  # Committed before it died, still on its way.
    job.restarted()
    for checkpoint_id, payload in ((1, b"a"), (2, b"c"), (3, b"d")):
        deliver(2, "sink-0", checkpoint_id, payload)
    expected = [("sink-0", b"a"), ("sink-1", b"b"), ("sink-0", b"c"), ("sink-0", b"d")]
    assert job.delivered == expected


def test_without_checkpoints_everything_is_delivered_at_once() -> None:
    job = JobHarness(checkpoints={"interval_ms": None}).running()
    for payload in (b"a", b"b"):
        job.master.on_worker(0, Delivered(job.attempt, subtask("sink-0"), CheckpointId(0), payload))
    assert [payload for _, payload in job.delivered] == [b"a", b"b"]


# The end.


def test_ended_subtasks_take_a_final_checkpoint_and_then_the_job_is_finished() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.ENDED, "source-0", "source-1", "sink-0")
    assert job.told(TriggerCheckpoint) == []
    job.subtasks(SubtaskStatus.ENDED, "sink-1")
    assert len(job.told(TriggerCheckpoint)) == 1
    job.acknowledge(1)
    job.cluster.run()
    assert job.completions == [(1, True)]
    job.subtasks(SubtaskStatus.FINISHED)
    assert job.status is JobStatus.FINISHED
    assert job.told(StopProcess, slot=1) != []
    assert [slot for slot, _ in job.asked(ReleaseSlot)] == [0, 1]
    job.cluster.run()
    assert job.master.is_over


def test_a_final_checkpoint_waits_for_the_one_under_way() -> None:
    job = JobHarness().running()
    job.wait(1_000)
    job.subtasks(SubtaskStatus.ENDED)
    assert len(job.told(TriggerCheckpoint)) == 1
    job.acknowledge(1)
    job.cluster.run()
    assert job.completions == [(1, False)]
    job.acknowledge(2)
    job.cluster.run()
    assert job.completions == [(1, False), (2, True)]


def test_a_failure_after_the_final_checkpoint_restores_it_and_ends_again() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(1)
    job.cluster.run()
    job.subtasks(SubtaskStatus.FINISHED, "source-0")
    job.master.on_slot(exited(1))
    job.restarted()
    assert job.deploys[-1].restored_checkpoint == 1
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(2)
    job.cluster.run()
    job.subtasks(SubtaskStatus.FINISHED)
    assert job.status is JobStatus.FINISHED


def test_a_job_is_not_over_while_its_checkpoints_are_being_deleted() -> None:
    job = JobHarness().running()
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(1)
    job.cluster.run()
    job.subtasks(SubtaskStatus.FINISHED)
    assert not job.master.is_over
    assert job.master.next_due_ms() is None  # Nothing to tick for meanwhile.
    job.cluster.run()
    assert job.master.is_over
    assert not [path for path in job.store.list() if "chk-" in path]


def test_a_checkpoint_in_flight_at_the_end_settles_before_the_job_is_over() -> None:
    job = JobHarness().running()
    job.wait(1_000)
    job.acknowledge(1)
    job.master.cancel()
    assert job.status is JobStatus.CANCELED
    assert not job.master.is_over
    job.cluster.run()
    assert job.master.is_over
    assert job.store.exists(LAYOUT.manifest(CheckpointId(1)))


def test_without_checkpoints_the_job_is_finished_when_all_subtasks_are() -> None:
    job = JobHarness(checkpoints={"interval_ms": None}).running()
    job.subtasks(SubtaskStatus.FINISHED)
    assert job.status is JobStatus.FINISHED


def test_workers_that_lose_each_other_at_the_end_fail_nothing() -> None:
    job = JobHarness(checkpoints={"interval_ms": None}).running()
    job.subtasks(SubtaskStatus.FINISHED)
    before = list(job.events)
    job.subtasks(SubtaskStatus.FAILED, "sink-0", cause="lost", lost_peer="slot 1")
    job.master.on_slot(exited(1, code=0))
    job.master.on_slot_lost(0, 0)
    job.wait(100_000)
    assert [e for e in job.events if e not in before and not isinstance(e, SlotChanged)] == []
    assert job.status is JobStatus.FINISHED


def test_a_slot_that_registers_after_the_end_is_released() -> None:
    job = JobHarness(spare_slots=1).running()
    job.master.cancel()
    job.register(2)
    assert job.asked(ReleaseSlot, 2) == [(2, ReleaseSlot("canceled"))]


@pytest.mark.parametrize("moment", ["created", "initializing", "running", "restarting"])
def test_a_job_can_be_cancelled_at_any_time(moment: str) -> None:
    job = JobHarness(restart=delayed())
    if moment == "initializing":
        job.master.start()
    elif moment != "created":
        job.running()
    if moment == "restarting":
        job.master.on_slot(exited(0))
    assert job.status.value == moment
    job.master.cancel()
    job.cluster.run()
    assert job.status is JobStatus.CANCELED
    assert job.attempt == (0 if moment in ("created", "initializing") else 1)
    job.master.cancel()
    assert job.statuses.count("canceled") == 1


@pytest.mark.parametrize("moment", ["initializing", "running", "restarting"])
def test_a_cluster_that_ends_its_slots_fails_the_job_at_any_time(moment: str) -> None:
    job = JobHarness(restart=delayed())
    if moment == "initializing":
        job.master.start()
    else:
        job.running()
    if moment == "restarting":
        job.master.on_slot(exited(0))
    job.master.slots_ended("Job aborted")
    assert job.status is JobStatus.FAILED
    assert job.master.cause == "Job aborted"


@pytest.mark.parametrize("moment", ["initializing", "running", "restarting", "failed"])
def test_a_slot_may_be_lost_in_every_status(moment: str) -> None:
    job = JobHarness(restart=delayed())
    if moment == "initializing":
        job.deployed()
    else:
        job.running()
    if moment == "restarting":
        job.master.on_slot(exited(0))
    elif moment == "failed":
        job.master.slots_ended("gone")
    job.master.on_slot_lost(1, 0)
    job.master.on_slot_lost(1, 0)
    assert job.status is (JobStatus.FAILED if moment == "failed" else JobStatus.RESTARTING)


def test_versions_are_compared_whole() -> None:
    job = JobHarness()
    job.master.start()
    job.cluster.run()
    job.register(0, versions=VERSIONS)
    assert job.status is JobStatus.INITIALIZING
