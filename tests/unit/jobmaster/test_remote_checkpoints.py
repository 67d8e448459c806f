"""Checkpoints decided by a coordinator elsewhere: what comes late, twice or not at all."""

from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.builders import decline, line, subtask
from tests.unit.jobmaster.job_harness import (
    JOB,
    LAYOUT,
    PLAN,
    JobHarness,
    acknowledgement,
    state_file,
)
from weir.config import CheckpointConfig, RestartConfig, RestartStrategyKind
from weir.errors import ProtocolError, StorageError
from weir.ids import AttemptNumber, CheckpointId, StateHandle
from weir.jobmaster.fence import Fence
from weir.jobmaster.remote_coordination import LOOK_AGAIN_MS
from weir.jobmaster.triggered_checkpoints import Stage
from weir.protocol.coordinator import CoordinatorState, check_invariants, step
from weir.protocol.deployment import ReleaseSlot, StopProcess, WorkerExited
from weir.protocol.driver_messages import CancelJob, DriverCommand, DriverEvent
from weir.protocol.elements import BarrierOptions, CheckpointBarrier, CheckpointKind
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
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    FailJob,
    JobEnded,
    ManifestFailed,
    ManifestWritten,
    RecordAborted,
    RecordCompleted,
    Tick,
    TimeLost,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.storage.attempt_claims import ManagedClaim
from weir.storage.manifest import Manifest, Tombstone, load
from weir.storage.memory import MemoryStore
from weir.storage.store import checksum_of

T = TypeVar("T")
ONE = CheckpointId(1)
URL = "https://weir.example"
CLAIM = ManagedClaim(URL, "0" * 16).dump()
DISCARDS = (DiscardCheckpoint, DiscardHandles, DiscardPending)


class Distant:
    """A coordinator at the other end of two queues that move when the test says so.

    ``tells_records``: whether it also sends what only concerns records, as it may or may not.
    """

    def __init__(
        self, *, tells_records: bool = True, claim: bytes = CLAIM, **settings: Any
    ) -> None:
        self.state = CoordinatorState(config=CheckpointConfig(**{"interval_ms": 1_000, **settings}))
        self.is_away = False
        self.claim = claim
        self.told: list[DriverEvent] = []  # All there ever were.
        self.posted: list[CoordinatorEvent] = []  # Those of them for the coordinator.
        self.up: deque[CoordinatorEvent] = deque()
        self.down: deque[DriverCommand] = deque()
        self.discards: list[Any] = []
        self._tells_records = tells_records

    def post(self, event: DriverEvent) -> None:
        self.told.append(event)
        if isinstance(event, CoordinatorEvent):
            self.posted.append(event)
            self.up.append(event)

    def fold(self, event: CoordinatorEvent, now_ms: int) -> None:
        done = step(self.state, event, now_ms)
        check_invariants(done.state)
        self.state = done.state
        for command in done.commands:
            if isinstance(command, DISCARDS):
                self.discards.append(command)
            elif self._tells_records or not isinstance(command, RecordAborted | RecordCompleted):
                self.down.append(command)

    def events_of(self, kind: type[T]) -> list[T]:
        return [event for event in self.posted if isinstance(event, kind)]


class Managed(JobHarness):
    """A job master under a control plane."""

    def __init__(
        self, *, tells_records: bool = True, claim: bytes = CLAIM, **settings: Any
    ) -> None:
        checkpoints = settings.pop("checkpoints", {})
        self.control = Distant(tells_records=tells_records, claim=claim, **checkpoints)
        self.ahead_ms = 0  # The control plane's clock, of this one.
        super().__init__(control=self.control, checkpoints=checkpoints, **settings)

    def go_up(self) -> None:
        """Deliver what was posted."""
        while self.control.up:
            self.control.fold(self.control.up.popleft(), self.clock.ms + self.ahead_ms)

    def go_down(self, *kinds: type) -> None:
        """Commands arrive; with kinds, only those before the first of another kind."""
        down = self.control.down
        while down and (not kinds or isinstance(down[0], kinds)):
            self.master.on_command(down.popleft())

    def settle(self) -> None:
        """Everything moves until nothing does."""
        while self.control.up or self.control.down or self.cluster.waiting:
            self.go_up()
            self.go_down()
            self.cluster.run()

    def triggered(self) -> CheckpointId:
        """The control plane triggers a checkpoint, and the workers have it."""
        self.go_up()
        self.alive()
        self.clock.ms += 1_000
        self.control.fold(Tick(), self.clock.ms)
        self.go_down()
        return self.told(TriggerCheckpoint)[-1].barrier.checkpoint_id

    def manifest_command(self) -> WriteManifest:
        """A checkpoint is triggered and acknowledged, and its manifest commanded."""
        self.acknowledge(self.triggered())
        self.go_up()
        (command,) = (c for c in self.control.down if isinstance(c, WriteManifest))
        return command

    def acknowledge_with(self, checkpoint_id: int, *handles: StateHandle) -> None:
        for chain in PLAN.chain_subtasks:
            held = handles if chain == subtask("sink-0") else ()
            ack = acknowledgement(chain, checkpoint_id, self.attempt, *held)
            self.master.on_worker(chain.index, ack)

    def fail(self) -> None:
        """A worker process is killed."""
        self.master.on_slot(WorkerExited(0, self.attempt, 100, -9, ""))

    def stored(self, checkpoint_id: int = 1) -> Manifest | Tombstone | None:
        path = LAYOUT.manifest(CheckpointId(checkpoint_id))
        return load(self.store.read(path)) if self.store.exists(path) else None

    def barrier(self, checkpoint_id: int, attempt: int = 1) -> TriggerCheckpoint:
        barrier = CheckpointBarrier(CheckpointId(checkpoint_id), 0, BarrierOptions())
        return TriggerCheckpoint(AttemptNumber(attempt), barrier, PLAN.source_subtasks)


def managed(**settings: Any) -> Managed:
    job = Managed(**settings)
    job.running()
    job.go_up()
    return job


def inline(data: bytes = b"inline") -> StateHandle:
    return StateHandle("operator", "x", len(data), checksum_of(data), inline=data, mode="split")


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


def wait(job: Managed, ms: int) -> None:
    """Time passes with everybody alive."""
    while ms > 0:
        passing = min(ms, 1_000)
        job.alive()
        job.wait(passing)
        ms -= passing


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


# Two drivers of one job, the older of which the control plane has given up.


def test_the_newest_driver_begins_although_the_older_one_takes_another_number() -> None:
    """The older one restarts its attempt between the newest one's look and its claim."""
    store = MemoryStore()
    older = managed(store=store)
    newest = Managed(store=store)
    newest.master.start()
    newest.cluster.run(1)  # It has seen attempt 1, and is about to claim the next.
    older.fail()
    older.restarted()
    assert older.attempt == 2
    newest.cluster.run()
    newest.register(0, 1)
    newest.ready(0, 1)
    newest.cluster.run()
    newest.subtasks(SubtaskStatus.RUNNING)
    assert (newest.attempt, newest.status) == (3, JobStatus.RUNNING)
    older.fail()
    wait(older, 5_000)  # The restart's delay.
    older.cluster.run()
    assert older.master.left is not None
    assert "another driver runs" in older.master.left
    assert older.status is not JobStatus.FAILED


def test_an_older_driver_finds_out_at_its_next_manifest() -> None:
    store = MemoryStore()
    older = managed(store=store)
    older.acknowledge(older.triggered())
    newest = managed(store=store)
    older.settle()
    assert older.stored() is None
    assert older.completions == []
    assert older.master.left is not None
    assert newest.master.left is None


@pytest.mark.parametrize(
    ("url", "named"),
    [
        (URL, "another driver runs job now"),
        ("https://copy.example", "a driver of the control plane at https://copy.example runs job"),
    ],
)
def test_a_driver_that_another_control_plane_launched_is_named(url: str, named: str) -> None:
    store = MemoryStore()
    older = managed(store=store)
    older.acknowledge(older.triggered())
    managed(store=store, claim=ManagedClaim(url, "1" * 16).dump())
    older.settle()
    assert older.master.left is not None
    assert older.master.left.startswith(named)
    assert ("stop the one that is the copy" in older.master.left) == (url != URL)


def test_a_driver_that_loses_the_race_for_an_attempt_names_the_control_plane() -> None:
    store = MemoryStore()
    older = managed(store=store)
    older.fail()
    other = ManagedClaim("https://copy.example", "1" * 16).dump()
    assert Fence(store, JOB, other).claim(AttemptNumber(2))
    wait(older, 5_000)  # The restart's delay.
    older.cluster.run()
    assert older.master.left is not None
    assert "https://copy.example" in older.master.left


# Savepoints and stops.


def asked(job: Managed, kind: CheckpointKind, target: Path) -> CheckpointId:
    """The control plane wants a savepoint, and the workers have its trigger."""
    job.go_up()
    job.control.fold(CheckpointRequested("r", kind, str(target)), job.clock.ms)
    job.go_down()
    return job.told(TriggerCheckpoint)[-1].barrier.checkpoint_id


@pytest.mark.parametrize("tells_records", [True, False])
def test_a_savepoint_is_written_for_the_control_plane_and_no_sink_commits_for_it(
    tells_records: bool, tmp_path: Path
) -> None:
    job = managed(tells_records=tells_records)
    number = asked(job, CheckpointKind.SAVEPOINT, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    decided = job.stored(number)
    assert isinstance(decided, Manifest)
    assert decided.location == str(tmp_path / "one")
    assert load((tmp_path / "one" / "manifest").read_bytes()) == decided
    assert job.completions == []
    (settled,) = job.happened(CheckpointSettled)
    assert (settled.checkpoint_id, settled.failure) == (number, None)
    assert job.master.next_due_ms() is not None
    assert job.master._checkpoints._checkpoints[number].stage is Stage.OVER


def test_a_savepoint_whose_place_is_taken_is_answered_and_the_job_goes_on(tmp_path: Path) -> None:
    job = managed()
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "manifest").write_bytes(b"another")
    number = asked(job, CheckpointKind.SAVEPOINT, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    (failed,) = job.control.events_of(ManifestFailed)
    assert "holds a savepoint already" in failed.cause
    assert not failed.may_exist
    assert job.status is JobStatus.RUNNING
    assert (tmp_path / "one" / "manifest").read_bytes() == b"another"


@pytest.mark.parametrize("kind", [CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN])
def test_a_stop_is_announced_as_the_last_word_and_ends_the_job(
    kind: CheckpointKind, tmp_path: Path
) -> None:
    job = managed()
    number = asked(job, kind, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    assert job.completions == [(number, True)]
    job.subtasks(SubtaskStatus.FINISHED)
    job.settle()
    assert job.status is JobStatus.FINISHED
    assert isinstance(job.stored(number), Manifest)


def test_subtasks_that_ended_for_a_drain_ask_for_no_final_checkpoint(tmp_path: Path) -> None:
    job = managed()
    number = asked(job, CheckpointKind.STOP_DRAIN, tmp_path / "one")
    job.subtasks(SubtaskStatus.ENDED)
    job.acknowledge(number)
    job.settle()
    job.alive()
    job.wait(LOOK_AGAIN_MS)
    job.settle()
    assert job.control.events_of(CheckpointRequested) == []


def test_a_drain_given_up_here_fails_the_attempt_since_its_sources_have_ended(
    tmp_path: Path,
) -> None:
    job = managed(
        checkpoints={"timeout_ms": 500}, restart=RestartConfig(kind=RestartStrategyKind.FIXED_DELAY)
    )
    asked(job, CheckpointKind.STOP_DRAIN, tmp_path / "one")
    job.control.is_away = True
    job.alive()
    job.wait(500)
    assert job.status is JobStatus.RESTARTING
    assert [event.reason for event in job.control.events_of(CheckpointGivenUp)] == [
        FailureReason.CONTROL_PLANE_AWAY
    ]
    job.control.is_away = False
    job.settle()  # What the control plane says of it comes too late, and does no harm.
    assert job.status is JobStatus.RESTARTING


def test_a_stop_whose_attempt_failed_is_completed_by_the_next_without_checkpoints(
    tmp_path: Path,
) -> None:
    job = managed()
    number = asked(job, CheckpointKind.STOP_SUSPEND, tmp_path / "one")
    job.acknowledge(number)
    job.settle()
    job.fail()
    job.settle()
    job.wait(0)
    job.settle()
    job.ready(0, 1)
    job.settle()
    assert job.deploys[-1].completes_stop
    job.subtasks(SubtaskStatus.RUNNING)
    job.settle()
    assert [started.attempt for started in job.control.events_of(CheckpointingStarted)] == [1]
    job.subtasks(SubtaskStatus.FINISHED)
    job.settle()
    assert job.status is JobStatus.FINISHED


def test_the_line_that_an_attempt_builds_on_is_told() -> None:
    job = managed()
    number = job.triggered()
    job.acknowledge(number)
    job.settle()
    job.fail()
    job.settle()
    job.wait(0)
    job.settle()
    job.ready(0, 1)
    job.settle()
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
