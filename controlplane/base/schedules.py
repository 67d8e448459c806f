"""The schedule of beat's ticks, by a clock that is never set, and beat's scheduler.

Celery's own schedule uses the wall clock: set back an hour, beat would send nothing for an hour,
and the work of every tick would wait. Beat also keeps on disk when it last sent each task; a time
in the future is from before the clock was set back, so the task is due.
"""

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from celery.beat import PersistentScheduler
from celery.schedules import schedstate, schedule

from controlplane.base import watchdog

_BASE = datetime.now(UTC) - timedelta(seconds=time.monotonic())


def steady_now() -> datetime:
    """The wall clock at this process's start, plus the time passed since."""
    return _BASE + timedelta(seconds=time.monotonic())


class SteadySchedule(schedule):
    """A fixed interval in seconds, unaffected by moves of the wall clock."""

    def __init__(self, run_every: float | timedelta | None = None, *_: object) -> None:
        super().__init__(run_every, nowfun=steady_now)

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        """Whether the task is due, and the seconds until the next check."""
        if self.maybe_make_aware(last_run_at) > self.maybe_make_aware(self.now()):
            state: tuple[bool, float] = schedstate(is_due=True, next=self.seconds)
        else:
            state = super().is_due(last_run_at)
        return state


class WatchedScheduler(PersistentScheduler):
    """Beat's scheduler, whose loop the watchdog watches, unless it waits for the broker."""

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; return the seconds until the next tick."""
        watchdog.came_round()
        interval_s: float = super().tick(*args, **kwargs)
        return interval_s

    def schedules_equal(self, *_: Any) -> bool:
        """Whether the schedule is still that of the start: always, so it is not compared."""
        return True

    def _ensure_connected(self) -> Any:
        with watchdog.paused():
            return super()._ensure_connected()
