"""The last run of each of beat's ticks, by Redis's own clock, for monitoring of the workers."""

import logging

import redis
from django.conf import settings

from controlplane.base import wakeups

logger = logging.getLogger(__name__)

TASKS = (
    "jobs.tasks.tick",
    "jobs.tasks.launch_tick",
    "checkpoints.tasks.tick",
    "checkpoints.tasks.storage_tick",
)
_KEPT_MS = 24 * 3_600_000  # A key's remaining life tells its age.


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
