"""Wake-ups over Redis: they make things punctual, nothing depends on one.

Whoever changed something publishes its topic after the commit; whoever waits looks again at least
once a second anyway. A wake-up that cannot be published is logged, never raised.
"""

import logging

import redis
from django.conf import settings
from django.db import transaction

logger = logging.getLogger(__name__)

CHANNEL = "weir:wakeups"
PUBLISH_TIMEOUT_S = 1.0

_clients: dict[str, redis.Redis] = {}


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
    client = _clients.get(url)
    if client is None:
        client = _clients[url] = redis.Redis.from_url(
            url,
            socket_timeout=PUBLISH_TIMEOUT_S,
            socket_connect_timeout=PUBLISH_TIMEOUT_S,
        )
    try:
        client.publish(CHANNEL, topic)
    except redis.RedisError as error:
        logger.warning("a wake-up for %s could not be published: %s", topic, error)
