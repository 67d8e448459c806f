"""Look-ups of one row by a unique key."""

from typing import TypeVar

from django.db.models import Model, QuerySet

T = TypeVar("T", bound=Model)


def only(rows: QuerySet[T]) -> T | None:
    """The row that a unique key selects; None: there is none.

    ``first`` would order the rows: a fifth of the time that such a query takes.
    """
    return next(iter(rows[:1]), None)
