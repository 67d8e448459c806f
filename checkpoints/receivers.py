"""Receivers of ``jobs.signals``: drivers that are lost, jobs that end, begin or are reopened.

They run inside the transaction that holds the job's lock.
"""

from typing import Any

from django.dispatch import receiver

from checkpoints.catalog import restore_targets
from checkpoints.coordinator.shell import pump, reopen, state_of
from checkpoints.models import Checkpoint, CoordinatorRow, Savepoint
from checkpoints.operations import job_comparison
from checkpoints.retention import references
from controlplane.base import clock
from controlplane.base.errors import Invalid, WrongState
from jobs import signals
from jobs.models import Job
from weir.errors import ProtocolError
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus
from weir.protocol.messages import CheckpointingStopped, JobEnded


@receiver(signals.driver_lost)
def stop_checkpointing(job: Job, reason: FailureReason, **_: Any) -> None:
    """Abort the checkpoints of the lost driver; a manifest it may be writing is settled later."""
    if _has_coordinator(job):
        stopped = CheckpointingStopped(state_of(job).attempt, reason)
        pump(job, [stopped], now_ms=clock.now_ms())


@receiver(signals.job_ended)
def end_checkpointing(job: Job, **_: Any) -> None:
    """Retain or discard the job's checkpoints, as its retention says."""
    if _has_coordinator(job):
        pump(job, [JobEnded(JobStatus(job.status))], now_ms=clock.now_ms())


@receiver(signals.job_reopened)
def reopen_checkpointing(job: Job, **_: Any) -> None:
    """Reopen the job's coordinator with the checkpoints that are retained.

    Raises:
        WrongState: A manifest of the job is still being settled.
    """
    end_checkpointing(job)  # Its driver may have been lost before it reported the end.
    try:
        reopen(job)
    except ProtocolError as error:
        raise WrongState(
            "a checkpoint of the job is still being settled; try again in a few seconds",
            state=job.status,
            allowed=[],
        ) from error


@receiver(signals.restore_asked)
def know_restored(uri: str, **_: Any) -> tuple[Job, int] | None:
    """The job and number of the checkpoint or savepoint at a URI; None: it is not known here.

    Raises:
        Invalid: It is known here, and not kept any more.
    """
    target = restore_targets.of_uri(uri)
    return None if target is None else (target.job, target.number)


@receiver(signals.job_created)
def note_claim(job: Job, **_: Any) -> None:
    """Record the claim on the savepoint that a job begins with: the job owns it from then on.

    Raises:
        Invalid: Another job that is not over claims it: one would delete what the other needs.
    """
    if not job.restore_claims or job.restore_job is None:
        return
    own = Savepoint.objects.filter(checkpoint__job=job.restore_job, deleted_at__isnull=True)
    savepoint = own.filter(checkpoint__number=job.restore_number).first()
    if savepoint is None:
        return  # A checkpoint, which no job can claim.
    claimant = savepoint.claimed_by
    if claimant is not None and not claimant.is_over:
        raise Invalid(
            f"savepoint {savepoint.name} is claimed by {claimant.pk}; restore it without a claim",
            errors={"options.claims": [f"{claimant.pk} has claimed it and is {claimant.status}."]},
        )
    savepoint.claimed_by = job
    savepoint.save(update_fields=["claimed_by"])


@receiver(signals.jobs_compared)
def lay_side_by_side(job: Job, other: str, **_: Any) -> dict[str, Any]:
    """Progress, lag and state size of two jobs whose outputs were compared."""
    return job_comparison.compare(job, Job.objects.get(pk=other))


@receiver(signals.launch_asked)
def may_launch(job: Job, **_: Any) -> bool:
    """Whether the job's storage is stable, so that a new driver can choose a restore from it.

    It is not while a manifest is written or checkpoints of the job's earlier end are deleted.
    Checkpoints that could not be deleted do not delay the launch, nor do those that are needed:
    they can be restored again.
    """
    own = Checkpoint.objects.filter(job=job)
    if own.filter(status=CheckpointStatus.FINALIZING).exists():
        return False
    going = own.filter(
        status=CheckpointStatus.COMPLETED, discard_due_at__isnull=False, discard_error=""
    )
    numbers = set(going.values_list("number", flat=True))
    return not numbers or numbers <= references.retained_ids(job)


def _has_coordinator(job: Job) -> bool:
    return CoordinatorRow.objects.filter(job=job).exists()
