"""The report on retention: for each rule, the rows that are kept, their size, and when they go.

Large tables are not counted: the database's own estimate is enough to see whether one grows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db import connection

from controlplane.retention.models import Tally
from controlplane.retention.rules import RULES, Rule

COUNTED_MAX = 10_000  # A table that the database has not measured yet is counted up to here.


@dataclass(frozen=True, slots=True)
class Kept:
    """The rows of one rule."""

    rule: Rule
    rows: int
    is_estimate: bool
    size: int  # Bytes on the disk, with indices and the tables that belong to it.
    oldest: datetime | None  # Of the rows that may go.
    goes_at: datetime | None  # When that one does; in the past: with the next looks. None: never.
    tally: Tally


@dataclass(frozen=True, slots=True)
class _Table:
    rows: int
    is_estimate: bool
    size: int


def kept_rows() -> list[Kept]:
    """All rules in the order of the table: two queries, and one for each rule."""
    tallies = {tally.kind: tally for tally in Tally.objects.filter(place="")}
    tables = _tables(
        sorted({m._meta.db_table for rule in RULES for m in (rule.model, *rule.parts)})
    )
    return [_kept(rule, tables, tallies.get(rule.kind) or Tally(kind=rule.kind)) for rule in RULES]


def kept_files() -> Sequence[Tally]:
    """The files of drivers, by machine."""
    return list(Tally.objects.exclude(place="").order_by("kind", "place"))


def latest_look() -> datetime | None:
    """The time of the newest look at any rule; None: there was none yet."""
    newest = Tally.objects.exclude(looked_at=None).order_by("-looked_at").first()
    return None if newest is None else newest.looked_at


def removed_in_all() -> dict[str, int]:
    """Rows and files removed so far, by kind."""
    removed: dict[str, int] = {rule.kind: 0 for rule in RULES}
    for kind, count in Tally.objects.values_list("kind", "removed"):
        removed[kind] = removed.get(kind, 0) + count
    return removed


def _kept(rule: Rule, tables: Mapping[str, _Table], tally: Tally) -> Kept:
    own = tables[rule.model._meta.db_table]
    removable = rule.model._default_manager.filter(rule.removable, **{f"{rule.age}__isnull": False})
    oldest = removable.order_by(rule.age).values_list(rule.age, flat=True).first()
    return Kept(
        rule=rule,
        rows=own.rows,
        is_estimate=own.is_estimate,
        size=own.size + sum(tables[part._meta.db_table].size for part in rule.parts),
        oldest=oldest,
        goes_at=_end(oldest, rule.days_kept),
        tally=tally,
    )


def _end(oldest: datetime | None, days: int) -> datetime | None:
    """The end of so many days, 0 for never; None also where no calendar has it."""
    if oldest is None or not days:
        return None
    try:
        return oldest + timedelta(days=days)
    except OverflowError:  # Times of rows can be anything.
        return None


def _tables(names: Sequence[str]) -> dict[str, _Table]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT relname, reltuples::bigint, pg_total_relation_size(oid) FROM pg_class "
            "WHERE oid = ANY(SELECT to_regclass(name) FROM unnest(%s::text[]) AS name)",
            [[connection.ops.quote_name(name) for name in names]],
        )
        measured = {name: _Table(rows, True, size) for name, rows, size in cursor.fetchall()}
        for name, table in measured.items():
            if table.rows < COUNTED_MAX:  # -1 where it was never measured.
                quoted = connection.ops.quote_name(name)
                limited = f"SELECT 1 FROM {quoted} LIMIT {COUNTED_MAX}"
                cursor.execute(f"SELECT count(*) FROM ({limited}) AS first")
                (rows,) = cursor.fetchone()
                measured[name] = _Table(rows, rows == COUNTED_MAX, table.size)
    return measured
