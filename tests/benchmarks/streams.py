"""The web process's cost of waiting: open event streams and long polls, and how soon they wake."""

import asyncio
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory

import psutil

from tests.benchmarks.report import Row, limit_row

STREAMS, WATCHED_JOBS = 100, 10
POLLS = 50
CHANGES_PER_SECOND = 2  # Of each watched job.
POLL_WAIT_S = 30
TOKEN = "bench"
LATENCY_P50_MAX_MS = 30.0


def streams(quick: bool) -> list[Row]:
    """Threads, connections and wake-up latency with 100 event streams and 50 long polls open."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.test")
    import django

    django.setup()
    from django.conf import settings
    from django.core.management import call_command
    from django.test import Client, override_settings

    from tests import factories
    from tests.process.controlplane.web import Web
    from tests.services import running_postgres, running_redis, use_database

    with (
        TemporaryDirectory(prefix="weir-bench-") as home,
        running_postgres() as postgres,
        running_redis() as redis,
        override_settings(REDIS_URL=redis.url),
    ):
        use_database(postgres.url)
        call_command("migrate", verbosity=0)
        for number in range(POLLS):
            job = factories.job("bench", id=f"bench-{number}")
            factories.driver(job, token=f"{TOKEN}-{number}", heard_at=None)
        client = Client()
        client.force_login(factories.user())
        environment = {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "WEIR_HOME": home,
            "WEIR_LOG_LEVEL": "WARNING",
            "WEIR_STREAMS_PER_USER_MAX": str(2 * STREAMS),  # One account has all of them.
        }
        with Web(Path(home) / "web.log", environment) as web:
            session = client.cookies[settings.SESSION_COOKIE_NAME].value
            load = Load(web.port, web.pid, f"{settings.SESSION_COOKIE_NAME}={session}")
            asyncio.run(load.run(seconds=3.0 if quick else 20.0, commands=50 if quick else 500))
    return load.rows()


class Load:
    """The clients, on one event loop, and what is measured around them."""

    def __init__(self, port: int, web_pid: int, cookie: str) -> None:
        self._port = port
        self._process = psutil.Process(web_pid)
        self._cookie = cookie
        self._events = 0
        self._opened = asyncio.Semaphore(0)
        self._arrivals: dict[int, asyncio.Future[float]] = {}
        self._before = self._during = (0, 0)  # Threads, database connections.
        self._cpu = 0.0
        self._latencies_ms: list[float] = []

    async def run(self, *, seconds: float, commands: int) -> None:
        """Measure idle, open everything, measure again under changes, then time commands."""
        # All threads of the pool are started, so that what comes then is what waiting costs.
        await asyncio.gather(*(self._get("/jobs/") for _ in range(100)))
        self._before = await asyncio.to_thread(self._usage)
        clients = [self._stream(n % WATCHED_JOBS) for n in range(STREAMS)]
        clients += [self._poll(n) for n in range(POLLS)]
        waiting = []
        try:
            for client in clients:  # Too many connections without a request would be refused.
                waiting.append(asyncio.create_task(client))
                await asyncio.wait_for(self._opened.acquire(), 60)
            await self._hold(seconds)
            for number in range(commands):
                self._latencies_ms.append(await self._command(number % POLLS))
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    def rows(self) -> list[Row]:
        """The rows of the table."""
        threads, connections = zip(self._before, self._during, strict=True)
        cuts = quantiles(self._latencies_ms, n=100, method="inclusive")
        p50, p99 = cuts[49], cuts[98]
        open_ones = f"{STREAMS} event streams and {POLLS} long polls open"
        return [
            limit_row(
                f"threads of the web process, {open_ones}",
                "threads",
                threads[1],
                at_most=threads[0],
                baseline=threads[0],
                against="none open",
                note=(
                    f"{self._events} events of {WATCHED_JOBS} jobs sent meanwhile; "
                    f"{self._cpu:.0f} % of a core"
                ),
            ),
            limit_row(
                f"its database connections, {open_ones}",
                "connections",
                connections[1],
                at_most=connections[0],
                baseline=connections[0],
                against="none open",
            ),
            limit_row(
                "a command's commit to its arrival at the driver: median",
                "ms",
                p50,
                at_most=LATENCY_P50_MAX_MS,
                baseline=1_000.0,
                against="polling every second",
                note=f"p99 {p99:.1f} ms; {open_ones}",
            ),
        ]

    async def _hold(self, seconds: float) -> None:
        self._process.cpu_percent()
        events = self._events
        ends = time.monotonic() + seconds
        most = (0, 0)
        while time.monotonic() < ends:
            pause = asyncio.create_task(asyncio.sleep(1 / CHANGES_PER_SECOND))
            await asyncio.to_thread(_change_watched_jobs)
            usage = await asyncio.to_thread(self._usage)
            most = max(most[0], usage[0]), max(most[1], usage[1])
            await pause
        self._during = most
        self._cpu = self._process.cpu_percent()
        self._events -= events

    def _usage(self) -> tuple[int, int]:
        remote = [c for c in self._process.net_connections("tcp") if c.raddr]
        to_database = [c for c in remote if c.raddr.port == _database_port()]
        return self._process.num_threads(), len(to_database)

    async def _command(self, number: int) -> float:
        arrival = self._arrivals[number] = asyncio.get_running_loop().create_future()
        committed = await asyncio.to_thread(_commit_command, number)
        return (await asyncio.wait_for(arrival, 30) - committed) * 1_000

    # Clients.

    async def _get(self, path: str) -> None:
        async with Connection(self._port) as connection:
            await connection.send(path, Cookie=self._cookie, Connection="close")
            await connection.answer()

    async def _stream(self, number: int) -> None:
        async with Connection(self._port) as connection:
            await connection.send(f"/events/jobs/bench-{number}", Cookie=self._cookie)
            is_first = True
            while line := await connection.reader.readline():
                if line.startswith(b"data:"):
                    self._events += 1
                    if is_first:
                        self._opened.release()
                        is_first = False
        raise ConnectionError(f"the stream of bench-{number} ended")

    async def _poll(self, number: int) -> None:
        after = 0
        path = f"/gateway/v1/jobs/bench-{number}/commands"
        headers = {
            "Authorization": f"Bearer {TOKEN}-{number}",
            "Weir-Schema-Version": "1",
        }
        async with Connection(self._port) as connection:
            self._opened.release()
            while True:
                await connection.send(f"{path}?after={after}&wait={POLL_WAIT_S}", **headers)
                commands = json.loads(await connection.answer())["commands"]
                arrived = time.monotonic()
                if commands:
                    after = commands[-1]["number"]
                    self._arrivals[number].set_result(arrived)


class Connection:
    """An HTTP client that costs little beside what it measures."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> "Connection":
        # One line is one event: a snapshot.
        self.reader, self._writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=1 << 20
        )
        return self

    async def __aexit__(self, *exc: object) -> None:
        self._writer.close()
        with suppress(OSError):  # The other side closed it first.
            await self._writer.wait_closed()

    async def send(self, path: str, **headers: str) -> None:
        lines = [f"GET {path} HTTP/1.1", "Host: 127.0.0.1"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._writer.write("\r\n".join([*lines, "", ""]).encode())
        await self._writer.drain()

    async def answer(self) -> bytes:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode().lower()
        status, *headers = head.split("\r\n")
        length = next(line for line in headers if line.startswith("content-length:"))
        body = await self.reader.readexactly(int(length.partition(":")[2]))
        if " 200 " not in f"{status} ":
            raise ConnectionError(f"{status}: {body[:200]!r}")
        return body


def _database_port() -> int:
    from django.db import connection

    return int(connection.settings_dict["PORT"])


def _change_watched_jobs() -> None:
    from controlplane.base import wakeups
    from jobs.models import Job

    for number in range(WATCHED_JOBS):
        Job.objects.filter(pk=f"bench-{number}").update(name=f"bench {time.monotonic_ns()}")
        wakeups.publish(wakeups.job(f"bench-{number}"))


def _commit_command(number: int) -> float:
    from django.db import transaction

    from controlplane.base import clock
    from jobs import services
    from jobs.drivers import outbox
    from weir.protocol.driver_messages import CancelJob

    times: list[float] = []
    with transaction.atomic():
        job = services.locked(f"bench-{number}")
        # Before the wake-up is published, which is the first thing after the commit.
        transaction.on_commit(lambda: times.append(time.monotonic()))
        outbox.enqueue(job, [CancelJob("benchmark")], clock.now())
    return times[0]
