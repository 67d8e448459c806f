"""Begins and ends of attempts as rows and as job events."""

from collections.abc import Sequence
from datetime import datetime

from django.db.models import Count, F

from jobs import job_events
from jobs.models import Attempt, AttemptEnd, Job, JobEventKind


def note_begin(job: Job, attempt: Attempt) -> None:
    """Record the begin of a new attempt, planned unless a failure led to it."""
    job_events.record(
        job,
        JobEventKind.ATTEMPT_BEGAN,
        attempt.started_at,
        planned=job.is_planned,
        attempt=attempt.number,
        driver=attempt.driver.number,
    )


def end(
    job: Job,
    how: AttemptEnd,
    at: datetime,
    cause: str = "",
    *,
    before: int | None = None,
) -> None:
    """End the job's attempts under way; the caller holds the job's lock.

    Args:
        before: Only attempts with a lower number than this.
    """
    open_ones = Attempt.objects.filter(job=job, ended_at=None)
    if before is not None:
        open_ones = open_ones.filter(number__lt=before)
    rows = list(open_ones.order_by("number").values_list("number", "driver__number"))
    if not rows:
        return
    open_ones.update(ended_at=at, end=how, cause=cause)
    job_events.record_all(
        job_events.event(
            job,
            JobEventKind.ATTEMPT_ENDED,
            at,
            planned=how is not AttemptEnd.FAILED,
            reason=how.value,
            attempt=number,
            driver=driver,
            cause=cause,
        )
        for number, driver in rows
    )


def count_removed(keys: Sequence[int]) -> None:
    """Keep the number of failed attempts among rows that are about to be removed."""
    failed = Attempt.objects.filter(pk__in=keys, end=AttemptEnd.FAILED).order_by()
    for job_id, count in failed.values_list("job").annotate(Count("pk")):
        total = F("failed_attempts_removed") + count
        Job.objects.filter(pk=job_id).update(failed_attempts_removed=total)
