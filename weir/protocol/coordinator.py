"""The checkpoint coordinator of one job: trigger, collect acknowledgements, complete or abort.

``step`` takes the state, one event and the time, and returns the next state and the commands that
the shell around the coordinator has to execute: the driver's or the control plane's. The
coordinator outlives its process: the state is a frozen value that loads from storage and saves
back, and every event may come again.

Five rules explain most of it:

- An id is taken when a checkpoint is triggered and is never reused, however the checkpoint ends.
- Fully acknowledged is not completed: writing the manifest is I/O, so it is a command, and the
  checkpoint is complete when the command's outcome has come back. In between nothing but that
  outcome settles it; neither time, nor a newer checkpoint, nor the end of the attempt, because the
  manifest may already be durable.
- One manifest at a time. So each checkpoint knows the parent it builds on when its manifest is
  written, and checkpoints complete in the order of their ids.
- Only state of checkpoints known to be aborted is deleted. A late acknowledgement may be the
  repetition of one that made a checkpoint complete, so state is deleted only for ids remembered as
  aborted; the sweep of the storage deletes the rest.
- Completed checkpoints are let go only while the job runs: otherwise a restore may be reading them.
  A checkpoint is triggered with its *base*, the completed one since which its subtasks may write
  changes alone. The base stays while the checkpoint is under way, because the manifest is to name
  files of it.

Where a job goes back, the checkpoints beside its new line are *abandoned*: they are kept for a
while, do not count among those retained, and count again should the job go on from their branch
after all.

Source: Flink, CheckpointCoordinator and PendingCheckpoint; arXiv:1506.08603, section 4.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from typing import Concatenate, ParamSpec, TypeAlias, assert_never

from weir.bounds import DUE_MS_MAX
from weir.config import CheckpointConfig
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.protocol import failures, frozen, retention, scheduling
from weir.protocol.elements import CheckpointBarrier, CheckpointKind
from weir.protocol.failures import DECLINE_REASONS, FailureCount
from weir.protocol.lifecycle import ENDS_AS, CheckpointStatus, FailureReason, JobStatus
from weir.protocol.lineage import UNKNOWN, Lineage
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
    ManifestFailed,
    ManifestWritten,
    RecordAbandoned,
    RecordAborted,
    RecordCompleted,
    RecordReclaimed,
    SubtaskFinished,
    Tick,
    TimeLost,
    TriggerCheckpoint,
    TriggerFailed,
    WriteManifest,
)
from weir.protocol.pending import (
    SAVEPOINT_KINDS,
    STOP_KINDS,
    AckResult,
    CheckpointPlan,
    CompletedCheckpoint,
    PendingCheckpoint,
    TriggerRequest,
    TriggerResult,
)

NO_ATTEMPT = AttemptNumber(0)
FIRST_ID = CheckpointId(1)

# Flink remembers 16 expired ids. Ours include every abort, and a job may have many in flight.
ABORTED_REMEMBERED = 256

STOP_REASONS = frozenset(
    {
        FailureReason.JOB_FAILOVER,
        FailureReason.CHECKPOINT_COORDINATOR_SUSPEND,
        FailureReason.CONTROL_PLANE_AWAY,
        FailureReason.JOB_CANCELED,
        FailureReason.JOB_RESTARTED,
        FailureReason.JOB_RESCALED,
        FailureReason.JOB_ROLLED_BACK,
        FailureReason.CONTROL_PLANE_STOPPED,
    }
)

# Savepoints that are aborted when their request is taken back.
WITHDRAWN_KINDS = frozenset({CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND})

# What the end of a job is to the checkpoints that were under way.
END_REASONS: Mapping[JobStatus, FailureReason] = {
    JobStatus.FINISHED: FailureReason.JOB_FINISHED,
    JobStatus.CANCELED: FailureReason.JOB_CANCELED,
    JobStatus.FAILED: FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
}

GIVE_UP_REASONS = frozenset({FailureReason.CONTROL_PLANE_AWAY})

Result: TypeAlias = AckResult | TriggerResult | None
P = ParamSpec("P")


@dataclass(frozen=True, slots=True)
class CoordinatorState:
    """The whole state of one job's coordinator."""

    config: CheckpointConfig = field(default_factory=CheckpointConfig)
    attempt: AttemptNumber = NO_ATTEMPT  # The newest one.
    plan: CheckpointPlan | None = None  # None: the job does not run.
    next_id: CheckpointId = FIRST_ID
    pending: tuple[PendingCheckpoint, ...] = ()  # By id.
    completed: tuple[CompletedCheckpoint, ...] = ()  # By id; savepoints are not among them.
    queue: tuple[TriggerRequest, ...] = ()  # In the order in which they will be triggered.
    next_periodic_ms: int | None = None  # None: the clock asks for nothing.
    last_completion_ms: int | None = None
    base_id: CheckpointId | None = None  # The attempt's last completed or restored checkpoint.
    is_stopping: bool = False  # A stop completed: the subtasks of the attempt are ending.
    halted_for: FailureReason | None = None  # Why the last attempt is over; None: one runs.
    ended: JobStatus | None = None
    failures: FailureCount = field(default_factory=FailureCount)
    aborted_ids: tuple[CheckpointId, ...] = ()  # The newest few.

    def find_pending(self, checkpoint_id: CheckpointId) -> PendingCheckpoint | None:
        """The unsettled checkpoint with this id."""
        return next((p for p in self.pending if p.checkpoint_id == checkpoint_id), None)

    @property
    def latest_completed_id(self) -> CheckpointId | None:
        """The newest checkpoint that a failed job would be restored from."""
        on_the_line = (c.checkpoint_id for c in self.completed if c.abandoned_at_ms is None)
        return max(on_the_line, default=None)

    def with_pending(self, changed: PendingCheckpoint) -> "CoordinatorState":
        """The state with one pending checkpoint replaced."""
        pending = tuple(
            changed if p.checkpoint_id == changed.checkpoint_id else p for p in self.pending
        )
        return frozen.replace(self, pending=pending)

    def without_pending(self, settled: PendingCheckpoint) -> "CoordinatorState":
        """The state with one checkpoint no longer pending."""
        remaining = tuple(p for p in self.pending if p.checkpoint_id != settled.checkpoint_id)
        return replace(self, pending=remaining)


@dataclass(frozen=True, slots=True)
class Step:
    """The outcome of one event: the next state, the commands, and the result for its sender."""

    state: CoordinatorState
    commands: tuple[CoordinatorCommand, ...] = ()  # To be executed in this order.
    result: Result = None

    def then(
        self,
        transition: "Callable[Concatenate[CoordinatorState, P], Step]",
        *args: P.args,
        **kwargs: P.kwargs,
    ) -> "Step":
        """Append a transition that starts from this step's state; the first result stays."""
        following = transition(self.state, *args, **kwargs)
        return Step(
            state=following.state,
            commands=self.commands + following.commands,
            result=self.result if self.result is not None else following.result,
        )


def step(state: CoordinatorState, event: CoordinatorEvent, now_ms: int) -> Step:
    """Fold one event into the state.

    Raises:
        ProtocolError: No correct peer sends this event in this state, and no retry repairs it.
    """
    match event:
        case Acknowledged():
            return _acknowledge(state, event, now_ms)
        case Declined():
            return _decline(state, event, now_ms)
        case Tick():
            return _tick(state, now_ms)
        case CheckpointRequested():
            return _request(state, event, now_ms)
        case ManifestWritten():
            return _complete(state, event, now_ms)
        case ManifestFailed():
            return _give_up_manifest(state, event, now_ms)
        case TriggerFailed():
            return _fail_trigger(state, event, now_ms)
        case CheckpointGivenUp():
            return _give_up(state, event, now_ms)
        case TimeLost():
            return _extend(state, event)
        case SubtaskFinished():
            return _finish_subtask(state, event, now_ms)
        case CheckpointingStarted():
            return _start(state, event, now_ms)
        case CheckpointingStopped():
            return _stop(state, event, now_ms)
        case CheckpointsRestored():
            return _load(state, event)
        case JobEnded():
            return _end(state, event, now_ms)
        case _:
            assert_never(event)


@dataclass(frozen=True, slots=True)
class Tally:
    """The outcome of acknowledgements: one step for all, and for each its result or its error."""

    step: Step
    results: tuple[AckResult | ProtocolError, ...]


def acknowledge(state: CoordinatorState, acks: Sequence[Acknowledged], now_ms: int) -> Tally:
    """Fold acknowledgements of one attempt's checkpoint in, as ``step`` does one after another.

    The subtasks that are missing are copied once: one by one, that is most of the time that a
    checkpoint of thousands of subtasks takes. An error stands for its acknowledgement alone, which
    changes nothing.
    """
    try:
        pending, result = _reported(state, acks[0].attempt, acks[0].checkpoint_id)
    except ProtocolError as error:
        return Tally(Step(state), (error,) * len(acks))
    if pending is None:
        assert isinstance(result, AckResult)
        commands: list[CoordinatorCommand] = []
        if acks[0].checkpoint_id in state.aborted_ids:
            for ack in acks:
                if handles := tuple(handle for part in ack.operators for handle in part.handles):
                    commands.append(DiscardHandles(handles))
        return Tally(Step(state, tuple(commands), result), (result,) * len(acks))
    plan, taken = _plan(state), set[SubtaskId]()
    results: list[AckResult | ProtocolError] = []
    for ack in acks:
        try:
            subtasks = _acknowledging(plan, ack)
        except ProtocolError as error:
            results.append(error)
            continue
        if subtasks <= pending.missing and subtasks.isdisjoint(taken):
            taken |= subtasks
            results.append(AckResult.ACCEPTED)
        else:
            results.append(AckResult.DUPLICATE)
    if not taken:
        return Tally(Step(state, result=AckResult.DUPLICATE), tuple(results))
    recorded = _without_missing(state, pending, taken, now_ms, acknowledged=len(taken))
    step = Step(recorded, result=AckResult.ACCEPTED).then(_write_next_manifest)
    return Tally(step, tuple(results))


def next_due_ms(state: CoordinatorState) -> int | None:
    """The time of the next ``Tick`` that the coordinator needs; None: not before another event."""
    due = [p.expires_at_ms for p in state.pending if not p.is_finalizing]
    if state.next_periodic_ms is not None:
        due.append(state.next_periodic_ms)
    if state.plan is not None:
        expiries = (retention.discard_due_ms(c, state.config) for c in state.completed)
        due += (at_ms for at_ms in expiries if at_ms is not None)
    return min(due, default=None)


# --- Subtasks report -----------------------------------------------------------------------------


def _acknowledge(state: CoordinatorState, ack: Acknowledged, now_ms: int) -> Step:
    """Record one chain's acknowledgement; command the manifest when it was the last."""
    tally = acknowledge(state, (ack,), now_ms)
    (result,) = tally.results
    if isinstance(result, ProtocolError):
        raise result
    return tally.step


def _acknowledging(plan: CheckpointPlan, ack: Acknowledged) -> frozenset[SubtaskId]:
    """The operator subtasks of an acknowledgement, which are all that its chain runs."""
    subtasks = plan.operators_of(ack.chain)
    if len(ack.operators) != len(subtasks) or {part.subtask for part in ack.operators} != subtasks:
        raise ProtocolError(
            f"{ack.chain} acknowledged checkpoint {ack.checkpoint_id} for "
            f"{', '.join(str(part.subtask) for part in ack.operators) or 'nothing'}; "
            f"the chain runs {', '.join(map(str, sorted(subtasks)))}"
        )
    return subtasks


def _decline(state: CoordinatorState, declined: Declined, now_ms: int) -> Step:
    """One chain cannot snapshot its state: abort the checkpoint."""
    pending, result = _reported(state, declined.attempt, declined.checkpoint_id)
    if declined.reason not in DECLINE_REASONS:
        raise ProtocolError(
            f"{declined.chain} declined with {declined.reason}, which is no reason of a subtask"
        )
    if pending is None or pending.is_finalizing:
        return Step(state, result=result or AckResult.LATE)
    _plan(state).operators_of(declined.chain)
    cause = f"{declined.chain}: {declined.cause}" if declined.cause else str(declined.chain)
    return (
        Step(state, result=AckResult.ACCEPTED)
        .then(_abort, pending, declined.reason, cause, now_ms=now_ms)
        .then(_start_due, now_ms)
    )


def _finish_subtask(state: CoordinatorState, event: SubtaskFinished, now_ms: int) -> Step:
    """A chain ended: it counts as acknowledged from here on."""
    if _is_stale(state, event.attempt):
        return Step(state, result=AckResult.STALE_ATTEMPT)
    if state.plan is None:
        return Step(state, result=AckResult.LATE)
    subtasks = state.plan.operators_of(event.chain)
    if event.chain in state.plan.finished:
        return Step(state, result=AckResult.DUPLICATE)
    entries_before = set(state.plan.entries())
    state = replace(state, plan=state.plan.without(event.chain))
    # No barrier can reach a chain whose last input just ended, so one is injected. A chain that had
    # received the barrier already drops this one.
    entries = tuple(entry for entry in _plan(state).entries() if entry not in entries_before)
    commands: list[CoordinatorCommand] = []
    for pending in state.pending:
        if subtasks <= pending.missing:
            pending = replace(pending, finished=pending.finished | {event.chain})
            state = _without_missing(state, pending, subtasks, now_ms)
        waiting = tuple(e for e in entries if _plan(state).operators_of(e) <= pending.missing)
        if waiting:
            commands.append(TriggerCheckpoint(state.attempt, pending.barrier, waiting))
    return Step(state, tuple(commands), AckResult.ACCEPTED).then(_write_next_manifest)


# --- The manifest writer reports -----------------------------------------------------------------


def _complete(state: CoordinatorState, event: ManifestWritten, now_ms: int) -> Step:
    """The manifest is durable: the checkpoint is complete from here on."""
    pending = _finalizing(state, event.checkpoint_id)
    if pending is None:
        return Step(state, result=_settled_result(state, event.checkpoint_id))
    pending = pending.moved_to(CheckpointStatus.COMPLETED)
    completed = CompletedCheckpoint(
        checkpoint_id=pending.checkpoint_id,
        attempt=pending.attempt,
        kind=pending.kind,
        triggered_at_ms=pending.barrier.triggered_at_ms,
        completed_at_ms=now_ms,
        parent_id=pending.parent_id,
        sinks_acknowledged_at_ms=pending.sinks_acknowledged_at_ms,
        target=pending.barrier.options.target,
    )
    state = replace(
        state.without_pending(pending),
        last_completion_ms=now_ms,
        failures=failures.succeeded(state.failures, pending.checkpoint_id),
    )
    done = Step(state, (RecordCompleted(completed, pending.request),), AckResult.ACCEPTED)
    # A savepoint is a copy for the user. Nothing is committed for it, so nothing builds on it.
    if pending.kind is not CheckpointKind.SAVEPOINT:
        done = done.then(_announce, completed)
    if pending.kind is CheckpointKind.CHECKPOINT:
        done = done.then(_store, completed, now_ms)
    if pending.kind is not CheckpointKind.SAVEPOINT:
        done = done.then(_abort_superfluous, completed, now_ms)
    return done.then(_write_next_manifest).then(_start_due, now_ms)


def _announce(state: CoordinatorState, completed: CompletedCheckpoint) -> Step:
    """Have the subtasks commit."""
    if state.plan is None or completed.attempt != state.attempt:
        return Step(state)  # Its subtasks have ended; the attempt that restores it commits for it.
    state = replace(
        state,
        base_id=completed.checkpoint_id,
        is_stopping=state.is_stopping or completed.kind in STOP_KINDS,
    )
    told = CheckpointCompleted(
        state.attempt, completed.checkpoint_id, final=completed.kind in STOP_KINDS
    )
    return Step(state, (told,))


def _abort_superfluous(
    state: CoordinatorState, completed: CompletedCheckpoint, now_ms: int
) -> Step:
    """Abort older checkpoints still under way, and refuse requests queued behind a stop."""
    is_stop = completed.kind in STOP_KINDS
    why = FailureReason.JOB_STOPPED if is_stop else FailureReason.CHECKPOINT_SUBSUMED
    noun = "savepoint" if is_stop else "checkpoint"
    cleared = Step(state)
    for older in state.pending:
        if older.checkpoint_id < completed.checkpoint_id and older.kind not in SAVEPOINT_KINDS:
            cause = f"{noun} {completed.checkpoint_id} completed first"
            cleared = cleared.then(_abort, older, why, cause, now_ms=now_ms)
    if state.is_stopping:
        reason = FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        cleared = cleared.then(_refuse_queued, state.queue, reason)
    return cleared


def _store(state: CoordinatorState, completed: CompletedCheckpoint, now_ms: int) -> Step:
    """Retain a completed checkpoint for restores, and subsume the oldest."""
    if _keeps_none(state):
        return _discard_at_end(replace(state, completed=(*state.completed, completed)))
    if state.plan is None:  # A restore may be reading any of them.
        return Step(replace(state, completed=(*state.completed, completed)))
    if completed.attempt != state.attempt:  # Its successor has gone on from one before it.
        completed = replace(completed, abandoned_at_ms=now_ms)
        everything = tuple(sorted((*state.completed, completed), key=lambda c: c.checkpoint_id))
        abandoned = RecordAbandoned((completed.checkpoint_id,))
        return Step(replace(state, completed=everything), (abandoned,))
    everything = (*state.completed, completed)
    # Older ones under way are about to be aborted.
    bases = _bases(p for p in state.pending if p.checkpoint_id > completed.checkpoint_id)
    kept, subsumed = retention.subsume(everything, state.config.retained_max, bases)
    return Step(replace(state, completed=kept), tuple(DiscardCheckpoint(old) for old in subsumed))


def _bases(pending: Iterable[PendingCheckpoint]) -> frozenset[CheckpointId]:
    """The completed checkpoints that these build on."""
    bases = (one.barrier.options.base_id for one in pending)
    return frozenset(base_id for base_id in bases if base_id)


def _give_up_manifest(state: CoordinatorState, event: ManifestFailed, now_ms: int) -> Step:
    """There is no manifest and will be none, so there is no checkpoint."""
    pending = _finalizing(state, event.checkpoint_id)
    if pending is None:
        return Step(state, result=_settled_result(state, event.checkpoint_id))
    given_up = Step(state, result=AckResult.ACCEPTED).then(
        _abort,
        pending,
        _unwritten(state, pending),
        event.cause,
        now_ms=now_ms,
        keep_files=event.may_exist,
    )
    if _keeps_none(state):
        return given_up.then(_discard_at_end)
    return given_up.then(_write_next_manifest).then(_start_due, now_ms)


def _unwritten(state: CoordinatorState, pending: PendingCheckpoint) -> FailureReason:
    """The reason of a checkpoint without manifest: its attempt's planned end came before it."""
    halted_for = state.halted_for
    is_halted = state.plan is None and pending.attempt == state.attempt
    if is_halted and halted_for is not None and ENDS_AS[halted_for] is CheckpointStatus.ABORTED:
        return halted_for
    return FailureReason.FINALIZE_CHECKPOINT_FAILURE


def _fail_trigger(state: CoordinatorState, event: TriggerFailed, now_ms: int) -> Step:
    """The barrier could not be sent and will never arrive: abort the checkpoint."""
    _check_used(state, event.checkpoint_id)
    pending = state.find_pending(event.checkpoint_id)
    if pending is None or pending.is_finalizing:
        return Step(state, result=_settled_result(state, event.checkpoint_id))
    return (
        Step(state, result=AckResult.ACCEPTED)
        .then(_abort, pending, FailureReason.IO_EXCEPTION, event.cause, now_ms=now_ms)
        .then(_start_due, now_ms)
    )


def _give_up(state: CoordinatorState, event: CheckpointGivenUp, now_ms: int) -> Step:
    """The job master aborted the checkpoint while the control plane was unreachable."""
    if event.reason not in GIVE_UP_REASONS:
        raise ProtocolError(f"{event.reason} is no reason for a driver to give a checkpoint up")
    pending, result = _reported(state, event.attempt, event.checkpoint_id)
    if pending is None or pending.is_finalizing:
        return Step(state, result=result or AckResult.LATE)
    return (
        Step(state, result=AckResult.ACCEPTED)
        .then(_abort, pending, event.reason, event.cause, now_ms=now_ms)
        .then(_start_due, now_ms)
    )


def _extend(state: CoordinatorState, event: TimeLost) -> Step:
    """Extend the timeout of every checkpoint under way by the time that was lost."""
    gained_ms = max(0, event.away_ms)
    extended = (
        p
        if p.is_finalizing
        else replace(p, expires_at_ms=min(p.expires_at_ms + gained_ms, DUE_MS_MAX))
        for p in state.pending
    )
    return Step(replace(state, pending=tuple(extended)), result=AckResult.ACCEPTED)


def reopened(state: CoordinatorState, config: CheckpointConfig) -> CoordinatorState:
    """The state of a job that ended and is started again: its checkpoints stay, and so do ids.

    Raises:
        ProtocolError: The job has not ended, or a manifest is still being written.
    """
    if state.ended is None or state.pending:
        raise ProtocolError("only a job that has ended, and settled its checkpoints, is reopened")
    return replace(state, config=config, ended=None, failures=FailureCount(), is_stopping=False)


# --- A user or the clock requests a checkpoint ---------------------------------------------------


def _request(state: CoordinatorState, event: CheckpointRequested, now_ms: int) -> Step:
    """Trigger, queue or refuse a requested checkpoint."""
    request = TriggerRequest(now_ms, event.kind, event.request_id, event.target)
    if _holds(state, event.request_id):
        return Step(state, result=TriggerResult.DUPLICATE)
    if state.plan is None or state.is_stopping:
        reason = (
            FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
            if state.ended
            else FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING
        )
        return replace(_refuse(state, request, reason), result=TriggerResult.REFUSED)
    done = _enqueue(state, request)
    if event.kind in STOP_KINDS and request in done.state.queue:
        done = done.then(_pause_periodic)
    done = done.then(_start_due, now_ms)
    if any(pending.request == request for pending in done.state.pending):
        return replace(done, result=TriggerResult.TRIGGERED)
    waits = request in done.state.queue
    return replace(done, result=TriggerResult.POSTPONED if waits else TriggerResult.REFUSED)


def withdraw(state: CoordinatorState, request_id: str, cause: str, now_ms: int) -> Step:
    """Take a request back, for which its requester waits no more.

    One that waits is refused, and a savepoint under way is aborted: if it completed all the same,
    it would stop a job, or be kept, without an operation that knows of it. These go on: a
    checkpoint, which serves the job in any case; a drain, which has ended the sources; and
    all that is finalizing, since its manifest may be durable already. Nothing happens where no such
    request waits or runs, so that this may be repeated.
    """
    reason = FailureReason.CHECKPOINT_EXPIRED
    queued = next((r for r in state.queue if r.request_id == request_id), None)
    if queued is not None:
        taken = _refuse_queued(state, [queued], reason)
        if queued.kind in STOP_KINDS:
            taken = replace(taken, state=_resume_periodic(taken.state, now_ms))
        return taken.then(_start_due, now_ms)
    for pending in state.pending:
        if pending.request.request_id == request_id and _may_be_withdrawn(pending):
            aborted = Step(state).then(_abort, pending, reason, cause, now_ms=now_ms)
            return aborted.then(_start_due, now_ms)
    return Step(state)


def _may_be_withdrawn(pending: PendingCheckpoint) -> bool:
    return pending.kind in WITHDRAWN_KINDS and not pending.is_finalizing


def _tick(state: CoordinatorState, now_ms: int) -> Step:
    """Abort expired checkpoints, discard expired abandoned ones, and trigger what is due."""
    ticked = Step(state)
    for pending in state.pending:
        if not pending.is_finalizing and pending.expires_at_ms <= now_ms:
            waiting_for = ", ".join(map(str, sorted(pending.missing)[:5])) or "another manifest"
            cause = (
                f"not completed within {state.config.timeout_ms} ms; {len(pending.missing)} of "
                f"{pending.acknowledged_count + len(pending.missing)} subtasks missing: "
                f"{waiting_for}"
            )
            ticked = ticked.then(
                _abort, pending, FailureReason.CHECKPOINT_EXPIRED, cause, now_ms=now_ms
            )
    ticked = ticked.then(_let_abandoned_go, now_ms)
    return ticked.then(_enqueue_periodic, now_ms).then(_start_due, now_ms)


def _let_abandoned_go(state: CoordinatorState, now_ms: int) -> Step:
    """Discard abandoned checkpoints whose time to live is over."""
    if state.plan is None:
        return Step(state)  # The driver may be choosing one of them to restore.
    bases = _bases(state.pending)
    expired = tuple(
        completed
        for completed in state.completed
        if (at_ms := retention.discard_due_ms(completed, state.config)) is not None
        and at_ms <= now_ms
        and completed.checkpoint_id not in bases
    )
    return _discard(state, expired)


def _enqueue_periodic(state: CoordinatorState, now_ms: int) -> Step:
    due_ms, interval_ms = state.next_periodic_ms, scheduling.effective_interval_ms(state.config)
    if due_ms is None or interval_ms is None or now_ms < due_ms:
        return Step(state)
    following_ms = scheduling.following_due_ms(due_ms, interval_ms, now_ms=now_ms)
    state = replace(state, next_periodic_ms=following_ms)
    if any(request.is_periodic for request in state.queue):
        return Step(state)  # One waiting is enough: a second would run right after the first.
    return _enqueue(state, TriggerRequest(now_ms))


def _enqueue(state: CoordinatorState, request: TriggerRequest) -> Step:
    queue, overflow = scheduling.enqueue(state.queue, request, state.config)
    state = replace(state, queue=queue)
    if overflow is None:
        return Step(state)
    return _refuse(state, overflow, FailureReason.TOO_MANY_CHECKPOINT_REQUESTS)


def _start_due(state: CoordinatorState, now_ms: int) -> Step:
    """Trigger or refuse queued requests until the next one has to wait."""
    if state.plan is None:
        return Step(state)
    started = Step(state)
    while True:
        state = started.state
        decision = scheduling.decide(
            state.queue,
            state.pending,
            state.config,
            last_completion_ms=state.last_completion_ms,
            now_ms=now_ms,
        )
        match decision:
            case None:
                return Step(state, started.commands)
            case scheduling.Run(request):
                started = Step(replace(state, queue=state.queue[1:]), started.commands)
                started = started.then(_trigger, request, now_ms)
            case scheduling.Refuse(request, reason, retry_at_ms):
                state = replace(state, queue=state.queue[1:], next_periodic_ms=retry_at_ms)
                started = Step(state, started.commands).then(_refuse, request, reason)
            case _:
                assert_never(decision)


def _trigger(state: CoordinatorState, request: TriggerRequest, now_ms: int) -> Step:
    """Begin a checkpoint: its id is taken and its timeout runs from here on."""
    plan = _plan(state)
    entries = plan.entries()
    if not entries:
        return _refuse(state, request, FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING)
    barrier = CheckpointBarrier(
        checkpoint_id=state.next_id,
        triggered_at_ms=now_ms,
        options=scheduling.barrier_options(
            state.config, request.kind, request.target, base_id=_increment_base(state)
        ),
    )
    pending = PendingCheckpoint(
        barrier=barrier,
        attempt=state.attempt,
        request=request,
        expires_at_ms=now_ms + state.config.timeout_ms,
        missing=plan.to_acknowledge(),
        finished=plan.finished,
    )
    state = replace(
        state,
        next_id=CheckpointId(state.next_id + 1),
        pending=(*state.pending, pending),
    )
    return Step(state, (TriggerCheckpoint(state.attempt, barrier, entries),))


def _increment_base(state: CoordinatorState) -> CheckpointId:
    """The completed checkpoint that one triggered now builds on; 0: there is none."""
    retained = {c.checkpoint_id for c in state.completed if c.abandoned_at_ms is None}
    return state.base_id if state.base_id in retained else CheckpointId(0)


def _refuse(state: CoordinatorState, request: TriggerRequest, reason: FailureReason) -> Step:
    return Step(state, (CheckpointRefused(request, reason),))


def _refuse_queued(
    state: CoordinatorState, requests: Iterable[TriggerRequest], reason: FailureReason
) -> Step:
    """Take these requests out of the queue and refuse them, periodic ones with their own reason."""
    refused = tuple(requests)
    return Step(
        replace(state, queue=tuple(r for r in state.queue if r not in refused)),
        tuple(
            CheckpointRefused(
                request,
                FailureReason.PERIODIC_SCHEDULER_SHUTDOWN if request.is_periodic else reason,
            )
            for request in refused
        ),
    )


def _pause_periodic(state: CoordinatorState) -> Step:
    """Stop periodic checkpoints while a stop is under way."""
    periodic = (request for request in state.queue if request.is_periodic)
    return _refuse_queued(
        replace(state, next_periodic_ms=None), periodic, FailureReason.PERIODIC_SCHEDULER_SHUTDOWN
    )


def _resume_periodic(state: CoordinatorState, now_ms: int) -> CoordinatorState:
    """Resume periodic checkpoints after a stop failed, unless another stop waits."""
    another = any(r.kind in STOP_KINDS for r in state.queue)
    if state.plan is None or state.config.interval_ms is None or another:
        return state
    return replace(state, next_periodic_ms=now_ms + state.config.min_pause_ms)


# --- The life of the job -------------------------------------------------------------------------


def _start(state: CoordinatorState, event: CheckpointingStarted, now_ms: int) -> Step:
    """The job runs: start checkpointing."""
    if event.attempt < state.attempt or (event.attempt == state.attempt and state.plan is None):
        return Step(state, result=AckResult.STALE_ATTEMPT)
    if event.attempt == state.attempt:
        return Step(state, result=AckResult.DUPLICATE)
    if state.plan is not None or state.ended:
        raise ProtocolError(
            f"attempt {event.attempt} started while attempt {state.attempt} "
            f"{'runs' if state.plan is not None else f'is over: the job {state.ended}'}"
        )
    state = replace(
        state,
        attempt=event.attempt,
        plan=event.plan,
        base_id=event.restored_from,
        is_stopping=False,
        halted_for=None,
        next_periodic_ms=scheduling.first_due_ms(
            state.config, delay_ms=event.first_delay_ms, now_ms=now_ms
        ),
    )
    return Step(state, result=AckResult.ACCEPTED).then(_follow, event.lineage, now_ms)


def _follow(state: CoordinatorState, lineage: Lineage, now_ms: int) -> Step:
    """Abandon completed checkpoints beside the attempt's lineage, and reclaim those on it."""
    if lineage == UNKNOWN:
        return Step(state)
    abandoned: list[CheckpointId] = []
    reclaimed: list[CheckpointId] = []
    completed: list[CompletedCheckpoint] = []
    for checkpoint in state.completed:
        is_on_it = lineage.holds(checkpoint.attempt, checkpoint.checkpoint_id)
        if is_on_it and checkpoint.abandoned_at_ms is not None:
            reclaimed.append(checkpoint.checkpoint_id)
            checkpoint = replace(checkpoint, abandoned_at_ms=None)
        elif not is_on_it and checkpoint.abandoned_at_ms is None:
            abandoned.append(checkpoint.checkpoint_id)
            checkpoint = replace(checkpoint, abandoned_at_ms=now_ms)
        completed.append(checkpoint)
    commands: list[CoordinatorCommand] = []
    if abandoned:
        commands.append(RecordAbandoned(tuple(abandoned)))
    if reclaimed:
        commands.append(RecordReclaimed(tuple(reclaimed)))
    return Step(replace(state, completed=tuple(completed)), tuple(commands))


def _stop(state: CoordinatorState, event: CheckpointingStopped, now_ms: int) -> Step:
    """The job no longer runs: abort the checkpoints under way and refuse the queued requests."""
    if event.reason not in STOP_REASONS:
        raise ProtocolError(f"{event.reason} is no reason for checkpointing to stop")
    if _is_stale(state, event.attempt):
        return Step(state, result=AckResult.STALE_ATTEMPT)
    if state.plan is None:
        return Step(state, result=AckResult.DUPLICATE)
    halted = _halt(state, event.reason, FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING, now_ms)
    return replace(halted, result=AckResult.ACCEPTED)


def _end(state: CoordinatorState, event: JobEnded, now_ms: int) -> Step:
    """The job is over: delete its checkpoints, or keep them, as its retention says."""
    is_kept = retention.is_kept_on_end(state.config.retention, event.status)
    if state.ended:
        return Step(state, result=AckResult.DUPLICATE)
    refused = FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN
    ended = replace(state, ended=event.status)
    halted = _halt(ended, END_REASONS[event.status], refused, now_ms)
    return replace(halted if is_kept else halted.then(_discard_at_end), result=AckResult.ACCEPTED)


def _keeps_none(state: CoordinatorState) -> bool:
    """Whether the job is over and its checkpoints do not outlive it."""
    ended = state.ended
    return ended is not None and not retention.is_kept_on_end(state.config.retention, ended)


def _discard_at_end(state: CoordinatorState) -> Step:
    """Discard all checkpoints, but the base of one whose manifest is being written.

    That manifest names files of its base, which goes once the outcome is known.
    """
    bases = _bases(state.pending)
    return _discard(state, tuple(c for c in state.completed if c.checkpoint_id not in bases))


def _discard(state: CoordinatorState, old: tuple[CompletedCheckpoint, ...]) -> Step:
    """Retain these completed checkpoints no longer."""
    kept = tuple(completed for completed in state.completed if completed not in old)
    return Step(replace(state, completed=kept), tuple(map(DiscardCheckpoint, old)))


def _halt(
    state: CoordinatorState, aborted: FailureReason, refused: FailureReason, now_ms: int
) -> Step:
    """Abort the checkpoints under way; one whose manifest is being written awaits the outcome.

    After a stop completed, its savepoint has all that they would have held, however the job ends.
    """
    if state.is_stopping:
        aborted = FailureReason.JOB_STOPPED
    elif state.plan is None and state.halted_for is not None:
        aborted = state.halted_for  # The attempt was over before.
    halted = _refuse_queued(replace(state, next_periodic_ms=None), state.queue, refused)
    for pending in state.pending:
        if not pending.is_finalizing:
            halted = halted.then(_abort, pending, aborted, "", now_ms=now_ms)
    over = replace(halted.state, plan=None, next_periodic_ms=None, halted_for=aborted)
    return Step(over, halted.commands)


def _load(state: CoordinatorState, event: CheckpointsRestored) -> Step:
    """Take over the completed checkpoints of the storage; ids only grow."""
    if state.plan is not None or state.pending:
        raise ProtocolError("checkpoints can be restored only before the job runs")
    ids = [completed.checkpoint_id for completed in event.completed]
    if len(set(ids)) < len(ids):
        raise ProtocolError(f"the storage lists a checkpoint twice: {sorted(ids)}")
    if savepoints := [c.checkpoint_id for c in event.completed if c.kind in SAVEPOINT_KINDS]:
        raise ProtocolError(f"savepoints {savepoints} are not the job's to keep or delete")
    newest = max(ids, default=0)
    known = {completed.checkpoint_id: completed for completed in state.completed}
    if event.next_id <= newest:
        raise ProtocolError(f"next id {event.next_id}, but checkpoint {newest} exists")
    return Step(
        replace(
            state,
            completed=tuple(
                # The storage does not know since when a checkpoint is abandoned.
                replace(stored, abandoned_at_ms=before.abandoned_at_ms)
                if (before := known.get(stored.checkpoint_id)) and before.attempt == stored.attempt
                else stored
                for stored in sorted(event.completed, key=lambda c: c.checkpoint_id)
            ),
            next_id=max(state.next_id, event.next_id),
            # The previous driver may have completed an id that was aborted here.
            aborted_ids=tuple(i for i in state.aborted_ids if i not in ids),
        ),
        result=AckResult.ACCEPTED,
    )


# --- Parts of several transitions ----------------------------------------------------------------


def _abort(
    state: CoordinatorState,
    pending: PendingCheckpoint,
    reason: FailureReason,
    cause: str,
    *,
    now_ms: int,
    keep_files: bool = False,
) -> Step:
    """Abort a checkpoint, and fail the job if that exceeds the tolerated failures."""
    checkpoint_id = pending.checkpoint_id
    commands: list[CoordinatorCommand] = []
    is_live = state.plan is not None and pending.attempt == state.attempt
    if is_live:
        commands.append(CheckpointAborted(state.attempt, checkpoint_id, state.latest_completed_id))
    commands.append(RecordAborted(pending.moved_to(ENDS_AS[reason]), reason, cause))
    state = state.without_pending(pending)
    if not keep_files:
        commands.append(DiscardPending(checkpoint_id))
        remembered = (*state.aborted_ids, checkpoint_id)[-ABORTED_REMEMBERED:]
        state = replace(state, aborted_ids=remembered)
    if not is_live:
        return Step(state, tuple(commands))  # An older attempt's failure must not fail this one.
    count, must_fail = failures.failed(
        state.failures,
        checkpoint_id,
        pending.kind,
        reason,
        tolerable=state.config.tolerable_failures,
    )
    state = replace(state, failures=count)
    if must_fail:
        commands.append(FailJob(state.attempt, _why_failed(pending, reason, cause, state)))
    if pending.kind in STOP_KINDS:
        state = _resume_periodic(state, now_ms)
    return Step(state, tuple(commands))


def _write_next_manifest(state: CoordinatorState) -> Step:
    """Command the manifest of the oldest fully acknowledged checkpoint, one at a time."""
    if any(pending.is_finalizing for pending in state.pending):
        return Step(state)
    ready = next((pending for pending in state.pending if not pending.missing), None)
    if ready is None:
        return Step(state)
    ready = replace(ready.moved_to(CheckpointStatus.FINALIZING), parent_id=state.base_id)
    return Step(state.with_pending(ready), (WriteManifest(ready),))


def _without_missing(
    state: CoordinatorState,
    pending: PendingCheckpoint,
    subtasks: AbstractSet[SubtaskId],
    now_ms: int,
    acknowledged: int = 0,
) -> CoordinatorState:
    missing = pending.missing - subtasks
    sinks = _plan(state).sinks
    if not sinks.isdisjoint(subtasks) and sinks.isdisjoint(missing):  # The last sinks.
        pending = replace(pending, sinks_acknowledged_at_ms=now_ms)
    count = pending.acknowledged_count + acknowledged
    return state.with_pending(frozen.replace(pending, missing=missing, acknowledged_count=count))


def _reported(
    state: CoordinatorState, attempt: AttemptNumber, checkpoint_id: CheckpointId
) -> tuple[PendingCheckpoint | None, AckResult | None]:
    """The checkpoint that a subtask's report is about, or the result that says why it has none."""
    if _is_stale(state, attempt):
        return None, AckResult.STALE_ATTEMPT
    _check_used(state, checkpoint_id)
    pending = state.find_pending(checkpoint_id)
    if pending is None:
        return None, _settled_result(state, checkpoint_id)
    if pending.attempt != attempt:
        raise ProtocolError(
            f"attempt {attempt} reports on checkpoint {checkpoint_id} of attempt {pending.attempt}"
        )
    if state.plan is None:  # It is finalizing, and its attempt is over.
        return None, AckResult.DUPLICATE
    return pending, None


def _finalizing(state: CoordinatorState, checkpoint_id: CheckpointId) -> PendingCheckpoint | None:
    """The checkpoint whose manifest is being written; None: it is settled already."""
    _check_used(state, checkpoint_id)
    pending = state.find_pending(checkpoint_id)
    if pending is not None and not pending.is_finalizing:
        raise ProtocolError(f"no manifest was requested for checkpoint {checkpoint_id}")
    return pending


def _settled_result(state: CoordinatorState, checkpoint_id: CheckpointId) -> AckResult:
    is_completed = any(c.checkpoint_id == checkpoint_id for c in state.completed)
    return AckResult.DUPLICATE if is_completed else AckResult.LATE


def _is_stale(state: CoordinatorState, attempt: AttemptNumber) -> bool:
    if attempt > state.attempt:
        raise ProtocolError(f"attempt {attempt} reports, but {state.attempt} is the newest started")
    return attempt < state.attempt


def _check_used(state: CoordinatorState, checkpoint_id: CheckpointId) -> None:
    if not 0 < checkpoint_id < state.next_id:
        raise ProtocolError(f"checkpoint {checkpoint_id} was never triggered")


def _plan(state: CoordinatorState) -> CheckpointPlan:
    if state.plan is None:
        raise ProtocolError("the job does not run")
    return state.plan


def _holds(state: CoordinatorState, request_id: str) -> bool:
    requests = (*state.queue, *(pending.request for pending in state.pending))
    return any(request.request_id == request_id for request in requests)


def _why_failed(
    pending: PendingCheckpoint, reason: FailureReason, cause: str, state: CoordinatorState
) -> str:
    what = f"{pending.kind} {pending.checkpoint_id} failed: {reason}"
    if cause:
        what = f"{what} ({cause})"
    if pending.kind is CheckpointKind.STOP_DRAIN:
        back = "a restart goes on from the newest checkpoint"
        if not state.completed:
            back = "it has completed no checkpoint, so a restart begins where the job began"
        return f"{what}; the drain has ended the sources, which cannot be undone: {back}"
    return (
        f"{what}; that is one more in a row than the {state.config.tolerable_failures} tolerated "
        "(tolerable_failures). The history of checkpoints says why each of them failed."
    )


def check_invariants(state: CoordinatorState) -> None:
    """Raise if the state is one that no sequence of events may lead to; for tests.

    Raises:
        ProtocolError: Names the rule that is broken.
    """
    pending_ids = [p.checkpoint_id for p in state.pending]
    completed_ids = [c.checkpoint_id for c in state.completed]
    running = state.plan.to_acknowledge() if state.plan is not None else frozenset()
    finalizing = [p for p in state.pending if p.is_finalizing]
    counted = [p for p in state.pending if p.kind not in SAVEPOINT_KINDS]
    rules = {
        "pending ids grow": pending_ids == sorted(set(pending_ids)),
        "completed ids grow": completed_ids == sorted(set(completed_ids)),
        "no id was taken before its time": all(
            0 < used < state.next_id for used in (*pending_ids, *completed_ids, *state.aborted_ids)
        ),
        "a checkpoint is pending, completed or aborted": len(
            {*pending_ids, *completed_ids, *state.aborted_ids}
        )
        == len(pending_ids) + len(completed_ids) + len(state.aborted_ids),
        "pending is pending or finalizing": all(
            p.status in (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)
            for p in state.pending
        ),
        "one manifest at a time": len(finalizing) <= 1,
        "finalizing misses no subtask": all(not p.missing for p in finalizing),
        "fully acknowledged waits for a manifest only": bool(finalizing)
        or all(p.missing for p in state.pending),
        "what is under way belongs to the attempt that runs": all(
            p.attempt == state.attempt and state.plan is not None
            for p in state.pending
            if not p.is_finalizing
        ),
        "only subtasks that run are missing": all(p.missing <= running for p in state.pending),
        "concurrent_max holds": len(counted) <= state.config.concurrent_max,
        "the attempt that runs abandons nothing of its own": state.plan is None
        or all(c.abandoned_at_ms is None for c in state.completed if c.attempt == state.attempt),
        "the base of what is under way is retained": _bases(state.pending) <= set(completed_ids),
        "savepoints are not in the store": all(
            c.kind not in SAVEPOINT_KINDS for c in state.completed
        ),
        "the queue is bounded": len(state.queue) <= scheduling.QUEUE_MAX,
        "one periodic request waits at most": sum(r.is_periodic for r in state.queue) <= 1,
        "the clock runs only with the job": state.next_periodic_ms is None
        or (state.plan is not None and state.config.interval_ms is not None),
        "nothing waits unless the job runs": not state.queue or state.plan is not None,
        "nothing runs after the end": state.ended is None or state.plan is None,
        "failures in a row are tolerated": (
            state.failures.in_a_row <= state.config.tolerable_failures
        ),
    }
    if broken := [rule for rule, holds in rules.items() if not holds]:
        raise ProtocolError(f"broken: {'; '.join(broken)}")
