"""Probes: alive is not ready, and what is wrong is named."""

from collections.abc import Callable
from contextlib import closing

import pytest
from django.db.migrations.recorder import MigrationRecorder
from redis import Redis as Client

from controlplane import health
from controlplane.base import ticks, unusable_database
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.redis import Redis
from tests.process.controlplane.web import Web
from tests.waiting import wait_until

OK = {"database": "ok", "migrations": "ok", "redis": "ok", "ticks": "ok"}


@pytest.fixture
def ticked(redis: Redis) -> None:
    """All of beat's ticks have just run."""
    for task in ticks.TASKS:
        ticks.note(task)


def test_alive_asks_nothing_of_anybody(start_web: Callable[..., Web]) -> None:
    web = start_web("redis://127.0.0.1:1/0", DATABASE_URL="postgres://weir@127.0.0.1:1/weir")
    assert web.request("GET", "/healthz").status == 200
    answer = web.request("GET", "/readyz")
    assert answer.status == 503
    assert answer.json["checks"] == {
        "database": "cannot be reached",
        "migrations": "unknown",
        "redis": "cannot be reached",
        "ticks": "unknown",
    }


def test_a_database_that_takes_no_writes_is_named_until_it_does(
    start_web: Callable[..., Web], redis: Redis, away_postgres: Postgres
) -> None:
    web = start_web(redis.url, DATABASE_URL=away_postgres.url)

    def said() -> str:
        answer = web.request("GET", "/readyz")
        assert answer.status == 503 or answer.json["checks"] == OK
        return str(answer.json["checks"]["database"])

    for change, expected in (
        ("SET default_transaction_read_only = on", unusable_database.DatabaseReadOnly.said),
        ("RESET default_transaction_read_only", "ok"),
    ):
        with closing(away_postgres.connect()) as server, server.cursor() as cursor:
            server.autocommit = True
            cursor.execute("SET default_transaction_read_only = off")
            cursor.execute(f"ALTER SYSTEM {change}")
            cursor.execute("SELECT pg_reload_conf()")
        wait_until(lambda wanted=expected: said() == wanted, f"the database {expected}")


def test_servers_that_refuse_the_password_are_not_away(
    start_web: Callable[..., Web], redis: Redis, postgres: Postgres
) -> None:
    database = postgres.url.replace(postgres.password, "wrong")
    web = start_web(redis.url.replace(redis.password, "wrong"), DATABASE_URL=database)
    checks = web.request("GET", "/readyz").json["checks"]
    assert (checks["database"], checks["redis"]) == (health.REFUSES, health.REFUSES)


@pytest.mark.usefixtures("ticked")
def test_ready_with_everything_there(web: Web) -> None:
    answer = web.request("GET", "/readyz")
    assert (answer.status, answer.json) == (200, {"status": "ok", "checks": OK})


def test_a_tick_without_a_noted_run_is_named(web: Web, redis: Redis) -> None:
    for task in ticks.TASKS[1:]:
        ticks.note(task)
    answer = web.request("GET", "/readyz")
    assert answer.status == 503
    assert answer.json["checks"] == OK | {"ticks": "jobs.tasks.tick: no run noted within a day"}


@pytest.mark.usefixtures("ticked")
def test_an_old_tick_is_named_with_its_age(web: Web, redis: Redis) -> None:
    with Client.from_url(redis.url) as client:
        client.pexpire("weir:ticked:checkpoints.tasks.tick", ticks._KEPT_MS - 60_000)
    answer = web.request("GET", "/readyz")
    assert answer.status == 503
    assert answer.json["checks"] == OK | {"ticks": "checkpoints.tasks.tick: 60 s ago"}


@pytest.mark.usefixtures("ticked")
@pytest.mark.django_db(transaction=True)
def test_a_missing_migration_is_named(web: Web) -> None:
    applied = MigrationRecorder.Migration.objects.filter(app="jobs")
    rows = list(applied)
    applied.delete()
    try:
        answer = web.request("GET", "/readyz")
    finally:
        for row in rows:
            row.save(force_insert=True)
    assert answer.status == 503
    assert answer.json["checks"]["migrations"].startswith(f"{len(rows)} to be applied")
    assert web.request("GET", "/readyz").status == 200


def test_the_database_being_away_is_named(
    start_web: Callable[..., Web], redis: Redis, away_postgres: Postgres, ticked: None
) -> None:
    web = start_web(redis.url, DATABASE_URL=away_postgres.url)
    assert web.request("GET", "/readyz").status == 200
    away_postgres.kill()
    answer = web.request("GET", "/readyz")
    assert answer.status == 503
    assert answer.json["checks"]["database"] == "cannot be reached"
    away_postgres.start()
    assert web.request("GET", "/readyz").status == 200
