"""The shell around ``weir.protocol.coordinator``: load, step, save, enqueue.

``pump`` and ``tick`` bring events to a job's coordinator; ``reopen`` begins it anew. They run under
the job's lock and fold a whole batch: the state is read and written once, rows are written once,
commands leave by the outbox when the transaction commits.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from django.conf import settings

from checkpoints.coordinator import countdowns, operation_steps
from checkpoints.coordinator.read_model import ReadModel
from checkpoints.models import CoordinatorRow
from controlplane.base import clock, logs, wakeups
from controlplane.base.lookups import only
from jobs.drivers import drivers, outbox
from jobs.models import Job, JobException, Operation
from jobs.storable_text import storable
from weir.bounds import TEXT_LENGTH_MAX
from weir.config import CheckpointConfig
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol import coordinator
from weir.protocol.coordinator import CoordinatorState
from weir.protocol.messages import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointRefused,
    CheckpointsRestored,
    CoordinatorCommand,
    CoordinatorEvent,
    FailJob,
    RecordAborted,
    RecordCompleted,
    Tick,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.protocol.operations import OperationEvent
from weir.protocol.pending import AckResult
from weir.protocol.wire import from_wire
from weir.wire.values import Rows

logger = logging.getLogger(__name__)

# Commands for drivers. Discards are not among them: the control plane deletes files itself.
_FOR_DRIVERS = (
    TriggerCheckpoint,
    CheckpointCompleted,
    CheckpointAborted,
    WriteManifest,
    RecordCompleted,
    RecordAborted,
    CheckpointRefused,
    FailJob,
)

_STATES = Rows(CoordinatorState)

FAULTS_NOTED_MAX = 20  # Of a batch; the log has all.

# The sweep alone writes swept_at.
_SAVED = ("state", "due_at", "next_trigger_at", "expires_at", "has_ended")


def state_of(job: Job) -> CoordinatorState:
    """The state of the job's coordinator; a fresh one before its first event."""
    return _load(job, _row_of(job))


def config_of(job: Job) -> CheckpointConfig:
    """The checkpoint settings of the job's pipeline, as the control plane applies them.

    A pipeline that does not say how many checkpoints to retain gets this control plane's number;
    the library's own default counts as not saying it.
    """
    config = from_wire(CheckpointConfig, job.checkpoint_config or {})
    if config.retained_max == CheckpointConfig().retained_max:
        config = replace(config, retained_max=settings.WEIR_RETAINED_CHECKPOINTS)
    return config


def pump(job: Job, events: Sequence[CoordinatorEvent], *, now_ms: int) -> None:
    """Fold events into the job's coordinator, in order; the caller holds the job's lock.

    Operations that wait for an event go on at once, which may end the job's driver.

    An event that no correct driver sends is passed over, since it would come again for ever; an
    exception of the job records it.
    """
    if not events:
        return
    _fold(job, _row_of(job), events, now_ms)


def withdraw(job: Job, request_id: str, cause: str, *, now_ms: int) -> None:
    """Take a request back, as ``coordinator.withdraw`` says; the caller holds the job's lock."""
    row = _row_of(job)
    if row is None:
        return
    batch = _Batch(job, _load(job, row), now_ms)
    batch.withdraw(request_id, cause)
    batch.save(row)
    operation_steps.carry_on(job, batch.answers())


def tick(job: Job, *, now_ms: int) -> bool:
    """Trigger or expire what is due, if anything; the caller holds the job's lock."""
    row = _row_of(job)
    if row is None or row.due_at is None or row.due_at > clock.from_ms(now_ms):
        return False
    _fold(job, row, [Tick()], now_ms)
    return True


def _fold(
    job: Job, row: CoordinatorRow | None, events: Sequence[CoordinatorEvent], now_ms: int
) -> None:
    batch = _Batch(job, _load(job, row), now_ms)
    for checkpoint, run in groupby(events, _acknowledged):
        if checkpoint is None:
            for event in run:
                batch.take(event)
        else:
            batch.take_acknowledgements([ack for ack in run if isinstance(ack, Acknowledged)])
    batch.save(row or CoordinatorRow(job=job))
    # Only now: an operation's next step may send the coordinator events.
    operation_steps.carry_on(job, batch.answers())


def _acknowledged(event: CoordinatorEvent) -> tuple[AttemptNumber, CheckpointId] | None:
    """The attempt and the checkpoint that an event acknowledges."""
    return (event.attempt, event.checkpoint_id) if isinstance(event, Acknowledged) else None


def reopen(job: Job) -> None:
    """Reopen the coordinator of a job that had ended; the caller holds the job's lock.

    Raises:
        ProtocolError: Not all of its checkpoints have settled.
    """
    row = _row_of(job)
    if row is not None:
        _save(row, coordinator.reopened(_load(job, row), config_of(job)))


def _row_of(job: Job) -> CoordinatorRow | None:
    return only(CoordinatorRow.objects.filter(job=job))


def _load(job: Job, row: CoordinatorRow | None) -> CoordinatorState:
    if row is None:
        return CoordinatorState(config=config_of(job))
    return _STATES.from_row(row.state)


def _save(row: CoordinatorRow, state: CoordinatorState) -> int | None:
    """Write a state and its due times; return the next one if it has changed."""
    before = row.due_at
    due_ms, trigger_ms = coordinator.next_due_ms(state), state.next_periodic_ms
    expiries = [p.expires_at_ms for p in state.pending if not p.is_finalizing]
    row.state = _STATES.to_row(state)
    row.due_at = None if due_ms is None else clock.from_ms(due_ms)
    row.next_trigger_at = None if trigger_ms is None else clock.from_ms(trigger_ms)
    row.expires_at = clock.from_ms(min(expiries)) if expiries else None
    row.has_ended = state.ended is not None
    is_new = row._state.adding  # Django would try to update it, since it has its key.
    row.save(force_insert=is_new, update_fields=None if is_new else _SAVED)
    return due_ms if row.due_at != before else None


@dataclass(frozen=True, slots=True)
class _Fault:
    """An event that could not be folded in."""

    event: CoordinatorEvent
    error: ProtocolError


class _Batch:
    """A batch of events, folded into one job's coordinator."""

    def __init__(self, job: Job, state: CoordinatorState, now_ms: int) -> None:
        self._job = job
        self._state = state
        self._now_ms = now_ms
        self._read_model = ReadModel(job, state, now_ms)
        self._commands: list[CoordinatorCommand] = []
        self._faults: list[_Fault] = []

    def take(self, event: CoordinatorEvent) -> None:
        """Fold one event in."""
        try:
            if isinstance(event, CheckpointsRestored):
                event = self._restored(event)
            self._read_model.check(event)
            step = coordinator.step(self._state, event, self._now_ms)
        except ProtocolError as error:
            self._pass_over(event, error)
            return
        self._state = step.state
        self._read_model.note(event, step)
        self._commands += step.commands

    def take_acknowledgements(self, acks: Sequence[Acknowledged]) -> None:
        """Fold acknowledgements of one attempt's checkpoint in."""
        fitting, accepted = [], []
        for ack in acks:
            try:
                self._read_model.check(ack)
            except ProtocolError as error:
                self._pass_over(ack, error)
            else:
                fitting.append(ack)
        if not fitting:
            return
        tally = coordinator.acknowledge(self._state, fitting, self._now_ms)
        for ack, result in zip(fitting, tally.results, strict=True):
            if isinstance(result, ProtocolError):
                self._pass_over(ack, result)
            elif result is AckResult.ACCEPTED:
                accepted.append(ack)
        self._state = tally.step.state
        self._read_model.note_acknowledgements(accepted, tally.step)
        self._commands += tally.step.commands

    def withdraw(self, request_id: str, cause: str) -> None:
        """Take a request back."""
        step = coordinator.withdraw(self._state, request_id, cause, self._now_ms)
        self._state = step.state
        self._read_model.note_step(step)
        self._commands += step.commands

    def save(self, row: CoordinatorRow) -> None:
        """Write the rows, the commands and the state that follow from the batch."""
        self._read_model.save(self._state)
        if self._faults:
            self._note_faults()
        commands = [c for c in self._commands if isinstance(c, _FOR_DRIVERS)]
        # A driver that was lost takes no command, and its successor begins afresh.
        if commands and drivers.live(self._job) is not None:
            outbox.enqueue(self._job, commands, clock.from_ms(self._now_ms))
        due_ms = _save(row, self._state)
        if due_ms is not None:
            countdowns.tick_at(self._job.pk, due_ms, self._now_ms)
        wakeups.on_commit(wakeups.job(self._job.pk))

    def answers(self) -> list[tuple[Operation, OperationEvent]]:
        """Events for the operations that wait for the batch, once it was saved."""
        return self._read_model.answers()

    def _restored(self, event: CheckpointsRestored) -> CheckpointsRestored:
        """The checkpoints that the storage holds, without those that are being deleted.

        A driver lists the storage before each attempt. Checkpoints that retention discards may lie
        there for a moment longer; the coordinator retains them no more.
        """
        if self._state.plan is None and not self._state.pending:
            # A later driver may have planned another version of the pipeline.
            self._state = replace(self._state, config=config_of(self._job))
            return self._read_model.restored(event)
        return event  # Refused by the coordinator.

    def _pass_over(self, event: CoordinatorEvent, error: ProtocolError) -> None:
        with logs.about(job=self._job.pk, checkpoint=getattr(event, "checkpoint_id", None)):
            logger.error("%s was passed over: %s", type(event).__name__, error)
        self._faults.append(_Fault(event, error))

    def _note_faults(self) -> None:
        faults = self._faults[:FAULTS_NOTED_MAX]
        JobException.objects.bulk_create(
            JobException(
                job=self._job,
                at=clock.from_ms(self._now_ms),
                kind="internal",
                attempt_number=self._state.attempt or None,
                text=storable(
                    f"{type(fault.event).__name__} was passed over: {fault.error}", TEXT_LENGTH_MAX
                ),
            )
            for fault in faults
        )
