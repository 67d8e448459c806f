"""Attempts of a job as rows: a failure, a lost driver, a rollback, and what runs."""

from datetime import datetime, timedelta
from typing import Any

from controlplane.base import clock
from jobs.models import Attempt, Driver, DriverStatus, Job
from tests.database.frontend import rows

ROLLED_BACK = "rolled back to checkpoint 4 by ada"
LOST = "driver 1 was silent for 10.2 s"


def ago(now: datetime, **delta: float) -> datetime:
    """Some time before now."""
    return now - timedelta(**delta)


def attempt(of: Driver, number: int, started_at: datetime, **columns: Any) -> Attempt:
    """An attempt that began then and runs since, unless said otherwise."""
    columns.setdefault("running_at", started_at)
    return Attempt.objects.create(
        job=of.job, driver=of, number=number, started_at=started_at, **columns
    )


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
    one = rows.driver(of, 1, DriverStatus.LOST, created_at=ago(begun, seconds=8), cause=LOST)
    two = rows.driver(of, 2, DriverStatus.ENDED, created_at=at[2] - timedelta(seconds=3))
    three = rows.driver(of, 3, created_at=at[3] - timedelta(seconds=5))
    first = attempt(
        one,
        1,
        begun,
        ended_at=at[1] - timedelta(seconds=3),
        end="failed",
        cause=rows.TRACEBACK,
    )
    second = attempt(
        one,
        2,
        at[1] - timedelta(seconds=1),
        running_at=at[1],
        ended_at=at[2] - timedelta(seconds=14),
        end="failed",
        cause=LOST,
        restored_checkpoint=3,
        recovery_cause=rows.TRACEBACK,
        backoff_ms=1_000.0,
        redeploy_ms=800.0,
        restore_ms=400.0,
        catch_up_ms=2_300.0,
        restored_bytes=1_240_000,
        replayed_records=48_211,
    )
    third = attempt(
        two,
        3,
        at[2] - timedelta(seconds=1),
        running_at=at[2],
        ended_at=at[3] - timedelta(seconds=5),
        end="canceled",
        cause=ROLLED_BACK,
        restored_checkpoint=6,
    )
    fourth = attempt(
        three, 4, at[3] - timedelta(seconds=2), running_at=at[3], restored_checkpoint=4
    )
    return [first, second, third, fourth]


def many(of: Job, count: int, now: datetime | None = None) -> None:
    """A job that fails every minute and is replaced within the second."""
    now = now or clock.now()
    driver = rows.driver(of)
    begun = ago(now, minutes=count)
    Attempt.objects.bulk_create(
        Attempt(
            job=of,
            driver=driver,
            number=at + 1,
            started_at=begun + timedelta(minutes=at),
            running_at=begun + timedelta(minutes=at, milliseconds=400),
            ended_at=None if at == count - 1 else begun + timedelta(minutes=at + 1, seconds=-1),
            end="" if at == count - 1 else "failed",
            cause="" if at == count - 1 else "OSError: [Errno 28] No space left on device",
            restored_checkpoint=at or None,
            backoff_ms=500.0 if at else None,
            redeploy_ms=500.0 if at else None,
            restore_ms=400.0 if at else None,
            replayed_records=1_000 if at else None,
        )
        for at in range(count)
    )
