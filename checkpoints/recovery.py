"""What happens to checkpoints when a driver is lost, and when its job ends or is wanted again.

Receivers of ``jobs.signals``: they run inside the transaction that holds the job's lock.
"""

from typing import Any

from django.dispatch import receiver

from checkpoints.coordination import pump, reopen, state_of
from checkpoints.models import Checkpoint, CoordinatorRow
from controlplane import clock
from controlplane.errors import WrongState
from jobs import signals
from jobs.models import Job
from weir.errors import ProtocolError
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus
from weir.protocol.messages import CheckpointingStopped, JobEnded


@receiver(signals.driver_lost)
def stop_checkpointing(job: Job, **_: Any) -> None:
    """Give up what the lost driver had under way; a manifest it may be writing is settled later."""
    if _has_coordinator(job):
        stopped = CheckpointingStopped(state_of(job).attempt, FailureReason.JOB_FAILOVER)
        pump(job, [stopped], now_ms=clock.now_ms())


@receiver(signals.job_ended)
def end_checkpointing(job: Job, **_: Any) -> None:
    """Keep or delete the checkpoints, as the job's retention says."""
    if _has_coordinator(job):
        pump(job, [JobEnded(JobStatus(job.status))], now_ms=clock.now_ms())


@receiver(signals.job_reopened)
def reopen_checkpointing(job: Job, **_: Any) -> None:
    """Let the job's next driver go on with what is kept.

    Raises:
        WrongState: A manifest of the job is still being settled.
    """
    end_checkpointing(job)  # Its driver may have gone before it could say so.
    try:
        reopen(job)
    except ProtocolError as error:
        raise WrongState(
            "a checkpoint of the job is still being settled; try again in a moment",
            state=job.status,
            allowed=[],
        ) from error


@receiver(signals.launch_asked)
def may_launch(job: Job, **_: Any) -> bool:
    """Not while the storage is changing under a driver that looks for something to restore.

    A manifest may still be written, and checkpoints of the job's earlier end be deleted. Those that
    could not be deleted hold nobody up: they are of use again.
    """
    own = Checkpoint.objects.filter(job=job)
    return not (
        own.filter(status=CheckpointStatus.FINALIZING).exists()
        or own.filter(
            status=CheckpointStatus.COMPLETED, discard_due_at__isnull=False, discard_error=""
        ).exists()
    )


def _has_coordinator(job: Job) -> bool:
    return CoordinatorRow.objects.filter(job=job).exists()
