"""Wake-ups over Redis: they make things punctual, nothing depends on one.

Whoever changed something publishes its topic after the commit; whoever waits looks again at least
once a second anyway. A wake-up that cannot be published is logged, never raised.
"""

import logging
import time

import redis
from django.conf import settings
from django.db import transaction
from redis.backoff import NoBackoff
from redis.retry import Retry

logger = logging.getLogger(__name__)

CHANNEL = "weir:wakeups"
PUBLISH_TIMEOUT_S = 0.5
SILENCE_S = 1.0  # After a failure; whoever publishes must not wait for Redis again and again.

_clients: dict[str, redis.Redis] = {}
_silent_until: dict[str, float] = {}


def commands(job_id: str) -> str:
    """The topic: there are commands for the job's driver."""
    return f"commands:{job_id}"


def job(job_id: str) -> str:
    """The topic: something that a reader of the job sees has changed."""
    return f"job:{job_id}"


def on_commit(topic: str) -> None:
    """Publish a topic once the transaction under way has been committed."""
    transaction.on_commit(lambda: publish(topic), robust=True)


def publish(topic: str) -> None:
    """Wake whoever waits for a topic now."""
    url = settings.REDIS_URL
    if time.monotonic() < _silent_until.get(url, 0.0):
        return
    try:
        client(url).publish(CHANNEL, topic)
    except redis.RedisError as error:
        _silent_until[url] = time.monotonic() + SILENCE_S
        logger.warning("a wake-up for %s could not be published: %s", topic, error)


def client(url: str) -> redis.Redis:
    """This process' client of a Redis server: it fails soon instead of waiting for the server."""
    found = _clients.get(url)
    if found is None:
        found = _clients[url] = redis.Redis.from_url(
            url,
            socket_timeout=PUBLISH_TIMEOUT_S,
            socket_connect_timeout=PUBLISH_TIMEOUT_S,
            # Once more at once: a pooled connection may be to a server that has restarted.
            retry=Retry(NoBackoff(), 1),
        )
    return found
