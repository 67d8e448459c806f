"""The way back of operations that changed a job which then did not come to run.

``weir.protocol.operations`` decides that a job is to be taken back; a tick does it here, in a
transaction of its own, once the end of the failed job is settled.
"""

import logging
from typing import Any
from uuid import UUID

from django.db import transaction

from checkpoints.catalog import restore_targets
from checkpoints.coordinator.operation_steps import RELAUNCH_REASONS
from controlplane.audit.models import record
from controlplane.base import clock, logs
from controlplane.base.errors import Refusal, WrongState
from jobs import operations, services
from jobs.models import OPEN_OPERATIONS, Job, Operation, OperationKind
from jobs.set_aside import Step, is_set_aside, setting_aside
from weir.protocol.operations import Before, Phase, Return, ReturnTick

logger = logging.getLogger(__name__)

CLAIMED_MAX = 100  # Operations per tick; the next, a second later, takes the rest.
_OPTIONS = ("parallelism", "allow_non_restored_state")  # That an operation may have changed.


def before(job: Job, *, goes_back: bool) -> Before | None:
    """The job as it is before an operation; None where there is nothing to take it back to.

    ``goes_back``: the operation leaves the job's newest checkpoint behind.
    """
    newest = restore_targets.newest(job) if goes_back else None
    if goes_back and newest is None:
        return None
    options: dict[str, Any] = {name: job.options.get(name) for name in _OPTIONS}
    return Before(**options, checkpoint=None if newest is None else newest.number)


def return_due() -> int:
    """Take back each job whose operation is due to; return their number."""
    due = Operation.objects.filter(
        status__in=OPEN_OPERATIONS, progress__phase=Phase.RETURN_DUE.value
    ).exclude(is_set_aside(Step.RETURN, clock.now(), "job_id"))
    count = 0
    for pk, job_id in list(due.order_by("created_at").values_list("pk", "job_id")[:CLAIMED_MAX]):
        with logs.about(operation=str(pk)), setting_aside(Step.RETURN, job_id):
            count += _take_back(pk, job_id)
    return count


def _take_back(pk: UUID, job_id: str) -> bool:
    try:
        with transaction.atomic():
            locked = Job.objects.filter(pk=job_id).select_for_update(skip_locked=True, of=("self",))
            job = locked.first()
            if job is None:
                return False  # Another transaction has the job; the next tick tries again.
            operation = Operation.objects.get(pk=pk)
            commands = operations.fold(operation, ReturnTick())
            for command in commands:
                assert isinstance(command, Return)
                _relaunch(job, operation, command)
            return bool(commands)
    except WrongState as unsettled:
        logger.info("%s is not taken back yet: %s", job_id, unsettled.detail)
        return False


def _relaunch(job: Job, operation: Operation, command: Return) -> None:
    was = command.before
    if was.checkpoint is not None:
        try:
            target = restore_targets.of_checkpoint(job, was.checkpoint)
        except Refusal as refused:
            error = f"{command.error}; the job could not be taken back: {refused.detail}"
            operations.fail(operation, error)
            return
        rewinds = operation.parameters["rewind_output"]
        beginning = services.Beginning(target.uri, job, target.number, rewinds_output=rewinds)
        services.begin_with(job, beginning)
    changed = {name: getattr(was, name) for name in _OPTIONS}
    kept = {name: value for name, value in job.options.items() if name not in _OPTIONS}
    job.options = {**kept, **{name: value for name, value in changed.items() if value is not None}}
    job.save(update_fields=["options", *services.BEGINNING_FIELDS])
    kind = OperationKind(operation.kind)
    why = f"the {kind.value} did not come to run; taken back to how it was"
    services.relaunch(job, f"{why}: {command.error}", RELAUNCH_REASONS[kind])
    record(
        None,
        "job.return",
        f"job/{job.pk}",
        after={"operation": str(operation.pk), "error": command.error, **changed},
    )
    logger.warning("%s: %s", job.pk, why)
