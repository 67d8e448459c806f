"""The list of jobs as values: what needs attention first."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.core.paginator import Page, Paginator
from django.urls import reverse

from checkpoints.models import Checkpoint
from frontend import attention, facts, queries, status
from frontend.formatting import (
    NOTHING,
    age,
    duration,
    iso,
    milliseconds_between,
    moment,
    number,
    plural,
    rough_duration,
    size,
)
from jobs.models import Job

JOBS_PER_PAGE = 50
# How many settled checkpoints are looked at for a row of failures.
SETTLED_CONSIDERED = 3

Json = dict[str, Any]


def page(wanted: str | int | None) -> Page:
    """One page of jobs; the nearest one where there is no such page."""
    silent_after = timedelta(milliseconds=settings.WEIR_DRIVER_SILENT_MS)
    return Paginator(queries.jobs_by_attention(silent_after), JOBS_PER_PAGE).get_page(wanted)


def of(jobs: Page) -> Json:
    """A page of jobs as JSON. Six queries, whatever the number of jobs."""
    rows: Sequence[Job] = list(jobs)
    ids = [job.pk for job in rows]
    completed = queries.checkpoints_by_id([job.completed_id for job in rows if job.completed_id])
    settled = queries.recent_by_job(ids, SETTLED_CONSIDERED)
    failures = queries.failures_by_job(ids, rows[0].now) if rows else {}
    shown = {
        job.pk: _job(
            job,
            completed.get(job.completed_id),
            settled.get(job.pk, []),
            failures.get(job.pk, 0),
        )
        for job in rows
    }
    # The database put the pages in order by part of what attention knows.
    rows = sorted(rows, key=lambda job: _urgency(job, shown[job.pk]))
    return {
        "jobs": [shown[job.pk] for job in rows],
        "now": iso(rows[0].now) if rows else None,
        "total": plural(jobs.paginator.count, "job"),
    }


def _urgency(job: Job, shown: Json) -> int:
    if job.rank == queries.RANK_OVER:
        return 3
    tones = {item["tone"] for item in shown["attention"]}
    return 0 if "bad" in tones else 1 if tones else 2


def _job(
    job: Job, completed: Checkpoint | None, settled: Sequence[Checkpoint], failures: int
) -> Json:
    now: datetime = job.now
    recovered = (job.attempt_number or 1) - 1
    found = facts.gather(
        job,
        now,
        driver_status=job.driver_status,
        driver_heard_at=job.driver_heard_at,
        driver_created_at=job.driver_created_at,
        attempt_running_at=job.attempt_running_at,
        completed=completed,
        settled=settled,
    )
    return {
        "id": job.pk,
        "name": job.name,
        "url": reverse("job-page", args=[job.pk]),
        "status": status.of_job(job.status),
        "attention": [asdict(item) for item in attention.of(found)],
        "attempt": number(job.attempt_number),
        "uptime": {
            "since": iso(job.started_at),
            "until": iso(job.ended_at),
            "text": rough_duration(milliseconds_between(job.started_at, job.ended_at or now)),
            "started": moment(job.started_at),
        },
        "completed": _completed(completed, now),
        "recoveries": _recoveries(recovered, failures),
        "failed": f"{plural(failures, 'failed checkpoint')} in the last hour" if failures else "",
    }


def _completed(checkpoint: Checkpoint | None, now: datetime) -> Json:
    if checkpoint is None:
        return {"at": None, "ago": "none yet", "at_text": "", "detail": ""}
    return {
        "at": iso(checkpoint.settled_at),
        "ago": age(milliseconds_between(checkpoint.settled_at, now)),
        "at_text": moment(checkpoint.settled_at),
        "detail": f"{duration(checkpoint.duration_ms)}, {size(checkpoint.state_bytes)}",
    }


def _recoveries(recovered: int, failures: int) -> str:
    if recovered:
        return plural(recovered, "recovery", "recoveries")
    return "" if failures else NOTHING
