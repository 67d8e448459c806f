"""Removal of jobs that ended long ago and have nothing left that could be restored.

A job may have more rows than one transaction should delete, so its history goes first, in batches.
Each takes the job's lock and checks it again: a job that was restarted meanwhile stays, with the
rest of its history. The job itself goes last.
"""

from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from checkpoints.models import Checkpoint, Savepoint
from checkpoints.retention import rows as checkpoint_rows
from controlplane.audit.models import record
from controlplane.base.ticks import Budget
from jobs.models import (
    FINAL_JOB_STATUSES,
    LIVE_DRIVERS,
    OPEN_OPERATIONS,
    Driver,
    Job,
    JobException,
    Operation,
)

JOBS_MAX = 50  # In one look.
BATCH = 1_000

_of_job = OuterRef("pk")
REMOVABLE = (
    Q(status__in=FINAL_JOB_STATUSES)
    & ~Q(Exists(Checkpoint.objects.filter(~checkpoint_rows.FILES_GONE, job=_of_job)))
    & ~Q(Exists(Checkpoint.objects.filter(job=_of_job, discard_due_at__isnull=False)))
    & ~Q(Exists(Savepoint.objects.filter(job=_of_job, deleted_at__isnull=True)))
    & ~Q(Exists(Job.objects.filter(restore_job=_of_job)))
    & ~Q(Exists(Operation.objects.filter(job=_of_job, status__in=OPEN_OPERATIONS)))
    & ~Q(Exists(Driver.objects.filter(job=_of_job, status__in=LIVE_DRIVERS)))
)


def remove(older: datetime | None, most: int | None, budget: Budget) -> int:
    """Remove the jobs that ended before ``older`` and need not stay; return their number."""
    if older is None:
        return 0
    count = 0
    old = Job.objects.filter(REMOVABLE, ended_at__lt=older).order_by("ended_at", "pk")
    for job_id in list(old.values_list("pk", flat=True)[:JOBS_MAX]):
        while not budget.is_spent:
            left = _remove_part(job_id, older)
            if left is None:
                break
            if not left:
                count += 1
                break
        if budget.is_spent:
            break
    return count


def _remove_part(job_id: str, older: datetime) -> bool | None:
    """Remove a part of the job's history, or the job once there is none.

    Returns:
        Whether something is left; None where the job is locked, or in use again.
    """
    with transaction.atomic():
        locked = Job.objects.select_for_update(skip_locked=True, of=("self",))
        job = locked.filter(REMOVABLE, pk=job_id, ended_at__lt=older).first()
        if job is None:
            return None
        if job.savepoints.all().delete()[0]:
            return True
        if job.checkpoints.exists():
            return True if checkpoint_rows.remove_batch(job_id).count else None
        for model in (Operation, JobException):
            keys = list(model._default_manager.filter(job=job).values_list("pk", flat=True)[:BATCH])
            if keys:
                model._default_manager.filter(pk__in=keys).delete()
                return True
        assert job.ended_at is not None  # A condition of the query.
        record(
            None,
            "job.remove",
            f"job/{job_id}",
            before={"name": job.name, "status": job.status, "ended_at": job.ended_at.isoformat()},
        )
        job.delete()
        return False
