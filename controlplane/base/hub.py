"""Wake-ups inside one process: one Redis subscription rings the bells of all its waiters.

A bell only says "look again". A listener looks first and then waits, so no change between the two
is missed; without Redis no bell rings and ``wait`` is a pause.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from controlplane.base import server_losses, wakeups

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
PING_S = 2.0  # A subscription that is silent for this long is pinged.
PAUSE_MIN_S, PAUSE_MAX_S = 0.1, 2.0  # Between attempts to subscribe.


class Bell:
    """A flag that something happened since the last wait."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def ring(self) -> None:
        """Let the wait under way, or the next one, end at once."""
        self._event.set()

    async def wait(self, timeout_s: float) -> bool:
        """True once the bell rang, False after ``timeout_s`` seconds without."""
        if not self._event.is_set():
            try:
                async with asyncio.timeout(max(0.0, timeout_s)):
                    await self._event.wait()
            except TimeoutError:
                return False
        self._event.clear()
        return True


class Hub:
    """Bells by topic, rung for wake-ups from Redis and from this process."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._bells: dict[str, set[Bell]] = {}
        self.is_connected = False
        self.is_closed = False

    @contextmanager
    def listen(self, topic: str) -> Iterator[Bell]:
        """A bell for a topic, as long as the block lasts."""
        bell = Bell()
        self._bells.setdefault(topic, set()).add(bell)
        if self.is_closed:
            bell.ring()
        try:
            yield bell
        finally:
            bells = self._bells[topic]
            bells.discard(bell)
            if not bells:
                del self._bells[topic]

    async def wait(self, topic: str, timeout_s: float) -> bool:
        """True once the topic is published, False after ``timeout_s`` seconds without."""
        with self.listen(topic) as bell:
            return await bell.wait(timeout_s)

    def ring(self, topic: str) -> None:
        """Wake the listeners of a topic in this process."""
        for bell in self._bells.get(topic, ()):
            bell.ring()

    def ring_all(self) -> None:
        """Wake all listeners."""
        for bells in self._bells.values():
            for bell in bells:
                bell.ring()

    def close(self) -> None:
        """Wake all listeners, now and later: the process ends. Listeners check ``is_closed``."""
        self.is_closed = True
        self.ring_all()

    async def run(self) -> NoReturn:
        """Follow Redis for ever, subscribing again whenever the connection is lost."""
        pause_s = 0.0
        while True:
            try:
                await self._follow()
            except (RedisError, OSError) as error:
                server_losses.note_redis(self._url, is_away=True)
                if self.is_connected or pause_s == 0.0:  # Once per outage.
                    logger.warning("no wake-ups until Redis can be reached again: %s", error)
                pause_s = min(2 * pause_s, PAUSE_MAX_S) or PAUSE_MIN_S
                if self.is_connected:
                    pause_s = PAUSE_MIN_S
            except Exception:  # A bug here or in the client must not cost wake-ups for good.
                logger.exception("no wake-ups from Redis for %g s", PAUSE_MAX_S)
                pause_s = PAUSE_MAX_S
            finally:
                self.is_connected = False
            await asyncio.sleep(pause_s)

    async def _follow(self) -> NoReturn:
        never = Retry(NoBackoff(), 0)  # This loop retries, and rings all bells when it succeeds.
        client = Redis.from_url(
            self._url,
            retry=never,
            socket_connect_timeout=CONNECT_TIMEOUT_S,
            socket_timeout=CONNECT_TIMEOUT_S,
        )
        async with client, client.pubsub() as subscription:
            await subscription.subscribe(wakeups.CHANNEL)
            await self._listen(subscription)

    async def _listen(self, subscription: PubSub) -> NoReturn:
        is_asked = False
        while True:
            message = await subscription.get_message(timeout=PING_S)
            if message is None:
                if is_asked:
                    raise ConnectionError(f"no answer within {PING_S:g} s")
                is_asked = True
                await subscription.ping()
                continue
            is_asked = False
            if message["type"] == "message":  # The others are "subscribe" and "pong".
                self.ring(message["data"].decode("utf-8", "replace"))
            elif message["type"] == "subscribe":
                self.is_connected = True
                server_losses.note_redis(self._url, is_away=False)
                # Topics published while it was unsubscribed are lost: all listeners look again.
                self.ring_all()
                logger.info("subscribed to wake-ups from Redis")
