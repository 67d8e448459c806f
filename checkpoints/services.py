"""What people ask of checkpoints."""

import logging

from checkpoints.coordination import pump
from checkpoints.starting import check_runs
from controlplane import clock
from controlplane.accounts.models import User
from controlplane.audit.models import record
from jobs import operations, services
from jobs.models import Operation, OperationKind
from weir.protocol.messages import CheckpointRequested

logger = logging.getLogger(__name__)


def request_checkpoint(actor: User | None, job_id: str, *, key: str | None = None) -> Operation:
    """Take a checkpoint now; the operation succeeds once it completed.

    Where as many as allowed are under way it waits for its turn.

    Raises:
        NotFound: There is no such job.
        WrongState: The job does not run.
        Busy: It is being cancelled or restarted.
        KeyReused: The idempotency key came with another request.
    """
    with services.asking(actor, job_id, OperationKind.CHECKPOINT, {}, key) as asked:
        if asked.repeated is not None:
            return asked.repeated
        job = asked.job
        check_runs(job, "checkpoints are taken while it runs")
        operation = operations.begin(job, OperationKind.CHECKPOINT, actor, {}, key=key)
        operations.start(operation)
        pump(job, [CheckpointRequested(str(operation.pk))], now_ms=clock.now_ms())
        operation.refresh_from_db()  # It may have been refused at once.
        record(
            actor,
            "job.checkpoint",
            f"job/{job.pk}",
            after={"operation": str(operation.pk), "status": operation.status},
        )
        logger.info("a checkpoint was asked for")
    return operation
