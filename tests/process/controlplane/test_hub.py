"""Wake-ups come from Redis while it is there, and waiting works without."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from pytest_django import Settings

from controlplane.base import server_losses, wakeups
from controlplane.base.hub import Hub
from controlplane.embedded.redis import Redis
from tests.services import running_redis
from tests.waiting import TIMEOUT_S


@pytest.fixture
def mortal_redis(settings: Settings) -> Iterator[Redis]:
    """A Redis of this test's own, to be killed."""
    with running_redis() as server:
        settings.REDIS_URL = server.url
        yield server


@asynccontextmanager
async def running(hub: Hub) -> AsyncIterator[None]:
    following = asyncio.create_task(hub.run())
    try:
        yield
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def until_connected(hub: Hub, is_connected: bool = True) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while hub.is_connected is not is_connected:
            await hub.wait("nothing", 0.05)


async def woken(hub: Hub, topic: str) -> float:
    """Seconds from publishing a topic to being woken for it."""
    with hub.listen(topic) as bell:
        await bell.wait(0)  # What has rung before does not count.
        started = time.monotonic()
        await asyncio.to_thread(wakeups.publish, topic)
        assert await bell.wait(TIMEOUT_S)
        return time.monotonic() - started


def test_a_published_topic_wakes_all_that_wait_for_it(redis: Redis) -> None:
    async def scenario() -> None:
        hub = Hub(redis.url)
        async with running(hub):
            await until_connected(hub)
            with hub.listen("another") as other:
                await other.wait(0)
                assert await woken(hub, wakeups.commands("a-job")) < 1.0
                assert not await other.wait(0)

    asyncio.run(scenario())


def test_what_rings_between_looking_and_waiting_is_not_missed(redis: Redis) -> None:
    async def scenario() -> None:
        hub = Hub(redis.url)
        async with running(hub):
            await until_connected(hub)
            with hub.listen("topic") as bell:
                hub.ring("topic")
                assert await bell.wait(0)
                assert not await bell.wait(0.01)

    asyncio.run(scenario())


def test_waiting_without_redis_ends_with_the_timeout() -> None:
    async def scenario() -> None:
        hub = Hub("redis://127.0.0.1:1/0")
        async with running(hub):
            started = time.monotonic()
            assert not await hub.wait("topic", 0.3)
            assert 0.29 < time.monotonic() - started < 30

    asyncio.run(scenario())


def test_wake_ups_come_again_after_redis_was_killed(mortal_redis: Redis) -> None:
    async def scenario() -> None:
        hub = Hub(mortal_redis.url)
        async with running(hub):
            await until_connected(hub)
            await asyncio.to_thread(mortal_redis.kill)
            await until_connected(hub, False)
            assert server_losses.is_redis_away(mortal_redis.url)
            assert not await hub.wait("topic", 0.1)
            await asyncio.to_thread(wakeups.publish, "topic")  # Logged, not raised.
            with hub.listen("topic") as bell:
                await asyncio.to_thread(mortal_redis.start)
                assert await bell.wait(TIMEOUT_S)  # It may have missed something: look again.
            await until_connected(hub)
            assert not server_losses.is_redis_away(mortal_redis.url)
            async with asyncio.timeout(TIMEOUT_S):
                # The publisher is silent for a moment after its failure.
                while True:
                    await asyncio.to_thread(wakeups.publish, "topic")
                    if await hub.wait("topic", 0.1):
                        break
                    with hub.listen("topic") as bell:
                        await asyncio.to_thread(wakeups.publish, "topic")
                        if await bell.wait(0.2):
                            break

    asyncio.run(scenario())


def test_nothing_stays_of_those_who_waited() -> None:
    async def scenario() -> None:
        hub = Hub("redis://127.0.0.1:1/0")
        waits = [hub.wait(f"topic-{n % 7}", 0.01) for n in range(500)]
        assert not any(await asyncio.gather(*waits))
        assert hub._bells == {}

    asyncio.run(scenario())


def test_a_closed_hub_lets_no_caller_wait() -> None:
    async def scenario() -> None:
        hub = Hub("redis://127.0.0.1:1/0")
        with hub.listen("topic") as bell:
            hub.close()
            assert await bell.wait(TIMEOUT_S)
        assert await hub.wait("topic", TIMEOUT_S)

    asyncio.run(scenario())
