"""Rules about checkpoints: their age, failures, duration, alignment and size. Pure."""

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import zip_longest
from statistics import median
from typing import Annotated

import msgspec

from checkpoints.conditions.judge import OVERDUE_DURATIONS
from checkpoints.conditions.reasons import reason_text
from controlplane.alerts.facts import HISTORY_MAX, Ended, History, JobFacts
from controlplane.alerts.kinds.base import (
    QUIET,
    Holding,
    Judged,
    Kind,
    Limit,
    Parameters,
    Seconds,
    Share,
    Times,
    Window,
    seconds,
)
from controlplane.base.formatting import duration, interval, plural, rough_duration, size
from weir.protocol.lifecycle import JobStatus

MEDIAN_OF = 20  # Completed checkpoints before the judged one.
MEDIAN_LEAST = 5  # Of fewer there is no usual value.
COUNT_MAX = HISTORY_MAX - 10


class Age(Parameters):
    """Parameters of the time since the last completed checkpoint."""

    seconds: Limit = 600.0
    intervals: Times = 0.0


class Failures(Parameters):
    """Parameters of failed checkpoints in a row."""

    count: Annotated[int, msgspec.Meta(ge=1, le=COUNT_MAX)] = 3
    window_s: Window = 3_600


class Duration(Parameters):
    """Parameters of the duration of checkpoints."""

    seconds: Seconds = 60.0
    times_median: Times = 0.0
    least_s: Seconds = 1.0


class Alignment(Parameters):
    """Parameters of the alignment's share of the duration."""

    share: Share = 0.5
    times_median: Times = 0.0
    least_s: Seconds = 1.0


class Growth(Parameters):
    """Parameters of the growth of state."""

    factor: Annotated[float, msgspec.Meta(gt=1, le=1_000)] = 2.0
    window_s: Window = 3_600
    least_bytes: Annotated[int, msgspec.Meta(ge=0)] = 100 << 20


def _age(given: Age, job: JobFacts, now: datetime) -> Judged:
    life = job.life
    is_up = life.status == JobStatus.RUNNING or (
        life.status in (JobStatus.FAILING, JobStatus.RESTARTING) and not life.is_planned
    )
    if not is_up or life.interval_ms is None or (begin := _counted_from(job)) is None:
        return QUIET
    limit_s = given.seconds
    if given.intervals:
        limit_s = max(limit_s, given.intervals * life.interval_ms / 1_000)
    if (completed := job.history.completed) is not None and completed.duration_ms:
        # Checkpoints that take longer than that run back to back.
        limit_s = max(limit_s, OVERDUE_DURATIONS * completed.duration_ms / 1_000)
    due_at = begin + seconds(limit_s)
    if now < due_at:
        return Judged(until=due_at)
    waited_ms = (now - begin).total_seconds() * 1_000
    failed = job.history.ended[-1] if job.history.ended else None
    evidence = [
        ("without a completed checkpoint", duration(waited_ms)),
        ("limit", duration(limit_s * 1_000)),
        ("checkpoint interval", interval(life.interval_ms)),
    ]
    if failed is not None and not failed.is_completed:
        evidence.append((f"checkpoint {failed.number} failed", _why(failed)))
    return Judged.one(
        summary=f"No checkpoint has completed for {rough_duration(waited_ms)}, though one "
        f"is due every {interval(life.interval_ms)}. Exactly-once sinks commit nothing "
        "meanwhile.",
        evidence=tuple(evidence),
    )


def _counted_from(job: JobFacts) -> datetime | None:
    """The last completed checkpoint, or the begin of the run where that is later.

    A run begins with the job, and anew after a planned end. A failure does not begin one: a job
    that fails before each of its checkpoints has no age of its newest attempt to hide behind.
    """
    begins = [job.history.completed.at] if job.history.completed else []
    for attempt, before in zip_longest(job.attempts, job.attempts[1:]):
        if before is None or (before.ended_at is not None and not before.has_failed):
            begins.append(attempt.running_at or attempt.started_at)
            break
    if not begins and job.life.started_at is not None:
        begins.append(job.life.started_at)
    return max(begins) if begins else None


def _failures(given: Failures, job: JobFacts, now: datetime) -> Judged:
    if job.life.is_over:
        return QUIET
    since = now - seconds(given.window_s)
    for row in _rows_of_failures(job.history):
        counted = [one for one in row if one.at > since]
        if len(counted) < given.count:
            continue
        newest = counted[-1]
        lead = "The last checkpoint failed."
        if len(counted) > 1:
            which = "At least the last" if len(row) == HISTORY_MAX else "The last"
            lead = f"{which} {plural(len(counted), 'checkpoint')} failed."
        return Judged.one(
            summary=f"{lead} The newest: {_why(newest)}.",
            lead=lead,
            evidence=(
                ("failed in a row", str(len(counted))),
                ("limit", str(given.count)),
                ("reason", _why(newest)),
            ),
            checkpoint=newest.number,
            until=sorted(one.at for one in counted)[-given.count] + seconds(given.window_s),
        )
    return QUIET


def _rows_of_failures(history: History) -> Iterator[list[Ended]]:
    """The failures in a row up to each fresh checkpoint, and up to the newest."""
    ends = range(len(history.ended) - max(history.fresh, 1), len(history.ended))
    for end in reversed(ends):
        row: list[Ended] = []
        for one in reversed(history.ended[: end + 1]):
            if one.is_completed:
                break
            row.append(one)
        if row:
            yield row[::-1]


def _duration(given: Duration, job: JobFacts, now: datetime) -> Judged:
    def judge(one: Ended, before: Sequence[Ended]) -> Holding | None:
        took_ms = one.duration_ms or 0.0
        usual_ms = _usual(before, lambda past: past.duration_ms)
        evidence = [("duration", duration(took_ms))]
        if given.seconds and took_ms > given.seconds * 1_000:
            evidence.append(("limit", duration(given.seconds * 1_000)))
        if _is_multiple(took_ms, usual_ms, given.times_median) and took_ms >= given.least_s * 1_000:
            evidence.append((f"median of the {MEDIAN_OF} before", duration(usual_ms)))
        if len(evidence) == 1:
            return None
        return Holding(
            summary=f"Checkpoint {one.number} took {duration(took_ms)}.",
            evidence=(*evidence, ("longest alignment", duration(one.alignment_ms))),
            checkpoint=one.number,
        )

    return _of_completed(job, judge)


def _alignment(given: Alignment, job: JobFacts, now: datetime) -> Judged:
    def judge(one: Ended, before: Sequence[Ended]) -> Holding | None:
        share = _share(one)
        usual = _usual(before, _share)
        if share is None or (one.duration_ms or 0.0) < given.least_s * 1_000:
            return None
        evidence = [("alignment", f"{share:.0%} of the duration")]
        if given.share and share > given.share:
            evidence.append(("limit", f"{given.share:.0%}"))
        if _is_multiple(share, usual, given.times_median):
            evidence.append((f"median of the {MEDIAN_OF} before", f"{usual:.0%}"))
        if len(evidence) == 1:
            return None
        return Holding(
            summary=f"Checkpoint {one.number} spent {share:.0%} of its {duration(one.duration_ms)} "
            "in alignment.",
            evidence=(
                *evidence,
                ("longest alignment", duration(one.alignment_ms)),
                ("duration", duration(one.duration_ms)),
            ),
            checkpoint=one.number,
        )

    return _of_completed(job, judge)


def _of_completed(
    job: JobFacts, judge: Callable[[Ended, Sequence[Ended]], Holding | None]
) -> Judged:
    """The judgement of the fresh completed checkpoints, the newest first, or of the last one."""
    if job.life.is_over:
        return QUIET
    ended = job.history.ended
    completed = [one for one in ended if one.is_completed]
    fresh = sum(one.is_completed for one in ended[len(ended) - job.history.fresh :])
    for back in range(max(fresh, 1)):
        if back < len(completed):
            at = len(completed) - 1 - back
            if holding := judge(completed[at], completed[max(0, at - MEDIAN_OF) : at]):
                return Judged((holding,))
    return QUIET


def _growth(given: Growth, job: JobFacts, now: datetime) -> Judged:
    newest, before = job.history.completed, job.sizes.get(given.window_s)
    if job.life.is_over or newest is None or before is None:
        return QUIET
    at, was = before
    held = newest.state_bytes
    if held < given.least_bytes or held <= given.factor * was or newest.at <= at:
        return QUIET
    took = rough_duration((newest.at - at).total_seconds() * 1_000)
    return Judged.one(
        summary=f"The state has grown from {size(was)} to {size(held)} within {took}.",
        evidence=(
            ("state", size(held)),
            (f"{took} before", size(was)),
            ("limit", f"{given.factor:g} times"),
        ),
        checkpoint=None,
    )


def _share(one: Ended) -> float | None:
    return min(1.0, one.alignment_ms / one.duration_ms) if one.duration_ms else None


def _usual(before: Sequence[Ended], measure: Callable[[Ended], float | None]) -> float | None:
    values = [value for one in before if (value := measure(one)) is not None]
    return median(values) if len(values) >= MEDIAN_LEAST else None


def _is_multiple(value: float, usual: float | None, times: float) -> bool:
    return bool(times) and usual is not None and value > times * usual


def _why(failed: Ended) -> str:
    words = reason_text(failed.reason)
    return f"{words} ({failed.cause})" if failed.cause else words or "no reason is known"


_MULTIPLE = "More than so many times its own median over the last checkpoints; 0: no such limit."
_LEAST = "Checkpoints that took less do not count."

CHECKPOINT_KINDS = (
    Kind(
        name="checkpoint_age",
        title="No checkpoint completes",
        text="No checkpoint has completed for too long, in a job that takes them periodically.",
        parameters=Age,
        texts={
            "seconds": "The limit, in seconds.",
            "intervals": "So many intervals of the job's checkpoints, where that is more; "
            "0: does not count.",
        },
        reads=("life", "history", "attempts"),
        judge=_age,
        is_stored=True,
    ),
    Kind(
        name="checkpoint_failures",
        title="Checkpoints fail",
        text="So many checkpoints have failed in a row; planned ends do not count.",
        parameters=Failures,
        texts={"count": "Failures in a row.", "window_s": "Within so many seconds."},
        reads=("life", "history"),
        judge=_failures,
        is_stored=True,
    ),
    Kind(
        name="checkpoint_duration",
        title="Slow checkpoints",
        text="The last completed checkpoint took too long.",
        parameters=Duration,
        texts={
            "seconds": "The limit, in seconds; 0: no such limit.",
            "times_median": _MULTIPLE,
            "least_s": "For the multiple of the median: shorter checkpoints do not count.",
        },
        reads=("life", "history"),
        judge=_duration,
        is_stored=True,
        limits=("seconds", "times_median"),
    ),
    Kind(
        name="checkpoint_alignment",
        title="Long alignment",
        text="Alignment is too large a part of the last completed checkpoint's duration.",
        parameters=Alignment,
        texts={
            "share": "The limit, between 0 and 1; 0: no such limit.",
            "times_median": _MULTIPLE,
            "least_s": _LEAST,
        },
        reads=("life", "history"),
        judge=_alignment,
        is_stored=True,
        limits=("share", "times_median"),
    ),
    Kind(
        name="state_growth",
        title="Growing state",
        text="The state of the last completed checkpoint is much larger than it was.",
        parameters=Growth,
        texts={
            "factor": "So many times as large.",
            "window_s": "As so many seconds ago.",
            "least_bytes": "Less state does not count.",
        },
        reads=("life", "history", "sizes"),
        judge=_growth,
        is_stored=True,
    ),
)
