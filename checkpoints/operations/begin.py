"""The first steps of an operation, in the transaction that accepts it."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.conf import settings

from checkpoints.coordinator import operation_steps, shell
from checkpoints.models import Savepoint
from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock
from controlplane.base.errors import WrongState
from jobs import operations
from jobs.drivers import drivers
from jobs.models import DesiredState, DriverStatus, Job, Operation, OperationKind
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import CheckpointRequested
from weir.protocol.operations import Begun, OperationCommand, Save


def timeout_ms(job: Job) -> int:
    """The timeout of an operation with a checkpoint, which may have to wait for another one."""
    taking_ms = 2 * shell.config_of(job).timeout_ms
    return int(taking_ms + settings.WEIR_OPERATION_TIMEOUT_MS)


def runs(job: Job) -> bool:
    """Whether the job is running under a live driver."""
    driver = drivers.live(job)
    is_up = driver is not None and driver.status == DriverStatus.RUNNING
    return is_up and job.status == JobStatus.RUNNING


def check_runs(job: Job, why: str) -> None:
    """Refuse an operation that needs a running job.

    Raises:
        WrongState: The job is not running, or is being cancelled.
    """
    is_wanted = job.desired == DesiredState.RUNNING
    if job.status != JobStatus.RUNNING or not is_wanted:
        state = job.status if is_wanted or job.is_over else JobStatus.CANCELLING.value
        raise WrongState(
            f"the job is {state}; {why}", state=state, allowed=[JobStatus.RUNNING.value]
        )


def start(
    actor: User | None,
    job: Job,
    operation: Operation,
    *,
    before: Mapping[str, Any] | None = None,
) -> Operation:
    """Take an accepted operation's first steps; return it as it is afterwards."""
    operations.start(operation)
    kind = OperationKind(operation.kind)
    record(
        actor,
        f"job.{kind.value}",
        f"job/{job.pk}",
        before=None if before is None else dict(before),
        after={"operation": str(operation.pk), **operation.parameters},
    )
    carry_out(job, operation, operations.fold(operation, Begun(is_running=runs(job))))
    operation.refresh_from_db()  # It may have been refused at once.
    return operation


def carry_out(job: Job, operation: Operation, commands: Sequence[OperationCommand]) -> None:
    """Execute the commands of an operation's first steps, which may request a savepoint."""
    for command in commands:
        if isinstance(command, Save):
            savepoint = Savepoint.objects.filter(operation=operation).first()
            target = None if savepoint is None else savepoint.location
            asked = CheckpointRequested(str(operation.pk), command.kind, target)
            shell.pump(job, [asked], now_ms=clock.now_ms())
    operation_steps.carry_out(job, operation, [c for c in commands if not isinstance(c, Save)])
