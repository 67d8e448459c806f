"""The read model of checkpoints: rows, written along with the coordinator's state.

It follows one batch of events. Each checkpoint's row is read and written once however many
acknowledgements came; those are inserted in bulk.
"""

import logging
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from checkpoints.catalog import locations, restore_targets, savepoint_names
from checkpoints.coordinator import bulk_insert
from checkpoints.models import LAST_PHASES, Checkpoint, Savepoint
from checkpoints.verdict import evidence
from controlplane.base import clock
from jobs import job_events, operations, services
from jobs.drivers import drivers
from jobs.models import Attempt, Job, JobEvent, JobEventKind, Operation, OperationKind
from weir.bounds import NUMBER_MAX
from weir.errors import ProtocolError
from weir.ids import CheckpointId, SubtaskId
from weir.protocol.coordinator import CoordinatorState, Step
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import TRANSITIONS, UNCOMPLETED, CheckpointStatus, FailureReason
from weir.protocol.messages import (
    Acknowledged,
    CheckpointRefused,
    CheckpointsRestored,
    CoordinatorCommand,
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    OperatorAck,
    RecordAbandoned,
    RecordAborted,
    RecordCompleted,
    RecordReclaimed,
    SubtaskFinished,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.protocol.operations import NotSaved, OperationEvent, Saved
from weir.protocol.pending import (
    SAVEPOINT_KINDS,
    AckResult,
    CheckpointPlan,
    CompletedCheckpoint,
    PendingCheckpoint,
    TriggerRequest,
)

logger = logging.getLogger(__name__)

# Columns that steps change; the rest is fixed at the trigger, or changed by other modules.
_CHANGING = (
    "status",
    "parent",
    "settled_at",
    "sinks_acknowledged_at",
    "duration_ms",
    "reason",
    "cause",
    "subtask_count",
    "acknowledged_count",
    "start_delay_ms",
    "alignment_ms",
    "sync_ms",
    "async_ms",
    "last_subtask",
    "state_bytes",
    "written_bytes",
    "in_flight_bytes",
    "unaligned_count",
    "switched_count",
    "switched_ms",
    "abandoned_at",
    "watermark_ms",
    "discard_due_at",
    "discard_tries",
    "discard_error",
    "discarded_at",
)
_SETTLED_AS: Mapping[CheckpointStatus, JobEventKind] = {
    CheckpointStatus.COMPLETED: JobEventKind.CHECKPOINT_COMPLETED,
    CheckpointStatus.FAILED: JobEventKind.CHECKPOINT_FAILED,
    CheckpointStatus.ABORTED: JobEventKind.CHECKPOINT_ABORTED,
}
_WAS_FOUND = "Its manifest was found in the storage later: a driver had written it after all."


class ReadModel:
    """The rows of one job's checkpoints while a batch is folded in, under the job's lock."""

    def __init__(self, job: Job, state: CoordinatorState, now_ms: int) -> None:
        self._job = job
        self._now: datetime = clock.from_ms(now_ms)
        self._next_id = state.next_id  # Each number below it has a row.
        self._pending = [p.checkpoint_id for p in state.pending]
        self._rows: dict[int, Checkpoint | None] = {}
        self._touched: dict[int, Checkpoint] = {}
        self._acks: list[tuple[CheckpointId, bulk_insert.Part]] = []
        self._gates: list[tuple[CheckpointId, bulk_insert.Gate]] = []
        self._parents: dict[int, CheckpointId] = {}  # Of those whose manifest is requested.
        self._has_ended = state.ended is not None
        self._sources: set[str] | None = None  # Chains without inputs; read from the plan.
        self._begun: list[tuple[CheckpointId, TriggerRequest]] = []  # Savepoints.
        self._completed: list[tuple[CompletedCheckpoint, TriggerRequest]] = []
        self._failed: list[tuple[TriggerRequest, str]] = []  # Why a request failed.
        self._settled: dict[int, Collection[SubtaskId]] = {}  # With those that never acknowledged.
        self._events: list[JobEvent] = []

    # Restored checkpoints.

    def restored(self, event: CheckpointsRestored) -> CheckpointsRestored:
        """The checkpoints that the storage holds, without those that are being deleted.

        One that was unknown, or known as failed or aborted, has a row afterwards that says so.
        """
        self._read(c.checkpoint_id for c in event.completed)
        kept = tuple(c for c in event.completed if self._is_ours(c))
        return replace(event, completed=kept)

    def _is_ours(self, stored: CompletedCheckpoint) -> bool:
        row = self._row(stored.checkpoint_id)
        if row is None:
            self._adopt(stored)
            return True
        if row.status in UNCOMPLETED and self._is_of_live_driver(stored):
            # The live driver's next attempt restores it, so the restore that the job was to begin
            # with is used up. A later driver, which was told that restore, passes this checkpoint
            # over, so the restore is still needed.
            services.has_begun(self._job, stored.attempt)
        match row.status:
            case CheckpointStatus.COMPLETED:
                # A checkpoint of a job that had ended and could not be deleted is of use again.
                if row.discard_due_at is not None:
                    self._touch(row).discard_due_at = None
                return True
            case CheckpointStatus.FAILED | CheckpointStatus.ABORTED:
                self._touch(row).discard_due_at = None
                if _WAS_FOUND not in row.cause:
                    row.cause = f"{row.cause}\n{_WAS_FOUND}".strip()
                return True
            case _:
                return False

    def _is_of_live_driver(self, stored: CompletedCheckpoint) -> bool:
        return Attempt.objects.filter(
            job=self._job, number=stored.attempt, driver=drivers.live(self._job)
        ).exists()

    def _adopt(self, stored: CompletedCheckpoint) -> None:
        """Add the row of a checkpoint that was taken without this control plane."""
        completed_at = clock.from_ms(stored.completed_at_ms)
        self._add(
            number=stored.checkpoint_id,
            attempt=stored.attempt,
            kind=stored.kind.value,
            status=CheckpointStatus.COMPLETED.value,
            triggered_at=clock.from_ms(stored.triggered_at_ms),
            settled_at=completed_at,
            duration_ms=_duration_ms(stored),
            subtask_count=0,
            has_details=False,
        )

    def check(self, event: CoordinatorEvent) -> None:
        """Refuse an event that no row can hold.

        Raises:
            ProtocolError: An alignment's arrays are of different lengths.
        """
        if isinstance(event, Acknowledged):
            for part in event.operators:
                for gate in part.metrics.gates:
                    bulk_insert.check(gate)

    # Steps of the coordinator.

    def note(self, event: CoordinatorEvent, step: Step) -> None:
        """Take over one step: the event, no acknowledgement, and the commands that it led to."""
        if isinstance(event, SubtaskFinished) and step.result is AckResult.ACCEPTED:
            for pending in step.state.pending:
                self._touch_number(pending.checkpoint_id)
        self.note_step(step)

    def note_acknowledgements(self, accepted: Sequence[Acknowledged], step: Step) -> None:
        """Take over accepted acknowledgements of one checkpoint, and what they led to."""
        if accepted:
            self._acknowledged(accepted, step.state.plan)
        self.note_step(step)

    def note_step(self, step: Step) -> None:
        """Take over the commands that one step led to."""
        self._has_ended = step.state.ended is not None
        for command in step.commands:
            if isinstance(command, TriggerCheckpoint):
                self._triggered(command, step.state)
            else:
                self._follow(command)

    def _acknowledged(self, acks: Sequence[Acknowledged], plan: CheckpointPlan | None) -> None:
        number, at = acks[0].checkpoint_id, self._now
        row = self._touch_number(number)
        parts = [(ack.chain, part, took_ms) for ack in acks for part, took_ms in _parts(ack)]
        self._acks += [
            (number, bulk_insert.Part(chain, part, at, took_ms)) for chain, part, took_ms in parts
        ]
        self._gates += [
            (number, bulk_insert.Gate(part.subtask, gate))
            for _, part, _ in parts
            for gate in part.metrics.gates
        ]
        if row is None:
            return
        measured = [part.metrics for _, part, _ in parts]
        row.start_delay_ms = max([row.start_delay_ms, *(m.start_delay_ms for m in measured)])
        row.alignment_ms = max([row.alignment_ms, *(m.alignment_ms for m in measured)])
        row.sync_ms = max([row.sync_ms, *(m.sync_ms for m in measured)])
        row.async_ms = max([row.async_ms, *(m.async_ms for m in measured)])
        row.last_subtask = _last(row.last_subtask, ((chain, part) for chain, part, _ in parts))
        row.state_bytes += sum(m.state_size for m in measured)
        row.written_bytes += sum(m.written_size for m in measured)
        row.in_flight_bytes += sum(m.bytes_persisted_in_flight for m in measured)
        row.unaligned_count += sum(m.unaligned for m in measured)
        switched = [m for m in measured if m.switched is not None]
        row.switched_count += len(switched)
        after_ms = (row.switched_ms, *(m.switched_ms for m in switched))
        row.switched_ms = min((ms for ms in after_ms if ms is not None), default=None)
        if self._sources is None and plan is not None:
            self._sources = {chain.head for chain in plan.chains if not any(chain.upstream)}
        reached = {row.watermark_ms} | {
            part.metrics.watermark_ms
            for chain, part, _ in parts
            if chain.operator in (self._sources or ())
        }
        row.watermark_ms = min((at_ms for at_ms in reached if at_ms is not None), default=None)

    def _follow(self, command: CoordinatorCommand) -> None:
        match command:
            case WriteManifest(pending):
                row = self._moved(pending.checkpoint_id, CheckpointStatus.FINALIZING)
                if row is not None:
                    self._count(row, pending)
                    if pending.parent_id is not None:
                        self._parents[row.number] = pending.parent_id
                    if pending.sinks_acknowledged_at_ms is not None:
                        row.sinks_acknowledged_at = clock.from_ms(pending.sinks_acknowledged_at_ms)
            case RecordCompleted(completed, request):
                row = self._moved(completed.checkpoint_id, CheckpointStatus.COMPLETED)
                if row is not None:
                    row.settled_at = clock.from_ms(completed.completed_at_ms)
                    row.duration_ms = _duration_ms(completed)
                    row.cause = ""  # It may hold the error that delayed the settling.
                    self._settle(row, ())
                if completed.kind is not CheckpointKind.SAVEPOINT:
                    services.has_begun(self._job, completed.attempt)
                self._completed.append((completed, request))
            case RecordAborted(pending, reason, cause):
                row = self._moved(pending.checkpoint_id, pending.status)
                if row is not None:
                    self._count(row, pending)
                    row.settled_at, row.reason, row.cause = self._now, reason.value, cause
                    self._settle(row, pending.missing)
                what = "savepoint" if pending.kind in SAVEPOINT_KINDS else "checkpoint"
                how = "failed" if pending.status is CheckpointStatus.FAILED else "was aborted"
                said = f"{what} {pending.checkpoint_id} {how}: {_words(reason, cause)}"
                self._failed.append((pending.request, said))
            case CheckpointRefused(request, reason):
                what = "savepoint" if request.kind in SAVEPOINT_KINDS else "checkpoint"
                self._failed.append((request, f"the {what} was refused: {_words(reason)}"))
            case RecordAbandoned(numbers):
                self._set_abandoned(numbers, self._now)
            case RecordReclaimed(numbers):
                self._set_abandoned(numbers, None)
            case DiscardPending(checkpoint_id):
                self._discard(self._row(checkpoint_id))
            case DiscardHandles(handles):
                for number in locations.numbers_of(handles):
                    row = self._row(number)
                    if row is not None and row.status in UNCOMPLETED:
                        self._discard(row)
            case DiscardCheckpoint(completed):
                self._let_go(self._row(completed.checkpoint_id))
            case _:
                pass

    def _settle(self, row: Checkpoint, missing: Collection[SubtaskId]) -> None:
        """Note that a checkpoint has settled, for its evidence and as an event."""
        assert row.settled_at is not None
        self._settled[row.number] = missing
        kind = _SETTLED_AS[CheckpointStatus(row.status)]
        if row.reason == FailureReason.CHECKPOINT_EXPIRED:
            kind = JobEventKind.CHECKPOINT_EXPIRED
        self._events.append(
            job_events.event(
                self._job,
                kind,
                row.settled_at,
                planned=row.status == CheckpointStatus.ABORTED,
                reason=row.reason,
                checkpoint=row.number,
                kind=row.kind,
                attempt=row.attempt,
                duration_ms=row.duration_ms,
                alignment_ms=round(row.alignment_ms),
                state_bytes=row.state_bytes,
                cause=row.cause,
            )
        )

    def _triggered(self, command: TriggerCheckpoint, state: CoordinatorState) -> None:
        barrier = command.barrier
        if barrier.checkpoint_id < self._next_id:
            return  # A trigger of its own for subtasks whose inputs ended meanwhile.
        pending = state.find_pending(barrier.checkpoint_id)
        self._next_id = CheckpointId(barrier.checkpoint_id + 1)
        self._add(
            number=barrier.checkpoint_id,
            attempt=command.attempt,
            kind=barrier.options.kind.value,
            status=CheckpointStatus.PENDING.value,
            request_id=(pending and pending.request.request_id) or "",
            triggered_at=clock.from_ms(barrier.triggered_at_ms),
            subtask_count=0,  # Counted when the batch is saved.
            location=barrier.options.target or "",
        )
        if pending is not None and pending.kind in SAVEPOINT_KINDS:
            self._begun.append((pending.checkpoint_id, pending.request))

    def _set_abandoned(self, numbers: Iterable[CheckpointId], at: datetime | None) -> None:
        numbers = list(numbers)
        self._read(numbers)
        for number in numbers:
            if (row := self._touch_number(number)) is not None:
                row.abandoned_at = at

    def _let_go(self, row: Checkpoint | None) -> None:
        if row is None or row.kind in SAVEPOINT_KINDS:  # Savepoints are deleted on request only.
            return
        # After the job's end no newer one subsumed it: it is completed until it is deleted.
        if row.status == CheckpointStatus.COMPLETED and not self._has_ended:
            self._move(row, CheckpointStatus.SUBSUMED)
        self._discard(row)

    def _discard(self, row: Checkpoint | None) -> None:
        if row is None:
            return
        self._touch(row)
        row.discard_due_at, row.discarded_at = self._now, None
        row.discard_tries, row.discard_error = 0, ""

    # Operations that requested a checkpoint.

    def answers(self) -> list[tuple[Operation, OperationEvent]]:
        """Events of the saved batch for operations of several steps.

        Operations of one step are ended here.
        """
        for number, request in self._begun:
            if (operation := self._operation(request)) is not None:
                own = Savepoint.objects.filter(operation=operation)
                own.update(checkpoint=self._row(number))
        events = [self._completion(*what) for what in self._completed]
        events += [self._failure(*what) for what in self._failed]
        return [event for event in events if event is not None]

    def _completion(
        self, completed: CompletedCheckpoint, request: TriggerRequest
    ) -> tuple[Operation, OperationEvent] | None:
        number = completed.checkpoint_id
        row, operation = self._row(number), self._operation(request)
        result: dict[str, Any] = {"checkpoint": number, "duration_ms": _duration_ms(completed)}
        if row is not None and completed.kind in SAVEPOINT_KINDS:
            result["savepoint"] = str(self._savepoint(row, operation).pk)
        if operation is None:
            return None
        unnamed = locations.path_of(self._job, number)
        path = result["path"] = unnamed if row is None else restore_targets.uri_of(self._job, row)
        if operation.kind == OperationKind.CHECKPOINT:
            operations.succeed(operation, result)
            return None
        operations.note(operation, result)
        return operation, Saved(path)

    def _failure(
        self, request: TriggerRequest, error: str
    ) -> tuple[Operation, OperationEvent] | None:
        operation = self._operation(request)
        if operation is None:
            return None
        Savepoint.objects.filter(operation=operation).delete()  # Its name is free again.
        if operation.kind == OperationKind.CHECKPOINT:
            operations.fail(operation, error)
            return None
        return operation, NotSaved(error)

    def _savepoint(self, row: Checkpoint, operation: Operation | None) -> Savepoint:
        """The row of a savepoint that completed; one requested at the driver gets a name."""
        savepoint = None
        if operation is not None:
            savepoint = Savepoint.objects.filter(operation=operation).first()
        if savepoint is None:
            savepoint = savepoint_names.of_unnamed(self._job, row, self._now)
        if savepoint.checkpoint_id != row.pk:
            savepoint.checkpoint = row
            savepoint.save()
        return savepoint

    def _operation(self, request: TriggerRequest) -> Operation | None:
        """The operation that requested it; None: the interval, or the driver itself, did."""
        try:
            operation_id = UUID(request.request_id or "")
        except ValueError:
            return None
        return Operation.objects.filter(pk=operation_id, job=self._job).first()

    # Rows.

    def save(self, state: CoordinatorState) -> None:
        """Write the rows that changed, given the state in which the batch ended."""
        for pending in state.pending:
            if (row := self._touched.get(pending.checkpoint_id)) is not None:
                self._count(row, pending)
        parents = {number: self._row(parent) for number, parent in self._parents.items()}
        self._keep_evidence()
        new = [row for row in self._touched.values() if row.pk is None]
        changed = [row for row in self._touched.values() if row.pk is not None]
        Checkpoint.objects.bulk_create(new)
        for number, parent in parents.items():
            if parent is not None:  # Perhaps as new as its child: it has a key only now.
                row = self._touched[number]
                row.parent_id = parent.pk
                if row not in changed:
                    changed.append(row)
        for row in changed:
            kept = ("evidence",) if row.number in self._settled else ()
            row.save(update_fields=_CHANGING + kept)
        self._insert_acks_and_gates()
        job_events.record_all(self._events)

    def _keep_evidence(self) -> None:
        """Keep what the subtasks were doing as checkpoints settled, for the verdict."""
        if not self._settled:
            return
        waited_for = [number for number, missing in self._settled.items() if missing]
        subtasks = evidence.rows_of(self._job.pk, aligning=waited_for)
        noted = evidence.noted(self._job, self._settled)
        driver = drivers.newest(self._job)
        for number, missing in self._settled.items():
            row = self._touched[number]
            try:
                row.evidence = evidence.take(
                    subtasks,
                    number=number,
                    attempt=row.attempt,
                    now_ms=clock.to_ms(self._now),
                    missing={(str(subtask.operator), subtask.index) for subtask in missing},
                    noted=noted.get(number),
                    driver=driver.load if driver else None,
                )
            except Exception:
                # A driver's faulty report must not fail the batch, which would come again for ever:
                # the checkpoint has settled, only without evidence for its verdict.
                logger.exception("no evidence is kept of checkpoint %d", number)
                row.evidence = noted.get(number)

    def _insert_acks_and_gates(self) -> None:
        keys = {number: row.pk for number, row in self._touched.items()}
        bulk_insert.insert_acks(
            (keys[number], part) for number, part in self._acks if number in keys
        )
        bulk_insert.insert_gates(
            (keys[number], gate) for number, gate in self._gates if number in keys
        )

    def _count(self, row: Checkpoint, pending: PendingCheckpoint) -> None:
        row.acknowledged_count = pending.acknowledged_count
        row.subtask_count = pending.acknowledged_count + len(pending.missing)

    def _moved(self, number: CheckpointId, status: CheckpointStatus) -> Checkpoint | None:
        row = self._row(number)
        if row is not None:
            self._move(row, status)
        return row

    def _move(self, row: Checkpoint, status: CheckpointStatus) -> None:
        current = CheckpointStatus(row.status)
        if status not in TRANSITIONS.get(current, frozenset()):
            raise ProtocolError(f"checkpoint {row.number} is {current} and cannot become {status}")
        self._touch(row).status = status.value

    def _add(self, **values: Any) -> None:
        row = Checkpoint(job=self._job, **values)
        self._rows[row.number] = row
        self._touch(row)

    def _touch(self, row: Checkpoint) -> Checkpoint:
        self._touched[row.number] = row
        return row

    def _touch_number(self, number: CheckpointId) -> Checkpoint | None:
        row = self._row(number)
        return None if row is None else self._touch(row)

    def _row(self, number: CheckpointId) -> Checkpoint | None:
        if number not in self._rows:
            self._read([number, *self._pending])
            self._pending = []
        return self._rows[number]

    def _read(self, numbers: Iterable[CheckpointId]) -> None:
        wanted = {int(number) for number in numbers} - self._rows.keys()
        if wanted:
            rows = {row.number: row for row in self._job.checkpoints.filter(number__in=wanted)}
            self._rows |= {number: rows.get(number) for number in wanted}


def _parts(ack: Acknowledged) -> Iterator[tuple[OperatorAck, float | None]]:
    """The operators of an acknowledgement, and for how long each one's part was written."""
    is_told = len(ack.writing_ms) == len(ack.operators)
    took_ms = ack.writing_ms if is_told else (None,) * len(ack.operators)
    return zip(ack.operators, took_ms, strict=True)


def _duration_ms(completed: CompletedCheckpoint) -> int:
    """Within the column: clocks are set back, and machines wake after a month."""
    return min(max(0, completed.completed_at_ms - completed.triggered_at_ms), NUMBER_MAX)


def _last(
    known: Mapping[str, Any] | None, parts: Iterable[tuple[SubtaskId, OperatorAck]]
) -> Mapping[str, Any] | None:
    """The subtask whose phases took longest together, with them; ``known`` is that so far."""
    longest_ms = -1.0 if known is None else sum(known[name] for name in LAST_PHASES)
    last = None
    for chain, part in parts:
        took = part.metrics
        total_ms = took.start_delay_ms + took.alignment_ms + took.sync_ms + took.async_ms
        if total_ms > longest_ms:
            last, longest_ms = (chain, took), total_ms
    if last is None:
        return known
    chain, took = last
    return {"subtask": str(chain)} | {name: getattr(took, name) for name in LAST_PHASES}


def _words(reason: FailureReason, cause: str = "") -> str:
    words = reason.value.replace("_", " ")
    return f"{words} ({cause})" if cause else words
