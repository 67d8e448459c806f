"""Changes of a job's status, with its times, its operations and the wake-ups of its readers.

The driver's job master moves a job through ``JOB_TRANSITIONS`` and reports each move; each new
driver begins again with INITIALIZING. The control plane itself makes three moves that no driver
reports: a job whose driver has ended waits for the next one (RESTARTING), it ends because there
will be none (FAILED, CANCELED), and a job that had ended is restarted (RESTARTING). Only this last
move leaves a final status.
"""

from datetime import datetime

from controlplane.base import clock, wakeups
from jobs import job_events, operations
from jobs.models import Attempt, Job, JobEventKind
from jobs.storable_text import storable
from weir.protocol.lifecycle import JOB_TRANSITIONS, JobStatus

# Statuses in which a new driver may report: its predecessor was lost, or never came up.
BEGINNINGS = frozenset(
    {JobStatus.CREATED, JobStatus.INITIALIZING, JobStatus.FAILING, JobStatus.RESTARTING}
)
_CAUSED = frozenset({JobStatus.FAILING, JobStatus.RESTARTING, JobStatus.FAILED})
_FAILURES = frozenset({JobStatus.FAILING, JobStatus.FAILED})
_REQUESTED = frozenset({JobStatus.CANCELLING, JobStatus.CANCELED, JobStatus.FINISHED})


def may_follow(current: JobStatus, following: JobStatus) -> bool:
    """Whether a driver may report ``following`` of a job that is ``current``."""
    if following is JobStatus.INITIALIZING:
        return current in BEGINNINGS
    return following in JOB_TRANSITIONS.get(current, frozenset())


def change(
    job: Job,
    status: JobStatus,
    cause: str = "",
    *,
    at: datetime | None = None,
    is_planned: bool = False,
) -> None:
    """Set a job's status and settle its operations; the caller holds the job's lock.

    Args:
        is_planned: Whether a restart was asked for; of other statuses it is known.
    """
    at = at or clock.now()
    before = job.status
    job.status, job.status_changed_at = status.value, at
    if status in _FAILURES | _REQUESTED:
        job.is_planned = status in _REQUESTED
    elif status is JobStatus.RESTARTING:
        job.is_planned = is_planned
    if status in _CAUSED:
        job.cause = storable(cause) or job.cause
    elif status is not JobStatus.INITIALIZING:
        job.cause = ""
    if status is JobStatus.RUNNING:
        job.started_at = job.started_at or at
    if status in JOB_TRANSITIONS:
        job.ended_at = None
    else:
        job.ended_at = at
        job.restart_at = job.cancel_due_at = None
    job.save(
        update_fields=[
            "status",
            "status_changed_at",
            "is_planned",
            "cause",
            "started_at",
            "ended_at",
            "restart_at",
            "cancel_due_at",
        ]
    )
    if status is JobStatus.FAILED:
        newest = Attempt.objects.filter(job=job).order_by("-number").values("pk")[:1]
        Attempt.objects.filter(pk__in=newest).update(gave_up=True)
    if job.status != before:
        job_events.record(
            job,
            JobEventKind.JOB_CHANGED,
            at,
            planned=job.is_planned,
            reason=job.status,
            before=before,
            cause=job.cause if status in _CAUSED else "",
        )
    operations.settle(job)
    wakeups.on_commit(wakeups.job(job.pk))
