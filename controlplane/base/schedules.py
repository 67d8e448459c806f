"""The schedule of beat's ticks, by a clock that is never set, and beat's scheduler.

Celery's own schedule uses the wall clock: set back an hour, beat would send nothing for an hour,
and the work of every tick would wait. Beat also keeps on disk when it last sent each task; a time
in the future is from before the clock was set back, so the task is due.

While no wake-up keeps beat awake (``wakeups.keep_awake``) there is no work, and most tasks wait for
``REST_S`` at least. So a wake-up that is lost delays its work by that time, and no more.
"""

import logging
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import kombu.exceptions
import redis
from celery.beat import PersistentScheduler, ScheduleEntry, SchedulingError
from celery.schedules import schedstate, schedule

from controlplane.base import wakeups, watchdog
from controlplane.base.server_losses import SAID_AGAIN_S, Pause

logger = logging.getLogger(__name__)

REST_S = 10.0
# The tick of jobs, whose gaps say that part of the control plane was down, rests for less.
PULSE, PULSE_S = "jobs.tasks.tick", 4.0
LOOK_S = 1.0  # Between two looks for a wake-up.
_BROKER_AWAY = (kombu.exceptions.OperationalError, redis.RedisError, OSError)
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
        left = self.seconds - passed_s(last_run_at)
        is_due = not 0 < left <= self.seconds
        state: tuple[bool, float] = schedstate(is_due, self.seconds if is_due else left)
        return state


def passed_s(since: datetime) -> float:
    """Seconds since a time of ``steady_now``; negative: the clock was set back."""
    return (steady_now() - since).total_seconds()


class WatchedScheduler(PersistentScheduler):
    """Beat's scheduler, which rests while there is no work.

    The watchdog watches its loop, unless it waits for the broker. A broker that is away is a line
    in the log now and then; Celery's own scheduler says it of each task, with stack and traceback.
    """

    _awake_until = 0.0  # By the monotonic clock.
    _looks_at = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._silence = Pause(SAID_AGAIN_S)
        super().__init__(*args, **kwargs)

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due; return the seconds until the next tick."""
        watchdog.came_round()
        interval_s: float = super().tick(*args, **kwargs)
        return interval_s

    def apply_entry(self, entry: ScheduleEntry, producer: Any = None) -> None:
        """Send a due task; one that cannot be sent is due again at its next time."""
        try:
            self.apply_async(entry, producer=producer, advance=False)
        except SchedulingError as error:
            if isinstance(error.__context__, _BROKER_AWAY):
                self._warn("the broker takes no tasks: %s", error.__context__)
            else:
                logger.exception("the task %s could not be sent", entry.name)

    def is_due(self, entry: ScheduleEntry) -> tuple[bool, float]:
        """Whether a task is due, and the seconds until the next check."""
        state: tuple[bool, float] = entry.is_due()
        rest_s = PULSE_S if entry.task == PULSE else REST_S
        left = rest_s - passed_s(entry.last_run_at)
        if state[0] and 0 < left <= rest_s and not self._is_awake():
            state = schedstate(is_due=False, next=min(left, LOOK_S))
        return state

    def _is_awake(self) -> bool:
        """Whether there may be work; also where Redis cannot say."""
        now = time.monotonic()
        if now >= max(self._awake_until, self._looks_at):
            self._looks_at = now + LOOK_S
            try:
                self._awake_until = now + wakeups.awake_s()
            except redis.RedisError as error:
                self._warn("beat does not rest: Redis: %s", error)
                self._awake_until = self._looks_at
        return now < self._awake_until

    def _warn(self, text: str, error: BaseException) -> None:
        if not self._silence.lasts:
            self._silence.begin()
            logger.warning(text, error)

    def schedules_equal(self, *_: Any) -> bool:
        """Whether the schedule is still that of the start: always, so it is not compared."""
        return True

    def _ensure_connected(self) -> Any:
        with watchdog.paused():
            return super()._ensure_connected()
