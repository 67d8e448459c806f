"""The list of jobs as values: those that need attention first."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.conf import settings
from django.core.paginator import Page, Paginator
from django.urls import reverse

from checkpoints.conditions import facts as condition_facts
from checkpoints.conditions.judge import REDIS_AWAY, list_conditions
from checkpoints.models import Checkpoint
from controlplane.base import server_losses
from controlplane.base.formatting import (
    NOTHING,
    age,
    duration,
    event_time,
    iso,
    milliseconds_between,
    moment,
    number,
    plural,
    rough_duration,
    size,
)
from frontend.base import status
from frontend.base.up_time import UpTime, first_ran, running_since
from frontend.graph.state import rate
from frontend.overview import queries, sparkline
from frontend.overview.filters import Group, Wanted
from frontend.overview.queries import BackPressure, Load, Operators, Urgency
from frontend.overview.sparkline import Point
from jobs.models import Job
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.protocol.lifecycle import JobStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

    ListedJob = WithAnnotations[Job, queries.ListColumns]

JOBS_PER_PAGE = 50
# Completed and failed checkpoints that are searched for a run of failures.
SETTLED_CONSIDERED = 3
EVERYTHING = Wanted()
LABELS_SHOWN = 4  # Of a job, the first by name.
LABEL_CHARACTERS_MAX = 40
# Thresholds of low and high back-pressure. Source: Flink.
LOW_PERCENT, HIGH_PERCENT = 10, 50

GROUPS: Mapping[Group, status.Label] = {
    Group.ALL: status.Label("All", "", "Every job that is not archived."),
    Group.ATTENTION: status.Label(
        "Need attention",
        "warn",
        "Failed in the last day, recovering, driver silent or not launched, or checkpoints fail or "
        "do not complete.",
    ),
    Group.RUNNING: status.Label("Running", "good", "All their subtasks are running."),
    Group.CHANGING: status.Label(
        "In transition", "busy", "Starting, deploying, failing, restarting or being cancelled."
    ),
    Group.FAILED: status.Label("Failed", "bad", "Ended with an error."),
    Group.FINISHED: status.Label("Finished", "done", "Their sources ended or they were stopped."),
    Group.CANCELED: status.Label("Cancelled", "idle", "Cancelled on request."),
    Group.ARCHIVED: status.Label("Archived", "", "Over, and left out of all other lists."),
}

Json = dict[str, Any]


def page(wanted: Wanted = EVERYTHING) -> "Page[ListedJob]":
    """One page of the filtered jobs; the nearest one where there is no such page."""
    return Paginator(queries.jobs(wanted, _silent_after()), JOBS_PER_PAGE).get_page(wanted.page)


def job_list(jobs: "Page[ListedJob]", wanted: Wanted = EVERYTHING) -> Json:
    """A page of jobs as JSON, with counts. Nine queries for any number of jobs."""
    rows = list(jobs)
    ids = [job.pk for job in rows]
    running = [job.pk for job in rows if job.status == JobStatus.RUNNING]
    completed = queries.completed_by_id([job.completed_id for job in rows if job.completed_id])
    failures = queries.failures_by_job(ids, rows[0].now) if rows else {}
    points = queries.recent_points(ids)
    loads = queries.loads(running)
    pressed = {job: queries.most_pressed(loads.get(job, {})) for job in running}
    operators = queries.operators(running, {job: one.chain for job, one in pressed.items() if one})
    shown = {
        job.pk: _job(
            job,
            completed.get(job.completed_id) if job.completed_id else None,
            [one for one in points.get(job.pk, []) if not one.is_aborted][:SETTLED_CONSIDERED],
            failures.get(job.pk, 0),
        )
        | {
            "spark": sparkline.draw(points.get(job.pk, [])),
            "pressure": _pressure(pressed.get(job.pk), operators.get(job.pk)),
            "load": _load(loads.get(job.pk, {}), operators.get(job.pk), job.now),
            "labels": _labels(job, wanted),
            "spark_state": "some" if points.get(job.pk) else "none",
        }
        for job in rows
    }
    # The database ordered the pages by a part of the warnings only.
    rows = sorted(rows, key=lambda job: _urgency(job, shown[job.pk]))
    return {
        "jobs": [shown[job.pk] for job in rows],
        "now": iso(rows[0].now) if rows else None,
        "groups": _groups(wanted),
        "shown": _shown(jobs, wanted),
        "away": REDIS_AWAY if server_losses.is_redis_away(settings.REDIS_URL) else "",
        "is_empty": "" if rows else "no job",
    }


def _silent_after() -> timedelta:
    return timedelta(milliseconds=settings.WEIR_DRIVER_SILENT_MS)


def _groups(wanted: Wanted) -> list[Json]:
    """The groups of jobs with their counts, the most urgent first."""
    counts = queries.counts(wanted)
    counts[Group.ATTENTION] = queries.attention_count(wanted, _silent_after())
    return [
        {
            "name": group.value,
            "text": words.text,
            "title": words.help,
            "tone": words.tone and (words.tone if counts[group] else "idle"),
            "count": f"{counts[group]:,}",
            "url": reverse("job-list") + wanted.in_group(group).query(),
            "current": "page" if group is wanted.group else "false",
        }
        for group, words in GROUPS.items()
    ]


def _shown(jobs: "Page[ListedJob]", wanted: Wanted) -> str:
    """The number of filtered jobs, in words."""
    count = jobs.paginator.count
    terms = [f"“{wanted.search}” in name or id"] if wanted.search else []
    if wanted.labels:
        labels = " and ".join(f"“{label}”" for label in wanted.labels)
        terms.append(f"the label{'s' if len(wanted.labels) > 1 else ''} {labels}")
    counted = plural(count, "job")
    return f"{counted} with {' and '.join(terms)}" if terms else counted


def _labels(job: "ListedJob", wanted: Wanted) -> list[Json]:
    """The first labels of a job, each with the address of those jobs that have it as well."""
    texts = [f"{name}:{text}" for name, text in sorted(job.labels.items())]
    shown = [
        {
            "text": _cut(text),
            "title": f"Only jobs with the label {text}",
            "url": reverse("job-list") + wanted.with_label(text).query(),
        }
        for text in texts[:LABELS_SHOWN]
    ]
    if more := texts[LABELS_SHOWN:]:
        url = reverse("job-page", args=[job.pk])
        shown.append({"text": f"+{len(more)}", "title": ", ".join(more), "url": url})
    return shown


def _cut(label: str) -> str:
    is_long = len(label) > LABEL_CHARACTERS_MAX
    return f"{label[:LABEL_CHARACTERS_MAX]}…" if is_long else label


def _load(chains: Mapping[str, Load], operators: Operators | None, now: datetime) -> Json:
    """The records that sources emit, and how far the lowest watermark is behind the clock."""
    sources = operators.source_chains if operators else frozenset()
    emitted = [
        load.records_in
        for chain, load in chains.items()
        if chain in sources and load.records_in is not None
    ]
    watermarks = [load.watermark_ms for load in chains.values() if load.watermark_ms is not None]
    lowest = min(watermarks, default=None)
    has_lag = lowest is not None and MIN_WATERMARK_MS < lowest < MAX_WATERMARK_MS
    lag_ms = max(0.0, now.timestamp() * 1_000 - lowest) if has_lag and lowest is not None else None
    return {
        "text": rate(sum(emitted)) if emitted else NOTHING,
        "title": "Records that the sources emitted, each second of about the last two.",
        "lag": "" if lag_ms is None else f"lag {rough_duration(lag_ms)}",
        "lag_title": ""
        if lag_ms is None
        else f"Event time is so far behind the clock: the lowest watermark is {event_time(lowest)}."
        " Old input that is processed again is as far behind as it is old.",
        "state": "some" if emitted or lag_ms is not None else "none",
    }


def _pressure(measured: BackPressure | None, operators: Operators | None) -> Json:
    """The share of time that the most back-pressured operator waits; below 1 % is none."""
    if measured is None:
        title = "No recent measurement: the job is not running, or reports none yet."
        said = {"text": NOTHING, "operator": "", "tone": "idle", "title": title}
        return said | {"state": "none"}
    percent = round(measured.share * 100)
    if percent < 1:
        title = "In the last seconds no subtask waited for subtasks downstream."
        said = {"text": "none", "operator": "", "tone": "good", "title": title}
        return said | {"state": "some"}
    called = (operators.names.get(measured.chain) if operators else None) or measured.chain
    return {
        "text": f"{percent} %",
        "operator": called,
        "state": "some",
        "tone": "bad" if percent > HIGH_PERCENT else "warn" if percent > LOW_PERCENT else "good",
        "title": f"In the last seconds the slowest subtask of {called} waited {percent} % of the "
        "time for subtasks downstream to take its output: the bottleneck is downstream.",
    }


def _urgency(job: "ListedJob", shown: Json) -> int:
    if job.urgency == Urgency.OVER:
        return int(Urgency.OVER)
    tones = {item["tone"] for item in shown["attention"]}
    return 0 if "bad" in tones else 1 if tones else 2


def _job(
    job: "ListedJob", completed: Checkpoint | None, settled: Sequence[Point], failures: int
) -> Json:
    now = job.now
    facts = condition_facts.gather(
        job,
        now,
        driver_status=job.driver_status,
        driver_heard_at=job.driver_heard_at,
        driver_created_at=job.driver_created_at,
        attempt_running_at=job.attempt_running_at,
        completed=completed,
        settled=settled,
        undeleted=job.undeleted,
    )
    running_at = running_since(job.attempt_running_at, job.attempt_ended_at)
    up = UpTime(job.ended_up_time, None if job.is_over else running_at)
    return {
        "id": job.pk,
        "name": job.name,
        "url": reverse("job-page", args=[job.pk]),
        "status": status.of_job(job.status, is_planned=job.is_planned),
        "attention": status.of_conditions(list_conditions(facts)),
        "parallelism": f"parallelism {job.parallelism}" if job.parallelism else "",
        "attempt": number(job.attempt_number),
        "attempt_state": "none" if job.attempt_number is None else "some",
        "uptime": {
            "since": iso(up.since),
            "text": up.text(now),
            "started": first_ran(job.started_at),
            "state": "some" if job.started_at else "none",
        },
        "checkpoints_url": reverse("job-checkpoints", args=[job.pk]),
        "completed": _completed(completed, now),
        "recoveries": _recoveries(job.recovered, failures),
        "failed": f"{plural(failures, 'failed checkpoint')} in the last hour" if failures else "",
        "failures_state": "some" if job.recovered or failures else "none",
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
