"""Alignment by channel: one record per channel, from a stored row per input gate."""

from dataclasses import dataclass, fields
from typing import Any

from django.db import connection

from checkpoints.models import Checkpoint
from controlplane.base.rest.pagination import Page, bad_cursor

# The names that `?ordering=` accepts, as columns of the query below.
ORDERINGS = {
    "place": ("operator", "index", "gate", "channel"),
    "blocked_ms": ("blocked_ms", "operator", "index", "gate", "channel"),
    "arrived_ms": ("arrival_ms", "operator", "index", "gate", "channel"),
    "in_flight_bytes": ("in_flight_bytes", "operator", "index", "gate", "channel"),
}
_INTEGERS = frozenset({"index", "gate", "channel"})
_BIG_INTEGERS = frozenset({"in_flight_bytes"})
_FLOATS = frozenset({"blocked_ms", "arrival_ms"})
_ENDED_MS = -1.0  # Sorts a channel whose input had ended before all others.
_INTEGER_MAX = 2**31 - 1
_BIG_INTEGER_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel's delivery of a barrier."""

    operator: str
    index: int
    gate: int
    channel: int
    upstream: str
    arrived_ms: float | None
    blocked_ms: float
    bytes_during: int
    in_flight_bytes: int

    @property
    def arrival_ms(self) -> float:
        """The time by which it is sorted: before all others where its input had ended."""
        return _ENDED_MS if self.arrived_ms is None else self.arrived_ms


_COLUMNS = ", ".join(f'"{field.name}"' for field in fields(Channel))
# A checkpoint has as many channels as its gates' arrays have entries; sorting them costs less than
# reading them, so the index on the checkpoint is the only one needed.
_QUERY = f"""
    SELECT {_COLUMNS} FROM (
        SELECT a.operator, a.index, a.gate, c.channel - 1 AS channel,
               c.upstream, c.arrived_ms, c.blocked_ms, c.bytes_during,
               coalesce(c.in_flight, 0) AS in_flight_bytes,
               coalesce(c.arrived_ms, {_ENDED_MS}) AS arrival_ms
        FROM checkpoints_gatealignment a
        CROSS JOIN LATERAL
            unnest(a.upstream, a.arrived_ms, a.blocked_ms, a.bytes_during, a.in_flight)
            WITH ORDINALITY
            AS c (upstream, arrived_ms, blocked_ms, bytes_during, in_flight, channel)
        WHERE a.checkpoint_id = %s AND (%s = '' OR a.operator = %s)
    ) AS channels
    WHERE {{condition}}
    ORDER BY {{order}}
    LIMIT %s
"""


def channels(checkpoint: Checkpoint, page: Page, operator: str = "") -> list[Channel]:
    """The channels of a page, of all operators or of one."""
    direction, comparison = ("DESC", "<") if page.is_descending else ("ASC", ">")
    columns = [f'"{column}"' for column in page.columns]
    condition, values = "TRUE", []
    if page.cursor is not None:
        values = _typed(page)
        placeholders = ", ".join(["%s"] * len(values))
        condition = f"({', '.join(columns)}) {comparison} ({placeholders})"
    query = _QUERY.format(
        condition=condition, order=", ".join(f"{column} {direction}" for column in columns)
    )
    with connection.cursor() as cursor:
        cursor.execute(query, [checkpoint.pk, operator, operator, *values, page.size + 1])
        return [Channel(*row) for row in cursor.fetchall()]


def position(page: Page, channel: Channel) -> tuple[Any, ...]:
    """The cursor's values for a page that ends with this channel."""
    return tuple(getattr(channel, column) for column in page.columns)


def _typed(page: Page) -> list[Any]:
    """The cursor's values, each of its column's type.

    Raises:
        ValidationError: A value is not of its column's type.
    """
    assert page.cursor is not None
    for column, value in zip(page.columns, page.cursor.values, strict=True):
        if column in _INTEGERS:
            fits = type(value) is int and 0 <= value <= _INTEGER_MAX
        elif column in _BIG_INTEGERS:
            fits = type(value) is int and 0 <= value <= _BIG_INTEGER_MAX
        elif column in _FLOATS:
            fits = type(value) in (int, float) and abs(value) < 1e300
        else:
            fits = type(value) is str and "\0" not in value
        if not fits:
            raise bad_cursor("malformed")
    return list(page.cursor.values)
