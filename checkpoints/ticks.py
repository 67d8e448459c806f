"""Ticks of coordinators that are due: checkpoints to trigger, or to expire.

A job whose driver has not been heard from for a while is not ticked: the driver may be unreachable,
or the control plane may have been down. A trigger would have no effect, and a checkpoint must not
expire meanwhile; the driver's ``TimeLost`` gives it that time when it is back. For the same reason
no checkpoint expires before a message came that its driver sent after the deadline: its
acknowledgements may be on their way, also behind a message that waited for this control plane.
"""

import logging
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet

from checkpoints.coordinator import countdowns, shell
from controlplane.base import clock, logs
from jobs.models import Driver, DriverStatus, Job
from jobs.set_aside import Step, is_set_aside, setting_aside

logger = logging.getLogger(__name__)

EARLY_MS = 100  # By so much the clock of the process that counted down may be fast.
CLAIMED_MAX = 500  # Jobs in one look; the next, a second later, takes the rest.


def tick_due() -> int:
    """Tick each job that is due, and schedule punctual ticks for those that are due soon.

    Returns:
        How many were ticked; a job that another process has locked is left to the next look.
    """
    now = clock.now()
    soon = now + clock.milliseconds(countdowns.HORIZON_MS)
    due = _heard(now).filter(coordinator__due_at__lte=soon).order_by("coordinator__due_at")
    due = due.exclude(is_set_aside(Step.CHECKPOINT, now))
    count = 0
    for job_id, due_at in due.values_list("pk", "coordinator__due_at")[:CLAIMED_MAX]:
        assert due_at is not None  # Only those are selected.
        if due_at > now:
            countdowns.tick_at(job_id, clock.to_ms(due_at), clock.to_ms(now))
            continue
        with setting_aside(Step.CHECKPOINT, job_id):
            count += _tick(job_id, skip_locked=True)
    return count


def tick_one(job_id: str, *, is_repeated: bool = False) -> bool:
    """Tick a job if it is due.

    Clocks differ: a countdown that came a little early is repeated, once. A later due time is left
    to another countdown: the process that ticked the job has scheduled it. Were this one repeated
    until the job is due, it would live for ever where the interval is short, as would all later
    ones.
    """
    with logs.about(job=job_id):
        now = clock.now()
        if Job.objects.filter(is_set_aside(Step.CHECKPOINT, now), pk=job_id).exists():
            return False
        is_ticked = False
        with setting_aside(Step.CHECKPOINT, job_id):
            is_ticked = _tick(job_id, skip_locked=False)
        if is_ticked or is_repeated:
            return is_ticked
        now = clock.now()
        soon = now + clock.milliseconds(EARLY_MS)
        due = _heard(now).filter(pk=job_id, coordinator__due_at__lte=soon)
        due_at = due.values_list("coordinator__due_at", flat=True).first()
        if due_at is not None:
            countdowns.send(job_id, max(0.0, (due_at - now).total_seconds()), is_repeated=True)
        return False


def _tick(job_id: str, *, skip_locked: bool) -> bool:
    with transaction.atomic():
        claim = Job.objects.filter(pk=job_id)
        job = claim.select_for_update(skip_locked=skip_locked, of=("self",)).first()
        # Waiting for the lock may have taken a while: others may have ticked, deadlines passed.
        now = clock.now()
        if job is None or not _heard(now).filter(pk=job_id).exists():
            return False
        return shell.tick(job, now_ms=clock.to_ms(now))


def _heard(now: datetime) -> QuerySet[Job]:
    """Jobs whose driver was heard from lately, of a time after any deadline that has passed."""
    since = now - clock.milliseconds(settings.WEIR_DRIVER_SILENT_MS)
    speaking = Driver.objects.filter(
        job=OuterRef("pk"), status=DriverStatus.RUNNING, heard_at__gte=since
    )
    since_expiry = speaking.filter(sent_at__gte=OuterRef("coordinator__expires_at"))
    is_expired = Q(coordinator__expires_at__lte=now)
    return Job.objects.filter(Exists(speaking)).filter(~is_expired | Q(Exists(since_expiry)))
