"""Aggregates over columns, for one key."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from weir.common.row import rows_of


def aggregated(
    columns: Sequence[str] | None,
    key: Any,
    rows: Sequence[Any],
    bounds: Mapping[str, int],
    aggregates: Mapping[str, tuple[str, str]],
) -> Any:
    """The row of a key: its columns, the bounds of its window if it has one, and aggregates."""
    assert columns is not None
    keys = (key,) if len(columns) == 1 else key
    named = dict(zip(columns, keys, strict=True)) | dict(bounds)
    for name, (column, function) in aggregates.items():
        if column == "*":
            named[name] = len(rows)
            continue
        values = [row[column] for row in rows if row[column] is not None]
        named[name] = _FUNCTIONS[function](values) if values or function == "count" else None
    return rows_of(tuple(named), [tuple(named.values())])[0]


_FUNCTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "sum": sum,
    "count": len,
    "min": min,
    "max": max,
    "mean": lambda values: sum(values) / len(values),
}
