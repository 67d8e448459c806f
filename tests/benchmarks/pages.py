"""The server's cost of the dashboard's pages, with a full database behind them.

Every page that the navigation leads to is read, and every address of the job those pages fetch or
lead to: details, figures, drill-downs. They are found in the pages themselves, one address of each
kind, so that a new page is measured without being named here.

Times are taken twice. *Over HTTP*, at the real web process, with nothing else under way: what a
browser next to it would wait. *In process*, by the same views through Django's test client: how
much of that is the database's, in how many queries. There each query is also explained: no page
may read a large table from end to end, count its rows, or skip rows by OFFSET.
"""

import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html.parser import HTMLParser
from http.client import HTTPConnection
from statistics import median, quantiles
from typing import Any
from urllib.parse import parse_qs, urldefrag, urlsplit

from tests.benchmarks.dashboard_data import LARGE, Stored
from tests.benchmarks.report import Row, limit_row

P95_MAX_MS = 200.0
WARM_UP = 2
FOUND_MAX = 100  # More kinds of addresses would be a page that names each row's.
DEPTH = 2  # From a page in the navigation to what it leads to, and once more.
NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Address:
    """One thing to read."""

    name: str
    path: str


def start_addresses(stored: Stored) -> list[Address]:
    """The pages that the navigation leads to, by the names of their addresses."""
    from django.urls import reverse

    def of_job(name: str) -> str:
        return reverse(name, args=[stored.flights])

    def checkpoint(job: str, number: int) -> str:
        return reverse("checkpoint-page", args=[job, number])

    return [
        Address("overview", reverse("job-list")),
        Address("job", of_job("job-page")),
        Address("checkpoints", of_job("job-checkpoints")),
        Address("checkpoint", checkpoint(stored.flights, stored.completed)),
        Address("checkpoint, failed", checkpoint(stored.flights, stored.failed)),
        Address(
            "checkpoint, 200 × 200 channels",
            checkpoint(stored.wide, stored.completed_wide),
        ),
        Address("checkpoint, long ago", checkpoint(stored.flights, stored.checkpoints // 2 + 2)),
        Address("savepoints", of_job("job-savepoints")),
        Address("recovery", of_job("job-recovery")),
        Address("configuration", of_job("job-configuration")),
        Address("audit of the job", of_job("job-audit")),
        Address("audit", reverse("audit")),
        Address("retention", reverse("retention")),
    ]


class Reader:
    """One connection that stays open, as a browser's does, of a user who is logged in."""

    def __init__(self, connection: HTTPConnection, cookie: str) -> None:
        self._connection = connection
        self._headers = {"Cookie": cookie, "Accept-Encoding": "gzip"}

    def get(self, path: str) -> tuple[str, bytes]:
        """Type and body; anything but 200 ends the measurement."""
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {body[:500]!r}")
        return response.getheader("Content-Type", ""), body

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def linked_addresses(client: Any, pages: Sequence[Address], stored: Stored) -> list[Address]:
    """The addresses that the pages fetch or lead to: one of each kind and job, of the two jobs."""
    jobs = {f"/jobs/{stored.flights}/": "", f"/jobs/{stored.wide}/": ", 200 × 200 channels"}
    kinds = {_kind(page.path) + _suffix(page.path, jobs) for page in pages}
    addresses: list[Address] = []
    layer = list(pages)
    for _ in range(DEPTH):
        next_layer: list[Address] = []
        for page in layer:
            response = client.get(page.path)
            if response.status_code != 200:
                raise RuntimeError(f"{page.path}: {response.status_code}")
            if not response.headers.get("Content-Type", "").startswith("text/html"):
                continue
            for path in sorted(_addresses_in(response.content.decode())):
                if not path.startswith(tuple(jobs)) or not (kind := _kind(path)):
                    continue
                name = kind + _suffix(path, jobs)
                if name in kinds or kind.count("?") > 1:  # One thing chosen at a time.
                    continue
                status = client.get(path).status_code
                if status >= 500:
                    raise RuntimeError(f"{path}: {status}")
                if status != 200:
                    continue  # This job has no such thing, or it leads elsewhere.
                kinds.add(name)
                next_layer.append(Address(name, path))
        addresses += next_layer
        layer = next_layer
    if len(addresses) > FOUND_MAX:
        names = ", ".join(address.name for address in addresses)
        raise RuntimeError(f"the pages lead to {len(addresses)} kinds of addresses: {names}")
    return addresses


def _suffix(path: str, jobs: Mapping[str, str]) -> str:
    return next((name for start, name in jobs.items() if path.startswith(start)), "")


def _kind(path: str) -> str:
    """The name of an address with what chooses between views, without what chooses between rows."""
    from django.urls import Resolver404, resolve

    parts = urlsplit(path)
    try:
        match = resolve(parts.path)
    except Resolver404:
        return ""
    if match.namespaces:  # The API's, measured by themselves.
        return ""
    words = [value for value in match.kwargs.values() if isinstance(value, str)]
    chosen = [word for word in words if re.fullmatch(r"[a-z_-]+", word)]
    chosen += [f"?{name}" for name in sorted(parse_qs(parts.query))]
    return " ".join([match.url_name or "", *chosen])


class _Attributes(HTMLParser):
    """All addresses on this server that attributes of a page hold."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            is_read = name == "href" or name.startswith("data-")
            if is_read and value and value.startswith("/") and not value.startswith("//"):
                self.addresses.add(urldefrag(value).url)


def _addresses_in(html: str) -> set[str]:
    parser = _Attributes()
    parser.feed(html)
    return parser.addresses


# Over HTTP ----------------------------------------------------------------------------------------


def timed(reader: Reader, addresses: Sequence[Address], seconds: float) -> dict[str, list[float]]:
    """The times of each address, in milliseconds, requested in turn until the time is over."""
    paths = {NOTHING: "/healthz"} | {address.name: address.path for address in addresses}
    took: dict[str, list[float]] = {name: [] for name in paths}
    for _ in range(WARM_UP):
        for path in paths.values():
            reader.get(path)
    ends = time.monotonic() + seconds
    while time.monotonic() < ends or len(took[NOTHING]) < 3:
        for name, path in paths.items():
            started = time.perf_counter()
            reader.get(path)
            took[name].append((time.perf_counter() - started) * 1_000)
    return took


# In process ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Cost:
    """The cost of one page to this process and to the database."""

    took_ms: list[float] = field(default_factory=list)
    database_ms: list[float] = field(default_factory=list)
    queries: int = 0
    blocks: int = 0  # Of 8 KiB that its queries read, from the cache or not.
    forbidden: list[str] = field(default_factory=list)  # Queries that read a large table whole.


def costs(client: Any, addresses: Sequence[Address], rounds: int) -> dict[str, Cost]:
    """The cost of each address by itself: medians of some rounds, and its queries explained."""
    return {address.name: _cost(client, address, rounds) for address in addresses}


def _cost(client: Any, address: Address, rounds: int) -> Cost:
    from django.db import connection

    cost = Cost()
    for number in range(1 + rounds):
        queries: list[float] = []

        def count(execute: Callable[..., Any], *call: Any, took: list[float] = queries) -> Any:
            started = time.perf_counter()
            try:
                return execute(*call)
            finally:
                took.append((time.perf_counter() - started) * 1_000)

        started = time.perf_counter()
        with connection.execute_wrapper(count):
            client.get(address.path)
        if number:  # The first one warms up.
            cost.took_ms.append((time.perf_counter() - started) * 1_000)
            cost.database_ms.append(sum(queries))
        cost.queries = len(queries)
    with _explained() as plans:
        client.get(address.path)
    for sql, plan in plans:
        cost.blocks += plan.get("Shared Hit Blocks", 0) + plan.get("Shared Read Blocks", 0)
        if (why := _forbidden(sql, plan)) is not None:
            cost.forbidden.append(f"{why}: {sql[:2_000]}")
    return cost


@contextmanager
def _explained() -> Iterator[list[tuple[str, Mapping[str, Any]]]]:
    """The plan of every SELECT inside, with the blocks that it read."""
    from django.db import connection

    plans: list[tuple[str, Mapping[str, Any]]] = []

    def explain(
        execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any
    ) -> Any:
        if not many and sql.lstrip().upper().startswith(("SELECT", "WITH")):
            with connection.connection.cursor() as cursor:
                cursor.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
                (answer,) = cursor.fetchone()
            document = json.loads(answer) if isinstance(answer, str) else answer
            plans.append((sql, document[0]["Plan"]))
        return execute(sql, params, many, context)

    with connection.execute_wrapper(explain):
        yield plans


_OFFSET = re.compile(r"\bOFFSET (\d+)")
OFFSET_MAX = 1_000  # Rows: to step over a few pages costs nothing.
SCAN_ROWS_MAX = 20_000  # Fewer are best read whole: what else is asked of such a table costs more.


def _forbidden(sql: str, plan: Mapping[str, Any]) -> str | None:
    """Why a query must not be a page's."""
    for node in _nodes(plan):
        read = node.get("Actual Rows", 0) + node.get("Rows Removed by Filter", 0)
        rows = read * node.get("Actual Loops", 1)
        if node.get("Relation Name") in LARGE and rows > SCAN_ROWS_MAX:
            if node["Node Type"] == "Seq Scan":
                return f"reads {node['Relation Name']} whole"
            if "COUNT(*)" in sql and "Limit" not in {n["Node Type"] for n in _nodes(plan)}:
                return f"counts {rows:,.0f} rows of {node['Relation Name']}"
    skipped = max((int(n) for n in _OFFSET.findall(sql)), default=0)
    return f"skips {skipped} rows" if skipped > OFFSET_MAX else None


def _nodes(plan: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield plan
    for part in plan.get("Plans", ()):
        yield from _nodes(part)


# Rows ---------------------------------------------------------------------------------------------


def rows(
    took: Mapping[str, Sequence[float]],
    cost: Mapping[str, Cost],
    pages: Sequence[Address],
    parts: Sequence[Address],
    stored: Stored,
) -> list[Row]:
    """The rows of the table."""
    baseline = _p95(took[NOTHING])
    table = [
        _times_row("a page of the dashboard", pages, took, cost, baseline, stored.text),
        _times_row("what pages fetch and lead to", parts, took, cost, baseline, stored.text),
    ]
    return [row for row in table if row is not None] + [_plans_row(cost)]


def _times_row(
    what: str,
    addresses: Sequence[Address],
    took: Mapping[str, Sequence[float]],
    cost: Mapping[str, Cost],
    baseline: float,
    note: str,
) -> Row | None:
    if not addresses:
        return None
    p95 = {address.name: _p95(took[address.name]) for address in addresses}
    slowest = max(p95, key=lambda name: p95[name])
    lines = [
        f"{name}: {median(took[name]):.0f}/{p95[name]:.0f}/{max(took[name]):.0f} ms"
        f", in process {median(cost[name].took_ms):.0f} ms of which"
        f" {median(cost[name].database_ms):.0f} in {cost[name].queries} queries"
        f" over {cost[name].blocks:,} blocks"
        for name in sorted(p95, key=lambda name: -p95[name])
    ]
    rounds = len(took[addresses[0].name])
    return limit_row(
        f"{what}, the slowest of {len(p95)} over HTTP: p95 ({slowest})",
        "ms",
        p95[slowest],
        at_most=P95_MAX_MS,
        baseline=baseline,
        against="GET /healthz",
        note=f"{note}; {rounds} rounds, p50/p95/max\n" + "\n".join(lines),
    )


def _plans_row(cost: Mapping[str, Cost]) -> Row:
    queries = sum(one.queries for one in cost.values())
    forbidden = {name: one.forbidden for name, one in cost.items() if one.forbidden}
    count = sum(len(queries) for queries in forbidden.values())
    return Row(
        what="queries of pages that read a large table whole, count it or skip rows",
        unit="queries",
        weir=count,
        baseline=queries,
        ratio=count / queries,
        against="all of them, explained",
        target="none",
        met=not count,
        note="\n".join(f"{name}: {why}" for name, whys in forbidden.items() for why in whys),
    )


def _p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[18]
