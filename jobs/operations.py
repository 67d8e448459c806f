"""Operations: requests about a job that take time, from begin to end, which each one reaches.

The end comes from the job's status (``settle``), from the service that executes the operation, or
from its deadline (``expire_due``). Nothing changes an operation that has ended.

Operations with several steps keep a ``weir.protocol.operations.OperationState``: ``fold`` takes one
event in, and its caller executes the commands in the same transaction.
"""

import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction

from controlplane.accounts.models import User
from controlplane.base import clock, logs, wakeups
from controlplane.base.errors import Busy, KeyReused
from jobs import hooks, job_events
from jobs.headlines import in_one_line
from jobs.models import (
    OPEN_OPERATIONS,
    Job,
    JobEventKind,
    Operation,
    OperationKind,
    OperationStatus,
)
from jobs.set_aside import Step, is_set_aside, setting_aside
from weir.protocol import operations as steps
from weir.protocol.lifecycle import JobStatus
from weir.protocol.operations import (
    Fail,
    JobReached,
    OperationCommand,
    OperationEvent,
    OperationState,
    OutOfTime,
    Overtaken,
    Succeed,
    advance,
)
from weir.protocol.wire import from_wire, to_wire

logger = logging.getLogger(__name__)

EXPIRED_MAX = 500  # Per sweep; the next takes the rest.
KEY_LENGTH_MAX = 200
WAIT_S_MAX = 30  # For which a request for an operation may wait for its change.
FORK_SETTLES_MS = (
    10_000  # After the deadline of a fork's submission, until that of the fork itself.
)

# Operations of these kinds have to end before one of the key's kind may begin. A savepoint may run
# beside a checkpoint; a change of the job waits for all earlier operations, a cancellation only for
# another cancellation.
_CHANGES = frozenset(
    {
        OperationKind.CANCEL,
        OperationKind.RESTART,
        OperationKind.STOP,
        OperationKind.ROLLBACK,
        OperationKind.RESCALE,
        OperationKind.UPGRADE,
    }
)
_SAVES = frozenset({OperationKind.SAVEPOINT, OperationKind.FORK})
_WAITS_FOR: Mapping[OperationKind, frozenset[OperationKind]] = {
    OperationKind.CANCEL: frozenset({OperationKind.CANCEL}),
    OperationKind.CHECKPOINT: _CHANGES,
    OperationKind.SAVEPOINT: _CHANGES | _SAVES,
    OperationKind.FORK: _CHANGES | _SAVES,
    OperationKind.RESTART: _CHANGES | _SAVES | {OperationKind.SUBMIT},
    OperationKind.STOP: _CHANGES | _SAVES | {OperationKind.SUBMIT},
    OperationKind.ROLLBACK: _CHANGES | _SAVES | {OperationKind.SUBMIT},
    OperationKind.RESCALE: _CHANGES | _SAVES | {OperationKind.SUBMIT},
    OperationKind.UPGRADE: _CHANGES | _SAVES | {OperationKind.SUBMIT},
}
# An operation of the key's kind makes open ones of these kinds pointless.
_OVERTAKES: Mapping[OperationKind, frozenset[OperationKind]] = {
    OperationKind.CANCEL: (_CHANGES - {OperationKind.CANCEL})
    | _SAVES
    | {OperationKind.SUBMIT, OperationKind.CHECKPOINT},
    OperationKind.RESTART: frozenset({OperationKind.CHECKPOINT}),
    OperationKind.ROLLBACK: frozenset({OperationKind.CHECKPOINT}),
    OperationKind.RESCALE: frozenset({OperationKind.CHECKPOINT}),
    OperationKind.UPGRADE: frozenset({OperationKind.CHECKPOINT}),
}
_STARTS = (OperationKind.SUBMIT, OperationKind.RESTART)
_PLANNED_ENDS = (OperationStatus.SUCCEEDED, OperationStatus.CANCELLED)


def fingerprint(
    kind: OperationKind, parameters: Mapping[str, Any], job_id: str | None = None
) -> str:
    """The digest in which two requests with the same idempotency key must agree."""
    text = json.dumps([kind.value, job_id, parameters], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def earlier(actor: User | None, key: str | None, mark: str) -> Operation | None:
    """The operation of an earlier, equal request, known by its idempotency key.

    Raises:
        KeyReused: The key was used with another request.
    """
    if key is None or actor is None:
        return None
    known = Operation.objects.filter(requested_by=actor, idempotency_key=key).first()
    if known is not None and known.fingerprint != mark:
        raise KeyReused(
            f"the idempotency key {key!r} was used for another request; choose a new one",
            operation=str(known.pk),
        )
    return known


def blocking(kind: OperationKind, under_way: Iterable[Operation]) -> Operation | None:
    """The first of a job's open operations that has to end before one of this kind may begin."""
    first = _WAITS_FOR.get(kind, frozenset())
    return next((o for o in under_way if o.kind in first and not _waits_for_fork(o)), None)


def _waits_for_fork(operation: Operation) -> bool:
    """Whether all that an operation has to do with its own job is done."""
    return (operation.progress or {}).get("phase") == steps.Phase.FORKING


def begin(
    job: Job,
    kind: OperationKind,
    actor: User | None,
    parameters: Mapping[str, Any],
    *,
    key: str | None,
    timeout_ms: int | None = None,
    mark: str | None = None,
    progress: OperationState | None = None,
    waits: bool = True,
) -> Operation:
    """Begin an operation; a repeated request gets the operation of the first one.

    The caller holds the job's lock. Operations that this one makes pointless end as CANCELLED.

    Args:
        mark: The request's fingerprint where it is not that of kind, job and parameters.
        progress: The first state of an operation with several steps.
        waits: False: the operation may run beside all others.

    Raises:
        Busy: An operation that has to end first is under way.
        KeyReused: The key was used with another request.
    """
    kind = OperationKind(kind)
    mark = mark or fingerprint(kind, parameters, job.pk)
    if (repeated := earlier(actor, key, mark)) is not None:
        return repeated
    under_way = Operation.objects.filter(job=job, status__in=OPEN_OPERATIONS)
    if waits and (other := blocking(kind, under_way.order_by("created_at"))) is not None:
        raise Busy(
            f"{other.kind} {other.pk} of this job is under way; wait for its end",
            operation=str(other.pk),
        )
    now = clock.now()
    operation = Operation(
        job=job,
        kind=kind,
        parameters=dict(parameters),
        progress=None if progress is None else to_wire(progress),
        requested_by=actor,
        idempotency_key=key if actor is not None else None,
        fingerprint=mark,
        created_at=now,
        deadline_at=now + clock.milliseconds(timeout_ms or settings.WEIR_OPERATION_TIMEOUT_MS),
    )
    try:
        with transaction.atomic():
            operation.save(force_insert=True)
    except IntegrityError:
        # A request with the same key won the race, under the lock of another job or of none yet.
        winner = earlier(actor, key, mark)
        if winner is None:
            raise
        return winner
    for overtaken in under_way.filter(kind__in=_OVERTAKES.get(kind, ())).exclude(pk=operation.pk):
        if _waits_for_fork(overtaken):
            continue
        give_up(overtaken, OperationStatus.CANCELLED, f"overtaken by {kind.value} {operation.pk}")
    wakeups.on_commit(wakeups.job(job.pk))
    return operation


def start(operation: Operation) -> bool:
    """Mark the operation as RUNNING. False where it has started or ended already."""
    now = clock.now()
    pending = Operation.objects.filter(pk=operation.pk, status=OperationStatus.PENDING)
    if not pending.update(status=OperationStatus.RUNNING, started_at=now):
        return False
    operation.status, operation.started_at = OperationStatus.RUNNING, now
    wakeups.on_commit(wakeups.job(operation.job_id))
    return True


def succeed(operation: Operation, result: Mapping[str, Any]) -> bool:
    """End the operation as SUCCEEDED. False where it had ended already."""
    return _end(operation, OperationStatus.SUCCEEDED, result=dict(result))


def fail(operation: Operation, error: str) -> bool:
    """End the operation as FAILED. False where it had ended already."""
    return _end(operation, OperationStatus.FAILED, error=error)


def cancel(operation: Operation, why: str) -> bool:
    """End the operation as CANCELLED. False where it had ended already."""
    return _end(operation, OperationStatus.CANCELLED, error=why)


def give_up(operation: Operation, status: OperationStatus, why: str) -> bool:
    """End an open operation from outside; the error names the savepoint that it took, if any.

    One that is out of time and has changed its job does not end yet where the job is taken back,
    nor does one whose savepoint may still stop the job.
    """
    if operation.progress is not None and operation.kind in _STEPPED:
        is_late = status is OperationStatus.EXPIRED
        for command in fold(operation, OutOfTime(why) if is_late else Overtaken(why)):
            if isinstance(command, Fail):
                why = command.error
        if is_late and _is_to_return(operation):
            return False
    return _end(operation, status, error=why)


def note(operation: Operation, result: Mapping[str, Any]) -> None:
    """Store a part of the result that is known already; no effect on an ended operation."""
    known = {**_noted(operation), **result}
    if Operation.objects.filter(pk=operation.pk, status__in=OPEN_OPERATIONS).update(result=known):
        operation.result = known


def _noted(operation: Operation) -> dict[str, Any]:
    return dict(Operation.objects.values_list("result", flat=True).get(pk=operation.pk) or {})


# Several steps ------------------------------------------------------------------------------------

_STEPPED = frozenset(OperationKind(kind.value) for kind in steps.OperationKind)


def fold(operation: Operation, event: OperationEvent) -> tuple[OperationCommand, ...]:
    """Fold one event in; the caller holds the job's lock and executes the returned commands.

    No commands for an operation that has ended.
    """
    row = Operation.objects.filter(pk=operation.pk, status__in=OPEN_OPERATIONS)
    progress = row.values_list("progress", flat=True).first()
    if progress is None:
        return ()
    step = advance(from_wire(OperationState, progress), event)
    operation.progress = to_wire(step.state)
    if operation.progress != progress:
        changed: dict[str, Any] = {"progress": operation.progress}
        if (timeout_ms := _time_for(operation, progress)) is not None:
            operation.deadline_at = clock.now() + clock.milliseconds(timeout_ms)
            changed["deadline_at"] = operation.deadline_at
        row.update(**changed)
        wakeups.on_commit(wakeups.job(operation.job_id))
    return step.commands


def _time_for(operation: Operation, before: Mapping[str, Any]) -> float | None:
    """The time that the step just begun has from now on; None: its operation's deadline stays."""
    if _is_to_return(operation):  # It gets the usual time once more for that.
        return float(settings.WEIR_OPERATION_TIMEOUT_MS)
    phase = (operation.progress or {})["phase"]
    if (
        phase == steps.Phase.FORKING
    ):  # Later than that of the fork's own submission, which says why.
        return float(settings.WEIR_OPERATION_TIMEOUT_MS) + FORK_SETTLES_MS
    if phase == before.get("phase") or phase != steps.Phase.RELAUNCHING:
        return None
    given_s = operation.parameters.get("run_within_s")
    return None if given_s is None else given_s * 1_000


def _is_to_return(operation: Operation) -> bool:
    progress = operation.progress or {}
    is_late = progress.get("phase") == steps.Phase.SAVING and bool(progress.get("error"))
    return is_late or progress.get("phase") == steps.Phase.RETURN_DUE


def conclude(operation: Operation, command: Succeed | Fail) -> None:
    """Execute the last command of an operation with several steps."""
    match command:
        case Succeed():
            succeed(operation, {"job": operation.job_id, **_noted(operation)})
        case Fail(error):
            fail(operation, error)


def _settle_steps(job: Job, stepped: Iterable[Operation]) -> None:
    """Fold the job's status into operations with several steps."""
    reached = JobReached(JobStatus(job.status), in_one_line(job.cause))
    for operation in stepped:
        for command in fold(operation, reached):
            # The status can only end an operation: the other steps follow from its savepoint, or
            # from a tick.
            assert isinstance(command, Succeed | Fail)
            conclude(operation, command)


def _end(
    operation: Operation,
    status: OperationStatus,
    *,
    result: dict[str, Any] | None = None,
    error: str = "",
) -> bool:
    now = clock.now()
    # The condition, not the lock alone, keeps an end final: the caller's row may be stale.
    still_open = Operation.objects.filter(pk=operation.pk, status__in=OPEN_OPERATIONS)
    with transaction.atomic():
        if not still_open.update(status=status, result=result, error=error, ended_at=now):
            operation.refresh_from_db()
            return False
        job_events.record(
            operation.job_id,
            JobEventKind.OPERATION_ENDED,
            now,
            planned=status in _PLANNED_ENDS,
            reason=status.value,
            operation=str(operation.pk),
            kind=operation.kind,
            error=error,
        )
    operation.status, operation.result, operation.error = status, result, error
    operation.ended_at = now
    wakeups.on_commit(wakeups.job(operation.job_id))
    logger.info("%s %s %s", operation.kind, operation.pk, status.value)
    return True


def start_launch(job: Job) -> None:
    """Start the operations that wait for a driver of the job: one is being launched."""
    for operation in _under_way(job, *_STARTS):
        start(operation)


def settle(job: Job) -> None:
    """End the operations that the job's status decides; the caller holds the job's lock."""
    open_ones = _under_way(job, *_STEPPED, *_STARTS, OperationKind.CANCEL)
    _settle_steps(job, [o for o in open_ones if o.kind in _STEPPED])
    starts = [o for o in open_ones if o.kind in _STARTS]
    cancels = [o for o in open_ones if o.kind == OperationKind.CANCEL]
    match JobStatus(job.status):
        case JobStatus.RUNNING:
            for operation in starts:
                succeed(operation, {"job": job.pk, "status": job.status})
        case JobStatus.FINISHED:
            for operation in starts:
                succeed(operation, {"job": job.pk, "status": job.status})
            for operation in cancels:
                fail(operation, "the job finished before it could be cancelled")
        case JobStatus.FAILED:
            for operation in starts:
                fail(operation, f"the job failed: {job.cause}")
            for operation in cancels:
                fail(operation, f"the job failed before it could be cancelled: {job.cause}")
        case JobStatus.CANCELED:
            for operation in starts:
                cancel(operation, "the job was cancelled")
            for operation in cancels:
                succeed(operation, {"job": job.pk, "status": job.status})


def _under_way(job: Job, *kinds: OperationKind) -> list[Operation]:
    return list(Operation.objects.filter(job=job, kind__in=kinds, status__in=OPEN_OPERATIONS))


def expire_due() -> int:
    """End the operations whose deadline has passed; return their number."""
    now = clock.now()
    due = (
        Operation.objects.filter(status__in=OPEN_OPERATIONS, deadline_at__lte=now)
        .exclude(is_set_aside(Step.EXPIRE, now, "job_id"))
        .order_by("deadline_at")
        .values_list("pk", "job_id")[:EXPIRED_MAX]
    )
    count = 0
    for pk, job_id in list(due):
        with logs.about(operation=str(pk)), setting_aside(Step.EXPIRE, job_id):
            count += _expire(pk, job_id, now)
    return count


def _expire(pk: Any, job_id: str, now: datetime) -> bool:
    with transaction.atomic():
        job = Job.objects.filter(pk=job_id).select_for_update(skip_locked=True, of=("self",))
        if job.first() is None:
            return False  # Another transaction has the job; the next sweep tries again.
        operation = Operation.objects.get(pk=pk)
        said = f"the operation had not ended by its deadline, {operation.deadline_at.isoformat()}"
        if operation.deadline_at > now or not give_up(operation, OperationStatus.EXPIRED, said):
            return False
        hooks.checkpoints.withdraw(operation, f"the operation {pk} expired, and asked for it")
        return True
