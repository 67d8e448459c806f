"""The phases of a launch, relaunch or recovery for the job page, while it is under way. Pure.

::

    new driver         delay ─ launch ─ slots ─ deploy and restore
    the same driver    delay ──────────  slots ─ deploy and restore
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.base.formatting import duration, iso, milliseconds_between, plural, rough_duration
from frontend.operations.steps import Step, StepState
from jobs.models import LIVE_DRIVERS, Attempt, Driver, DriverStatus, Job
from weir.protocol.lifecycle import JobStatus

Json = dict[str, Any]

_UNDER_WAY = (
    JobStatus.CREATED,
    JobStatus.INITIALIZING,
    JobStatus.FAILING,
    JobStatus.RESTARTING,
)


@dataclass(frozen=True, slots=True)
class _Phase:
    text: str
    since: datetime | None = None


def relaunch_steps(
    job: Job,
    driver: Driver | None,
    attempt: Attempt | None,
    *,
    is_first: bool,
    running: int,
    total: int,
    now: datetime,
) -> list[Json]:
    """The phases in order, each done, current or ahead; empty where nothing is being launched.

    Args:
        attempt: The job's newest.
        is_first: Whether it is the first one of its driver.
        running: Subtasks of it that run, of ``total``.
    """
    if job.status not in _UNDER_WAY or driver is None:
        return []
    is_live = driver.status in LIVE_DRIVERS
    own = attempt if attempt is not None and attempt.driver_id == driver.pk else None
    is_failing = job.status == JobStatus.FAILING
    # The attempt begins before its slots have registered.
    has_slots = job.slot_count is None or len(driver.slots) >= job.slot_count
    is_begun = is_live and own is not None and own.ended_at is None and not is_failing
    is_deploying = is_begun and has_slots
    recovers = own is not None and (not is_first or own.ended_at is not None or is_failing)
    phases: list[_Phase] = []
    if not is_live:
        phases += [
            _delay(job, driver, attempt),
            _Phase(f"Driver {driver.number + 1:,} is launched"),
        ]
        is_over = False
    elif recovers:
        text = "The failed attempt ends, and the restart delay passes"
        phases.append(_Phase(text, job.status_changed_at))
        is_over = is_begun or job.status == JobStatus.INITIALIZING
    else:
        phases.append(_launch(driver))
        is_over = driver.status == DriverStatus.RUNNING
    since = own.started_at if is_begun and own is not None else None
    phases.append(_Phase(_slots(job, driver, is_live=is_live), since))
    phases.append(_deploy(attempt if is_deploying else None, running, total))
    return _as_json(phases, len(phases) - 1 if is_deploying else int(is_over), now)


def _delay(job: Job, driver: Driver, attempt: Attempt | None) -> _Phase:
    since = driver.ended_at or (attempt.ended_at if attempt else None)
    if job.restart_at is None or since is None:
        return _Phase("The last driver's end is settled", since)
    delay = duration(milliseconds_between(since, job.restart_at))
    return _Phase(f"The restart delay passes: {delay}", since)


def _launch(driver: Driver) -> _Phase:
    if driver.status == DriverStatus.REQUESTED:
        return _Phase(f"Driver {driver.number:,} waits for a launcher", driver.created_at)
    return _Phase(
        f"Driver {driver.number:,} is launched, and its Spark application starts", driver.created_at
    )


def _slots(job: Job, driver: Driver, *, is_live: bool) -> str:
    have = len(driver.slots) if is_live else 0
    if job.slot_count is None or not have:
        return "Slots register"
    return f"Slots register: {min(have, job.slot_count):,} of {job.slot_count:,}"


def _deploy(attempt: Attempt | None, running: int, total: int) -> _Phase:
    if attempt is None:
        return _Phase("Subtasks are deployed and their state is restored")
    what = (
        "start from the beginning"
        if attempt.restored_checkpoint is None
        else f"restore checkpoint {attempt.restored_checkpoint:,}"
    )
    text = f"Subtasks are deployed and {what}"
    if total:
        text += f": {running:,} of {plural(total, 'subtask')} running"
    return _Phase(text, attempt.started_at)


def _as_json(phases: Sequence[_Phase], current: int, now: datetime) -> list[Json]:
    steps = []
    for at, phase in enumerate(phases):
        state = (
            StepState.DONE
            if at < current
            else StepState.CURRENT
            if at == current
            else StepState.AHEAD
        )
        is_current = state is StepState.CURRENT
        took = milliseconds_between(phase.since, now) if is_current else None
        steps.append(
            {
                **Step(phase.text, state).as_json(),
                "key": str(at),
                "since": iso(phase.since) if is_current else None,
                "took_ago": "" if took is None else rough_duration(took),
            }
        )
    return steps
