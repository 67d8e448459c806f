"""Advisory locks by name, for things without a row."""

from collections.abc import Iterable

from django.db import connection


def lock(names: Iterable[str]) -> None:
    """Take the locks of these names, waiting for their holders; kept until the transaction ends.

    A transaction that also locks a job's row locks that row first.
    """
    with connection.cursor() as cursor:
        for name in sorted(set(names)):  # In one order, so that no two wait for each other.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])


def try_lock(name: str) -> bool:
    """Take the lock of a name until the transaction ends, unless another transaction has it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [name])
        (is_taken,) = cursor.fetchone()
    return bool(is_taken)
