"""A job master under a control plane, whose coordinator is at the other end of two queues."""

from collections import deque
from typing import Any, TypeVar

from tests.builders import subtask
from tests.unit.jobmaster.job_harness import LAYOUT, PLAN, JobHarness, acknowledgement
from weir.config import CheckpointConfig
from weir.ids import AttemptNumber, CheckpointId, StateHandle
from weir.protocol.coordinator import CoordinatorState, check_invariants, step
from weir.protocol.deployment import WorkerExited
from weir.protocol.driver_messages import DriverCommand, DriverEvent
from weir.protocol.elements import BarrierOptions, CheckpointBarrier
from weir.protocol.messages import (
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    RecordAborted,
    RecordCompleted,
    Tick,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.storage.attempt_claims import ManagedClaim
from weir.storage.manifest import Manifest, Tombstone, load
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

    def fail_over(self) -> None:
        """A worker process is killed, and the next attempt is deployed."""
        self.fail()
        self.settle()
        self.wait(0)
        self.settle()
        self.ready(0, 1)
        self.settle()

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


def wait(job: Managed, ms: int) -> None:
    """Time passes with everybody alive."""
    while ms > 0:
        passing = min(ms, 1_000)
        job.alive()
        job.wait(passing)
        ms -= passing
