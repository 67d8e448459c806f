"""The schedule of beat's ticks, by a clock that nothing sets.

Celery's own goes by the wall clock: set back an hour, beat would send nothing for an hour, and
everything that a tick does would wait. Beat also keeps on disk when it sent each task last; a time
that lies ahead is from before the clock was set, so the task is due.
"""

import time
from datetime import UTC, datetime, timedelta

from celery.schedules import schedstate, schedule

_BASE = datetime.now(UTC) - timedelta(seconds=time.monotonic())


def steady_now() -> datetime:
    """The wall clock when this process began, and what has passed since."""
    return _BASE + timedelta(seconds=time.monotonic())


class SteadySchedule(schedule):
    """Every so many seconds, whatever becomes of the wall clock."""

    def __init__(self, run_every: float | timedelta | None = None, *_: object) -> None:
        super().__init__(run_every, nowfun=steady_now)

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
        """Whether to run it, and in how many seconds to ask again."""
        if self.maybe_make_aware(last_run_at) > self.maybe_make_aware(self.now()):
            return schedstate(is_due=True, next=self.seconds)
        return super().is_due(last_run_at)
