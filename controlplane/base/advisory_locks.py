"""Locks on what has no row to be locked, by name."""

from collections.abc import Iterable

from django.db import connection


def lock(names: Iterable[str]) -> None:
    """Wait for whoever has one of these names; all are this transaction's until it ends.

    Whoever also locks a job does that first.
    """
    with connection.cursor() as cursor:
        for name in sorted(set(names)):  # In one order, so that no two wait for each other.
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [name])
