"""Watches this machine's driver processes: reports ended ones, and ends those told to stop."""

import logging
import re
import signal
from functools import partial

from controlplane.base import clock
from jobs.drivers import driver_files, drivers, processes, user_processes
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
from jobs.drivers.processes import Process
from jobs.models import LIVE_DRIVERS, Driver, DriverStatus, Job
from weir.jvm_options import JAVA_LEAST

logger = logging.getLogger(__name__)

ENDING_S = 0.5  # From the end of a process' main thread to that of its last, at most.
STOP_GRACE_MS = 5_000  # From SIGTERM to SIGKILL.
# A driver that reported its job's end stops Spark and exits; after this long it is ended.
WIND_UP_MS = 60_000

# Of Spark's start script, and of a JVM that is too old for Spark.
_NO_JAVA = re.compile(r"JAVA_HOME is not set|/bin/java: No such file|UnsupportedClassVersionError")

_told: set[tuple[int, float]] = set()  # Sessions that this process has sent a signal.
_over: list[Driver] = []  # Their temporary files are to be deleted, outside of any transaction.


def watch() -> int:
    """Report this machine's drivers whose process has ended as lost; return their number."""
    watched = Driver.objects.filter(
        here(), status__in=(DriverStatus.STARTING, DriverStatus.RUNNING)
    )
    count = 0
    for driver in watched:
        if driver.pid is None:
            process = noted_process(driver)
            count += claimed(driver, partial(_adopt, process=process)) is True
        elif not runs(driver):
            log = driver_files.tail(driver).strip()
            count += claimed(driver, partial(_lose, log=log)) is True
    return count


def _adopt(job: Job, driver: Driver, process: Process | None) -> bool:
    """Note the process of a claimed driver, or give the driver up once the claim has expired."""
    now = clock.now()
    if driver.pid is not None or driver.status not in LIVE_DRIVERS:
        return False
    if driver.launch_expires_at is not None and driver.launch_expires_at > now:
        return False  # Its launcher may be starting it right now.
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


def _lose(job: Job, driver: Driver, log: str) -> bool:
    if driver.status not in LIVE_DRIVERS or driver.pid is None or runs(driver):
        return False
    assert driver.process_started_at is not None
    # The JVM may have been killed without its Python driver, which would then be a second driver.
    processes.end_session(driver.pid, driver.process_started_at, signal.SIGKILL)
    code = exit_code(driver.pid, driver.process_started_at, wait_s=ENDING_S)
    drivers.lost(job, driver, _how_it_ended(driver, code, log))
    return True


def _how_it_ended(driver: Driver, code: int | None, log: str) -> str:
    if code is None:
        how = "; its exit code is not known, since the launcher that started it is gone"
    elif (killer := _signal(code)) is not None:
        how = f", killed by {killer}" if code < 0 else f" with exit code {code}, so by {killer}"
    else:
        how = f" with exit code {code}"
    # A killed driver writes no last error; its earlier output is in the log.
    said = "" if code is not None and code < 0 else log
    if _NO_JAVA.search(said):
        at = driver.launched_by
        how += f"; install Java {JAVA_LEAST} or newer on {at}, or set JAVA_HOME there"
    return f"the driver's process {driver.pid} ended{how}" + (f"\n{said}" if said else "")


def _signal(code: int) -> str | None:
    """The name of the signal that an exit code tells of; None: there was none."""
    number = -code if code < 0 else code - 128
    return signal.Signals(number).name if number in {one.value for one in signal.Signals} else None


def stop() -> None:
    """End the processes of drivers that were told to stop, or whose job is long over."""
    over = Driver.objects.filter(here(), stopped_at=None).exclude(status__in=LIVE_DRIVERS)
    for driver in over:
        claimed(driver, partial(has_stopped, process=noted_process(driver)))


def noted_process(driver: Driver) -> Process | None:
    """The process of a driver whose row names none, as its note says; None: there is none."""
    if driver.pid is not None:
        return None
    directory = driver_files.directory_of(driver.job_id, driver.number)
    return user_processes.noted(directory / driver_files.NOTE_NAME, driver_files.root())


def clean_up() -> None:
    """Begin to delete the temporary files of drivers that have stopped."""
    while _over:
        driver_files.remove_scratch(_over.pop())


def has_stopped(job: Job, driver: Driver, process: Process | None) -> bool:
    """Whether no process of the driver runs any more; one that runs is sent SIGTERM or SIGKILL.

    Args:
        process: The result of ``noted_process``, which reads a file, from before the transaction.
    """
    if driver.stopped_at is not None:
        return True
    now = clock.now()
    if driver.pid is None:
        if process is not None:
            note(driver, process.pid, process.started_at, now)
        elif driver.ended_at is not None and now - driver.ended_at > clock.milliseconds(CLAIM_MS):
            note_stopped(driver, now)  # The launcher would have noted a process by now.
            return True
        return False
    assert driver.process_started_at is not None
    session = (driver.pid, driver.process_started_at)
    is_leader_gone = not runs(driver)
    if is_leader_gone and session not in _told and driver.status == DriverStatus.LOST:
        code = exit_code(*session)
        if code is not None and _signal(code) is not None:
            drivers.explain(job, driver, _how_it_ended(driver, code, ""))
    if not processes.session_of(*session):
        exit_code(*session)
        forget(*session)
        _told.discard(session)
        _over.append(driver)
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
    elif now - asked_at > clock.milliseconds(STOP_GRACE_MS) or is_leader_gone:
        if not is_leader_gone:
            _told.add(session)
        processes.end_session(*session, signal.SIGKILL)
    elif session not in _told:
        _told.add(session)
        processes.end_session(*session, signal.SIGTERM)
    return False
