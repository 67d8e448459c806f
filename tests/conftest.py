"""Marks by directory, and servers for the tests that need them.

A test is marked with its tier, the directory below ``tests``: it says what the test may touch.
Nothing starts for a test that does not ask.
"""

import atexit
import gc
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import Phase, settings

from tests.seeds import share

if TYPE_CHECKING:  # Tests of the runtime alone need neither Django nor a server.
    from pytest_django.fixtures import SettingsWrapper

    from controlplane.embedded.postgres import Postgres
    from controlplane.embedded.redis import Redis


# A look for garbage walks over all modules and tests: one of a hundred is enough.
gc.set_threshold(100_000, 10, 10)
atexit.register(gc.freeze)  # The interpreter's last ones find nothing of worth.

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts what it puts in the background so, and every process under test would inherit
    # it: those that are to be interrupted would not notice.
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What one example takes depends on the machine's other work.
settings.register_profile("weir", deadline=None, max_examples=share(100, block=20))
# For planted bugs: that a test fails is enough, and a small example of it may take minutes.
settings.register_profile(
    "unshrunk", settings.get_profile("weir"), phases=[Phase.explicit, Phase.generate]
)
settings.load_profile("weir")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Mark a test with its tier; the markers of ``pyproject.toml`` are the list of tiers."""
    root, _, path = item.nodeid.partition("/")
    if root == "tests":  # Else of a package, a base class of the tests here.
        item.add_marker(path.partition("/")[0])


def pytest_collection_finish() -> None:
    """Leave the tests themselves, thousands of objects each, out of every later collection."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def disk() -> Iterator[Path]:
    """A directory on a disk; ``make test`` has the others in memory, which files would take."""
    with tempfile.TemporaryDirectory(dir=os.environ.get("WEIR_TEST_DISK")) as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def postgres() -> "Iterator[Postgres]":
    """A PostgreSQL server for the session."""
    from tests.services import running_postgres

    with running_postgres(migrated=True) as server:
        yield server


@pytest.fixture(scope="session")
def django_db_modify_db_settings(postgres: "Postgres") -> Iterator[None]:
    """Tests that use the database get one on the session's server."""
    from django.db.backends.postgresql.operations import DatabaseOperations

    from tests.migrated import is_made
    from tests.services import sql_deletes, use_database

    use_database(postgres.url, is_template=is_made())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseOperations, "sql_flush", sql_deletes)
        yield


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
