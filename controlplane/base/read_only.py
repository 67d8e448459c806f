"""A database that takes no writes is one that is away: its connection is closed, and tried anew.

A server that has become a standby, or was made read-only because its storage is full, still answers
statements that only read. A connection from before a fail-over would stay with such a server for
ever; once it is closed, the next one finds the server to which the address leads by then.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import InternalError, OperationalError
from django.db.backends.base.base import BaseDatabaseWrapper

logger = logging.getLogger(__name__)

SAID = "takes no writes: it is a standby, or was made read-only"
SQLSTATE = "25006"  # read_only_sql_transaction. Source: PostgreSQL, appendix A.


class DatabaseReadOnly(OperationalError):
    """A statement that writes reached a database that takes no writes."""


def note_connection(connection: BaseDatabaseWrapper, **_: Any) -> None:
    """Have a connection closed by the first write that is refused; for ``connection_created``."""
    if _execute not in connection.execute_wrappers:
        connection.execute_wrappers.append(_execute)


def _execute(
    execute: Callable[..., Any], sql: str, params: Any, many: bool, context: dict[str, Any]
) -> Any:
    try:
        return execute(sql, params, many, context)
    except InternalError as error:
        if getattr(error.__cause__, "pgcode", None) != SQLSTATE:
            raise
        context["connection"].close()
        raise DatabaseReadOnly(f"the database {SAID}") from error.__cause__


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
