"""The port to the checkpoint coordinator, which runs in this process or in the control plane.

The checkpoint runner hands in events and executes commands. In library mode (``LocalCoordination``)
the commands come at once. Under the control plane (``RemoteCoordination``) they come some time
later: by then another attempt may run, or the checkpoint may be settled here. Such a late command
is not executed, and where the coordinator waits for its outcome, it gets one.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from weir.common.clock import Clock
from weir.config import CheckpointConfig
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.protocol import coordinator
from weir.protocol.coordinator import CoordinatorState
from weir.protocol.elements import CheckpointBarrier, CheckpointKind
from weir.protocol.failures import DECLINE_REASONS
from weir.protocol.lifecycle import FailureReason
from weir.protocol.messages import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointGivenUp,
    CheckpointingStarted,
    CheckpointingStopped,
    CheckpointRefused,
    CheckpointRequested,
    CheckpointsRestored,
    CoordinatorCommand,
    CoordinatorEvent,
    Declined,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    FailJob,
    JobEnded,
    ManifestWritten,
    RecordAbandoned,
    RecordAborted,
    RecordCompleted,
    RecordReclaimed,
    Tick,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.protocol.pending import CheckpointPlan

# How soon an expired checkpoint is checked again, and a final one requested again, while the
# control plane answers: it decides on both, and sends a command.
LOOK_AGAIN_MS = 1_000


class Hands(Protocol):
    """The executor of the coordinator's commands: the checkpoint runner."""

    def execute(self, command: CoordinatorCommand) -> None:
        """Execute a command."""

    def write_tombstone(
        self, checkpoint_id: CheckpointId, attempt: AttemptNumber, cause: str
    ) -> None:
        """Write a tombstone so that the manifest never appears, and report ``ManifestFailed``."""

    def drop(self, checkpoint_id: CheckpointId) -> None:
        """Drop the acknowledgements and sizes kept of an aborted checkpoint."""

    def abort_locally(
        self, command: CheckpointAborted, triggered_at_ms: int, reason: FailureReason, cause: str
    ) -> None:
        """Tell the subtasks that a checkpoint is aborted, and emit the reason."""


class ControlPlane(Protocol):
    """The control plane, as far as checkpoints need it."""

    @property
    def is_away(self) -> bool:
        """Whether the control plane has not answered for a while."""

    def post(self, event: CoordinatorEvent) -> None:
        """Post an event, behind all posted before: now, or when the control plane answers again."""


class Coordination(Protocol):
    """The checkpoint coordinator, as the driver reaches it."""

    @property
    def is_folding(self) -> bool:
        """Whether an event is being folded in, so that some of its commands are still to come."""

    def handle_event(self, event: CoordinatorEvent) -> None:
        """Hand an event to the coordinator.

        Raises:
            ProtocolError: A report that no correct worker sends.
        """

    def next_due_ms(self) -> int | None:
        """The time at which ``tick`` is due next; None: not before another event."""

    def tick(self) -> None:
        """Trigger and expire what is due."""


class LocalCoordination:
    """The coordinator itself, run in this thread: ``handle_event`` executes the commands."""

    def __init__(
        self,
        config: CheckpointConfig,
        clock: Clock,
        execute: Callable[[CoordinatorCommand], None],
    ) -> None:
        self.state = CoordinatorState(config=config)
        self.is_folding = False
        self._clock = clock
        self._execute = execute
        self._events: deque[CoordinatorEvent] = deque()  # Not folded in yet.

    def handle_event(self, event: CoordinatorEvent) -> None:
        """Fold an event in and execute the commands that follow."""
        self._events.append(event)
        if self.is_folding:
            return  # A command led to this event; the commands beside it come first.
        self.is_folding = True
        try:
            while self._events:
                step = coordinator.step(self.state, self._events.popleft(), self._clock.now_ms())
                self.state = step.state
                for command in step.commands:
                    self._execute(command)
        finally:
            self.is_folding = False  # A report that breaks the protocol ends its sender, not us.

    def next_due_ms(self) -> int | None:
        """The time at which the coordinator needs its next ``Tick``."""
        return coordinator.next_due_ms(self.state)

    def tick(self) -> None:
        """Trigger and expire what is due."""
        due = self.next_due_ms()
        if due is not None and self._clock.now_ms() >= due:
            self.handle_event(Tick())


@dataclass(slots=True)
class _UnderWay:
    """A checkpoint that was triggered here and, as far as this driver knows, is not settled."""

    barrier: CheckpointBarrier
    received_at_ms: int  # When the command came.
    look_at_ms: int  # When its timeout is checked next.
    missing: set[SubtaskId] = field(repr=False)
    is_written: bool = False  # Its manifest was commanded.

    @property
    def kind(self) -> CheckpointKind:
        """The kind that its barrier carries."""
        return self.barrier.options.kind


class RemoteCoordination:
    """The control plane's coordinator: events are posted, commands come by ``handle_command``.

    The driver keeps only what it needs while the control plane is unreachable: the checkpoints of
    the attempt that are under way, and the subtasks missing in each. A checkpoint that takes longer
    than its timeout *while the control plane is away* is aborted here, since nothing else could
    tell the subtasks, which would go on aligning and block their channels. A fully acknowledged
    checkpoint is never aborted here: the control plane may have commanded its manifest already, and
    waiting costs the subtasks nothing.
    """

    is_folding = False

    def __init__(
        self, config: CheckpointConfig, clock: Clock, control: ControlPlane, hands: Hands
    ) -> None:
        self._config = config
        self._clock = clock
        self._control = control
        self._hands = hands
        self._attempt: AttemptNumber | None = None  # The running attempt.
        self._plan: CheckpointPlan | None = None
        self._newest_id = CheckpointId(0)  # The newest triggered here.
        self._latest_completed_id: CheckpointId | None = None
        self._under_way: dict[CheckpointId, _UnderWay] = {}
        self._final: CheckpointRequested | None = None  # Requested, perhaps not under way.
        self._ask_again_ms = 0

    def handle_event(self, event: CoordinatorEvent) -> None:
        """Post an event, and keep what the driver needs of it."""
        match event:
            case Acknowledged():
                self._acknowledge(event)
                return
            case Declined():
                self._check(event)
            case CheckpointingStarted(attempt, plan):
                self._attempt, self._plan = attempt, plan
            case CheckpointingStopped() | JobEnded():
                self._control.post(event)
                self._halt()
                return
            case CheckpointRequested():
                self._final = event
                self._ask_again_ms = self._clock.now_ms() + LOOK_AGAIN_MS
            case CheckpointsRestored(completed):
                self._latest_completed_id = max((c.checkpoint_id for c in completed), default=None)
            case ManifestWritten(checkpoint_id):
                written = self._under_way.get(checkpoint_id)
                if written is not None and written.kind is CheckpointKind.SAVEPOINT:
                    del self._under_way[checkpoint_id]  # No completion is announced.
            case _:
                pass
        self._control.post(event)

    def handle_command(self, command: CoordinatorCommand) -> None:
        """Execute a command, unless it comes too late.

        The race behind a late ``WriteManifest``: every subtask acknowledged, the control plane sent
        the command, and before it arrived the attempt failed here. The next attempt may be choosing
        its restore at this moment; if the manifest appeared now, that attempt would be restored
        from an older checkpoint while sinks and retention count on this one. So the manifest is
        withheld: a tombstone takes its key, and the coordinator, which waits for the outcome alone,
        gets ``ManifestFailed``.
        """
        match command:
            case TriggerCheckpoint():
                self._trigger(command)
            case WriteManifest(pending):
                known = self._under_way.get(pending.checkpoint_id)
                if known is None or known.missing or pending.attempt != self._attempt:
                    cause = (
                        "the command to write its manifest came too late: the running attempt is "
                        f"{self._attempt}"
                    )
                    self._hands.write_tombstone(pending.checkpoint_id, pending.attempt, cause)
                elif not known.is_written:
                    known.is_written = True
                    if self._final and pending.request.request_id == self._final.request_id:
                        self._final = None
                    self._hands.execute(command)
            case CheckpointCompleted(attempt, checkpoint_id, is_stop):
                if self._settle(attempt, checkpoint_id):
                    self._latest_completed_id = checkpoint_id
                    if is_stop:
                        self._final = None  # Nothing follows a stop.
                    self._hands.execute(command)
            case CheckpointAborted(attempt, checkpoint_id):
                if self._settle(attempt, checkpoint_id):
                    self._hands.execute(command)
            case FailJob(attempt):
                if attempt == self._attempt:
                    self._hands.execute(command)
            case RecordCompleted() | RecordAborted() | CheckpointRefused():
                self._hands.execute(command)
            case DiscardHandles() | DiscardPending() | DiscardCheckpoint():
                pass  # The control plane itself deletes the files of its jobs.
            case RecordAbandoned() | RecordReclaimed():
                pass  # The control plane's rows record it.

    def next_due_ms(self) -> int | None:
        """The time at which a checkpoint expires, or a final one is to be requested again."""
        due = [c.look_at_ms for c in self._under_way.values() if c.missing]
        if self._final is not None:
            due.append(self._ask_again_ms)
        return min(due, default=None)

    def tick(self) -> None:
        """Abort expired checkpoints while the control plane is away."""
        now = self._clock.now_ms()
        is_away = self._control.is_away
        for checkpoint_id, known in list(self._under_way.items()):
            if known.missing and now >= known.look_at_ms:
                if is_away:
                    self._give_up(checkpoint_id, known)
                else:
                    known.look_at_ms = now + LOOK_AGAIN_MS
        if self._final is not None and now >= self._ask_again_ms:
            # Only the control plane knows the outcome of the first request; by its id it recognises
            # one that still waits or runs.
            self._ask_again_ms = now + LOOK_AGAIN_MS
            if not is_away:
                self._control.post(self._final)

    def _acknowledge(self, ack: Acknowledged) -> None:
        self._check(ack)
        known = self._under_way.get(ack.checkpoint_id)
        if known is not None and ack.attempt == self._attempt:
            known.missing.difference_update(part.subtask for part in ack.operators)
        self._control.post(_without_inline_state(ack))

    def _check(self, report: Acknowledged | Declined) -> None:
        """Refuse a report that the coordinator would refuse: there it would end this driver."""
        if not 0 < report.checkpoint_id <= self._newest_id:
            raise ProtocolError(f"checkpoint {report.checkpoint_id} was never triggered")
        if self._plan is None:
            raise ProtocolError("the job does not run")
        subtasks = self._plan.operators_of(report.chain)
        if isinstance(report, Declined):
            if report.reason not in DECLINE_REASONS:
                raise ProtocolError(f"{report.chain} declined with {report.reason}")
        elif sorted(part.subtask for part in report.operators) != sorted(subtasks):
            raise ProtocolError(f"{report.chain} acknowledged for operators it does not run")

    def _trigger(self, command: TriggerCheckpoint) -> None:
        checkpoint_id = command.barrier.checkpoint_id
        if command.attempt != self._attempt or self._plan is None:
            return
        known = self._under_way.get(checkpoint_id)
        if known is not None:
            # One checkpoint has one barrier, although a repeated command may carry another time.
            command = replace(command, barrier=known.barrier)
        else:
            if checkpoint_id <= self._newest_id:
                return  # The checkpoint is settled.
            now = self._clock.now_ms()
            self._newest_id = checkpoint_id
            self._under_way[checkpoint_id] = _UnderWay(
                barrier=command.barrier,
                received_at_ms=now,
                look_at_ms=now + self._config.timeout_ms,
                missing=set(self._plan.to_acknowledge()),
            )
        self._hands.execute(command)

    def _settle(self, attempt: AttemptNumber, checkpoint_id: CheckpointId) -> bool:
        if attempt != self._attempt:
            return False
        return self._under_way.pop(checkpoint_id, None) is not None

    def _give_up(self, checkpoint_id: CheckpointId, known: _UnderWay) -> None:
        assert self._attempt is not None
        del self._under_way[checkpoint_id]
        reason = FailureReason.CONTROL_PLANE_AWAY
        cause = (
            f"not completed within {self._config.timeout_ms} ms, and the control plane is away; "
            f"missing: {', '.join(map(str, sorted(known.missing)[:5]))}"
        )
        told = CheckpointAborted(self._attempt, checkpoint_id, self._latest_completed_id)
        self._hands.abort_locally(told, known.received_at_ms, reason, cause)
        attempt = self._attempt
        self._control.post(CheckpointGivenUp(attempt, checkpoint_id, reason, cause))
        if known.kind is CheckpointKind.STOP_DRAIN:
            # Its sources have ended, and the control plane cannot fail the job now.
            self._hands.execute(FailJob(attempt, f"the job could not be stopped: {cause}"))

    def _halt(self) -> None:
        """The attempt is over: drop or withhold its checkpoints under way.

        For a fully acknowledged checkpoint the command to write its manifest may be on its way: the
        coordinator waits for the outcome, and the next attempt for the coordinator.
        """
        attempt, self._attempt = self._attempt, None
        self._final = None
        under_way, self._under_way = self._under_way, {}
        for checkpoint_id, known in under_way.items():
            if known.is_written:
                continue  # The outcome of writing is posted later.
            if known.missing or attempt is None:
                self._hands.drop(checkpoint_id)
            else:
                cause = f"attempt {attempt} ended before the command to write its manifest came"
                self._hands.write_tombstone(checkpoint_id, attempt, cause)


def _without_inline_state(ack: Acknowledged) -> Acknowledged:
    """The acknowledgement without its inline state, which only the manifest needs."""
    return replace(
        ack,
        operators=tuple(
            replace(part, handles=tuple(h for h in part.handles if h.inline is None))
            for part in ack.operators
        ),
    )
