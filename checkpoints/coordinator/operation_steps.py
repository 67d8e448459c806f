"""Operations of several steps: the step after a savepoint completed or failed.

``weir.protocol.operations`` decides; here its commands are carried out, in the transaction of the
event and under the job's lock.
"""

import logging
from collections.abc import Iterable
from typing import Any, assert_never

from django.db import transaction

from checkpoints.models import Savepoint
from controlplane.base.errors import Refusal
from jobs import job_pipeline, operations, services
from jobs.models import Job, Operation, OperationKind
from jobs.submissions import Submission
from weir.protocol.lifecycle import FailureReason
from weir.protocol.operations import (
    Fail,
    OperationCommand,
    OperationEvent,
    Relaunch,
    Return,
    Save,
    SubmitFork,
    Succeed,
)

logger = logging.getLogger(__name__)

# Of the checkpoints that are under way when an operation relaunches its job.
RELAUNCH_REASONS = {
    OperationKind.RESCALE: FailureReason.JOB_RESCALED,
    OperationKind.ROLLBACK: FailureReason.JOB_ROLLED_BACK,
    OperationKind.UPGRADE: FailureReason.JOB_RESTARTED,
}


def carry_on(job: Job, happened: Iterable[tuple[Operation, OperationEvent]]) -> None:
    """Fold events into operations and execute their commands; the caller holds the job's lock.

    The coordinator's state must have been saved: a command may send it events of its own.
    """
    for operation, event in happened:
        carry_out(job, operation, operations.fold(operation, event))


def carry_out(job: Job, operation: Operation, commands: Iterable[OperationCommand]) -> None:
    """Execute the commands that an operation's event led to."""
    for command in commands:
        match command:
            case Save():
                # See ``checkpoints.operations.begin.start``.
                raise AssertionError("only a first step asks for a savepoint")
            case Return():
                # See ``checkpoints.operations.returns``.
                raise AssertionError("only a tick takes a job back")
            case Relaunch(restore):
                _relaunch(job, operation, restore)
            case SubmitFork(restore):
                _submit_fork(job, operation, restore)
            case Succeed() | Fail():
                operations.conclude(operation, command)
            case _:
                assert_never(command)


def _relaunch(job: Job, operation: Operation, restore: str | None) -> None:
    given: dict[str, Any] = operation.parameters
    kind = OperationKind(operation.kind)
    if restore is not None:
        begin_with(job, operation, restore)
    if kind is OperationKind.RESCALE:
        job.options = {**job.options, "parallelism": given["parallelism"]}
    if kind is OperationKind.UPGRADE:
        job_pipeline.run(job, given["runs"])
    elif given.get("allow_non_restored_state") is not None:
        allowed = given["allow_non_restored_state"]
        job.options = {**job.options, "allow_non_restored_state": allowed}
    job.save(update_fields=[*job_pipeline.FIELDS, *services.BEGINNING_FIELDS])
    what = {
        OperationKind.RESCALE: f"rescaled to {given.get('parallelism')}",
        OperationKind.ROLLBACK: f"rolled back to checkpoint {given.get('checkpoint')}",
        OperationKind.UPGRADE: f"upgraded to {job.pipeline_target}",
    }[kind]
    logger.info("%s is %s", job.pk, what)
    by = services.name_of(operation.requested_by)
    services.relaunch(job, f"{what} by {by}", RELAUNCH_REASONS[kind])


def begin_with(job: Job, operation: Operation, restore: str) -> None:
    """Have the job's next driver restore this URI of an operation; the caller saves the job."""
    given: dict[str, Any] = operation.parameters
    # What an upgrade stopped committed no output after its savepoint, nor may its return leave any.
    rewinds = given.get("rewind_output", True)
    number = given.get("checkpoint") or _number_taken(operation)
    services.begin_with(job, services.Beginning(restore, job, number, rewinds_output=rewinds))


def _number_taken(operation: Operation) -> int:
    """The number of the savepoint that an operation has taken."""
    row = Savepoint.objects.select_related("checkpoint").get(operation=operation)
    assert row.checkpoint is not None, "the savepoint has completed"
    return row.checkpoint.number


def _submit_fork(job: Job, operation: Operation, restore: str) -> None:
    """Submit the fork; where that is refused, the operation has failed."""
    given: dict[str, Any] = operation.parameters
    number = given["checkpoint"]
    if number is None:
        number = _number_taken(operation)
    beginning = services.Beginning(restore, job, number)
    try:
        with transaction.atomic():
            submitted = services.submit_fork(
                operation.requested_by, job, Submission(**given["submission"]), beginning
            )
    except Refusal as refused:
        error = f"the fork cannot be submitted: {refused.detail}"
        if given["checkpoint"] is None:
            error = f"{error}; the savepoint was taken and is kept: {restore}"
        operations.fail(operation, error)
        return
    operations.note(operation, {"job": submitted.job_id, "operation": str(submitted.pk)})
