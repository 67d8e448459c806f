"""Real PostgreSQL and Redis for tests, and how Django and Celery are pointed at them.

The fixtures that start them are in ``tests/conftest.py``: ``postgres`` and ``redis_server`` once
per session and only when a test asks, ``redis`` for one test with an emptied server.
"""

import shutil
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import dj_database_url
from django.conf import settings
from django.db import connections
from kombu import pools

from controlplane.celery import app
from controlplane.embedded.postgres import Postgres
from controlplane.embedded.redis import Redis
from tests.migrated import begin_migrated

if TYPE_CHECKING:  # It needs all models to be loaded.
    from django.db.backends.postgresql.operations import DatabaseOperations

KEPT_TABLES = ("django_content_type", "auth_permission")  # The same in every test.


@contextmanager
def reachable_directory(prefix: str = "weir-test-") -> Iterator[Path]:
    """A temporary directory that another user may pass through, removed at the end.

    pytest's ``tmp_path`` lies below a directory of mode 0700, where the unprivileged user that runs
    PostgreSQL for root cannot go.
    """
    directory = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        directory.chmod(0o711)
        yield directory
    finally:
        shutil.rmtree(directory)


@contextmanager
def running_postgres(*, migrated: bool = False) -> Iterator[Postgres]:
    """A PostgreSQL server with empty data; or with the run's migrated data, where it has any."""
    with reachable_directory() as directory:
        server = Postgres(directory / "postgres", fast=True)
        if migrated:
            begin_migrated(server)
        try:
            server.start()
            yield server
        finally:
            server.remove()


@contextmanager
def running_redis() -> Iterator[Redis]:
    """A Redis server with empty data."""
    with reachable_directory() as directory, Redis(directory / "redis") as server:
        yield server


def use_database(url: str, *, is_template: bool = False) -> None:
    """Point Django's default connection, in every thread, at ``url``; this one's is made anew.

    Where it is a template, the test database that Django creates is a copy of it.
    """
    connections["default"].close()
    address = {
        key: value
        for key, value in dj_database_url.parse(url).items()
        if key in {"ENGINE", "NAME", "USER", "PASSWORD", "HOST", "PORT"}
    }
    # The connection wrappers of all threads share this dict; replacing it would miss them.
    connections.settings["default"].update(address)
    assert settings.DATABASES["default"]["PORT"] == address["PORT"]
    if is_template:
        connections.settings["default"]["TEST"]["TEMPLATE"] = address["NAME"]


def sql_deletes(
    operations: "DatabaseOperations", style: Any, tables: Iterable[str], **options: bool
) -> list[str]:
    """The statements that empty tables after a test of real transactions: DELETE, not TRUNCATE.

    Django's TRUNCATE makes all files of all tables anew: 56 ms of a processor, not 1. It
    waits until no other transaction is under way, and so do the locks. Content types stay.
    """
    assert not any(options.values()), options
    emptied = [operations.quote_name(table) for table in tables if table not in KEPT_TABLES]
    locks = f"LOCK TABLE {', '.join(emptied)} IN ACCESS EXCLUSIVE MODE"
    return ["; ".join([locks, *(f"DELETE FROM {table}" for table in emptied)])]


def database_url() -> str:
    """The database this test works on, as a process it starts needs it in ``DATABASE_URL``."""
    address = connections["default"].settings_dict
    return (
        f"postgresql://{address['USER']}:{address['PASSWORD']}"
        f"@{address['HOST']}:{address['PORT']}/{address['NAME']}"
    )


def others_at_work() -> int:
    """The number of other connections to this test's database that are not idle."""
    return _count(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND state <> 'idle'"
    )


def blocked_here() -> int:
    """The number of other connections that wait for locks of this one's transaction."""
    return _count(
        "SELECT count(DISTINCT pid) FROM pg_locks"
        " WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid))"
    )


def _count(query: str) -> int:
    with connections["default"].cursor() as cursor:
        cursor.execute(query)
        (count,) = cursor.fetchone()
    return int(count)


@contextmanager
def celery_on(broker_url: str) -> Iterator[None]:
    """Celery tasks sent inside go to ``broker_url``."""
    before = app.conf.broker_url
    app.conf.update(broker_url=broker_url)
    _drop_broker_connections()
    try:
        yield
    finally:
        _drop_broker_connections()
        app.conf.update(broker_url=before)


def _drop_broker_connections() -> None:
    # Celery keeps the pool of the first address it saw; there is no public way to change it.
    pools.reset()
    app.amqp._producer_pool = None
    app._pool = None
