"""Changes of a job's row that leave the job itself as it is: its name, its labels, the archive.

An archived job is over and left out of lists. One that is started again is archived no longer.
"""

from collections.abc import Mapping

from django.db import transaction

from controlplane.accounts.models import User
from controlplane.audit.models import record
from controlplane.base import clock, logs, wakeups
from controlplane.base.errors import Problems, WrongState
from jobs.labels import check_labels
from jobs.models import FINAL_JOB_STATUSES, Job
from jobs.services import locked
from jobs.submissions import check_name


def describe(
    actor: User | None,
    job_id: str,
    *,
    name: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Job:
    """Change a job's name or its labels; None leaves it as it is.

    Raises:
        NotFound: There is no such job.
        Invalid: The name or the labels are malformed.
    """
    problems = Problems()
    if name is not None:
        name = check_name(name, problems)
    if labels is not None:
        check_labels(labels, problems)
    problems.refuse("The job cannot be changed")
    with transaction.atomic(), logs.about(job=job_id):
        job = locked(job_id)
        before = {"name": job.name, "labels": job.labels}
        job.name = job.name if name is None else name
        job.labels = job.labels if labels is None else dict(labels)
        after = {"name": job.name, "labels": job.labels}
        if after != before:
            job.save(update_fields=["name", "labels"])
            record(actor, "job.describe", f"job/{job.pk}", before=before, after=after)
            wakeups.on_commit(wakeups.job(job.pk))
    return job


def archive(actor: User | None, job_id: str) -> Job:
    """Leave a job that is over out of lists; its rows and files stay. Idempotent.

    Raises:
        NotFound: There is no such job.
        WrongState: The job is not over.
    """
    with transaction.atomic(), logs.about(job=job_id):
        job = locked(job_id)
        if not job.is_over:
            raise WrongState(
                f"the job is {job.status}; cancel or stop it, then archive it",
                state=job.status,
                allowed=list(FINAL_JOB_STATUSES),
            )
        if job.archived_at is None:
            job.archived_at = clock.now()
            job.save(update_fields=["archived_at"])
            record(actor, "job.archive", f"job/{job.pk}")
            wakeups.on_commit(wakeups.job(job.pk))
    return job


def unarchive(actor: User | None, job_id: str) -> Job:
    """Show an archived job in lists again. Idempotent.

    Raises:
        NotFound: There is no such job.
    """
    with transaction.atomic(), logs.about(job=job_id):
        job = locked(job_id)
        if job.archived_at is not None:
            job.archived_at = None
            job.save(update_fields=["archived_at"])
            record(actor, "job.unarchive", f"job/{job.pk}")
            wakeups.on_commit(wakeups.job(job.pk))
    return job
