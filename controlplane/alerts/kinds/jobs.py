"""Rules about jobs, their drivers and subtasks, and their operations. Pure."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

import msgspec

from controlplane.alerts.facts import ATTEMPTS_MAX, JobFacts, SlotFacts
from controlplane.alerts.kinds.base import (
    QUIET,
    Holding,
    Judged,
    Kind,
    Limit,
    Parameters,
    Share,
    Window,
    first,
    seconds,
)
from controlplane.alerts.recoveries import last_outage
from controlplane.base.formatting import duration, interval, plural, rough_duration
from weir.protocol.lifecycle import JobStatus

LOOK_AGAIN_MS = 3_600_000.0
SLOTS_NAMED = 16  # Of a host.
BAD_RECORDS_KEPT_S = 3_600  # As long as jobs.events.bad_records keeps their times.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Restarts(Parameters):
    """Parameters of restarts after failures."""

    count: Annotated[int, msgspec.Meta(ge=1, le=ATTEMPTS_MAX - 5)] = 3
    window_s: Window = 600


class Failed(Parameters):
    """Parameters of failed jobs."""

    window_s: Window = 3_600


class OperationFailed(Parameters):
    """Parameters of failed operations."""

    kinds: list[str] = []
    window_s: Window = 3_600


class Recovery(Parameters):
    """Parameters of slow recoveries."""

    seconds: Limit = 60.0
    window_s: Window = 600


class Silent(Parameters):
    """Parameters of missing heartbeats."""

    seconds: Limit = 30.0


class BackPressure(Parameters):
    """Parameters of back pressure."""

    share: Share = 0.8


class Starved(Parameters):
    """Parameters of the wait for a processor."""

    share: Share = 0.3


class Memory(Parameters):
    """Parameters of memory that is nearly used up."""

    share: Share = 0.9


class BadRecords(Parameters):
    """Parameters of bad records."""

    count: Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)] = 0
    window_s: Annotated[int, msgspec.Meta(ge=60, le=BAD_RECORDS_KEPT_S)] = 600


class Lag(Parameters):
    """Parameters of event time behind the clock."""

    seconds: Limit = 600.0


def _restarts(given: Restarts, job: JobFacts, now: datetime) -> Judged:
    since = now - seconds(given.window_s)
    if job.life.is_over:
        return QUIET
    ends = [one for one in job.attempts if one.has_failed and one.ended_at and one.ended_at > since]
    if len(ends) < given.count:
        return QUIET
    cause = ends[0].cause
    last_needed = sorted(one.ended_at for one in ends if one.ended_at)[-given.count]
    text = (
        f"The job has failed and restarted {plural(len(ends), 'time')} within "
        f"{rough_duration(given.window_s * 1_000)}"
    )
    return Judged.one(
        summary=f"{text}: {cause}" if cause else f"{text}.",
        evidence=(
            ("restarts", str(len(ends))),
            ("limit", str(given.count)),
            *([("last cause", cause)] if cause else []),
        ),
        until=last_needed + seconds(given.window_s),
    )


def _job_failed(given: Failed, job: JobFacts, now: datetime) -> Judged:
    life = job.life
    if life.status != JobStatus.FAILED or life.is_planned or life.ended_at is None:
        return QUIET
    until = life.ended_at + seconds(given.window_s)
    if now >= until:
        return QUIET
    text = f"The job failed: {life.cause}" if life.cause else "The job failed."
    evidence = (("cause", life.cause),) if life.cause else ()
    return Judged.one(summary=text, evidence=evidence, until=until)


def _operation_failed(given: OperationFailed, job: JobFacts, now: datetime) -> Judged:
    window = seconds(given.window_s)
    holding = tuple(
        Holding(
            subject=one.id,
            summary=f"The {one.kind} failed: {one.error}"
            if one.error
            else f"The {one.kind} failed.",
            evidence=(
                ("operation", one.kind),
                *([("error", one.error)] if one.error else []),
            ),
        )
        for one in job.operations
        if now < one.at + window and (not given.kinds or one.kind in given.kinds)
    )
    if not holding:
        return QUIET
    ends = (one.at + window for one in job.operations)
    return Judged(holding, until=first(end for end in ends if now < end))


def _recovery(given: Recovery, job: JobFacts, now: datetime) -> Judged:
    if job.life.is_over or not (outage := last_outage(job.attempts)):
        return QUIET
    own_s = job.life.recovery_target_s
    whose, target_s = ("rule's limit", given.seconds) if own_s is None else ("job's target", own_s)
    limit = seconds(target_s)
    if outage.ended_at is None:
        if now < outage.began_at + limit:
            return Judged(until=outage.began_at + limit)
        until = None
        took = now - outage.began_at
    else:
        took = outage.ended_at - outage.began_at
        until = outage.ended_at + seconds(given.window_s)
        if took <= limit or now >= until:
            return QUIET
    took_ms = _ms(took)
    said = "The job has been recovering for" if until is None else "The job's recovery took"
    return Judged.one(
        summary=f"{said} {duration(took_ms)}, over the {whose} of "
        f"{interval(target_s * 1_000)}"
        + (f", after this failure: {outage.cause}" if outage.cause else "."),
        evidence=(
            ("time without a running job", duration(took_ms)),
            (whose, duration(target_s * 1_000)),
            *([("cause", outage.cause)] if outage.cause else []),
        ),
        until=until,
    )


def _driver_silent(given: Silent, job: JobFacts, now: datetime) -> Judged:
    driver = job.driver
    if job.life.is_over or driver is None or not driver.is_running or driver.heard_at is None:
        return QUIET
    due_at = driver.heard_at + seconds(given.seconds)
    if now < due_at:
        return Judged(until=due_at)
    silent_ms = _ms(now - driver.heard_at)
    return Judged.one(
        summary=f"The driver has not reported for {rough_duration(silent_ms)}. Until it is "
        "back or replaced, no checkpoint is taken and exactly-once sinks commit nothing.",
        evidence=(
            ("silent for", duration(silent_ms)),
            ("limit", duration(given.seconds * 1_000)),
            ("driver", str(driver.number)),
        ),
    )


def _subtask_silent(given: Silent, job: JobFacts, now: datetime) -> Judged:
    driver = job.driver
    if job.life.status != JobStatus.RUNNING or driver is None or driver.heard_at is None:
        return QUIET
    # Against the driver's own last report: a driver that is silent says nothing about subtasks.
    holding = []
    for one in job.chains:
        if one.updated_at is None:
            continue
        if (silent := driver.heard_at - one.updated_at) < seconds(given.seconds):
            continue
        silent_ms = _ms(silent)
        holding.append(
            Holding(
                subject=one.chain,
                summary=f"A subtask of {one.chain} has not reported for "
                f"{rough_duration(silent_ms)}, though the driver has.",
                evidence=(
                    ("silent for", duration(silent_ms)),
                    ("limit", duration(given.seconds * 1_000)),
                ),
            )
        )
    return Judged(tuple(holding)) if holding else QUIET


def _back_pressure(given: BackPressure, job: JobFacts, now: datetime) -> Judged:
    if job.life.status != JobStatus.RUNNING:
        return QUIET
    holding = tuple(
        Holding(
            subject=one.chain,
            summary=f"{one.chain} is held up by back pressure for "
            f"{one.back_pressured:.0%} of the time: an operator behind it is slower.",
            evidence=(
                ("back pressure", f"{one.back_pressured:.0%}"),
                ("limit", f"{given.share:.0%}"),
                *([("busiest subtask", f"{one.busiest:.0%}")] if one.busiest is not None else []),
            ),
        )
        for one in job.chains
        if one.back_pressured is not None and one.back_pressured > given.share
    )
    return Judged(holding) if holding else QUIET


def _starved(given: Starved, job: JobFacts, now: datetime) -> Judged:
    if job.life.status != JobStatus.RUNNING:
        return QUIET
    by_host: dict[str, list[SlotFacts]] = {}
    for slot in job.slots:
        if (slot.cpu_wait or 0.0) > given.share:
            by_host.setdefault(slot.host or f"slot {slot.index}", []).append(slot)
    return Judged(tuple(_of_host(given, host, slots) for host, slots in by_host.items()))


def _of_host(given: Starved, subject: str, slots: list[SlotFacts]) -> Holding:
    worst = max(slots, key=lambda slot: slot.cpu_wait or 0.0)
    return Holding(
        subject=subject,
        summary=f"{_place(worst)} waits for a processor for {worst.cpu_wait:.0%} of the time: more "
        "processes are ready to run there than it has processors.",
        evidence=(
            ("wait for a processor", f"{worst.cpu_wait:.0%}"),
            ("limit", f"{given.share:.0%}"),
            ("slots above it", ", ".join(str(slot.index) for slot in slots[:SLOTS_NAMED])),
            ("their number", str(len(slots))),
        ),
    )


def _place(slot: SlotFacts) -> str:
    return f"Slot {slot.index}" + (f" on host {slot.host}" if slot.host else "")


def _short_of_memory(given: Memory, job: JobFacts, now: datetime) -> Judged:
    if job.life.status != JobStatus.RUNNING:
        return QUIET
    short = [slot for slot in job.slots if (slot.memory_share or 0.0) > given.share]
    if not short:
        return QUIET
    worst = max(short, key=lambda slot: slot.memory_share or 0.0)
    return Judged.one(
        summary=f"{_place(worst)} holds {worst.memory_share:.0%} of the memory that it may: above "
        "the limit its process ends, and the job fails over.",
        evidence=(
            ("memory", f"{worst.memory_share:.0%}"),
            ("limit", f"{given.share:.0%}"),
            ("slots above it", ", ".join(str(slot.index) for slot in short[:SLOTS_NAMED])),
            ("their number", str(len(short))),
        ),
    )


def _bad_records(given: BadRecords, job: JobFacts, now: datetime) -> Judged:
    if job.life.status != JobStatus.RUNNING:
        return QUIET
    window = seconds(given.window_s)
    within = rough_duration(given.window_s * 1_000)
    holding, ends = [], []
    for one in job.chains:
        recent = sorted(mark for mark in one.bad_records if mark[0] + window > now)
        count = left = sum(number for _, number in recent)
        if count <= given.count:
            continue
        for at, number in recent:
            left -= number
            if left <= given.count:
                ends.append(at + window)
                break
        holding.append(
            Holding(
                subject=one.chain,
                summary=f"{one.chain} left out {plural(count, 'bad record')} within {within}: "
                "its function raised on them. The log of its worker has their causes.",
                evidence=(("bad records", f"{count:,}"), ("limit", f"{given.count:,}")),
            )
        )
    return Judged(tuple(holding), until=first(ends)) if holding else QUIET


def _lag(given: Lag, job: JobFacts, now: datetime) -> Judged:
    reached = [one.watermark_ms for one in job.chains if one.watermark_ms is not None]
    # Before 1970: no time of a live source, but the watermark before any record.
    if job.life.status != JobStatus.RUNNING or not reached or min(reached) <= 0:
        return QUIET
    lag_ms = _ms(now - _EPOCH) - min(reached)
    if (left_ms := given.seconds * 1_000 - lag_ms) > 0:
        # Event times can be anything; no calendar has that of an input that ended.
        return Judged(until=now + timedelta(milliseconds=min(left_ms, LOOK_AGAIN_MS)))
    return Judged.one(
        summary=f"Event time is {rough_duration(lag_ms)} behind the clock.",
        evidence=(
            ("behind", duration(lag_ms)),
            ("limit", duration(given.seconds * 1_000)),
        ),
    )


def _ms(passed: timedelta) -> float:
    return passed.total_seconds() * 1_000


_STAYS = "The alert stays for so many seconds."

JOB_KINDS = (
    Kind(
        name="job_failed",
        title="Job failed",
        text="A job has failed for good.",
        parameters=Failed,
        texts={"window_s": _STAYS},
        reads=("life",),
        judge=_job_failed,
        is_stored=True,
    ),
    Kind(
        name="restarts",
        title="Restarts",
        text="A job has failed and restarted too often; planned restarts do not count.",
        parameters=Restarts,
        texts={"count": "Restarts after failures.", "window_s": "Within so many seconds."},
        reads=("life", "attempts"),
        judge=_restarts,
        is_stored=True,
    ),
    Kind(
        name="recovery_time",
        title="Slow recovery",
        text="The time from a failure until all subtasks run again is longer than the job's "
        "recovery target, or without one than the rule's limit.",
        parameters=Recovery,
        texts={
            "seconds": "The limit, in seconds, for jobs without a recovery target.",
            "window_s": _STAYS,
        },
        reads=("life", "attempts"),
        judge=_recovery,
        is_stored=True,
    ),
    Kind(
        name="operation_failed",
        title="Operation failed",
        text="A savepoint, a rescale or another operation has failed or expired.",
        parameters=OperationFailed,
        texts={"kinds": "Kinds of operations; without any, all.", "window_s": _STAYS},
        reads=("operations",),
        judge=_operation_failed,
        is_stored=True,
    ),
    Kind(
        name="driver_silent",
        title="Driver without heartbeat",
        text="A running driver has not reported for too long.",
        parameters=Silent,
        texts={"seconds": "The limit, in seconds."},
        reads=("life", "driver"),
        judge=_driver_silent,
    ),
    Kind(
        name="subtask_silent",
        title="Subtask without report",
        text="A running subtask has not reported for too long, though its driver has.",
        parameters=Silent,
        texts={"seconds": "The limit, in seconds."},
        reads=("life", "driver", "chains"),
        judge=_subtask_silent,
    ),
    Kind(
        name="back_pressure",
        title="Back pressure",
        text="A subtask of an operator is held up by back pressure for most of the time.",
        parameters=BackPressure,
        texts={"share": "The limit of the share of time, between 0 and 1."},
        reads=("life", "chains"),
        judge=_back_pressure,
    ),
    Kind(
        name="host_starved",
        title="Host short of processors",
        text="A slot is ready to run, and waits for a processor for too much of its time.",
        parameters=Starved,
        texts={"share": "The limit of the share of time, between 0 and 1."},
        reads=("life", "slots"),
        judge=_starved,
    ),
    Kind(
        name="slot_memory",
        title="Slot short of memory",
        text="The process of a slot holds nearly all the memory that it may.",
        parameters=Memory,
        texts={"share": "The limit of the share of a slot's memory limit, between 0 and 1."},
        reads=("life", "slots"),
        judge=_short_of_memory,
    ),
    Kind(
        name="bad_records",
        title="Bad records",
        text="A function of an operator has raised on more records than the limit, and they were "
        "left out.",
        parameters=BadRecords,
        texts={
            "count": "More than so many bad records; 0: any.",
            "window_s": "Within so many seconds.",
        },
        reads=("life", "chains"),
        judge=_bad_records,
    ),
    Kind(
        name="event_time_lag",
        title="Event time behind",
        text="The event time that a job has reached is too far behind the clock; for live sources.",
        parameters=Lag,
        texts={"seconds": "The limit, in seconds."},
        reads=("life", "chains"),
        judge=_lag,
    ),
)
