"""Drivers of a job: the right to speak for it, the loss of a driver, and its successor.

A driver is fenced from the moment a newer one is requested, or the control plane ends it. Its
process may run for a while; the launcher ends the process (``stop_requested_at``) before it starts
the next driver on the same host.
"""

import logging
from dataclasses import asdict
from datetime import datetime
from functools import cache
from typing import TYPE_CHECKING, TypedDict

from django.conf import settings
from django.db.models import OuterRef, QuerySet, Subquery

from controlplane.accounts.models import digest_of
from controlplane.audit.models import record
from controlplane.base import clock, wakeups
from controlplane.base.errors import DriverFenced, Unauthorized
from controlplane.base.lookups import only
from jobs import attempt_ends, hooks, job_events, job_status
from jobs.drivers import outbox, restart_policy
from jobs.models import (
    LIVE_DRIVERS,
    AttemptEnd,
    DesiredState,
    Driver,
    DriverStatus,
    Job,
    JobEventKind,
    JobException,
    Subtask,
)
from jobs.storable_text import storable
from weir.protocol.driver_messages import DriverLoad
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

logger = logging.getLogger(__name__)

SUBTASK_ENDS = (
    SubtaskStatus.FINISHED.value,
    SubtaskStatus.FAILED.value,
    SubtaskStatus.CANCELED.value,
)


def newest(job: Job) -> Driver | None:
    """The job's newest driver, live or not."""
    return Driver.objects.filter(job=job).order_by("-number").first()


def live(job: Job) -> Driver | None:
    """The job's driver that runs or is about to, if there is one."""
    return Driver.objects.filter(job=job, status__in=LIVE_DRIVERS).first()


class LastColumn(TypedDict):
    """The further column of a driver."""

    last: int


@cache
def _drivers_with_last() -> "QuerySet[WithAnnotations[Driver, LastColumn]]":
    """Drivers with the number of their job's newest one; put together once for all requests."""
    numbers = Driver.objects.filter(job=OuterRef("job")).order_by("-number").values("number")
    return Driver.objects.annotate(last=Subquery(numbers[:1]))


def authenticate(job: Job, token: str) -> Driver:
    """The driver with this token, which may speak for the job.

    A driver that reported its job's end may still deliver the rest of its events.

    Raises:
        Unauthorized: No driver of the job has this token.
        DriverFenced: A newer driver runs the job, or this one was told to stop.
    """
    driver: WithAnnotations[Driver, LastColumn] | None
    driver = only(_drivers_with_last().filter(token_digest=digest_of(token)))
    if driver is None or driver.job_id != job.pk:
        raise Unauthorized("this token belongs to no driver of the job")
    if driver.number < driver.last:
        raise DriverFenced(
            f"driver {driver.last} runs {job.pk} now; driver {driver.number} must end without "
            "committing anything more"
        )
    winds_up = driver.status == DriverStatus.ENDED and driver.stop_requested_at is None
    if driver.status not in LIVE_DRIVERS and not winds_up:
        raise DriverFenced(
            f"driver {driver.number} of {job.pk} is {driver.status}: "
            f"{_first_line(driver.cause) or 'it no longer runs the job'}"
        )
    return driver


def heard(
    driver: Driver,
    now: datetime,
    load: DriverLoad | None = None,
    *,
    sent_at: datetime | None = None,
    applied: int = 0,
) -> None:
    """Note a sign of life of the driver, the load that came with it and the events to apply.

    ``sent_at``: when it set out; None: now.
    """
    if driver.status == DriverStatus.STARTING:
        driver.status = DriverStatus.RUNNING
    driver.heard_at = now
    driver.sent_at = sent_at or now
    if driver.status in LIVE_DRIVERS:
        driver.heartbeat_due_at = now + clock.milliseconds(settings.WEIR_DRIVER_TIMEOUT_MS)
    driver.load = {} if load is None else asdict(load)
    driver.applied_up_to += applied
    driver.save(
        update_fields=[
            "status",
            "heard_at",
            "sent_at",
            "heartbeat_due_at",
            "load",
            "applied_up_to",
        ]
    )


def request(job: Job) -> Driver:
    """Request the job's next driver; a launcher starts it. The caller holds the job's lock."""
    last = newest(job)
    if last is not None and last.status in LIVE_DRIVERS:
        raise AssertionError(f"{job.pk} has a live driver already")
    outbox.forget(job)
    driver = Driver.objects.create(
        job=job,
        number=1 if last is None else last.number + 1,
        status=DriverStatus.REQUESTED,
        created_at=clock.now(),
    )
    wakeups.on_commit(wakeups.job(job.pk))
    return driver


def relaunch(job: Job, why: str) -> Driver | None:
    """Request the driver of a job that waits for one; None while its last end is being settled."""
    if not hooks.checkpoints.may_launch(job):
        return None
    driver = request(job)
    job.restart_at = None
    job.save(update_fields=["restart_at"])
    record(
        None, "job.relaunch", f"job/{job.pk}", after={"driver": driver.number, "why": why[:2_000]}
    )
    return driver


def end(driver: Driver, cause: str, *, status: DriverStatus = DriverStatus.ENDED) -> None:
    """End the driver by the control plane's decision; a launcher ends its processes."""
    now, cause = clock.now(), storable(cause)
    was_launched = driver.status != DriverStatus.REQUESTED
    driver.status, driver.cause, driver.ended_at = status, cause, now
    driver.stop_requested_at = driver.stop_requested_at or now
    if not was_launched:
        driver.stopped_at = now  # No process was started.
    driver.heartbeat_due_at = driver.launch_expires_at = None
    driver.save(
        update_fields=[
            "status",
            "cause",
            "ended_at",
            "stop_requested_at",
            "stopped_at",
            "heartbeat_due_at",
            "launch_expires_at",
        ]
    )


def retire(driver: Driver) -> None:
    """Note the end of a driver that reported its job's end; its process exits by itself."""
    driver.status, driver.ended_at = DriverStatus.ENDED, clock.now()
    driver.heartbeat_due_at = driver.launch_expires_at = None
    driver.save(update_fields=["status", "ended_at", "heartbeat_due_at", "launch_expires_at"])


def lost(job: Job, driver: Driver, cause: str) -> None:
    """Give up a driver: fail the job or schedule a relaunch, as its restart strategy says.

    The caller holds the job's lock. No effect on a driver that has ended already.
    """
    if driver.status not in LIVE_DRIVERS:
        return
    cause = storable(cause)
    before = {"job": job.status, "driver": driver.status}
    end(driver, cause, status=DriverStatus.LOST)
    if job.is_over:
        return
    logger.warning("driver %d is lost: %s", driver.number, _first_line(cause))
    now = clock.now()
    is_canceled = job.desired == DesiredState.CANCELED
    # A driver that is to end anyway is no exception, however it ends.
    kind = "notice" if is_canceled else "driver"
    JobException.objects.create(job=job, at=now, kind=kind, driver_number=driver.number, text=cause)
    job_events.record(
        job,
        JobEventKind.DRIVER_LOST,
        now,
        planned=is_canceled,
        driver=driver.number,
        cause=cause,
    )
    if is_canceled:
        replaced(job, driver, cause, AttemptEnd.CANCELED, FailureReason.JOB_CANCELED)
        conclude(job, JobStatus.CANCELED)
    else:
        replaced(job, driver, cause, AttemptEnd.FAILED, FailureReason.JOB_FAILOVER)
        _wait_or_fail(job, cause, now)
    record(
        None,
        "driver.lost",
        f"job/{job.pk}",
        before=before,
        after={
            "job": job.status,
            "driver": driver.status,
            "number": driver.number,
            "cause": cause[:2_000],
            "restart_at": None if job.restart_at is None else job.restart_at.isoformat(),
        },
    )


def explain(job: Job, driver: Driver, how: str) -> None:
    """Put the end of a lost driver's process before what the driver itself said of its loss.

    A driver whose JVM was killed may report that the cluster is gone before a launcher sees why.
    The caller holds the job's lock. No effect the second time.
    """
    said = driver.cause
    if said.startswith(how):
        return
    cause = storable(f"{how}\n{said}")
    driver.cause = cause
    driver.save(update_fields=["cause"])
    job.attempts.filter(driver=driver, cause=said).update(cause=cause)
    job.exceptions.filter(driver_number=driver.number, kind="driver", text=said).update(text=cause)
    if job.cause == said:
        job.cause = cause
        job.save(update_fields=["cause"])
    wakeups.on_commit(wakeups.job(job.pk))


def replaced(
    job: Job, driver: Driver, cause: str, attempt_end: AttemptEnd, reason: FailureReason
) -> None:
    """Settle the driver's attempt, subtasks, commands and checkpoints.

    Args:
        reason: That of the checkpoints that were under way.
    """
    attempt_ends.end(job, attempt_end, clock.now(), cause)
    end_subtasks(job)
    outbox.forget(job)
    hooks.checkpoints.driver_lost(job, reason)


def end_subtasks(job: Job) -> None:
    """Mark all subtasks as ended; those that had an end of their own keep it."""
    Subtask.objects.filter(job=job).exclude(status__in=SUBTASK_ENDS).update(
        status=SubtaskStatus.CANCELED.value, updated_at=clock.now()
    )
    Subtask.objects.filter(job=job).update(samples=[], rates={})


def _wait_or_fail(job: Job, cause: str, now: datetime) -> None:
    delay_ms = restart_policy.after_loss(job, clock.to_ms(now))
    if delay_ms is None:
        conclude(job, JobStatus.FAILED, cause)
        return
    job.restart_at = now + clock.milliseconds(delay_ms)
    job.save(update_fields=["restart_at", "restart_state"])
    await_driver(job, cause)
    if delay_ms == 0:
        relaunch(job, cause)  # Where refused, the next tick tries again.


def await_driver(job: Job, cause: str = "", *, is_planned: bool = False) -> None:
    """Have the job wait for its next driver; a job that was never planned stays CREATED."""
    if job.status != JobStatus.CREATED:
        job_status.change(job, JobStatus.RESTARTING, cause, is_planned=is_planned)


def conclude(job: Job, status: JobStatus, cause: str = "") -> None:
    """End the job by the control plane's decision."""
    cause = storable(cause)
    attempt_ends.end(job, AttemptEnd(status.value), clock.now(), cause)
    end_subtasks(job)
    outbox.forget(job)
    job.save(update_fields=["restart_state"])
    job_status.change(job, status, cause)
    hooks.checkpoints.job_ended(job)
    # Until here, alignments and stalls explained the checkpoints that ended with the job.
    Subtask.objects.filter(job=job).update(aligning=None, stall=None)


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0]
