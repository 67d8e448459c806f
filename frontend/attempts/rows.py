"""A job's attempts as values of the recovery page: one page of them, and a summary."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse

from checkpoints.models import Checkpoint
from controlplane.base.formatting import (
    NOTHING,
    duration,
    interval,
    iso,
    milliseconds_between,
    moment,
    number,
    plural,
    rough_duration,
)
from frontend.base.status import Label
from frontend.base.texts import has_more, headline, tail
from frontend.job import recoveries
from frontend.job.outages import Deployment, Summary, is_resumed, summary, takeover
from jobs.models import Attempt, Job

PER_PAGE = 25
CONSIDERED_MAX = 1_000  # The newest attempts, which the summary covers.

Json = dict[str, Any]

_ENDS: Mapping[str, Label] = {
    "failed": Label("Failed", "bad", "The attempt ended with a failure."),
    "finished": Label("Finished", "done", "The job finished; all output is committed."),
    "canceled": Label(
        "Ended", "idle", "Ended on request: a cancellation, restart, rescale or rollback."
    ),
    "suspended": Label("Suspended", "idle", "The control plane was stopped, and its drivers too."),
}
_RUNS = Label("Running", "good", "All its subtasks are running.")
_DEPLOYS = Label("Deploying", "busy", "Its subtasks are being deployed and their state restored.")


@dataclass(frozen=True, slots=True)
class Shown:
    """One page of a job's attempts, newest first, and the attempt before the oldest of them."""

    attempts: Sequence[Attempt]
    before: Attempt | None
    page: int  # The first is 1.
    pages: int
    count: int  # Attempts of the job in all.

    @property
    def deployments(self) -> list[Deployment]:
        """The attempts of the page, oldest first."""
        return [Deployment.from_attempt(row) for row in reversed(self.attempts)]

    @property
    def newest(self) -> str:
        """The number of the newest attempt of the page."""
        return number(self.attempts[0].number) if self.attempts else NOTHING

    @property
    def oldest(self) -> str:
        """The number of the oldest attempt of the page."""
        return number(self.attempts[-1].number) if self.attempts else NOTHING

    @property
    def earlier(self) -> Deployment | None:
        """The attempt before those of the page."""
        return None if self.before is None else Deployment.from_attempt(self.before)


def page_of(job: Job, attempt: int) -> int:
    """The number of the page with an attempt."""
    return Attempt.objects.filter(job=job, number__gt=attempt).count() // PER_PAGE + 1


def shown(job: Job, page: int) -> Shown:
    """A page of attempts; the nearest one where there is no such page. Two queries."""
    rows = Attempt.objects.filter(job=job).select_related("driver").order_by("-number")
    count = rows.count()
    pages = max(1, -(-count // PER_PAGE))
    page = min(max(page, 1), pages)
    first = (page - 1) * PER_PAGE
    attempts = list(rows[first : first + PER_PAGE + 1])
    before = attempts[PER_PAGE] if len(attempts) > PER_PAGE else None
    return Shown(attempts[:PER_PAGE], before, page, pages, count)


def attempt_list(job: Job, page: Shown, now: datetime) -> Json:
    """The page's value. Four queries for any number of attempts."""
    earlier = [*page.attempts[1:], page.before][: len(page.attempts)]
    kept = _own_checkpoints(job, page.attempts)
    beyond = recoveries.beyond_target(job, [row.number for row in page.attempts])
    return {
        "now": iso(now),
        "is_over": job.is_over,
        "summary": _tiles(_summary(job, now), page.count),
        "target": _target(job),
        "takeovers": "shown" if any(earlier) else "none",
        "considered": _considered(page.count),
        "attempts": [
            _attempt(job, row, last, kept, now) | {"beyond": beyond.get(row.number, "")}
            for row, last in zip(page.attempts, earlier, strict=True)
        ],
    }


def _target(job: Job) -> str:
    """The job's recovery target in a sentence."""
    if job.recovery_target_s is None:
        return "The job has no recovery target: rules on slow recoveries have limits of their own."
    return f"The job's recovery target is {interval(job.recovery_target_s * 1_000)}."


def _own_checkpoints(job: Job, attempts: Sequence[Attempt]) -> set[int]:
    """The restored checkpoints that are the job's own; a fork begins with another job's."""
    numbers = {row.restored_checkpoint for row in attempts} - {None}
    if not numbers:
        return set()
    rows = Checkpoint.objects.filter(job=job, number__in=numbers)
    return set(rows.values_list("number", flat=True))


def _summary(job: Job, now: datetime) -> Summary:
    newest = Attempt.objects.filter(job=job).select_related("driver").order_by("-number")
    # Without causes: a traceback may be long.
    rows = list(newest.defer("cause", "recovery_cause")[:CONSIDERED_MAX])
    deployments = [Deployment.from_attempt(row) for row in reversed(rows)]
    is_over = job.is_over or is_resumed(rows[0] if rows else None, job)
    return summary(deployments, now, is_over=is_over)


def _considered(count: int) -> str:
    return (
        f"Figures of the newest {number(CONSIDERED_MAX)} attempts."
        if count > CONSIDERED_MAX
        else ""
    )


def _tiles(totals: Summary, count: int) -> list[Json]:
    """The figures above the timeline, each with its definition."""
    failed = plural(totals.failures, "failure")
    planned = f", {number(totals.planned)} planned" if totals.planned else ""
    return [
        _tile(
            "Availability",
            NOTHING if totals.availability is None else percent(totals.availability),
            "since" if totals.since else "the job has not run yet",
            "Time up as a share of time up or down; time in which the job was over does not count.",
            totals.since,
        ),
        _tile(
            "Downtime",
            duration(totals.down_ms),
            f"{failed}{planned}",
            "From the end of an attempt until the next one ran, or the job was given up. Planned: "
            "for a requested rollback, rescale or restart, or while the control plane was stopped.",
        ),
        _tile(
            "Time to recover",
            duration(totals.recovery_p50_ms),
            f"median; the longest took {duration(totals.recovery_max_ms)}"
            if totals.recovery_max_ms is not None
            else "no recovery so far",
            "Median downtime after a failure, of the failures that the job recovered from.",
        ),
        _tile(
            "Mean time between failures",
            NOTHING
            if totals.between_failures_ms is None
            else rough_duration(totals.between_failures_ms),
            f"up for {rough_duration(totals.up_ms)} in {plural(count, 'attempt')}",
            "Time up, divided by the number of failures.",
        ),
    ]


def _tile(name: str, value: str, more: str, title: str, at: datetime | None = None) -> Json:
    """One figure; ``at`` is a point in time shown after ``more``."""
    when = {"at": iso(at) or "", "at_text": moment(at) if at else ""}
    return {"name": name, "value": value, "more": more, "title": title, **when}


def percent(share: float) -> str:
    """A share as text, with enough digits to differ from 100 %: ``"99.98 %"``."""
    if share >= 1:
        return "100 %"
    for digits in (1, 2, 3, 4):
        text = f"{share * 100:.{digits}f}"
        if float(text) < 100:
            return f"{text} %"
    return ">99.9999 %"


def _attempt(job: Job, row: Attempt, last: Attempt | None, kept: set[int], now: datetime) -> Json:
    it = Deployment.from_attempt(row)
    took = takeover(it, None if last is None else Deployment.from_attempt(last))
    end = _ENDS.get(row.end) or (_RUNS if row.running_at else _DEPLOYS)
    cause = row.cause
    ran = milliseconds_between(row.running_at, row.ended_at or now)
    return {
        "key": str(row.number),
        "number": number(row.number),
        "anchor": f"attempt-{row.number}",
        "driver": number(row.driver.number),
        "driver_is_new": "new driver" if took is not None and took.is_driver_new else "",
        "at": iso(row.started_at),
        "at_text": moment(row.started_at),
        "end": {"text": end.text, "tone": end.tone, "help": end.help},
        "ran": NOTHING if ran is None else rough_duration(ran),
        "since": iso(row.running_at) if row.ended_at is None else None,
        "cause": headline(cause),
        "text": tail(cause),
        "has_more": has_more(cause),
        "why": recoveries.why(row, last, took),
        "down": recoveries.down(took),
        "down_title": recoveries.down_parts(took),
        "takeover": "none" if took is None else "shown",
        "delay": duration(took.delay_ms) if took else NOTHING,
        "redeploy": duration(took.redeploy_ms) if took else NOTHING,
        "restore": duration(took.restore_ms) if took else NOTHING,
        "catch_up": duration(row.catch_up_ms),
        "replayed": number(row.replayed_records),
        "restored_bytes": "" if row.restored_bytes is None else recoveries.read_bytes(row),
        **_restored(job, row, kept),
    }


def _restored(job: Job, row: Attempt, kept: set[int]) -> Json:
    which = row.restored_checkpoint
    if which is None:
        return {"restored": "the beginning", "restored_url": "", "restored_of": ""}
    of_origin, owner = "", job.pk
    if which not in kept and job.origin_id is not None:
        of_origin, owner = f"of {job.origin_id}", job.origin_id
    is_known = which in kept or bool(of_origin)
    return {
        "restored": f"checkpoint {which:,}",
        "restored_url": reverse("checkpoint-page", args=[owner, which]) if is_known else "",
        "restored_of": of_origin,
    }
