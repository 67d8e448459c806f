"""The cost of a page of the REST API when the database is full."""

import json
import os
import time
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path
from statistics import quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from tests.benchmarks.report import Row, limit_row

if TYPE_CHECKING:
    from django.db.models import Model

JOBS = 100
CHECKPOINTS = 100_000  # Half of them are one job's.
ACKS_PER_CHECKPOINT = 10
GATES, CHANNELS = 200, 200  # Of one checkpoint: 40,000 channels in 200 rows.
P95_MAX_MS = 100.0
BUSY = "job-0"  # The job with half of the checkpoints.


def api(quick: bool) -> list[Row]:
    """p95 of list pages through HTTP, in turn with an endpoint that asks the database nothing."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.test")
    import django

    django.setup()
    from django.core.management import call_command

    from tests import factories
    from tests.process.controlplane.web import Web
    from tests.services import running_postgres, running_redis, use_database

    checkpoints = CHECKPOINTS // 10 if quick else CHECKPOINTS
    with (
        TemporaryDirectory(prefix="weir-bench-") as home,
        running_postgres() as postgres,
        running_redis() as redis,
    ):
        use_database(postgres.url)
        call_command("migrate", verbosity=0)
        _fill(checkpoints)
        secret = factories.secret_of(factories.user())
        environment = {
            "DATABASE_URL": postgres.url,
            "REDIS_URL": redis.url,
            "WEIR_HOME": home,
            "WEIR_LOG_LEVEL": "WARNING",
            "WEIR_THROTTLE_USER": "1000000/min",
            "DJANGO_SETTINGS_MODULE": "controlplane.settings.dev",  # With counters in Redis.
        }
        with Web(Path(home) / "web.log", environment) as web:
            client = _Client(web.connect(), secret)
            took_ms = client.measure(_pages(client, checkpoints), 20 if quick else 200)
            client.close()
    p95 = {name: quantiles(times, n=20, method="inclusive")[18] for name, times in took_ms.items()}
    baseline = p95.pop(_Client.NOTHING)
    slowest = max(p95, key=lambda name: p95[name])
    listed = ", ".join(f"{name} {value:.1f}" for name, value in p95.items())
    return [
        limit_row(
            f"a page of the API, the slowest of {len(p95)}: p95 ({slowest})",
            "ms",
            p95[slowest],
            at_most=P95_MAX_MS,
            baseline=baseline,
            against="GET /healthz",
            note=(
                f"{checkpoints:,} checkpoints and {checkpoints * ACKS_PER_CHECKPOINT:,} "
                f"acknowledgements stored; in ms: {listed}"
            ),
        )
    ]


class _Client:
    """One connection that stays open, as a dashboard's does."""

    NOTHING = "nothing"

    def __init__(self, connection: HTTPConnection, secret: str) -> None:
        self._connection = connection
        self._headers = {"Authorization": f"Bearer {secret}"}

    def get(self, path: str) -> Any:
        """A document; anything but 200 ends the measurement."""
        self._connection.request("GET", path, headers=self._headers)
        response = self._connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"{path}: {response.status} {body[:500]!r}")
        return json.loads(body)

    def measure(self, pages: Mapping[str, str], rounds: int) -> dict[str, list[float]]:
        """The times of each page, in milliseconds, measured in turn."""
        paths = {self.NOTHING: "/healthz", **pages}
        took: dict[str, list[float]] = {name: [] for name in paths}
        for number in range(rounds + 5):
            for name, path in paths.items():
                started = time.perf_counter()
                self.get(path)
                if number >= 5:  # The first ones warm up.
                    took[name].append((time.perf_counter() - started) * 1000)
        return took

    def close(self) -> None:
        """End the connection."""
        self._connection.close()


def _pages(client: _Client, checkpoints: int) -> dict[str, str]:
    """Names and addresses of the pages; deep ones are reached by cursor."""
    base = "/api/v1"
    own = f"{base}/jobs/{BUSY}/checkpoints"
    newest = client.get(own)["results"][0]["number"]
    return {
        "jobs": f"{base}/jobs",
        "all checkpoints": f"{base}/checkpoints",
        "all checkpoints, page 100": _deep(client, f"{base}/checkpoints", checkpoints // 10),
        "failed ones of all jobs": f"{base}/checkpoints?status=failed",
        "a job's checkpoints": own,
        "a job's checkpoints, page 100": _deep(client, own, checkpoints // 20),
        "a job's failed ones": f"{own}?status=failed",
        "acknowledgements": f"{own}/{newest}/acks",
        "channels": f"{own}/{newest}/channels",
        "most blocked channels": f"{own}/{newest}/channels?ordering=-blocked_ms",
        "operations": f"{base}/operations",
    }


def _deep(client: _Client, path: str, rows: int) -> str:
    """The page that many rows on."""
    page = client.get(f"{path}?page_size=200")
    for _ in range(rows // 200):
        page = client.get(_path_of(page["next"]))
    return _path_of(page["next"]).replace("page_size=200", "page_size=50")


def _path_of(url: str) -> str:
    return "/" + url.split("/", 3)[3]


def _fill(checkpoints: int) -> None:
    """Rows by SQL: a row of each kind is made as usual and repeated."""
    from django.db import connection
    from django.utils import timezone

    from checkpoints.models import Checkpoint, GateAlignment, SubtaskAck
    from jobs.models import Job, Operation
    from tests import factories

    job = factories.job(id=BUSY)
    _repeat(Job, job, JOBS - 1, {"id": "'job-' || n", "name": "'job ' || n"})
    of_busy, of_others = checkpoints // 2, checkpoints // 2 // (JOBS - 1)
    first = factories.checkpoint(job, of_busy + 1, triggered_at=timezone.now())
    _repeat(Checkpoint, first, of_busy - 1, _history(of_busy))
    with connection.cursor() as cursor:
        cursor.execute("SELECT id FROM jobs_job WHERE id <> %s", [BUSY])
        others = [row[0] for row in cursor.fetchall()]
    for other in others:
        _repeat(Checkpoint, first, of_others, {**_history(of_others), "job_id": f"'{other}'"})
    ack = factories.acknowledge(first, "operator-0", 0)
    _repeat(SubtaskAck, ack, ACKS_PER_CHECKPOINT - 1, {"operator": "'operator-' || n"})
    with connection.cursor() as cursor:
        columns = _columns(SubtaskAck)
        shown = ", ".join("c.id" if name == '"checkpoint_id"' else f"a.{name}" for name in columns)
        table = SubtaskAck._meta.db_table
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {shown} FROM {table} a "
            f"CROSS JOIN {Checkpoint._meta.db_table} c WHERE c.id <> a.checkpoint_id"
        )
    arrived = [float(n) for n in range(CHANNELS)]
    alignment = factories.gate_alignment(first, "totals", 0, arrived)
    _repeat(GateAlignment, alignment, GATES - 1, {"index": "n"})
    _repeat(
        Operation,
        factories.operation(job, status="running"),
        10_000,
        {"id": "gen_random_uuid()", "created_at": "created_at - n * interval '1 second'"},
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def _history(count: int) -> dict[str, str]:
    """A second apart; one in ten was failed, of the others the newest ten are retained."""
    return {
        "number": "n",
        "triggered_at": f"triggered_at - ({count} - n) * interval '1 second'",
        "status": f"""CASE WHEN mod(n, 10) = 0 THEN 'failed' WHEN n > {count} - 11
                      THEN 'completed' ELSE 'subsumed' END""",
    }


def _repeat(model: "type[Model]", row: "Model", count: int, values: Mapping[str, str]) -> None:
    """Copy a row ``count`` times, with ``values`` as SQL over its columns and n = 1, 2, …."""
    from django.db import connection

    columns = _columns(model, with_key=model._meta.pk.column in values)
    table, key = model._meta.db_table, model._meta.pk.column
    given = {f'"{name}"': expression for name, expression in values.items()}
    shown = ", ".join(given.get(name, name) for name in columns)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO {table} ({', '.join(columns)}) SELECT {shown} FROM {table} "
            f"CROSS JOIN generate_series(1, %s) AS n WHERE {key} = %s",
            [count, str(row.pk)],
        )


def _columns(model: "type[Model]", *, with_key: bool = False) -> list[str]:
    """The names of a model's columns, quoted, without a key that the database makes."""
    fields = model._meta.concrete_fields
    return [f'"{field.column}"' for field in fields if with_key or not field.primary_key]
