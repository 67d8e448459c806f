"""Watches this machine's driver processes: reports ended ones, and ends those told to stop."""

import logging
import signal

from controlplane.base import clock
from jobs.drivers import driver_files, drivers, processes
from jobs.drivers.child_processes import exit_code, forget
from jobs.drivers.driver_claims import (
    CLAIM_MS,
    claimed,
    here,
    never_started,
    note,
    note_stopped,
    runs,
)
from jobs.models import LIVE_DRIVERS, Driver, DriverStatus, Job

logger = logging.getLogger(__name__)

STOP_GRACE_MS = 5_000  # From SIGTERM to SIGKILL.
# A driver that reported its job's end stops Spark and exits; after this long it is ended.
WIND_UP_MS = 60_000

_told: set[tuple[int, float]] = set()  # Sessions to which this process has sent SIGTERM.


def watch() -> int:
    """Report this machine's drivers whose process has ended as lost; return their number."""
    watched = Driver.objects.filter(
        here(), status__in=(DriverStatus.STARTING, DriverStatus.RUNNING)
    )
    count = 0
    for driver in watched:
        if driver.pid is None:
            count += claimed(driver, _adopt) is True
        elif not runs(driver):
            count += claimed(driver, _lose) is True
    return count


def _adopt(job: Job, driver: Driver) -> bool:
    """Find the process of a claimed driver, or give the driver up once the claim has expired."""
    now = clock.now()
    if driver.pid is not None or driver.status not in LIVE_DRIVERS:
        return False
    if driver.launch_expires_at is not None and driver.launch_expires_at > now:
        return False  # Its launcher may be starting it right now.
    process = processes.marked(f"{job.pk}/{driver.number}")
    if process is not None:
        logger.warning(
            "adopted process %d of driver %d, not noted at its launch", process.pid, driver.number
        )
        note(driver, process.pid, process.started_at, now)
        return False
    if driver.status == DriverStatus.RUNNING:
        return False  # Its heartbeats show whether the driver lives.
    never_started(job, driver, "the launcher ended before it had started the driver")
    return True


def _lose(job: Job, driver: Driver) -> bool:
    if driver.status not in LIVE_DRIVERS or driver.pid is None or runs(driver):
        return False
    assert driver.process_started_at is not None
    # The JVM may have been killed without its Python driver, which would then be a second driver.
    processes.end_session(driver.pid, driver.process_started_at, signal.SIGKILL)
    code = exit_code(driver.pid, driver.process_started_at)
    drivers.lost(job, driver, _how_it_ended(driver, code))
    return True


def _how_it_ended(driver: Driver, code: int | None) -> str:
    if code is None:
        how = ""
    elif code < 0:
        how = f", killed by {signal.Signals(-code).name}"
    elif code > 128 and code - 128 in {s.value for s in signal.Signals}:
        how = f" with exit code {code}, so by {signal.Signals(code - 128).name}"
    else:
        how = f" with exit code {code}"
    # A killed driver writes no last error; its earlier output is in the log.
    said = "" if code is not None and code < 0 else driver_files.tail(driver).strip()
    return f"the driver's process {driver.pid} ended{how}" + (f"\n{said}" if said else "")


def stop() -> None:
    """End the processes of drivers that were told to stop, or whose job is long over."""
    over = Driver.objects.filter(here(), stopped_at=None).exclude(status__in=LIVE_DRIVERS)
    for driver in over:
        claimed(driver, has_stopped)


def has_stopped(job: Job, driver: Driver) -> bool:
    """Whether no process of the driver runs any more; one that runs is sent SIGTERM or SIGKILL."""
    if driver.stopped_at is not None:
        return True
    now = clock.now()
    if driver.pid is None:
        process = processes.marked(f"{job.pk}/{driver.number}")
        if process is not None:
            note(driver, process.pid, process.started_at, now)
        elif driver.ended_at is not None and now - driver.ended_at > clock.milliseconds(CLAIM_MS):
            note_stopped(driver, now)  # The launcher would have noted a process by now.
            return True
        return False
    assert driver.process_started_at is not None
    session = (driver.pid, driver.process_started_at)
    if not processes.session_of(*session):
        exit_code(*session)
        forget(*session)
        _told.discard(session)
        driver_files.remove_scratch(driver)
        note_stopped(driver, now)
        return True
    asked_at = driver.stop_requested_at
    if asked_at is None:
        if driver.ended_at is not None and now - driver.ended_at > clock.milliseconds(WIND_UP_MS):
            logger.warning(
                "driver %d still runs after the end of its job; stopping it", driver.number
            )
            driver.stop_requested_at = now
            driver.save(update_fields=["stop_requested_at"])
    elif now - asked_at > clock.milliseconds(STOP_GRACE_MS) or not runs(driver):
        processes.end_session(*session, signal.SIGKILL)
    elif session not in _told:
        _told.add(session)
        processes.end_session(*session, signal.SIGTERM)
    return False
