"""Advisory locks by name, for things without a row."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from django.db import connection
from django.db.backends.base.base import BaseDatabaseWrapper

LOOK_AGAIN_S = 0.5


def lock(names: Iterable[str]) -> None:
    """Take the locks of these names, waiting for their holders; kept until the transaction ends.

    A transaction that also locks a job's row locks that row first.
    """
    with connection.cursor() as cursor:
        for name in sorted(set(names)):  # In one order, so that no two wait for each other.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])


def try_lock(name: str, database: BaseDatabaseWrapper = connection) -> bool:
    """Take the lock of a name until the transaction ends, unless another transaction has it."""
    with database.cursor() as cursor:
        cursor.execute("SELECT pg_try_advisory_xact_lock(hashtextextended(%s, 0))", [name])
        (is_taken,) = cursor.fetchone()
    return bool(is_taken)


@contextmanager
def held_beside(name: str, waits: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a name by a connection of its own, for work that takes many transactions.

    It is looked for again and again: an index that the holder builds concurrently would wait for a
    statement that waits for the lock. ``waits`` is called once, where the lock is not free.
    """
    other = connection.copy()
    try:
        other.set_autocommit(False)
        if not try_lock(name, other):
            waits()
            while not try_lock(name, other):
                other.rollback()
                time.sleep(LOOK_AGAIN_S)
        yield
    finally:
        other.close()
