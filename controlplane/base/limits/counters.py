"""Counters of a rate, in Redis: so many per second, minute, hour or day, by fixed windows.

A window's number is part of its key, so a counter needs one increment and ends by itself; in any
stretch as long as a window at most twice the rate passes. While Redis is away or its memory is full
this process counts for itself: a limit on guessing must not fall with Redis. After a failure Redis
is not asked for a second, so that one that does not answer holds up few requests.
"""

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from django.core.cache import cache
from django.core.cache.backends.base import BaseCache
from django.core.cache.backends.locmem import LocMemCache
from django.utils.crypto import salted_hmac
from redis.exceptions import RedisError

from controlplane.base.limits.rates import Rate
from controlplane.base.server_losses import Pause

T = TypeVar("T")

logger = logging.getLogger(__name__)

LOCAL_ENTRIES_MAX = 10_000
TRIES_MAX = 5

redis_pause = Pause(1.0)
_local = LocMemCache("weir-counters", {"OPTIONS": {"MAX_ENTRIES": LOCAL_ENTRIES_MAX}})


@dataclass(frozen=True, slots=True)
class Taken:
    """The outcome of an increment: the count so far, this one included, and the window's rest."""

    key: str
    count: int
    count_max: int
    left_s: int

    @property
    def is_over(self) -> bool:
        """Whether the count is over the rate."""
        return self.count > self.count_max

    @property
    def is_first_over(self) -> bool:
        """Whether this increment took the count over the rate: one of all that are over does."""
        return self.count == self.count_max + 1


def hashed(purpose: str, text: str) -> str:
    """A key of fixed length for Redis, from which the text cannot be told without SECRET_KEY."""
    return f"{purpose}:{salted_hmac('weir.counters.' + purpose, text).hexdigest()[:40]}"


def take(purpose: str, subject: str, rate: Rate) -> Taken:
    """Count one more for a subject, such as an address, and say whether it is over the rate."""
    now = time.time()
    window = int(now // rate.period_s)
    key = f"{hashed(purpose, subject)}:{window}"
    count = _counted(lambda counters: _increment(counters, key, rate.period_s))
    left_s = max(1, math.ceil((window + 1) * rate.period_s - now))
    return Taken(key, count, rate.count, left_s)


def give_back(taken: Taken) -> None:
    """Undo an increment, for what turned out not to count."""
    _counted(lambda counters: _decrement(counters, taken.key))


def _counted(change: Callable[[BaseCache], T]) -> T:
    """The outcome of a change to the counters in Redis, or to this process's own without it."""
    if not redis_pause.lasts:
        try:
            return change(cache)
        except RedisError as error:
            redis_pause.begin()
            logger.warning("counted in this process, Redis is away or full: %s", error)
    return change(_local)


def _increment(counters: BaseCache, key: str, period_s: int) -> int:
    for _ in range(TRIES_MAX):
        counters.add(key, 0, timeout=period_s + 1)
        try:
            return int(counters.incr(key))
        except ValueError:  # The window ended, or the counter was evicted, in between.
            continue
    raise RedisError(f"a counter was evicted {TRIES_MAX} times at once")


def _decrement(counters: BaseCache, key: str) -> None:
    try:
        counters.decr(key)
    except ValueError:  # The window has ended.
        return
