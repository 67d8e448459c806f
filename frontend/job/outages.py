"""Downtime of a job between its attempts: parts, causes and totals. Pure.

A job is *down* from the end of an attempt that ran until the next one runs, however many attempts
that takes. Downtime for a requested rollback, rescale or restart, and while the control plane was
stopped with its drivers, is *planned*. A job that had finished, been cancelled or failed for good
was *over*, not down, until a user started it again: after a failure it was down as long as its
restart strategy tried, as in Flink's ``downtime``::

    attempt 1  ──────running──────┤ failed
                                  ├ delay ┼ redeploy ┼ restore ┤
    attempt 2                                                  ├──────running──────
                                  └────────── down ────────────┘ └ catch up ┘

A driver that recovers by itself reports delay, redeploy and restore. For a new driver the control
plane measures them: until the driver was requested, until its attempt began, until that attempt
ran. Time beyond the reported parts is failure detection, and counts as delay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from statistics import median

from controlplane.base.formatting import milliseconds_between
from jobs.models import Attempt, AttemptEnd, Job

PLANNED = (AttemptEnd.CANCELED, AttemptEnd.SUSPENDED)
_OVER = (AttemptEnd.FINISHED, AttemptEnd.CANCELED)  # Where the job may have been over.
SOON = timedelta(seconds=30)  # A driver requested later than this resumed a job that was over.


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """The times of one attempt. Units: milliseconds."""

    number: int
    driver: int
    requested_at: datetime  # The driver's request.
    started_at: datetime
    running_at: datetime | None = None
    ended_at: datetime | None = None
    end: str = ""
    gave_up: bool = False  # The job failed for good with it.
    backoff_ms: float | None = None  # These three are reported by the driver.
    redeploy_ms: float | None = None
    restore_ms: float | None = None
    catch_up_ms: float | None = None

    @classmethod
    def from_attempt(cls, row: Attempt) -> "Deployment":
        """From an attempt that was read with its driver."""
        return cls(
            number=row.number,
            driver=row.driver.number,
            requested_at=row.driver.created_at,
            started_at=row.started_at,
            running_at=row.running_at,
            ended_at=row.ended_at,
            end=row.end,
            gave_up=row.gave_up,
            backoff_ms=row.backoff_ms,
            redeploy_ms=row.redeploy_ms,
            restore_ms=row.restore_ms,
            catch_up_ms=row.catch_up_ms,
        )


@dataclass(frozen=True, slots=True)
class Takeover:
    """The parts of replacing an attempt. Units: milliseconds; None: not known, or not yet.

    The three parts add up to ``down_ms`` where all are known.
    """

    down_ms: float | None
    delay_ms: float | None
    redeploy_ms: float | None
    restore_ms: float | None
    is_driver_new: bool
    is_planned: bool
    was_over: bool  # The job was over in between, so it was not down.


def takeover(it: Deployment, before: Deployment | None) -> Takeover | None:
    """The takeover of an attempt from the one before it; None for the first."""
    if before is None:
        return None
    is_driver_new = it.driver != before.driver
    over = was_over(it, before)
    down = None if over else milliseconds_between(before.ended_at, it.running_at)
    parts: tuple[float | None, float | None, float | None]
    if it.redeploy_ms is not None and it.restore_ms is not None:
        redeploy, restore = it.redeploy_ms, it.restore_ms
        delay = it.backoff_ms or 0.0
        if down is not None:
            delay = max(delay, down - redeploy - restore)
        down = delay + redeploy + restore
        parts = (delay, redeploy, restore)
    else:
        requested = it.requested_at if is_driver_new else it.started_at
        began = max(it.started_at, requested)
        parts = (
            None if over else _at_least_zero(milliseconds_between(before.ended_at, requested)),
            _at_least_zero(milliseconds_between(requested, began)) if is_driver_new else None,
            _at_least_zero(milliseconds_between(began, it.running_at)),
        )
    return Takeover(
        _at_least_zero(down),
        *parts,
        is_driver_new=is_driver_new,
        is_planned=before.end in PLANNED and not over,
        was_over=over,
    )


def was_over(it: Deployment, before: Deployment) -> bool:
    """Whether the job was over before this attempt's driver was requested."""
    if it.driver == before.driver or before.ended_at is None:
        return False
    is_late = it.requested_at - before.ended_at > SOON
    return before.gave_up or (before.end in _OVER and is_late)


def _at_least_zero(milliseconds: float | None) -> float | None:
    """The duration, zero where two clocks disagree and make it negative."""
    return None if milliseconds is None else max(0.0, milliseconds)


@dataclass(frozen=True, slots=True)
class Outage:
    """A period in which a job was down; ``ends`` None: it still is."""

    begins: datetime
    ends: datetime | None
    is_planned: bool
    ended: int  # The attempt whose end began it.
    by: int | None = None  # The attempt that ended it, or is about to; None: there is none yet.
    is_final: bool = False  # It ended when the job was given up, at once where nothing was tried.

    def duration_ms(self, now: datetime) -> float:
        """The length of the outage, up to ``now`` while it lasts. Units: milliseconds."""
        return max(0.0, ((self.ends or now) - self.begins).total_seconds() * 1_000)


def is_resumed(newest: Attempt | None, job: Job) -> bool:
    """Whether the job was over after its newest attempt and waits for the first one since.

    One query at most, and none while an attempt is under way.
    """
    if newest is None or newest.ended_at is None or job.is_over:
        return False
    if newest.gave_up:
        return True
    if newest.end not in _OVER:
        return False
    driver = job.newest_driver
    return driver is not None and driver.created_at - newest.ended_at > SOON


def outages(deployments: Sequence[Deployment], *, is_over: bool) -> list[Outage]:
    """Each outage that the job came back from, or is in; oldest first.

    Args:
        deployments: Consecutive attempts, oldest first.
        is_over: Whether the job has ended, or ``is_resumed``: then it is not down now.
    """
    return [one for one in _outages(deployments, is_over=is_over) if not one.is_final]


def _outages(deployments: Sequence[Deployment], *, is_over: bool) -> Iterator[Outage]:
    last: Deployment | None = None  # The attempt that ran last, while the job is down.
    before: Deployment | None = None
    for it in deployments:
        if before is not None and was_over(it, before):
            yield from _final(last, before)
            last = None
        if last is not None and last.ended_at is not None and it.running_at is not None:
            yield Outage(
                last.ended_at,
                max(last.ended_at, it.running_at),
                last.end in PLANNED,
                last.number,
                it.number,
            )
            last = None
        if it.running_at is not None and it.ended_at is not None and it.end != "finished":
            last = it
        before = it
    if is_over:
        yield from _final(last, before)
    elif last is not None and last.ended_at is not None:
        coming = before.number if before is not None and before is not last else None
        yield Outage(last.ended_at, None, last.end in PLANNED, last.number, coming)


def _final(last: Deployment | None, newest: Deployment | None) -> Iterator[Outage]:
    """The outage from the end of the attempt that ran last until the job was given up."""
    if last is None or last.ended_at is None or newest is None:
        return
    if last.end == "failed" or newest.gave_up:
        until = max(last.ended_at, newest.ended_at or last.ended_at)
        yield Outage(last.ended_at, until, last.end in PLANNED, last.number, is_final=True)


@dataclass(frozen=True, slots=True)
class Summary:
    """Reliability figures of a job. Units: milliseconds; availability between 0 and 1."""

    failures: int  # Outages that were not planned, those too that the job did not come back from.
    planned: int
    up_ms: float
    down_ms: float  # In planned and other outages.
    availability: float | None  # None: it never ran.
    between_failures_ms: float | None  # None: it never failed.
    recovery_p50_ms: float | None  # Of failures that the job recovered from.
    recovery_max_ms: float | None
    since: datetime | None  # The beginning of the period.


def summary(deployments: Sequence[Deployment], now: datetime, *, is_over: bool) -> Summary:
    """The reliability of the job in these consecutive attempts, oldest first."""
    down_periods = list(_outages(deployments, is_over=is_over))
    ran = [it for it in deployments if it.running_at is not None]
    up = sum(milliseconds_between(it.running_at, it.ended_at or now) or 0.0 for it in ran)
    down = sum(one.duration_ms(now) for one in down_periods)
    failures = [one for one in down_periods if not one.is_planned]
    count = len(failures)
    took = [one.duration_ms(now) for one in failures if one.ends is not None and not one.is_final]
    return Summary(
        failures=count,
        planned=len(down_periods) - len(failures),
        up_ms=up,
        down_ms=down,
        availability=up / (up + down) if up + down > 0 else None,
        between_failures_ms=up / count if count else None,
        recovery_p50_ms=median(took) if took else None,
        recovery_max_ms=max(took, default=None),
        since=ran[0].running_at if ran else None,
    )
