"""The audit log as text: CSV for spreadsheets, JSON lines for programs, oldest entries first.

JSON lines have every value as it is stored, with number and digest, so that the chain can be
verified anywhere (``controlplane.audit.chain``), unless the caller hides some. In CSV a text that
a spreadsheet would calculate, because it begins with one of ``= + - @``, has an apostrophe before
it.

Source: OWASP, CSV Injection.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from enum import StrEnum
from typing import Any

from django.db.models import Q, QuerySet

from controlplane.audit.models import AuditEntry

BATCH = 1_000
COLUMNS = (
    *("number", "id", "at", "last_at", "count", "actor_name", "action", "target"),
    *("before", "after", "address", "request_id", "digest"),
)
_CALCULATED = ("=", "+", "-", "@", "\t", "\r")


class Format(StrEnum):
    """The forms of an export."""

    CSV = "csv"
    JSONL = "jsonl"


CONTENT_TYPES = {Format.CSV: "text/csv", Format.JSONL: "application/jsonl"}


def export(
    entries: QuerySet[AuditEntry], form: Format, hide: Callable[[Any], Any] = lambda value: value
) -> Iterator[str]:
    """The entries as text, in parts of some thousand lines. One query for each part.

    Args:
        hide: Applied to the values before and after a change.
    """
    if form is Format.CSV:
        yield _csv([COLUMNS])
    for batch in _batches(entries):
        for entry in batch:
            entry.before, entry.after = hide(entry.before), hide(entry.after)
        if form is Format.CSV:
            yield _csv([[_cell(getattr(entry, name)) for name in COLUMNS] for entry in batch])
        else:
            yield "".join(f"{_line(entry)}\n" for entry in batch)


def _batches(entries: QuerySet[AuditEntry]) -> Iterator[list[AuditEntry]]:
    """The entries by time, each batch found by the last entry of the one before."""
    ordered = entries.order_by("at", "id")
    batch = list(ordered[:BATCH])
    while batch:
        yield batch
        at, pk = batch[-1].at, batch[-1].pk
        # The first condition alone is enough for the index to begin in the right place.
        batch = list(ordered.filter(Q(at__gt=at) | Q(at=at, pk__gt=pk), at__gte=at)[:BATCH])


def _line(entry: AuditEntry) -> str:
    values = {name: _plain(getattr(entry, name)) for name in COLUMNS}
    return json.dumps(values, ensure_ascii=False)


def _csv(rows: Any) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\r\n").writerows(rows)  # RFC 4180.
    return text.getvalue()


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        value = json.dumps(value, ensure_ascii=False)
    value = _plain(value)
    is_calculated = isinstance(value, str) and value.startswith(_CALCULATED)
    return f"'{value}" if is_calculated else value


def _plain(value: Any) -> Any:
    return value.isoformat() if isinstance(value, datetime) else value
