"""Attempts of a job as rows: a failure, a lost driver, a rollback, and what runs."""

from datetime import datetime, timedelta

from controlplane.base import clock
from jobs.models import Attempt, DriverStatus, Job
from tests import factories

ROLLED_BACK = "rolled back to checkpoint 4 by ada"
LOST = "driver 1 was silent for 10.2 s"


def ago(now: datetime, **delta: float) -> datetime:
    """Some time before now."""
    return now - timedelta(**delta)


def eventful(of: Job, now: datetime | None = None) -> list[Attempt]:
    """Four attempts over an hour on three drivers.

    The first fails and is replaced after 3 s, the second's driver is lost (down for 14 s), the
    third is rolled back on request (down for 5 s), the fourth runs.
    """
    now = now or clock.now()
    begun = ago(now, minutes=60)
    Job.objects.filter(pk=of.pk).update(started_at=begun, created_at=ago(begun, seconds=9))
    of.refresh_from_db()
    at = [ago(now, minutes=minutes) for minutes in (60, 40, 20, 10)]
    one = factories.driver(of, 1, DriverStatus.LOST, created_at=ago(begun, seconds=8), cause=LOST)
    two = factories.driver(of, 2, DriverStatus.ENDED, created_at=at[2] - timedelta(seconds=3))
    three = factories.driver(of, 3, created_at=at[3] - timedelta(seconds=5))
    first = factories.attempt(
        one,
        1,
        started_at=begun,
        running_at=begun,
        ended_at=at[1] - timedelta(seconds=3),
        end="failed",
        cause=factories.TRACEBACK,
    )
    second = factories.attempt(
        one,
        2,
        started_at=at[1] - timedelta(seconds=1),
        running_at=at[1],
        ended_at=at[2] - timedelta(seconds=14),
        end="failed",
        cause=LOST,
        restored_checkpoint=3,
        recovery_cause=factories.TRACEBACK,
        backoff_ms=1_000.0,
        redeploy_ms=800.0,
        restore_ms=400.0,
        catch_up_ms=2_300.0,
        restored_bytes=1_240_000,
        restored_local_bytes=1_200_000,
        replayed_records=48_211,
    )
    third = factories.attempt(
        two,
        3,
        started_at=at[2] - timedelta(seconds=1),
        running_at=at[2],
        ended_at=at[3] - timedelta(seconds=5),
        end="canceled",
        cause=ROLLED_BACK,
        restored_checkpoint=6,
    )
    fourth = factories.attempt(
        three,
        4,
        started_at=at[3] - timedelta(seconds=2),
        running_at=at[3],
        restored_checkpoint=4,
    )
    return [first, second, third, fourth]


def many(of: Job, count: int, now: datetime | None = None) -> None:
    """A job that fails every minute and is replaced within the second."""
    now = now or clock.now()
    driver = factories.driver(of)
    begun = ago(now, minutes=count)
    for at in range(count):
        is_last = at == count - 1
        factories.attempt(
            driver,
            at + 1,
            started_at=begun + timedelta(minutes=at),
            running_at=begun + timedelta(minutes=at, milliseconds=400),
            ended_at=None if is_last else begun + timedelta(minutes=at + 1, seconds=-1),
            end="" if is_last else "failed",
            cause="" if is_last else "OSError: [Errno 28] No space left on device",
            restored_checkpoint=at or None,
            backoff_ms=500.0 if at else None,
            redeploy_ms=500.0 if at else None,
            restore_ms=400.0 if at else None,
            replayed_records=1_000 if at else None,
        )
