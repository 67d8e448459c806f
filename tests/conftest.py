"""Servers for the tests that need them. Nothing starts for a test that does not ask."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # Tests of the runtime alone need neither Django nor a server.
    from pytest_django.fixtures import SettingsWrapper

    from controlplane.embedded.postgres import Postgres
    from controlplane.embedded.redis import Redis


TESTS = Path(__file__).parent
# Whole systems of many processes: one at a time, beside which there is room for the rest.
SYSTEMS = ("e2e", "spark", "embedded")


@pytest.hookimpl(tryfirst=True)  # Before the plugin that deals the groups out reads them.
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a directory together in one process: they share servers and contexts."""

    def group(item: pytest.Item) -> str:
        directory = item.path.relative_to(TESTS).parts[0]
        return "systems" if directory in SYSTEMS else directory

    items.sort(key=lambda item: group(item) != "systems")  # They take longest, so they begin.
    for item in items:
        item.add_marker(pytest.mark.xdist_group(group(item)))


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Postgres]":
    """A PostgreSQL server for the session."""
    from tests.services import running_postgres

    with running_postgres() as server:
        yield server


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres: "Postgres") -> None:
    """Tests that use the database get one on the session's server."""
    from tests.services import use_database

    use_database(postgres.url)


@pytest.fixture(scope="session")
def redis_server() -> "Iterator[Redis]":
    """A Redis server for the session; most tests want ``redis``."""
    from tests.services import running_redis

    with running_redis() as server:
        yield server


@pytest.fixture
def redis(redis_server: "Redis", settings: "SettingsWrapper") -> "Iterator[Redis]":
    """The session's Redis, emptied, with Django's settings and Celery pointed at it."""
    from redis import Redis as Client

    from tests.services import celery_on

    with Client.from_url(redis_server.url) as client:
        client.flushall()
    # Celery first: it reads the settings once, and must not keep this test's.
    with celery_on(redis_server.url):
        settings.REDIS_URL = settings.CELERY_BROKER_URL = redis_server.url
        settings.CACHES = {
            "default": {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": redis_server.url,
            }
        }
        yield redis_server
