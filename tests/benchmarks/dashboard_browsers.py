"""A hundred browsers on the event streams of ten jobs.

Three of them are pages in a real Chromium, the others clients that read the streams. The web
process is looked at with one client per job and then with all of them, while every job changes
twice a second: threads, connections and memory must not grow with the browsers, and neither must
the database's transactions for a snapshot, since each is computed once for all who look.
"""

import asyncio
import json
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from statistics import median, quantiles

import psutil

from tests.benchmarks.dashboard_pixels import chromium, logged_in
from tests.benchmarks.report import Row, limit_row
from tests.benchmarks.streams import Connection

BROWSERS, JOBS, PAGES = 100, 10, 3
FEW = JOBS + PAGES  # Browsers: every job has a client, and some a page as well.
CHANGES_PER_SECOND = 2  # Of each job.
PARALLELISM = 50
HISTORY = 60
STATISTICS_S = 1.5  # PostgreSQL's sessions tell what they did about once a second.
OPENED_TIMEOUT_S = 60.0
LATENCY_P95_MAX_MS = 500.0
GROWTH_MAX_MB = 50.0
TRANSACTIONS_MORE_MAX = 1.25


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that the web process uses."""

    threads: int
    connections: int  # To the database.
    memory_mb: float
    cpu: float  # Of a core.
    snapshots: int
    transactions: float  # For each of them.


class Browsers:
    """The clients, on one event loop, and what is measured around them."""

    def __init__(self, url: str, cookie: tuple[str, str], web_pid: int) -> None:
        self._url = url
        self._cookie = cookie
        self._process = psutil.Process(web_pid)
        self._committed: dict[str, float] = {}  # By a job's new name.
        self._took_ms: list[float] = []
        self._snapshots: set[tuple[str, bytes]] = set()  # By job and event id.
        self._opened = asyncio.Semaphore(0)
        self._jobs: list[str] = []

    async def run(self, seconds: float) -> list[Row]:
        """A client per job beside the pages, then all of them."""
        self._jobs = await asyncio.to_thread(_jobs)
        async with AsyncExitStack() as stack:
            # First, since loading a page starts the threads that read files.
            browser = await stack.enter_async_context(chromium())
            context = await stack.enter_async_context(logged_in(browser, self._url, self._cookie))
            for job in self._jobs[:PAGES]:
                page = await context.new_page()
                await page.goto(f"{self._url}/jobs/{job}/")
            waiting = [self._start(stack, job) for job in self._jobs]
            await self._until_open(len(waiting))
            few = await self._hold(seconds)
            more = BROWSERS - FEW
            waiting += [self._start(stack, self._jobs[n % JOBS]) for n in range(more)]
            await self._until_open(more)
            self._took_ms.clear()
            many = await self._hold(seconds)
            if ended := [task for task in waiting if task.done()]:
                raise RuntimeError(f"{len(ended)} streams ended: {ended[0].exception()}")
        return self._rows(few, many)

    def _start(self, stack: AsyncExitStack, job: str) -> "asyncio.Task[None]":
        task = asyncio.create_task(self._follow(job))

        async def end() -> None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        stack.push_async_callback(end)
        return task

    async def _follow(self, job: str) -> None:
        port = int(self._url.rpartition(":")[2])
        async with Connection(port) as connection:
            await connection.send(f"/events/jobs/{job}", Cookie="=".join(self._cookie))
            is_first = True
            while line := await connection.reader.readline():
                if line.startswith(b"id:"):
                    self._snapshots.add((job, line))
                if not line.startswith(b"data:"):
                    continue
                arrived = time.monotonic()
                if is_first:
                    self._opened.release()
                    is_first = False
                committed = self._committed.get(json.loads(line[5:])["name"])
                if committed is not None:
                    self._took_ms.append((arrived - committed) * 1_000)
        raise ConnectionError(f"the stream of {job} ended")

    async def _until_open(self, count: int) -> None:
        for _ in range(count):
            await asyncio.wait_for(self._opened.acquire(), OPENED_TIMEOUT_S)

    async def _hold(self, seconds: float) -> Usage:
        """Change every job now and then, and look at the process meanwhile."""
        await asyncio.sleep(STATISTICS_S)
        before = await asyncio.to_thread(_transactions)
        self._snapshots.clear()
        self._process.cpu_percent()
        started = time.monotonic()
        most = (0, 0, 0.0)
        changes = 0
        while time.monotonic() < started + seconds:
            pause = asyncio.create_task(asyncio.sleep(1 / CHANGES_PER_SECOND / JOBS))
            job = self._jobs[changes % JOBS]
            name, committed = await asyncio.to_thread(_change, job)
            self._committed[name] = committed
            changes += 1
            most = tuple(map(max, most, self._usage()))  # type: ignore[assignment]
            await pause
        cpu = self._process.cpu_percent() / 100
        await asyncio.sleep(STATISTICS_S)
        made = await asyncio.to_thread(_transactions) - before - changes
        count = len(self._snapshots)
        return Usage(*most, cpu=cpu, snapshots=count, transactions=made / count)

    def _usage(self) -> tuple[int, int, float]:
        from django.db import connection

        database = int(connection.settings_dict["PORT"])
        remote = [c for c in self._process.net_connections("tcp") if c.raddr]
        return (
            self._process.num_threads(),
            sum(c.raddr.port == database for c in remote),
            self._process.memory_info().rss / 1e6,
        )

    def _rows(self, few: Usage, many: Usage) -> list[Row]:
        cuts = quantiles(self._took_ms, n=20, method="inclusive")
        open_ones = f"{BROWSERS} browsers on {JOBS} jobs"
        against = f"{FEW} browsers"
        return [
            limit_row(
                f"a change's commit to the browser, {open_ones}: p95",
                "ms",
                cuts[18],
                at_most=LATENCY_P95_MAX_MS,
                baseline=1_000.0,
                against="asking every second, at worst",
                note=(
                    f"{len(self._took_ms):,} events, p50 {median(self._took_ms):.0f} ms, at most "
                    f"{max(self._took_ms):.0f}; {PAGES} of the browsers are Chromium's pages; "
                    f"every job changes {CHANGES_PER_SECOND} times a second; web process "
                    f"{many.cpu:.0%} of a core, with {FEW} browsers {few.cpu:.0%}"
                ),
            ),
            limit_row(
                f"threads of the web process, {open_ones}",
                "threads",
                many.threads,
                at_most=few.threads,
                baseline=few.threads,
                against=against,
                note=f"{many.connections} database connections, with {FEW}: {few.connections}",
            ),
            limit_row(
                f"memory of the web process, {open_ones}",
                "MB",
                many.memory_mb,
                at_most=few.memory_mb + GROWTH_MAX_MB,
                baseline=few.memory_mb,
                against=against,
            ),
            limit_row(
                f"transactions of the database for a snapshot, {open_ones}",
                "transactions",
                many.transactions,
                at_most=few.transactions * TRANSACTIONS_MORE_MAX,
                baseline=few.transactions,
                against=against,
                note=(
                    f"{many.snapshots} snapshots, each computed once for all who look, with "
                    f"{FEW} browsers {few.snapshots}"
                ),
            ),
        ]


def _jobs() -> list[str]:
    """Jobs with a graph, subtasks and a past."""
    from tests.database.frontend import flights

    made = []
    for number in range(JOBS):
        job = flights.running(f"watched-{number}", parallelism=PARALLELISM, interval_ms=None)
        flights.history(job, HISTORY)
        made.append(job.pk)
    return made


def _change(job: str) -> tuple[str, float]:
    from controlplane.base import wakeups
    from jobs.models import Job

    name = f"{job} {time.monotonic_ns()}"
    Job.objects.filter(pk=job).update(name=name)
    committed = time.monotonic()
    wakeups.publish(wakeups.job(job))
    return name, committed


def _transactions() -> int:
    """The number of transactions that the database has ended, this connection's included."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT xact_commit FROM pg_stat_database WHERE datname = current_database()"
        )
        (count,) = cursor.fetchone()
    return int(count)
