"""The control plane's coordinator, as the driver reaches it: events are posted, commands come late.

By the time a command comes, another attempt may run, or the checkpoint may be settled here. Such a
late command is not executed, and where the coordinator waits for its outcome, it gets one.

The driver keeps only what it needs while the control plane is unreachable: the checkpoints of the
attempt that are under way, and the subtasks missing in each. A checkpoint that takes longer than
its timeout *while the control plane is away* is aborted here, since nothing else could tell the
subtasks, which would go on aligning and block their channels. A fully acknowledged checkpoint is
never aborted here: the control plane may have commanded its manifest already, and waiting costs the
subtasks nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from weir.common.clock import Clock
from weir.config import CheckpointConfig
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.jobmaster.coordination import (
    AbortHere,
    DropCheckpoint,
    RunnerCommand,
    WithholdManifest,
)
from weir.protocol.driver_messages import DriverEvent
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


class ControlPlane(Protocol):
    """The control plane, as the driver's job posts to it: the client of its gateway."""

    @property
    def is_away(self) -> bool:
        """Whether the control plane has not answered for a while."""

    @property
    def claim(self) -> bytes:
        """The content of the claims of this driver's attempts."""

    def post(self, event: DriverEvent) -> None:
        """Post an event, behind all posted before: now, or when the control plane answers again."""


@dataclass(slots=True)
class _UnderWay:
    """A checkpoint that was triggered here and, as far as this driver knows, is not settled."""

    barrier: CheckpointBarrier
    look_at_ms: int  # When its timeout is checked next.
    missing: set[SubtaskId] = field(repr=False)
    is_written: bool = False  # Its manifest was commanded.

    @property
    def kind(self) -> CheckpointKind:
        """The kind that its barrier carries."""
        return self.barrier.options.kind


class RemoteCoordination:
    """The driver's end of the control plane's coordinator."""

    def __init__(self, config: CheckpointConfig, clock: Clock, control: ControlPlane) -> None:
        self._config = config
        self._clock = clock
        self._control = control
        self._attempt: AttemptNumber | None = None  # The running attempt.
        self._plan: CheckpointPlan | None = None
        self._newest_id = CheckpointId(0)  # The newest triggered here.
        self._latest_completed_id: CheckpointId | None = None
        self._under_way: dict[CheckpointId, _UnderWay] = {}
        self._final: CheckpointRequested | None = None  # Requested, perhaps not under way.
        self._ask_again_ms = 0

    def receive(self, event: CoordinatorEvent) -> Sequence[RunnerCommand]:
        """Post an event, and keep what the driver needs of it."""
        match event:
            case Tick():
                return self._look()
            case Acknowledged():
                return self.acknowledge((event,))
            case Declined():
                self._check(event)
            case CheckpointingStarted(attempt, plan):
                self._attempt, self._plan = attempt, plan
            case CheckpointingStopped() | JobEnded():
                self._control.post(event)
                return self._halt()
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
        return ()

    def receive_command(self, command: CoordinatorCommand) -> Sequence[RunnerCommand]:
        """Take a command of the coordinator in; what is left to execute of it, unless it is late.

        The race behind a late ``WriteManifest``: every subtask acknowledged, the control plane sent
        the command, and before it arrived the attempt failed here. The next attempt may be choosing
        its restore at this moment; if the manifest appeared now, that attempt would be restored
        from an older checkpoint while sinks and retention count on this one. So the manifest is
        withheld: a tombstone takes its key, and the coordinator, which waits for the outcome alone,
        gets ``ManifestFailed``.
        """
        match command:
            case TriggerCheckpoint():
                return self._trigger(command)
            case WriteManifest():
                return self._write(command)
            case CheckpointCompleted(attempt, checkpoint_id, is_stop):
                if not self._settle(attempt, checkpoint_id):
                    return ()
                self._latest_completed_id = checkpoint_id
                if is_stop:
                    self._final = None  # Nothing follows a stop.
            case CheckpointAborted(attempt, checkpoint_id):
                if not self._settle(attempt, checkpoint_id):
                    return ()
            case FailJob(attempt):
                if attempt != self._attempt:
                    return ()
            case RecordCompleted() | RecordAborted() | CheckpointRefused():
                pass
            case DiscardHandles() | DiscardPending() | DiscardCheckpoint():
                return ()  # The control plane itself deletes the files of its jobs.
            case RecordAbandoned() | RecordReclaimed():
                return ()  # The control plane's rows record it.
        return (command,)

    def next_due_ms(self) -> int | None:
        """The time at which a checkpoint expires, or a final one is to be requested again."""
        due = [c.look_at_ms for c in self._under_way.values() if c.missing]
        if self._final is not None:
            due.append(self._ask_again_ms)
        return min(due, default=None)

    # Events.

    def _look(self) -> Sequence[RunnerCommand]:
        """Abort expired checkpoints while the control plane is away."""
        now = self._clock.now_ms()
        is_away = self._control.is_away
        commands: list[RunnerCommand] = []
        for checkpoint_id, known in list(self._under_way.items()):
            if known.missing and now >= known.look_at_ms:
                if is_away:
                    commands += self._give_up(checkpoint_id, known)
                else:
                    known.look_at_ms = now + LOOK_AGAIN_MS
        if self._final is not None and now >= self._ask_again_ms:
            # Only the control plane knows the outcome of the first request; by its id it recognises
            # one that still waits or runs.
            self._ask_again_ms = now + LOOK_AGAIN_MS
            if not is_away:
                self._control.post(self._final)
        return commands

    def acknowledge(self, acks: Sequence[Acknowledged]) -> Sequence[RunnerCommand]:
        """Post acknowledgements, and strike their chains off those still missing."""
        for ack in acks:
            self._check(ack)
            known = self._under_way.get(ack.checkpoint_id)
            if known is not None and ack.attempt == self._attempt:
                known.missing.difference_update(part.subtask for part in ack.operators)
            self._control.post(_without_inline_state(ack))
        return ()

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

    def _give_up(self, checkpoint_id: CheckpointId, known: _UnderWay) -> Sequence[RunnerCommand]:
        attempt = self._attempt
        assert attempt is not None
        del self._under_way[checkpoint_id]
        reason = FailureReason.CONTROL_PLANE_AWAY
        cause = (
            f"not completed within {self._config.timeout_ms} ms, and the control plane is away; "
            f"missing: {', '.join(map(str, sorted(known.missing)[:5]))}"
        )
        self._control.post(CheckpointGivenUp(attempt, checkpoint_id, reason, cause))
        told = CheckpointAborted(attempt, checkpoint_id, self._latest_completed_id)
        abort = AbortHere(told, reason, cause)
        if known.kind is CheckpointKind.STOP_DRAIN:
            # Its sources have ended, and the control plane cannot fail the job now.
            return abort, FailJob(attempt, f"the job could not be stopped: {cause}")
        return (abort,)

    def _halt(self) -> Sequence[RunnerCommand]:
        """The attempt is over: drop or withhold its checkpoints under way.

        For a fully acknowledged checkpoint the command to write its manifest may be on its way: the
        coordinator waits for the outcome, and the next attempt for the coordinator.
        """
        attempt, self._attempt = self._attempt, None
        self._final = None
        under_way, self._under_way = self._under_way, {}
        commands: list[RunnerCommand] = []
        for checkpoint_id, known in under_way.items():
            if known.is_written:
                continue  # The outcome of writing is posted later.
            if known.missing or attempt is None:
                commands.append(DropCheckpoint(checkpoint_id))
            else:
                cause = f"attempt {attempt} ended before the command to write its manifest came"
                commands.append(WithholdManifest(checkpoint_id, attempt, cause))
        return commands

    # Commands.

    def _trigger(self, command: TriggerCheckpoint) -> Sequence[RunnerCommand]:
        checkpoint_id = command.barrier.checkpoint_id
        if command.attempt != self._attempt or self._plan is None:
            return ()
        known = self._under_way.get(checkpoint_id)
        if known is not None:
            # One checkpoint has one barrier, although a repeated command may carry another time.
            return (replace(command, barrier=known.barrier),)
        if checkpoint_id <= self._newest_id:
            return ()  # The checkpoint is settled.
        self._newest_id = checkpoint_id
        self._under_way[checkpoint_id] = _UnderWay(
            barrier=command.barrier,
            look_at_ms=self._clock.now_ms() + self._config.timeout_ms,
            missing=set(self._plan.to_acknowledge()),
        )
        return (command,)

    def _write(self, command: WriteManifest) -> Sequence[RunnerCommand]:
        pending = command.checkpoint
        known = self._under_way.get(pending.checkpoint_id)
        if known is None or known.missing or pending.attempt != self._attempt:
            cause = (
                "the command to write its manifest came too late: the running attempt is "
                f"{self._attempt}"
            )
            return (WithholdManifest(pending.checkpoint_id, pending.attempt, cause),)
        if known.is_written:
            return ()
        known.is_written = True
        if self._final and pending.request.request_id == self._final.request_id:
            self._final = None
        return (command,)

    def _settle(self, attempt: AttemptNumber, checkpoint_id: CheckpointId) -> bool:
        if attempt != self._attempt:
            return False
        return self._under_way.pop(checkpoint_id, None) is not None


def _without_inline_state(ack: Acknowledged) -> Acknowledged:
    """The acknowledgement without its inline state, which only the manifest needs."""
    return replace(
        ack,
        operators=tuple(
            replace(part, handles=tuple(h for h in part.handles if h.inline is None))
            for part in ack.operators
        ),
    )
