"""Countdowns that make due times punctual. Nothing depends on one: the tick looks every second.

Publishing times out after 0.5 s, where the broker is down or hangs; after a failure it is skipped
for 1 s.
"""

import logging
from collections import defaultdict
from functools import cache

import kombu.exceptions
import redis
from celery import current_app as app
from django.db import transaction
from kombu.pools import ProducerPool

from controlplane.base.server_losses import Pause

logger = logging.getLogger(__name__)

# By name: the module of the task imports those that schedule it.
TICK_JOB = "checkpoints.tasks.tick_job"
HORIZON_MS = 1_500  # A later time is for the tick to schedule: it looks once a second.
EXPIRES_S = 5.0  # By then the periodic tick has ticked the job long ago.
TIMEOUT_S = 0.5
PAUSE_S = 1.0  # Without publishing, after a failure.
PRODUCERS_MAX = 8  # Threads that schedule at the same time.

_pauses: defaultdict[str, Pause] = defaultdict(lambda: Pause(PAUSE_S))


def tick_at(job_id: str, due_ms: int, now_ms: int) -> None:
    """Schedule the job's tick for a time, once the transaction under way has committed."""
    delay_ms = due_ms - now_ms
    if delay_ms <= HORIZON_MS:
        delay_s = max(0.0, delay_ms / 1_000)
        transaction.on_commit(lambda: send(job_id, delay_s), robust=True)


def send(job_id: str, delay_s: float, *, is_repeated: bool = False) -> None:
    """Publish a job's tick with its delay; a failure of the broker is logged."""
    broker = str(app.conf.broker_url)
    if _pauses[broker].lasts:
        return
    try:
        with _producers(broker).acquire(block=True, timeout=TIMEOUT_S) as producer:
            app.send_task(
                TICK_JOB,
                (job_id, is_repeated),
                countdown=delay_s,
                expires=delay_s + EXPIRES_S,
                producer=producer,
                retry=False,
            )
    except (kombu.exceptions.KombuError, redis.RedisError, OSError) as error:
        _pauses[broker].begin()
        logger.warning(
            "a countdown could not be scheduled, the periodic tick replaces it: %s", error
        )


@cache
def _producers(broker: str) -> ProducerPool:
    """The producers for a broker, whose connections fail soon instead of waiting for it."""
    options = dict(app.conf.broker_transport_options or {})
    options |= {
        "socket_timeout": TIMEOUT_S,
        "socket_connect_timeout": TIMEOUT_S,
        "retry_on_timeout": False,
        "max_retries": 0,
    }
    connection = app.connection_for_write(
        broker, connect_timeout=TIMEOUT_S, transport_options=options
    )
    return ProducerPool(connection.Pool(limit=PRODUCERS_MAX), limit=PRODUCERS_MAX)
