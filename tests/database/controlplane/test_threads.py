"""Database calls share a few threads and their connections, and outlive the database's end."""

import asyncio
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import pytest
from django.db import connection, connections
from pytest_django import DjangoDbBlocker

from controlplane.base.threads import DATABASE_AWAY, DatabaseThreads, Unavailable
from controlplane.embedded.postgres import Postgres
from tests.services import running_postgres, use_database
from tests.waiting import TIMEOUT_S, wait_until

SIZE = 3


@contextmanager
def pool_of(size: int, waiting_max: int = 100) -> Iterator[DatabaseThreads]:
    pool = DatabaseThreads(size, waiting_max)
    try:
        yield pool
    finally:
        pool.close()


def backend_pid() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (pid,) = cursor.fetchone()
    assert isinstance(pid, int)
    return pid


def alive(pids: Iterable[int]) -> int:
    """The number of these connections that the server still has."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_stat_activity WHERE pid = ANY(%s)", [list(pids)])
        (count,) = cursor.fetchone()
    assert isinstance(count, int)
    return count


@pytest.mark.django_db(transaction=True)
def test_many_calls_share_few_connections() -> None:
    async def scenario() -> set[int]:
        pids = await asyncio.gather(*(pool.run(backend_pid) for _ in range(60)))
        assert 1 <= len(set(pids)) <= SIZE
        assert await pool.run(backend_pid) in pids  # Kept.
        return set(pids)

    with pool_of(SIZE) as pool:
        pids = asyncio.run(scenario())
        assert alive(pids) == len(pids)
        assert (pool.pending, pool.busy, pool.waiting) == (0, 0, 0)
    wait_until(lambda: alive(pids) == 0, "the connections are closed")


def test_the_callers_context_comes_along() -> None:
    variable: ContextVar[str] = ContextVar("variable")

    async def scenario() -> None:
        variable.set("of the caller")
        assert await pool.run(variable.get) == "of the caller"

    with pool_of(1) as pool:
        asyncio.run(scenario())


def test_an_error_reaches_the_caller() -> None:
    async def scenario() -> None:
        with pytest.raises(ZeroDivisionError):
            await pool.run(divmod, 1, 0)
        assert await pool.run(divmod, 7, 2) == (3, 1)

    with pool_of(1) as pool:
        asyncio.run(scenario())


def test_more_than_may_wait_are_refused() -> None:
    async def scenario() -> None:
        go = threading.Event()
        try:
            calls = [asyncio.create_task(pool.run(go.wait, TIMEOUT_S)) for _ in range(3)]
            await asyncio.sleep(0)  # The tasks run up to their wait.
            assert (pool.busy, pool.waiting) == (1, 2)
            with pytest.raises(Unavailable):
                await pool.run(backend_pid)
        finally:
            go.set()
        assert await asyncio.gather(*calls) == [True, True, True]
        assert await pool.run(divmod, 7, 2) == (3, 1)

    with pool_of(1, waiting_max=2) as pool:
        asyncio.run(scenario())


def test_a_call_that_waits_can_be_cancelled() -> None:
    async def scenario() -> None:
        go, ran = threading.Event(), threading.Event()
        try:
            running = asyncio.create_task(pool.run(go.wait, TIMEOUT_S))
            await asyncio.sleep(0)
            waiting = asyncio.create_task(pool.run(ran.set))
            await asyncio.sleep(0)
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
        finally:
            go.set()
        assert await running
        assert await pool.run(divmod, 7, 2) == (3, 1)
        assert not ran.is_set()

    with pool_of(1) as pool:
        asyncio.run(scenario())


@pytest.fixture
def mortal_postgres(django_db_blocker: DjangoDbBlocker) -> Iterator[Postgres]:
    """A PostgreSQL of this test's own, to be killed; Django's connections point at it."""
    before = dict(connections.settings["default"])
    with running_postgres() as server, django_db_blocker.unblock():
        use_database(server.url)
        connections.settings["default"]["NAME"] = server.url.rpartition("/")[2]
        try:
            yield server
        finally:
            connections.settings["default"].update(before)


def test_calls_succeed_again_after_postgres_was_killed_and_restarted(
    mortal_postgres: Postgres,
) -> None:
    """Killed, every call fails until the server is back; then the same threads go on."""

    async def scenario() -> None:
        before = await asyncio.gather(*(pool.run(backend_pid) for _ in range(20)))
        await asyncio.to_thread(mortal_postgres.kill)
        for _ in range(SIZE + 1):
            with pytest.raises(DATABASE_AWAY):
                await pool.run(backend_pid)
        await asyncio.to_thread(mortal_postgres.start)
        after = await asyncio.gather(*(pool.run(backend_pid) for _ in range(20)))
        assert not set(before) & set(after)

    with pool_of(SIZE) as pool:
        asyncio.run(scenario())


def test_a_connection_that_broke_while_idle_costs_no_call(mortal_postgres: Postgres) -> None:
    async def scenario() -> None:
        before = await pool.run(backend_pid)
        await asyncio.to_thread(mortal_postgres.kill)
        await asyncio.to_thread(mortal_postgres.start)
        assert await pool.run(backend_pid) != before

    with pool_of(1) as pool:
        asyncio.run(scenario())
