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
