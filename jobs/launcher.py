"""Starts drivers on this machine, sees when one is gone, and ends those that were told to go.

One ``tick`` a second, on every machine with a worker on the queue ``launch``. All that has to
survive the launcher is in the driver's row: which machine and boot, pid and start time. A launcher
that is started again finds its predecessor's drivers by them, and two launchers on one machine
share the work: each step claims the job's row first.

A launch is claimed, done and noted, each step durable before the next::

    REQUESTED ── claimed, token ──> STARTING ── process started ──> pid noted ── heard ──> RUNNING

A launcher that dies between the last two leaves a process that nobody noted. It carries a mark in
its environment, by which the next look adopts it; where there is none, the claim runs out and the
driver is lost.
"""

import logging
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from secrets import token_urlsafe
from typing import TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from controlplane import clock, logs
from controlplane.accounts.models import digest_of
from jobs import driver_files, drivers, operations, processes
from jobs.children import adopt, exit_code, forget
from jobs.models import LIVE_DRIVERS, Driver, DriverStatus, Job
from jobs.spark_command import is_shipped, spark_command

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

LAUNCHED_MAX = 20  # In one tick: each starts a JVM.
CLAIM_MS = 15_000  # From a claim to the process noted; it takes milliseconds.
STOP_GRACE_MS = 5_000  # From SIGTERM to SIGKILL.
# A driver whose job ended by its own word stops Spark and goes; one that does not is helped.
WIND_UP_MS = 60_000
BEFORE_TIMEOUT_S = 10.0  # Within the claim.

_told: set[tuple[int, float]] = set()  # Sessions that this process has sent SIGTERM.


@dataclass(frozen=True, slots=True)
class _Launch:
    """A driver that this launcher has claimed."""

    job: Job
    driver: Driver
    token: str


def tick() -> None:
    """Look after this machine's drivers, then start those that are wanted."""
    watch()
    stop()
    launch()


# Watching -----------------------------------------------------------------------------------------


def watch() -> int:
    """Report drivers of this machine whose process is gone as lost; says how many were."""
    mine = Q(launched_by=processes.host_name(), boot_id=processes.boot_id())
    found = Driver.objects.filter(mine, status__in=(DriverStatus.STARTING, DriverStatus.RUNNING))
    count = 0
    for driver in found:
        if driver.pid is None:
            count += _claimed(driver, _adopt) is True
        elif not _runs(driver):
            count += _claimed(driver, _lose) is True
    return count


def _adopt(job: Job, driver: Driver) -> bool:
    """A claimed driver without a process: find it, or give it up once the claim has run out."""
    now = clock.now()
    if driver.pid is not None or driver.status not in LIVE_DRIVERS:
        return False
    if driver.launch_expires_at is not None and driver.launch_expires_at > now:
        return False  # Its launcher may be starting it right now.
    process = processes.marked(f"{job.pk}/{driver.number}")
    if process is not None:
        logger.warning("process %d of driver %d had not been noted", process.pid, driver.number)
        _note(driver, process.pid, process.started_at, now)
        return False
    if driver.status == DriverStatus.RUNNING:
        return False  # It speaks: its heartbeats say whether it lives.
    _never_started(job, driver, "its launcher ended before it had started the driver")
    return True


def _never_started(job: Job, driver: Driver, cause: str) -> None:
    """The driver is lost and there is no process to wait for."""
    drivers.lost(job, driver, cause)
    _note_stopped(driver, clock.now())


def _lose(job: Job, driver: Driver) -> bool:
    if driver.status not in LIVE_DRIVERS or driver.pid is None or _runs(driver):
        return False
    assert driver.process_started_at is not None
    # The JVM may have been killed and its Python driver not: a twin, if it were left.
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
    # Who was killed had no last words; what it said before is in its log.
    said = "" if code is not None and code < 0 else driver_files.tail(driver).strip()
    return f"the driver's process {driver.pid} ended{how}" + (f"\n{said}" if said else "")


def _runs(driver: Driver) -> bool:
    assert driver.pid is not None
    assert driver.process_started_at is not None
    return processes.is_running(driver.pid, driver.process_started_at)


# Stopping -----------------------------------------------------------------------------------------


def stop() -> None:
    """End the processes of drivers that were told to go, or whose job is long over."""
    mine = Q(launched_by=processes.host_name(), boot_id=processes.boot_id())
    over = Driver.objects.filter(mine, stopped_at=None).exclude(status__in=LIVE_DRIVERS)
    for driver in over:
        _claimed(driver, _stop)


def _stop(job: Job, driver: Driver) -> bool:
    """Whether nothing of the driver runs any more."""
    if driver.stopped_at is not None:
        return True
    now = clock.now()
    if driver.pid is None:
        process = processes.marked(f"{job.pk}/{driver.number}")
        if process is not None:
            _note(driver, process.pid, process.started_at, now)
        elif driver.ended_at is not None and now - driver.ended_at > clock.milliseconds(CLAIM_MS):
            _note_stopped(driver, now)  # By now its launcher would have noted a process.
            return True
        return False
    assert driver.process_started_at is not None
    session = (driver.pid, driver.process_started_at)
    if not processes.session_of(*session):
        exit_code(*session)
        forget(*session)
        _told.discard(session)
        _note_stopped(driver, now)
        return True
    asked_at = driver.stop_requested_at
    if asked_at is None:
        if driver.ended_at is not None and now - driver.ended_at > clock.milliseconds(WIND_UP_MS):
            logger.warning("driver %d does not end after its job has", driver.number)
            driver.stop_requested_at = now
            driver.save(update_fields=["stop_requested_at"])
    elif now - asked_at > clock.milliseconds(STOP_GRACE_MS) or not _runs(driver):
        processes.end_session(*session, signal.SIGKILL)
    elif session not in _told:
        _told.add(session)
        processes.end_session(*session, signal.SIGTERM)
    return False


# Starting -----------------------------------------------------------------------------------------


def launch() -> int:
    """Start the drivers that were requested; says how many it started."""
    wanted = Driver.objects.filter(status=DriverStatus.REQUESTED).order_by("created_at")
    count = 0
    for driver in wanted[:LAUNCHED_MAX]:
        claimed = _claimed(driver, _claim)
        if claimed is None:
            continue
        with logs.about(job=driver.job_id, driver=driver.number):
            try:
                _start(claimed)
                count += 1
            except Exception as error:
                logger.exception("driver %d could not be started", driver.number)
                text = f"the driver could not be started: {error}"
                _claimed(driver, partial(_never_started, cause=text))
    return count


def _claim(job: Job, driver: Driver) -> _Launch | None:
    """Make the driver this launcher's, once its predecessor's process is gone."""
    if driver.status != DriverStatus.REQUESTED:
        return None
    here = Q(launched_by=processes.host_name(), boot_id=processes.boot_id(), stopped_at=None)
    left = list(Driver.objects.filter(here, job=job, number__lt=driver.number))
    now = clock.now()
    for predecessor in left:
        if predecessor.stop_requested_at is None:
            predecessor.stop_requested_at = now
            predecessor.save(update_fields=["stop_requested_at"])
    gone = [_stop(job, predecessor) for predecessor in left]  # All of them are told.
    if not all(gone):
        return None  # The next tick looks again.
    token = token_urlsafe(32)
    driver.status = DriverStatus.STARTING
    driver.token_digest = digest_of(token)
    driver.launch_expires_at = now + clock.milliseconds(CLAIM_MS)
    # Should this machine never come back, it is not heard of in time, and somebody else sees that.
    driver.heartbeat_due_at = now + clock.milliseconds(settings.WEIR_DRIVER_START_TIMEOUT_MS)
    driver.launched_by, driver.boot_id = processes.host_name(), processes.boot_id()
    driver.directory = str(driver_files.directory_of(job.pk, driver.number))
    driver.save()
    operations.start_launch(job)
    return _Launch(job, driver, token)


def _start(launch: _Launch) -> None:
    """Start the process, without a lock, and note which it is."""
    job, driver = launch.job, launch.driver
    directory = driver_files.prepare(job, driver, launch.token, shipped=is_shipped(job))
    spark = spark_command(job, driver, directory)
    with (directory / driver_files.LOG_NAME).open("ab") as log:
        for command in spark.before:
            subprocess.run(
                command,
                env=dict(spark.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                timeout=BEFORE_TIMEOUT_S,
                check=True,
            )
        child = subprocess.Popen(
            spark.command,
            env=dict(spark.environment),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    process = processes.find(child.pid)
    assert process is not None  # At worst a zombie: it is this process that reaps it.
    adopt(child, process.started_at)
    logger.info("driver %d is process %d", driver.number, child.pid)
    try:
        noted = _claimed(
            driver,
            lambda _, row: _note(row, child.pid, process.started_at, clock.now()),
            wait=True,
        )
        assert noted is not None
    except BaseException:
        processes.end_session(child.pid, process.started_at, signal.SIGKILL)
        raise


def _note(driver: Driver, pid: int, started_at: float, now: datetime) -> bool:
    """Record a driver's process, also of one that is to be stopped already."""
    driver.pid, driver.process_started_at = pid, started_at
    driver.launch_expires_at = None
    if driver.status == DriverStatus.STARTING:
        driver.heartbeat_due_at = now + clock.milliseconds(settings.WEIR_DRIVER_START_TIMEOUT_MS)
    driver.stopped_at = None
    driver.save(
        update_fields=[
            "pid",
            "process_started_at",
            "launch_expires_at",
            "heartbeat_due_at",
            "stopped_at",
        ]
    )
    return True


def _note_stopped(driver: Driver, now: datetime) -> None:
    driver.stopped_at = now
    driver.save(update_fields=["stopped_at"])


def _claimed(driver: Driver, act: Callable[[Job, Driver], _T], *, wait: bool = False) -> _T | None:
    """Act on a driver under its job's lock; None where somebody else has it, or acting raised."""
    with logs.about(job=driver.job_id, driver=driver.number):
        try:
            with transaction.atomic():
                job = Job.objects.select_for_update(skip_locked=not wait, of=("self",))
                locked = job.filter(pk=driver.job_id).first()
                if locked is None:
                    return None
                return act(locked, Driver.objects.get(pk=driver.pk))
        except Exception:
            if wait:
                raise
            logger.exception("driver %d: the next look tries again", driver.number)
            return None
