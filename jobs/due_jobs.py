"""Due work on jobs: relaunches, silent drivers, cancellations that were not obeyed.

Due times are rows. A tick takes one job after another with SKIP LOCKED, each in a transaction of
its own, so that two ticks at once share the work. A job whose step raises is set aside
(``jobs.set_aside``) and holds up no other.
"""

import logging
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from controlplane.audit.models import record
from controlplane.base import clock, wakeups
from controlplane.base.ticks import run_all
from jobs.drivers import drivers
from jobs.models import (
    FINAL_JOB_STATUSES,
    LIVE_DRIVERS,
    OPEN_OPERATIONS,
    AttemptEnd,
    ControlPlanePulse,
    DesiredState,
    Driver,
    DriverStatus,
    Job,
    Operation,
)
from jobs.set_aside import Step, is_set_aside, setting_aside
from weir.protocol.lifecycle import FailureReason, JobStatus

logger = logging.getLogger(__name__)

CLAIMED_MAX = 200  # Jobs of one kind per tick; the next, a second later, takes the rest.
# Ticks come every second. A gap this long means that part of the control plane was down, so that
# drivers that seem silent may have had no gateway to report to.
AWAY_MS = 5_000
GATEWAY_TIMEOUT_S = 2.0

_SPEAKING = (DriverStatus.STARTING, DriverStatus.RUNNING)


def tick() -> None:
    """Relaunch, cancel and give up each job or driver that is due now."""
    clock.look()
    run_all(relaunch_due, cancel_due, lose_silent)


def keep_awake() -> None:
    """Keep beat awake while a job goes on or an operation is open."""
    jobs = Job.objects.exclude(status__in=FINAL_JOB_STATUSES)
    if jobs.exists() or Operation.objects.filter(status__in=OPEN_OPERATIONS).exists():
        wakeups.keep_awake()


def relaunch_due() -> int:
    """Request the next driver of each job whose restart is due; return their number."""
    now = clock.now()
    due = Q(restart_at__lte=now) & ~Q(status__in=FINAL_JOB_STATUSES)
    return _each(Step.RELAUNCH, due, "restart_at", _relaunch)


def _relaunch(job: Job) -> bool:
    if job.desired == DesiredState.CANCELED:
        drivers.conclude(job, JobStatus.CANCELED)
        return True
    if drivers.live(job) is not None:
        job.restart_at = None
        job.save(update_fields=["restart_at"])
        return False
    return drivers.relaunch(job, job.cause) is not None


def resume_stranded() -> int:
    """Schedule a restart of each stranded job; return their number.

    A stranded job has neither a driver nor a restart due. No transaction leaves a job like that; if
    there is one all the same it is a bug, which is logged, but the job goes on.
    """
    has_driver = Exists(Driver.objects.filter(job=OuterRef("pk"), status__in=LIVE_DRIVERS))
    stranded = Q(~has_driver, restart_at=None) & ~Q(status__in=FINAL_JOB_STATUSES)
    return _each(Step.RESUME, stranded, "created_at", _resume)


def _resume(job: Job) -> bool:
    logger.error("job %s is %s and has neither a driver nor a restart due", job.pk, job.status)
    job.restart_at = clock.now()
    job.save(update_fields=["restart_at"])
    return True


def cancel_due() -> int:
    """End each job whose driver did not obey its cancellation in time; return their number."""
    now = clock.now()
    due = Q(cancel_due_at__lte=now) & ~Q(status__in=FINAL_JOB_STATUSES)
    return _each(Step.CANCEL, due, "cancel_due_at", _cancel)


def _cancel(job: Job) -> bool:
    before = {"status": job.status}
    driver = drivers.live(job)
    if driver is not None:
        cause = f"the driver did not cancel its job within {settings.WEIR_CANCEL_GRACE_MS} ms"
        drivers.end(driver, cause)
        drivers.replaced(job, driver, cause, AttemptEnd.CANCELED, FailureReason.JOB_CANCELED)
    drivers.conclude(job, JobStatus.CANCELED)
    record(
        None,
        "job.kill",
        f"job/{job.pk}",
        before=before,
        after={"status": job.status, "driver": None if driver is None else driver.number},
    )
    return True


def lose_silent() -> int:
    """Give up drivers that were silent for too long at an open gateway; return their number.

    The gateway is looked at from half the timeout on. One that has just come back would answer too,
    before the drivers could: silence counts only where it was open all the while.
    """
    pulse = _beat()
    if pulse is None:
        return 0
    now = clock.now()
    timeout = clock.milliseconds(settings.WEIR_DRIVER_TIMEOUT_MS)
    quiet = Driver.objects.filter(
        status__in=_SPEAKING, heartbeat_due_at__lte=now + timeout / 2
    ).exclude(is_set_aside(Step.LOSE, now, "job_id"))
    if not quiet.exists():
        return 0
    if not _gateway_answers():  # Outside of any lock: it may take its whole timeout.
        ControlPlanePulse.objects.update(resumed_at=clock.now())
        if pulse.resumed_at + timeout / 2 <= now:
            logger.warning(
                "drivers are silent, but the gateway %s does not answer either: they get %d ms "
                "more once it does",
                settings.WEIR_GATEWAY_URL,
                settings.WEIR_DRIVER_TIMEOUT_MS,
            )
        return 0
    if now < pulse.resumed_at + timeout:
        return 0
    silent = quiet.filter(heartbeat_due_at__lte=now).order_by("heartbeat_due_at")
    ids = list(silent.values_list("job_id", flat=True)[:CLAIMED_MAX])
    return _act_on(Step.LOSE, ids, Q(), _lose_if_silent)


def _lose_if_silent(job: Job) -> bool:
    driver = drivers.live(job)
    now = clock.now()
    if (
        driver is None
        or driver.status not in _SPEAKING
        or driver.heartbeat_due_at is None
        or driver.heartbeat_due_at > now
    ):
        return False  # The driver has sent a heartbeat meanwhile.
    drivers.lost(job, driver, _silence(driver, now))
    return True


def _silence(driver: Driver, now: datetime) -> str:
    if driver.heard_at is None:
        return (
            f"driver {driver.number} did not report within "
            f"{settings.WEIR_DRIVER_START_TIMEOUT_MS} ms of its launch; its log may say why. "
            f"Check that it can reach the gateway, {settings.WEIR_GATEWAY_URL}"
        )
    seconds = (now - driver.heard_at).total_seconds()
    return (
        f"driver {driver.number} was silent for {seconds:.1f} s: its process is frozen, or cannot "
        "reach the control plane"
    )


def _beat() -> ControlPlanePulse | None:
    """Note this tick in the pulse; None while another tick holds it."""
    with transaction.atomic():
        now = clock.now()
        ControlPlanePulse.objects.get_or_create(
            pk=1, defaults={"ticked_at": now, "resumed_at": now}
        )
        pulse = ControlPlanePulse.objects.select_for_update(skip_locked=True).first()
        if pulse is None:
            return None
        now = clock.now()
        if now - pulse.ticked_at > clock.milliseconds(AWAY_MS):
            pulse.resumed_at = now
            logger.warning(
                "no tick ran for %.1f s; drivers get a whole timeout from now on to report",
                (now - pulse.ticked_at).total_seconds(),
            )
        pulse.ticked_at = now
        pulse.save()
        return pulse


def _gateway_answers() -> bool:
    """Whether the gateway answers requests from this machine."""
    url = f"{settings.WEIR_GATEWAY_URL}/healthz"
    try:
        with urllib.request.urlopen(url, timeout=GATEWAY_TIMEOUT_S):
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500  # A proxy whose server is down answers 502 or 503.
    except (OSError, ValueError) as error:
        logger.info("%s does not answer: %s", url, error)
        return False


def _each(step: Step, due: Q, order: str, act: Callable[[Job], bool]) -> int:
    """Act on the jobs that are due and not set aside, in order; return the number of successes."""
    jobs = Job.objects.filter(due).exclude(is_set_aside(step, clock.now())).order_by(order)
    return _act_on(step, list(jobs.values_list("pk", flat=True)[:CLAIMED_MAX]), due, act)


def _act_on(step: Step, ids: Iterable[str], due: Q, act: Callable[[Job], bool]) -> int:
    """Take one job after another and act on it if that is still due."""
    count = 0
    for job_id in ids:
        with setting_aside(step, job_id), transaction.atomic():
            claim = Job.objects.filter(due, pk=job_id)
            job = claim.select_for_update(skip_locked=True, of=("self",)).first()
            count += job is not None and act(job)
    return count
