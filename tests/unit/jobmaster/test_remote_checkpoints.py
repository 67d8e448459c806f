"""Checkpoints decided by a coordinator elsewhere: what comes late, twice or not at all."""

from dataclasses import replace
from typing import Any

import pytest

from tests.builders import decline, line, subtask
from tests.unit.jobmaster.job_harness import JOB, LAYOUT, acknowledgement, state_file
from tests.unit.jobmaster.managed_harness import ONE, Managed, inline, managed, wait
from weir.errors import ProtocolError, StorageError
from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.remote_coordination import LOOK_AGAIN_MS
from weir.jobmaster.triggered_checkpoints import Stage
from weir.protocol.deployment import ReleaseSlot, StopProcess
from weir.protocol.driver_messages import CancelJob
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import AttemptStarted, CheckpointSettled, JobChanged
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.lineage import UNKNOWN
from weir.protocol.messages import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointGivenUp,
    CheckpointingStarted,
    CheckpointingStopped,
    CheckpointRequested,
    CheckpointsRestored,
    DiscardCheckpoint,
    DiscardPending,
    FailJob,
    JobEnded,
    ManifestFailed,
    ManifestWritten,
    TimeLost,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.storage.manifest import Manifest, Tombstone
from weir.storage.memory import MemoryStore


@pytest.mark.parametrize("tells_records", [True, False])
def test_a_checkpoint_goes_through_the_control_plane_and_back(tells_records: bool) -> None:
    job = managed(tells_records=tells_records)
    assert job.control.events_of(CheckpointsRestored) == [CheckpointsRestored((), ONE)]
    (started,) = job.control.events_of(CheckpointingStarted)
    assert started.attempt == 1
    assert job.triggered() == 1
    file = state_file(job.store)
    job.acknowledge_with(1, file, inline())
    assert job.stored() is None, "the coordinator has not asked for it"
    job.go_up()
    job.go_down()
    job.cluster.run()
    manifest = job.stored()
    assert isinstance(manifest, Manifest)
    assert manifest.handles == (file, inline())
    assert job.completions == [], "it is not known elsewhere that it is durable"
    job.settle()
    assert job.completions == [(1, False)]
    (settled,) = job.happened(CheckpointSettled)
    assert (settled.checkpoint_id, settled.failure) == (1, None)
    record = job.master._checkpoints._checkpoints[ONE]
    assert (record.stage, record.acks) == (Stage.OVER, {})


def test_state_that_travels_inside_is_for_the_manifest_only() -> None:
    job = managed()
    job.triggered()
    file = state_file(job.store)
    job.acknowledge_with(1, file, inline())
    posted = [ack for ack in job.control.events_of(Acknowledged) if ack.chain == subtask("sink-0")]
    assert posted[0].operators[0].handles == (file,)
    assert posted[0].operators[0].metrics.records == 10


def test_nothing_is_deleted_by_the_driver() -> None:
    job = managed(checkpoints={"retained_max": 1, "tolerable_failures": 9})
    for _ in range(2):
        job.acknowledge(job.triggered())
        job.settle()
    number = job.triggered()
    state_file(job.store, f"chk-{number}/1/sink-0-x")
    job.master.on_worker(0, decline("sink-0", number))
    job.settle()
    for command in [*job.control.discards]:
        job.master.on_command(command)
    job.cluster.run()
    assert {type(command) for command in job.control.discards} == {
        DiscardCheckpoint,
        DiscardPending,
    }
    assert job.stored(1)
    assert job.store.exists(f"{JOB}/chk-{number}/1/sink-0-x")


def test_a_manifest_asked_for_after_the_attempt_failed_is_withheld() -> None:
    """The word is on its way when a worker dies: the next attempt must not wait for it, and the
    manifest must not appear under that attempt's feet."""
    job = managed()
    job.triggered()
    job.acknowledge(1)
    job.go_up()
    assert isinstance(job.control.down[0], WriteManifest)
    job.fail()
    job.restarted()
    assert job.status is JobStatus.RUNNING
    assert job.happened(AttemptStarted)[-1].restored_checkpoint is None
    tombstone = job.stored()
    assert isinstance(tombstone, Tombstone)
    assert "ended before the command to write its manifest came" in tombstone.reason
    job.settle()
    assert isinstance(job.stored(), Tombstone)
    assert job.completions == []
    kinds = [type(event) for event in job.control.posted]
    stopped, failed = kinds.index(CheckpointingStopped), kinds.index(ManifestFailed)
    restored = [i for i, kind in enumerate(kinds) if kind is CheckpointsRestored][-1]
    assert stopped < failed < restored, "or the coordinator would refuse what the storage holds"
    assert not job.control.events_of(ManifestFailed)[0].may_exist
    assert job.triggered() == 2
    job.acknowledge(2)
    job.settle()
    assert job.completions == [(2, False)]


def test_a_manifest_that_is_being_written_is_waited_for_when_the_attempt_fails() -> None:
    job = managed()
    job.triggered()
    job.acknowledge(1)
    job.go_up()
    job.go_down()
    assert job.cluster.waiting, "it is being written"
    job.fail()
    job.restarted()
    job.settle()
    assert isinstance(job.stored(), Manifest)
    assert job.happened(AttemptStarted)[-1].restored_checkpoint == 1
    assert not job.control.events_of(ManifestFailed)
    assert job.control.events_of(CheckpointsRestored)[-1].next_id == 2
    assert job.control.state.latest_completed_id == 1
    assert job.completions == []


def test_a_manifest_that_is_being_written_is_not_withheld_by_a_repeated_command() -> None:
    job = managed()
    command = job.manifest_command()
    job.go_down()
    job.fail()
    job.master.on_command(command)
    job.cluster.run()
    assert isinstance(job.stored(), Manifest)
    assert job.control.events_of(ManifestWritten) == [ManifestWritten(ONE)]
    assert job.control.events_of(ManifestFailed) == [], "its outcome was under way"


def test_a_manifest_of_a_driver_before_this_one_is_withheld() -> None:
    job = managed()
    command = job.manifest_command()
    later = managed(store=job.store)
    assert later.attempt == 2
    later.master.on_command(command)
    later.cluster.run()
    assert isinstance(later.stored(), Tombstone)
    assert later.control.events_of(ManifestFailed) == [
        ManifestFailed(
            ONE, "the command to write its manifest came too late: the running attempt is 2"
        )
    ]
    # Again, and another driver may have written it after all: then its files may not be deleted.
    later.master.on_command(command)
    later.cluster.run()
    assert [failed.may_exist for failed in later.control.events_of(ManifestFailed)] == [
        False,
        False,
    ]


def test_a_manifest_that_exists_is_never_buried() -> None:
    job = managed()
    command = job.manifest_command()
    job.settle()
    assert isinstance(job.stored(), Manifest)
    job.master.on_command(command)
    job.cluster.run()
    assert isinstance(job.stored(), Manifest)
    assert [failed.may_exist for failed in job.control.events_of(ManifestFailed)] == [True]
    job.go_up()
    assert job.control.state.latest_completed_id == 1, "it is settled for good"


class BrokenStore(MemoryStore):
    """Cannot create manifests while ``is_broken``."""

    is_broken = False

    def create_if_absent(self, path: str, data: bytes) -> bool:
        if self.is_broken and path.endswith("/manifest"):
            raise StorageError("disk full")
        return super().create_if_absent(path, data)


def test_a_storage_that_cannot_even_bury_is_no_reason_to_wait_for_ever() -> None:
    store = BrokenStore()
    job = managed(store=store)
    job.triggered()
    job.acknowledge(1)
    job.go_up()
    store.is_broken = True
    job.fail()
    job.restarted()
    job.settle()
    assert job.status is JobStatus.RUNNING
    assert {failed.may_exist for failed in job.control.events_of(ManifestFailed)} == {True}
    assert job.control.state.pending == ()


def test_a_manifest_is_never_written_without_all_acknowledgements() -> None:
    job = managed()
    command = job.manifest_command()
    other = managed()
    other.master.on_command(other.barrier(1))
    other.master.on_worker(0, acknowledgement(subtask("sink-0")))
    other.master.on_command(command)
    other.cluster.run()
    assert isinstance(other.stored(), Tombstone)


def test_commands_of_an_older_attempt_change_nothing() -> None:
    job = managed()
    job.triggered()
    job.fail()
    job.restarted()
    job.go_up()
    job.control.down.clear()
    seen = len(job.cluster.worker_commands)
    for command in (
        job.barrier(1),
        job.barrier(2, attempt=1),
        CheckpointCompleted(AttemptNumber(1), ONE),
        CheckpointAborted(AttemptNumber(1), ONE),
        FailJob(AttemptNumber(1), "too many"),
    ):
        job.master.on_command(command)
    assert len(job.cluster.worker_commands) == seen
    assert job.status is JobStatus.RUNNING


@pytest.mark.parametrize("kind", [CheckpointCompleted, CheckpointAborted])
def test_an_end_by_an_older_attempts_word_changes_nothing(kind: Any) -> None:
    job = managed()
    job.fail()
    job.restarted()
    job.settle()
    number = job.triggered()
    job.master.on_command(kind(AttemptNumber(1), number))
    assert job.told(kind) == []
    job.acknowledge(number)
    job.settle()
    assert job.completions == [(number, False)]


def test_a_manifest_is_never_written_by_an_older_attempts_word() -> None:
    job = managed()
    job.fail()
    job.restarted()
    job.settle()
    command = job.manifest_command()
    older = replace(command, checkpoint=replace(command.checkpoint, attempt=AttemptNumber(1)))
    job.master.on_command(older)
    job.cluster.run()
    assert isinstance(job.stored(command.checkpoint.checkpoint_id), Tombstone)


def test_commands_for_settled_checkpoints_change_nothing() -> None:
    job = managed(checkpoints={"tolerable_failures": 5})
    job.acknowledge(job.triggered())
    job.settle()
    number = job.triggered()
    job.master.on_worker(0, decline("sink-0", number))
    job.settle()
    seen = len(job.cluster.worker_commands)
    for checkpoint_id in (1, 2):
        job.master.on_command(job.barrier(checkpoint_id))
        job.master.on_command(CheckpointCompleted(AttemptNumber(1), CheckpointId(checkpoint_id)))
        job.master.on_command(CheckpointAborted(AttemptNumber(1), CheckpointId(checkpoint_id)))
    assert len(job.cluster.worker_commands) == seen


def test_the_same_trigger_twice_keeps_the_acknowledgements() -> None:
    job = managed()
    number = job.triggered()
    job.master.on_worker(0, acknowledgement(subtask("sink-0")))
    job.master.on_command(job.told(TriggerCheckpoint)[0])
    job.acknowledge(number)
    job.settle()
    assert isinstance(job.stored(), Manifest)


def test_too_many_failures_restart_the_attempt() -> None:
    job = managed()
    job.master.on_worker(0, decline("sink-0", job.triggered(), cause="disk full"))
    assert job.status is JobStatus.RUNNING
    job.settle()
    assert job.status is JobStatus.RESTARTING
    job.restarted()
    job.settle()
    assert job.status is JobStatus.RUNNING
    assert job.control.events_of(CheckpointingStarted)[-1].attempt == 2


def test_a_checkpoint_that_takes_too_long_is_given_up_without_the_control_plane() -> None:
    job = managed(checkpoints={"timeout_ms": 5_000})
    number = job.triggered()
    job.master.on_worker(0, acknowledgement(subtask("sink-0")))
    job.control.is_away = True
    wait(job, 4_999)
    assert job.told(CheckpointAborted) == []
    wait(job, 1)
    assert job.told(CheckpointAborted) == [CheckpointAborted(AttemptNumber(1), number)]
    (settled,) = job.happened(CheckpointSettled)
    assert settled.failure is FailureReason.CONTROL_PLANE_AWAY
    assert settled.duration_ms == 5_000
    (given_up,) = job.control.events_of(CheckpointGivenUp)
    assert (given_up.attempt, given_up.checkpoint_id) == (1, number)
    assert given_up.cause.endswith("missing: sink-1, source-0, source-1")
    # The control plane is back; it had expired there as well, or not: the outcome is the same.
    job.master.on_worker(0, acknowledgement(subtask("sink-1")))
    job.settle()
    assert job.control.state.pending == ()
    assert len(job.told(CheckpointAborted)) == 1
    assert len(job.happened(CheckpointSettled)) == 1
    job.control.is_away = False
    assert job.triggered() == 2
    job.acknowledge(2)
    job.settle()
    assert job.completions == [(2, False)]


def test_what_everybody_acknowledged_is_not_given_up() -> None:
    """Its manifest may have been asked for, and the coordinator cannot be asked."""
    job = managed(checkpoints={"timeout_ms": 2_000})
    job.triggered()
    job.acknowledge(1)
    job.control.is_away = True
    wait(job, 10_000)
    assert job.told(CheckpointAborted) == []
    assert job.master._checkpoints.next_due_ms() is None
    job.control.is_away = False
    job.control.fold(TimeLost(10_000), job.clock.ms)
    job.settle()
    assert job.completions == [(1, False)]


def test_while_the_control_plane_is_there_it_alone_expires_checkpoints() -> None:
    job = managed(checkpoints={"timeout_ms": 2_000})
    job.triggered()
    job.master._checkpoints.tick()
    wait(job, 5_000)
    assert job.told(CheckpointAborted) == []
    due = job.master._checkpoints.next_due_ms()
    assert due is not None
    assert job.clock.ms < due <= job.clock.ms + LOOK_AGAIN_MS, "it does not look without a pause"
    job.control.is_away = True
    wait(job, LOOK_AGAIN_MS)
    assert len(job.told(CheckpointAborted)) == 1


@pytest.mark.parametrize("tells_records", [True, False])
def test_the_final_checkpoint_is_asked_for_until_it_completes(tells_records: bool) -> None:
    job = managed(tells_records=tells_records, checkpoints={"tolerable_failures": 9})
    job.subtasks(SubtaskStatus.ENDED)
    assert job.control.events_of(CheckpointRequested) == [CheckpointRequested("final-1")]
    job.go_up()
    job.go_down()
    job.master.on_worker(0, decline("sink-0", 1))
    job.settle()
    wait(job, LOOK_AGAIN_MS)
    assert len(job.control.events_of(CheckpointRequested)) >= 2
    job.go_up()
    job.go_down()
    number = job.told(TriggerCheckpoint)[-1].barrier.checkpoint_id
    assert number > 1
    job.acknowledge(number)
    job.settle()
    assert (number, True) in job.completions
    asked = len(job.control.events_of(CheckpointRequested))
    wait(job, 5 * LOOK_AGAIN_MS)
    assert len(job.control.events_of(CheckpointRequested)) == asked
    job.subtasks(SubtaskStatus.FINISHED)
    job.cluster.run()
    assert job.control.posted[-1] == JobEnded(JobStatus.FINISHED)
    assert job.master.is_over


def test_nothing_is_asked_again_while_the_control_plane_is_away() -> None:
    job = managed()
    job.control.is_away = True
    job.subtasks(SubtaskStatus.ENDED)
    wait(job, 20 * LOOK_AGAIN_MS)
    assert len(job.control.events_of(CheckpointRequested)) == 1


def test_the_answer_to_an_older_attempts_final_request_starts_no_final_checkpoint() -> None:
    """Its subtasks have ended; those of the attempt that runs by now have not."""
    job = managed(checkpoints={"tolerable_failures": 9})
    job.subtasks(SubtaskStatus.ENDED)
    job.go_up()
    job.go_down()
    job.fail()
    job.restarted()
    job.settle()  # The abortion of the first attempt's final checkpoint arrives.
    asked = len(job.control.events_of(CheckpointRequested))
    wait(job, 3_000)
    assert len(job.control.events_of(CheckpointRequested)) == asked


@pytest.mark.parametrize(
    ("report", "problem"),
    [
        (acknowledgement(subtask("stranger-0")), "is no chain"),
        (acknowledgement(subtask("sink-0"), 2), "was never triggered"),
        (
            replace(acknowledgement(subtask("sink-0")), operators=()),
            "for operators it does not run",
        ),
        (decline("sink-0", reason=FailureReason.JOB_FAILOVER), "declined with job_failover"),
    ],
)
def test_what_no_correct_worker_sends_stays_here(report: Any, problem: str) -> None:
    job = managed()
    job.triggered()
    before = len(job.control.posted)
    with pytest.raises(ProtocolError, match=problem):
        job.master.on_worker(0, report)
    assert len(job.control.posted) == before


# The driver and its job.


def test_lost_slots_end_the_driver_and_not_the_job() -> None:
    job = managed()
    job.triggered()
    job.acknowledge(1)
    job.master.slots_ended("the stage was cancelled")
    assert job.master.left == "the stage was cancelled"
    assert not job.master.is_over, "what everybody acknowledged is being settled"
    job.cluster.run()
    assert job.master.is_over
    assert job.status is JobStatus.RUNNING
    assert job.happened(JobChanged)[-1].status is JobStatus.RUNNING
    assert [slot for slot, _ in job.asked(ReleaseSlot)] == [0, 1]
    assert len(job.told(StopProcess)) == 1
    job.go_up()
    assert (job.control.state.plan, job.control.state.pending) == (None, ())
    assert job.control.state.ended is None


def test_a_driver_that_left_starts_nothing_any_more() -> None:
    job = managed()
    job.master.leave("told to")
    events, commands = len(job.events), len(job.cluster.worker_commands)
    job.fail()
    job.subtasks(SubtaskStatus.FAILED, cause="lost")
    job.master.on_slot_lost(0, 0)
    job.master.on_command(CancelJob("late"))
    job.wait(10_000)
    job.master.cancel()
    job.cluster.run()
    assert (len(job.events), len(job.cluster.worker_commands)) == (events, commands)
    assert job.master.next_due_ms() is None
    assert job.master.is_over
    job.register(0, spark_attempt=7)
    assert job.asked(ReleaseSlot)[-1][0] == 0


@pytest.mark.parametrize("ready", [False, True])
def test_a_driver_may_leave_before_its_job_runs(ready: bool) -> None:
    job = Managed()
    job.master.start()
    if ready:
        job.cluster.run(1)  # The storage has not said yet what to restore.
        job.register(0, 1)
        job.ready(0, 1)
    job.master.leave("told to")
    job.cluster.run()
    assert job.master.is_over
    assert job.deploys == []
    assert job.statuses == ["initializing"]


def test_a_fenced_driver_neither_writes_nor_commits_nor_buries() -> None:
    job = managed()
    job.triggered()
    job.acknowledge(1)
    job.go_up()
    job.master.fence("driver 2 runs the job")
    before = job.store.list()
    job.go_down()
    job.master.on_command(CheckpointCompleted(AttemptNumber(1), ONE))
    job.cluster.run()
    assert job.store.list() == before
    assert job.completions == []
    assert job.master.is_over


def test_the_control_plane_cancels_the_job() -> None:
    job = managed()
    job.master.on_command(CancelJob("a user said so"))
    job.cluster.run()
    assert job.status is JobStatus.CANCELED
    assert job.master.is_over
    assert job.control.posted[-1] == JobEnded(JobStatus.CANCELED)


def test_savepoints_leave_nothing_behind_here() -> None:
    job = managed()
    job.control.fold(CheckpointRequested("s", CheckpointKind.SAVEPOINT), job.clock.ms)
    job.go_down()
    job.acknowledge(1)
    job.settle()
    assert isinstance(job.stored(), Manifest)
    assert job.control.events_of(ManifestWritten) == [ManifestWritten(ONE)]
    assert job.master._checkpoints._checkpoints[ONE].stage is Stage.OVER
    assert job.master._checkpoints.next_due_ms() is None


def test_the_line_that_an_attempt_builds_on_is_told() -> None:
    job = managed()
    number = job.triggered()
    job.acknowledge(number)
    job.settle()
    job.fail_over()
    job.subtasks(SubtaskStatus.RUNNING)
    assert [started.lineage for started in job.control.events_of(CheckpointingStarted)] == [
        UNKNOWN,
        line((1, 1, 1)),
    ]


def test_a_job_that_an_earlier_driver_finished_ends_for_the_control_plane_too() -> None:
    """It had noted the end, and was gone before anybody heard of it."""
    store = MemoryStore()
    store.put(LAYOUT.finished, b"")
    job = Managed(store=store)
    job.deployed()
    job.settle()
    assert job.status is JobStatus.FINISHED
    assert job.deploys == []
    assert job.statuses[-1] == "finished"


def test_one_checkpoint_has_one_barrier_however_long_each_command_took() -> None:
    """Subtasks that lost their last input are triggered later, with what came by another way."""
    job = managed()
    number = job.triggered()
    (first,) = job.told(TriggerCheckpoint)[-1:]
    later = replace(first, barrier=replace(first.barrier, triggered_at_ms=12_345))
    job.master.on_command(later)
    assert job.told(TriggerCheckpoint)[-1] == first
    assert first.barrier.checkpoint_id == number


@pytest.mark.parametrize("tells_records", [True, False])
@pytest.mark.parametrize("ahead_ms", [-3_600_000, 3_600_000])
def test_a_checkpoint_takes_as_long_as_it_does_though_the_control_planes_clock_is_another(
    ahead_ms: int, tells_records: bool
) -> None:
    job = Managed(tells_records=tells_records)
    job.ahead_ms = ahead_ms
    job.running()
    job.go_up()
    job.control.fold(CheckpointRequested("now"), job.clock.ms + ahead_ms)
    job.go_down()
    job.clock.ms += 250
    job.acknowledge(1)
    job.settle()
    (settled,) = [event for event in job.events if isinstance(event, CheckpointSettled)]
    assert settled.duration_ms == 250
    manifest = job.stored(1)
    assert isinstance(manifest, Manifest)
    assert manifest.completed_ms - manifest.triggered_ms == 250
