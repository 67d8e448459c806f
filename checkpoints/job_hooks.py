"""The ``jobs.hooks.CheckpointHooks``: drivers that are lost, jobs that end, begin or are reopened.

They run inside the transaction that holds the job's lock.
"""

from typing import Any

from checkpoints.catalog import restore_targets
from checkpoints.coordinator import shell
from checkpoints.coordinator.shell import pump, reopen, state_of
from checkpoints.models import Checkpoint, CoordinatorRow, Savepoint
from checkpoints.operations import job_comparison
from checkpoints.retention import references
from controlplane.base import clock
from controlplane.base.errors import Invalid, WrongState
from jobs.models import Job, Operation
from weir.errors import ProtocolError
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus
from weir.protocol.messages import CheckpointingStopped, JobEnded


def driver_lost(job: Job, reason: FailureReason) -> None:
    """Abort the checkpoints of the lost driver; a manifest it may be writing is settled later."""
    if _has_coordinator(job):
        stopped = CheckpointingStopped(state_of(job).attempt, reason)
        pump(job, [stopped], now_ms=clock.now_ms())


def job_ended(job: Job) -> None:
    """Retain or discard the job's checkpoints, as its retention says."""
    if _has_coordinator(job):
        pump(job, [JobEnded(JobStatus(job.status))], now_ms=clock.now_ms())


def job_reopened(job: Job) -> None:
    """Reopen the job's coordinator with the checkpoints that are retained.

    Raises:
        WrongState: A manifest of the job is still being settled.
    """
    job_ended(job)  # Its driver may have been lost before it reported the end.
    try:
        reopen(job)
    except ProtocolError as error:
        raise WrongState(
            "a checkpoint of the job is still being settled; try again in a few seconds",
            state=job.status,
            allowed=[],
        ) from error


def restored(uri: str) -> tuple[Job, int] | None:
    """The job and number of the checkpoint or savepoint at a URI; None: it is not known here.

    Raises:
        Invalid: It is known here, and not kept any more.
    """
    target = restore_targets.of_uri(uri)
    return None if target is None else (target.job, target.number)


def withdraw(operation: Operation, why: str) -> None:
    """Take the operation's request for a checkpoint or savepoint back, if it waits or runs."""
    shell.withdraw(operation.job, str(operation.pk), why, now_ms=clock.now_ms())


def job_created(job: Job) -> None:
    """Record the claim on the savepoint that a job begins with: the job owns it from then on.

    Raises:
        Invalid: Another job that is not over claims it: one would delete what the other needs.
    """
    if not job.restore_claims or job.restore_job is None or job.restore_number is None:
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


def compare(job: Job, other: str) -> dict[str, Any]:
    """Progress, lag and state size of two jobs whose outputs were compared."""
    return job_comparison.compare(job, Job.objects.get(pk=other))


def may_launch(job: Job) -> bool:
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


def newest_kept(job: Job) -> int:
    """The newest that the coordinator retains: it is not deleted before a newer one completes."""
    kept = state_of(job).completed if _has_coordinator(job) else ()
    return max((int(one.checkpoint_id) for one in kept), default=0)


def _has_coordinator(job: Job) -> bool:
    return CoordinatorRow.objects.filter(job=job).exists()
