"""Due steps of jobs that failed, set aside with their cause so that no other job waits for them.

A tick takes due rows in the order in which they became due, and a bounded number of them. A row
that makes its step fail stays due: each tick would begin with it again, and enough of such rows
would be all that a tick ever takes. So a step that raises is recorded here, is left out until its
time comes again, later each time, and an exception of the job says why. An outage of the database
is no fault of a row and sets nothing aside.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from enum import StrEnum

from django.db import transaction
from django.db.models import Exists, OuterRef, Q

from controlplane.base import clock, logs
from controlplane.base.threads import DATABASE_AWAY
from jobs.models import Job, JobException, SetAsideStep
from jobs.storable_text import storable

logger = logging.getLogger(__name__)

BACKOFF_MIN_S, BACKOFF_MAX_S = 2.0, 600.0
FORGOTTEN_AFTER_S = 3_600.0  # Without another failure; until then the pauses go on growing.
CAUSE_LENGTH_MAX = 2_000


class Step(StrEnum):
    """The due steps of a job, each set aside for itself."""

    RELAUNCH = "relaunch"
    RESUME = "resume"
    CANCEL = "cancel"
    LOSE = "lose"  # A silent driver.
    EXPIRE = "expire"  # An operation.
    CHECK = "check"  # To take in the judgement on an upgrade's pipeline.
    LAUNCH = "launch"  # To launch a job with its new pipeline.
    FORK = "fork"  # To end a fork's operation once the new job runs.
    RETURN = "return"  # To take a job back after an operation.
    CHECKPOINT = "checkpoint"  # To trigger or to expire one.
    SETTLE = "settle"  # A checkpoint of a lost driver.
    DISCARD = "discard"
    END = "end"  # To tell the coordinator the job's end.


def is_set_aside(step: Step, now: datetime, job: str = "pk") -> Q:
    """The condition that a step of a row's job is set aside; ``job`` is the field with its id."""
    waiting = SetAsideStep.objects.filter(job=OuterRef(job), step=step.value, retry_at__gt=now)
    return Q(Exists(waiting))


@contextmanager
def setting_aside(step: Step, job_id: str) -> Iterator[None]:
    """Go on after an exception within, with the step of this job set aside."""
    with logs.about(job=job_id):
        try:
            yield
        except DATABASE_AWAY:
            logger.exception("the step %s failed with the database; the next tick tries it", step)
        except Exception as error:
            logger.exception("the step %s failed and is set aside", step)
            _set_aside(step, job_id, f"{type(error).__name__}: {error}")


def forget_old() -> int:
    """Forget the steps that have not failed for a while; return their number."""
    since = clock.now() - clock.milliseconds(FORGOTTEN_AFTER_S * 1_000)
    count, _ = SetAsideStep.objects.filter(retry_at__lt=since).delete()
    return count


def _set_aside(step: Step, job_id: str, cause: str) -> None:
    now, cause = clock.now(), storable(cause, CAUSE_LENGTH_MAX)
    with transaction.atomic():
        if not Job.objects.filter(pk=job_id).exists():
            return
        known, is_new = SetAsideStep.objects.get_or_create(
            job_id=job_id, step=step.value, defaults={"since": now, "retry_at": now}
        )
        pause_s = min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2 ** min(known.failures, 10))
        is_new = is_new or known.cause != cause
        known.failures, known.cause = known.failures + 1, cause
        known.retry_at = now + clock.milliseconds(pause_s * 1_000)
        known.save()
        if is_new:
            JobException.objects.create(
                job_id=job_id,
                at=now,
                kind="internal",
                text=f"the step {step} of the control plane failed and is set aside: {cause}",
            )
