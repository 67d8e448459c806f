"""A database that takes no writes, or lacks tables, is one that is away: a later try may succeed.

A server that has become a standby, or was made read-only because its storage is full, still answers
statements that only read. A connection from before a fail-over would stay with such a server for
ever; once it is closed, the next one finds the server to which the address leads by then.

A database without tables or columns of this version waits for ``weir_prepare``, as after an
upgrade. Where all migrations are applied the statement is at fault, and its error stays.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, ClassVar

from django.db import InternalError, OperationalError, ProgrammingError
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.migrations.loader import MigrationLoader

logger = logging.getLogger(__name__)

# SQLSTATEs: read_only_sql_transaction; undefined_table and undefined_column.
# Source: PostgreSQL, appendix A.
_READ_ONLY = "25006"
_UNDEFINED = ("42P01", "42703")


class UnusableDatabase(OperationalError):
    """The database answers, and cannot be used now."""

    said: ClassVar[str]  # What is said of it.

    def __init__(self) -> None:
        super().__init__(f"the database {self.said}")


class DatabaseReadOnly(UnusableDatabase):
    """A statement that writes reached a database that takes no writes."""

    said = "takes no writes: it is a standby, or was made read-only"


class DatabaseUnprepared(UnusableDatabase):
    """A statement reached a database to which not all migrations are applied."""

    said = "is not prepared for this version of Weir: run manage.py weir_prepare"


def note_connection(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Watch a connection's statements for either; for ``connection_created``."""
    if _execute not in connection.execute_wrappers:
        connection.execute_wrappers.append(_execute)


def _execute(
    execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    connection: BaseDatabaseWrapper = context["connection"]
    try:
        return execute(sql, params, many, context)
    except InternalError as error:
        if sqlstate(error) != _READ_ONLY:
            raise
        connection.close()
        raise DatabaseReadOnly from error.__cause__
    except ProgrammingError as error:
        if sqlstate(error) not in _UNDEFINED:
            raise
        other = connection.copy()  # This one's transaction has failed, perhaps.
        try:
            is_prepared = not missing_migrations(other)
        finally:
            other.close()
        if is_prepared:
            raise
        raise DatabaseUnprepared from error.__cause__


def sqlstate(error: BaseException) -> str:
    """The SQLSTATE of PostgreSQL's error behind one of Django's; empty: the connection broke."""
    return getattr(error.__cause__, "pgcode", None) or ""


@contextmanager
def notes(name: str) -> Iterator[None]:
    """Writes beside a request that only reads: it goes on without them; outside of transactions."""
    try:
        yield
    except DatabaseReadOnly as error:
        logger.info("%s is not noted: %s", name, error)


def is_read_only(connection: BaseDatabaseWrapper) -> bool:
    """Whether the server of a connection takes no writes."""
    with connection.cursor() as cursor:
        cursor.execute("SHOW transaction_read_only")
        (answer,) = cursor.fetchone()
    return bool(answer == "on")


def missing_migrations(connection: BaseDatabaseWrapper) -> int:
    """The number of migrations of this process's code that are still to be applied."""
    return len(_migrations() - applied_migrations(connection))


def applied_migrations(connection: BaseDatabaseWrapper) -> set[tuple[str, str]]:
    """The migrations that were applied, by app and name; none before the first."""
    with connection.cursor() as cursor:  # Django's recorder would ask the connection of the alias.
        cursor.execute("SELECT to_regclass('django_migrations') IS NOT NULL")
        (has_any,) = cursor.fetchone()
        if has_any:
            cursor.execute("SELECT app, name FROM django_migrations")
            return set(cursor.fetchall())
    return set()


@cache
def _migrations() -> frozenset[tuple[str, str]]:
    loader = MigrationLoader(None)
    assert loader.disk_migrations is not None
    return frozenset(loader.disk_migrations)
