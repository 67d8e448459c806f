"""A real Celery worker: its log, and what the control plane learns of its ticks."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.db import connection
from redis import Redis as Client

from controlplane.audit.models import AuditEntry
from controlplane.base import clock, logs, ticks
from controlplane.celery import app
from controlplane.embedded.redis import Redis
from controlplane.retention.models import Tally
from jobs.models import JobException
from tests import factories
from tests.process.controlplane.said import connect, say
from tests.services import database_url
from tests.waiting import TIMEOUT_S, wait_until


@contextmanager
def worker(log: Path, redis_url: str) -> Iterator[None]:
    """A worker on all queues but the launcher's."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "celery", "-A", "controlplane", "worker"),
                *(
                    "-P",
                    "solo",
                    "-Q",
                    "coordination,storage",
                    "-I",
                    "tests.process.controlplane.said",
                ),
                *("--without-gossip", "--without-mingle", "--without-heartbeat"),
            ],
            env=os.environ
            | {
                "DJANGO_SETTINGS_MODULE": "controlplane.settings.test",
                "DATABASE_URL": database_url(),
                "REDIS_URL": redis_url,
                "WEIR_HOME": str(log.parent),
            },
            stdout=output,
            stderr=output,
        )
        try:
            yield
        finally:
            process.terminate()
            try:
                process.wait(TIMEOUT_S)
            finally:
                process.kill()
                process.wait()


def lines(log: Path) -> list[dict[str, Any]]:
    """The log's lines; the banner, which is for a terminal, is no JSON."""
    text = log.read_text().splitlines()
    return [json.loads(line) for line in text if line.startswith("{")]


def backend_of_next_task(log: Path, seen: int) -> int:
    """The process of PostgreSQL that served a task, after ``seen`` earlier ones."""
    connect.delay()
    wait_until(lambda: log.read_text().count("backend ") > seen, f"the task has run; see {log}")
    return int(re.findall(r"backend (\d+)", log.read_text())[-1])


@pytest.mark.django_db(transaction=True)
def test_what_a_task_logs_says_on_whose_behalf_and_ticks_are_noted(
    redis: Redis, tmp_path: Path
) -> None:
    log = tmp_path / "worker.log"
    with worker(log, redis.url), Client.from_url(redis.url) as client:
        with logs.about(request_id="the-request"):
            say.delay("this")
        app.send_task("checkpoints.tasks.storage_tick")
        wait_until(lambda: "said this" in log.read_text(), f"the task has run; see {log}")
        wait_until(
            lambda: ticks.ages_s(client)["checkpoints.tasks.storage_tick"] is not None,
            f"the tick is noted; see {log}",
        )
        assert ticks.ages_s(client)["jobs.tasks.tick"] is None
        # Tasks share one connection to the database, until it breaks.
        first = backend_of_next_task(log, seen=0)
        assert backend_of_next_task(log, seen=1) == first
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_terminate_backend(%s)", [first])
            assert cursor.fetchone() == (True,)
        assert backend_of_next_task(log, seen=2) != first
    line = next(line for line in lines(log) if line["logger"] == "tests.said")
    expected = {
        "level": "INFO",
        "message": "said this",
        "request_id": "the-request",
        "celery_task": "tests.say",
        "job": "orders-1",
        "checkpoint": 7,
    }
    assert line | expected == line
    assert any(line["logger"].startswith("celery.") for line in lines(log))  # Celery's own too.


@pytest.mark.django_db(transaction=True)
def test_retention_runs_on_the_queue_for_storage_as_beat_sends_it(
    redis: Redis, tmp_path: Path
) -> None:
    old = clock.now() - timedelta(days=settings.WEIR_KEEP_EXCEPTIONS_DAYS + 1)
    factories.exception(factories.job(), at=old)
    factories.audit_entry()
    sent = {name: app.conf.beat_schedule[name]["task"] for name in ("retention", "driver-files")}
    router = app.amqp.router
    queues = {name: router.route({}, task)["queue"].name for name, task in sent.items()}
    assert queues == {"retention": "storage", "driver-files": "launch"}
    with worker(tmp_path / "worker.log", redis.url):
        app.send_task(sent["retention"])
        wait_until(
            lambda: Tally.objects.filter(kind="exceptions", removed=1).exists(),
            lambda: (tmp_path / "worker.log").read_text()[-4_000:],
        )
        wait_until(lambda: AuditEntry.objects.get().number == 1, "the audit entry is sealed")
    assert not JobException.objects.exists()
