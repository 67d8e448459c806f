"""A launcher's hold on a driver: acting under the job's lock, and notes in the driver's row."""

import logging
from collections.abc import Callable
from datetime import datetime
from typing import TypeVar

from django.conf import settings
from django.db import transaction
from django.db.models import Q

from controlplane.base import clock, logs
from jobs.drivers import drivers, processes
from jobs.models import Driver, DriverStatus, Job

logger = logging.getLogger(__name__)
_T = TypeVar("_T")

CLAIM_MS = 15_000  # From a claim to the note of the process, which takes milliseconds.


def here() -> Q:
    """Drivers of this machine and boot."""
    return Q(launched_by=processes.host_name(), boot_id=processes.boot_id())


def claimed(driver: Driver, act: Callable[[Job, Driver], _T], *, wait: bool = False) -> _T | None:
    """Act on a driver under its job's lock; None where the lock is taken, or ``act`` raised."""
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
            logger.exception("driver %d: failed; the next tick tries again", driver.number)
            return None


def note(driver: Driver, pid: int, started_at: float, now: datetime) -> bool:
    """Record a driver's process, also where the driver is to be stopped already."""
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


def note_stopped(driver: Driver, now: datetime) -> None:
    """Record that no process of a driver runs any more."""
    driver.stopped_at = now
    driver.save(update_fields=["stopped_at"])


def never_started(job: Job, driver: Driver, cause: str) -> None:
    """Give up a driver that has no process to wait for."""
    drivers.lost(job, driver, cause)
    note_stopped(driver, clock.now())


def runs(driver: Driver) -> bool:
    """Whether the driver's leading process, which has been noted, runs."""
    assert driver.pid is not None
    assert driver.process_started_at is not None
    return processes.is_running(driver.pid, driver.process_started_at)
