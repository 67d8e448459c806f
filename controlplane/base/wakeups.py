"""Wake-ups over Redis: they shorten waits; correctness depends on none.

A service that changed something publishes its topic after the commit; waiters look again at least
once a second anyway. A wake-up that cannot be published is logged, never raised.
"""

import logging
import time
from collections import defaultdict

import redis
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.base.server_losses import Pause

logger = logging.getLogger(__name__)

CHANNEL = "weir:wakeups"
PUBLISH_TIMEOUT_S = 0.5
PAUSE_S = 1.0  # After a failure nothing is published for this long: each try may wait for Redis.

AWAKE_S = 30.0
_AWAKE_AGAIN_S = 5.0  # One process says no more often than that that there is work.
AWAKE = "weir:awake"

_clients: dict[str, redis.Redis] = {}
_pauses: defaultdict[str, Pause] = defaultdict(lambda: Pause(PAUSE_S))
_awake_again: dict[str, float] = {}


def commands(job_id: str) -> str:
    """The topic of commands for the job's driver."""
    return f"commands:{job_id}"


def job(job_id: str) -> str:
    """The topic of changes that the job's readers see."""
    return f"job:{job_id}"


def on_commit(topic: str) -> None:
    """Publish a topic once the transaction under way has been committed."""
    transaction.on_commit(lambda: publish(topic), robust=True)


def publish(topic: str) -> None:
    """Wake the waiters of a topic now; after a failure, skip for ``PAUSE_S`` seconds."""
    _send(topic)


def keep_awake() -> None:
    """Say that there is work, so that beat does not rest."""
    _send(None)


def keep_awake_on_commit() -> None:
    """Say so once the transaction under way has been committed."""
    transaction.on_commit(keep_awake, robust=True)


def awake_s() -> float:
    """Seconds for which beat stays awake; 0: it may rest.

    Raises:
        redis.RedisError: Redis cannot be reached.
    """
    left_ms: int = client(settings.REDIS_URL).pttl(AWAKE)
    return max(0, left_ms) / 1_000


def _send(topic: str | None) -> None:
    url = settings.REDIS_URL
    if _pauses[url].lasts:
        return
    now = time.monotonic()
    try:
        if topic is not None:
            client(url).publish(CHANNEL, topic)
        if now >= _awake_again.get(url, 0.0):
            client(url).set(AWAKE, 1, px=round(AWAKE_S * 1_000))
            _awake_again[url] = now + _AWAKE_AGAIN_S
    except redis.RedisError as error:
        _pauses[url].begin()
        logger.warning("the wake-up for %s could not be published: %s", topic or "beat", error)


def client(url: str) -> redis.Redis:
    """This process's client of a Redis server, with short timeouts."""
    known = _clients.get(url)
    if known is None:
        known = _clients[url] = redis.Redis.from_url(
            url,
            socket_timeout=PUBLISH_TIMEOUT_S,
            socket_connect_timeout=PUBLISH_TIMEOUT_S,
            # One retry at once: a pooled connection may be to a server that has restarted.
            retry=Retry(NoBackoff(), 1),
        )
    return known
