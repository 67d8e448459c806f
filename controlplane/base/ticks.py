"""Ticks: their parts, their time, and the last run of each by Redis's own clock, for monitoring.

A file system that does not answer holds a process for as long as it likes. Ticks that work on files
take a *place* each, of which a worker has fewer than processes: the others go on with jobs that are
not concerned.
"""

import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import redis
from django.conf import settings

from controlplane.base import wakeups
from controlplane.base.server_losses import is_database_lost

logger = logging.getLogger(__name__)

TASKS = (
    "jobs.tasks.tick",
    "jobs.tasks.launch_tick",
    "checkpoints.tasks.tick",
    "checkpoints.tasks.storage_tick",
)
_KEPT_MS = 24 * 3_600_000  # A key's remaining life tells its age.


@dataclass(frozen=True, slots=True)
class Budget:
    """The time that a piece of work in small batches may take: no batch begins after it."""

    seconds: float
    _began: float = field(default_factory=time.monotonic)

    @property
    def is_spent(self) -> bool:
        """Whether no further batch may begin."""
        return self.left_s <= 0

    @property
    def left_s(self) -> float:
        """The rest of it."""
        return self.seconds - (time.monotonic() - self._began)


def run_all(*parts: Callable[[], object]) -> None:
    """Run all parts of a tick, those after one that raises as well, unless the database is lost.

    Raises:
        Exception: That of the first part that raised; those of others are logged.
    """
    first: Exception | None = None
    for part in parts:
        try:
            part()
        except Exception as error:
            if first is not None:
                logger.exception("%s failed", part.__name__)
            first = first or error
            if is_database_lost(error):
                break  # The others need it, too; the next tick makes up for them.
    if first is not None:
        raise first


class Places:
    """The places for work on files in one worker, shared by the processes that it forks.

    Each is a byte that a process locks, so that a process which is killed leaves it. fcntl(2).
    """

    def __init__(self) -> None:
        self.count = 1
        self._file = os.memfd_create("weir-places")

    def share(self, processes: int) -> None:
        """Set their number for a worker with so many processes, which it forks later: half."""
        self.count = max(1, processes // 2)

    @contextmanager
    def one(self) -> Iterator[bool]:
        """A place while the block runs; False: all are taken."""
        place = next(filter(self._takes, range(self.count)), None)
        try:
            yield place is not None
        finally:
            if place is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, place)

    def _takes(self, place: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)
        except (BlockingIOError, PermissionError):  # A taken lock is either, by POSIX.
            return False
        return True


places = Places()  # Made before a worker forks its processes.


def note(task: str) -> None:
    """Note that a tick ran to its end."""
    try:
        wakeups.client(settings.REDIS_URL).set(_key(task), 1, px=_KEPT_MS)
    except redis.RedisError as error:
        logger.warning("the run of %s could not be noted in Redis: %s", task, error)


def ages_s(client: redis.Redis) -> dict[str, float | None]:
    """Seconds since each tick's last run; None: no run within a day.

    Raises:
        redis.RedisError: Redis cannot be reached.
    """
    with client.pipeline(transaction=False) as pipeline:
        for task in TASKS:
            pipeline.pttl(_key(task))
        left = pipeline.execute()
    return {
        task: None if left_ms < 0 else (_KEPT_MS - left_ms) / 1_000
        for task, left_ms in zip(TASKS, left, strict=True)
    }


def _key(task: str) -> str:
    return f"weir:ticked:{task}"
