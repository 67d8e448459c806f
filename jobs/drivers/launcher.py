"""The launcher: starts drivers on this machine, notices when they end, and ends those told to.

``tick`` runs once a second, on every machine with a worker on the queue ``launch``. All that has to
survive the launcher is in the driver's row: machine, boot, pid and start time. A restarted launcher
finds its predecessor's drivers by them, and two launchers on one machine share the work: each step
claims the job's row first.

A launch is claimed, carried out and noted, each step durable before the next::

    REQUESTED ── claimed, token ──> STARTING ── process started ──> pid noted ── heard ──> RUNNING

A launcher that dies between start and note leaves a process without a row. The process has written
its pid into a file before it became the driver (``starter``), by which the next tick adopts it;
without such a process the claim expires and the driver is lost.

Nothing inside a transaction can block: files are read and written, and processes started, before or
after it. What user code can write is opened as ``weir.untrusted_files`` says.
"""

import logging
import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from secrets import token_urlsafe

from django.conf import settings

from controlplane.accounts.models import digest_of
from controlplane.base import clock, logs, watchdog
from jobs import operations
from jobs.drivers import driver_files, driver_watch, processes, user_processes
from jobs.drivers.child_processes import adopt, forget
from jobs.drivers.driver_account import create_log, driver_account, write_private
from jobs.drivers.driver_claims import CLAIM_MS, claimed, here, never_started, note
from jobs.drivers.handed_secrets import handed_secrets
from jobs.drivers.processes import Process
from jobs.drivers.spark_command import is_shipped, spark_command
from jobs.models import Driver, DriverStatus, Job

logger = logging.getLogger(__name__)

LAUNCHED_MAX = 20  # Per tick: each launch starts a JVM.
BEFORE_TIMEOUT_S = 10.0  # Shorter than the claim.


@dataclass(frozen=True, slots=True)
class _Launch:
    """A driver that this launcher has claimed."""

    job: Job
    driver: Driver
    token: str


def tick() -> None:
    """Watch this machine's drivers, stop those told to, then start the requested ones."""
    driver_watch.watch()
    driver_watch.stop()
    launch()
    driver_watch.clean_up()
    user_processes.reap()


def launch() -> int:
    """Start the requested drivers; return the number started."""
    wanted = Driver.objects.filter(status=DriverStatus.REQUESTED).order_by("created_at")
    count = 0
    for driver in wanted[:LAUNCHED_MAX]:
        earlier = Driver.objects.filter(
            here(), job=driver.job_id, number__lt=driver.number, stopped_at=None
        )
        noted = {one.pk: driver_watch.noted_process(one) for one in earlier}
        number = driver_files.unused_number(driver)
        mine = claimed(driver, partial(_claim, number=number, noted=noted))
        if mine is None:
            continue
        with logs.about(job=driver.job_id, driver=number):
            watchdog.came_round()
            try:
                _start(mine)
                count += 1
            except Exception as error:
                logger.exception("driver %d could not be started", number)
                text = f"the driver could not be started: {error}"
                claimed(driver, partial(never_started, cause=text))
    return count


def _claim(
    job: Job, driver: Driver, number: int, noted: Mapping[int, Process | None]
) -> _Launch | None:
    """Claim the driver for this launcher, once its predecessor's process has ended.

    Args:
        number: That under which it is started.
        noted: Processes of predecessors whose rows name none, by the drivers' keys.
    """
    if driver.status != DriverStatus.REQUESTED:
        return None
    earlier = Driver.objects.filter(here(), job=job, number__lt=driver.number, stopped_at=None)
    left = list(earlier)
    now = clock.now()
    for predecessor in left:
        if predecessor.stop_requested_at is None:
            predecessor.stop_requested_at = now
            predecessor.save(update_fields=["stop_requested_at"])
    # Each predecessor is stopped, also after the first that still runs.
    gone = [driver_watch.has_stopped(job, one, noted.get(one.pk)) for one in left]
    if not all(gone):
        return None  # The next tick tries again.
    if number != driver.number:
        logger.warning(
            "driver %d is started as driver %d: earlier ones, which the database does not know, "
            "have left their directories; was it restored?",
            driver.number,
            number,
        )
        driver.number = number
    token = token_urlsafe(32)
    driver.status = DriverStatus.STARTING
    driver.token_digest = digest_of(token)
    driver.launch_expires_at = now + clock.milliseconds(CLAIM_MS)
    # Should this machine not come back, the heartbeat falls due and any other machine notices.
    driver.heartbeat_due_at = now + clock.milliseconds(settings.WEIR_DRIVER_START_TIMEOUT_MS)
    driver.launched_by, driver.boot_id = processes.host_name(), processes.boot_id()
    driver.directory = str(driver_files.directory_of(job.pk, driver.number))
    driver.save()
    operations.start_launch(job)
    return _Launch(job, driver, token)


def _start(launch: _Launch) -> None:
    """Start the driver process, without a lock, and note its pid and start time."""
    job, driver = launch.job, launch.driver
    account = driver_account()
    directory = driver_files.prepare(job, driver, launch.token, account, shipped=is_shipped(job))
    spark = spark_command(job, driver, directory)
    write_private(directory / driver_files.PROPERTIES_NAME, spark.properties, account)
    log = create_log(directory / driver_files.LOG_NAME, account)
    try:
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
        owner = None if account is None else (account.uid, account.groups[0])
        with handed_secrets(job.options.get("secrets", ()), owner) as handed:
            child = user_processes.start(
                spark.command,
                note=directory / driver_files.NOTE_NAME,
                cwd=driver_files.work_of(directory),
                output=log,
                errors=log,
                environment={**spark.environment, **handed.environment},
                account=account,
                descriptors=handed.descriptors,
            )
    finally:
        os.close(log)
    process = processes.find(child.pid)
    assert process is not None  # At worst a zombie: only this process reaps it.
    adopt(child, process.started_at)
    logger.info("driver %d is process %d", driver.number, child.pid)
    try:
        noted = claimed(
            driver,
            lambda _, row: note(row, child.pid, process.started_at, clock.now()),
            wait=True,
        )
        assert noted is not None
    except BaseException:
        # Without the note no launcher would find the process again.
        processes.end_session(child.pid, process.started_at, signal.SIGKILL)
        child.wait()
        forget(child.pid, process.started_at)
        raise
