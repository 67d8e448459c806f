"""The windows of one slice of records, with the watermarks between these.

A window *closes* at the row behind the first watermark that passes its last moment: rows of it from
there on are late. A slice of a fast stream closes many windows, most of which it began as well.
Such a window *passes*: it has all its rows here, so its aggregates need no table in the state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.watermarks import Ints, Watermarks
from weir.operators.aggregates import (
    AggregateSpec,
    PartColumn,
    aggregates_of,
    merge_rows,
    sums_fit,
)
from weir.operators.row_groups import group_rows
from weir.operators.windows.window_assigners import Bounds
from weir.protocol.elements import MAX_WATERMARK_MS

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class SliceWindows:
    """The windows of a slice's rows.

    Shape: of the distinct windows ``starts`` ascends, ``closes_at`` has the first row that is late
    for it, or the number of rows, and ``has_closed`` whether a watermark has passed it by the end
    of the slice; ``codes`` has the index of its window for every row.
    """

    starts: Ints
    size_ms: int
    closes_at: Ints
    has_closed: Mask
    codes: npt.NDArray[np.intp]

    @classmethod
    def around(
        cls, starts: Ints, size_ms: int, closed_ms: int, watermarks: Watermarks | None
    ) -> Self:
        """The windows around rows.

        Args:
            starts: The start of every row's window.
            size_ms: The length of all of them.
            closed_ms: Windows whose last moment is not behind this have closed before the slice.
            watermarks: Those within the slice.
        """
        distinct, codes = _distinct(starts, size_ms)
        # A window around the end of event time has no last moment of its own.
        last_ms = np.minimum(distinct, MAX_WATERMARK_MS - size_ms) + (size_ms - 1)
        closes_at = np.full(len(distinct), len(starts))
        has_closed = last_ms <= closed_ms
        if watermarks is not None:
            passed_by = np.searchsorted(watermarks.times_ms, last_ms)
            closes = passed_by < len(watermarks.behind)
            closes_at[closes] = watermarks.behind[passed_by[closes]]
            closes_at[has_closed] = 0
            return cls(distinct, size_ms, closes_at, has_closed | closes, codes)
        closes_at[has_closed] = 0
        return cls(distinct, size_ms, closes_at, has_closed, codes)

    def __len__(self) -> int:
        return len(self.starts)

    def bounds(self, index: int) -> Bounds:
        """Start and end of a window."""
        start = int(self.starts[index])
        return start, start + self.size_ms

    def in_time(self) -> Mask:
        """The rows that are not late."""
        if not self.has_closed.any():
            return np.ones(len(self.codes), np.bool_)
        return np.arange(len(self.codes)) < self.closes_at[self.codes]


def rows_by_window(codes: npt.NDArray[np.intp]) -> dict[int, npt.NDArray[np.intp]]:
    """The rows of each window that has any, in their order, from the index of each row's window."""
    if not len(codes):
        return {}
    # Numbers this narrow are sorted by radix.
    narrow = codes.astype(np.uint16) if len(codes) < 1 << 16 else codes
    order = np.argsort(narrow, kind="stable")
    present, firsts = np.unique(codes[order], return_index=True)
    return dict(zip(present.tolist(), np.split(order, firsts[1:]), strict=True))


def passing_windows(
    keys: Sequence[pa.Array],
    parts: Sequence[PartColumn],
    windows: SliceWindows,
    rows: npt.NDArray[np.intp],
    specs: Sequence[AggregateSpec],
) -> tuple[list[pa.Array], tuple[Ints, Ints], list[pa.Array]] | None:
    """Keys, bounds and aggregates of the windows whose rows are all among ``rows``.

    None: a sum leaves 64 bits on its way, which only a table judges.
    """
    taken = pa.array(rows)
    codes = windows.codes[rows]
    chosen = [_plain(key.take(taken)) for key in keys]
    groups = group_rows([*chosen, pa.array(codes)]).in_order
    grouped = [PartColumn(p.part, p.values[rows], p.own_type) for p in parts]
    if not all(sums_fit(p, groups) for p in grouped):
        return None
    first = pa.array(groups.first_rows)
    starts = windows.starts[codes[groups.first_rows]]
    aggregates = aggregates_of([merge_rows(p, groups) for p in grouped], specs)
    return [key.take(first) for key in chosen], (starts, starts + windows.size_ms), aggregates


def are_equal_as_columns(keys: Sequence[pa.Array]) -> bool:
    """Whether keys are the same key just where these columns have equal values.

    It is not so of floats, whose zeros and NaN have one canonical form each, and not known of
    others. Of several columns one with a dictionary would come back as another type.
    """
    kinds = [key.type for key in keys]
    return all(map(_is_exact, kinds)) and not (
        len(kinds) > 1 and any(map(pa.types.is_dictionary, kinds))
    )


def _is_exact(kind: pa.DataType) -> bool:
    kind = _value_type(kind)
    return bool(
        pa.types.is_integer(kind)
        or pa.types.is_string(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
    )


def _value_type(kind: pa.DataType) -> pa.DataType:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _plain(column: pa.Array) -> pa.Array:
    kind = _value_type(column.type)
    return column if kind is column.type else column.cast(kind)


def _distinct(starts: Ints, size_ms: int) -> tuple[Ints, npt.NDArray[np.intp]]:
    """The distinct starts in ascending order, and the index of each row's."""
    low, high = int(starts.min()), int(starts.max())
    span = (high - low) // size_ms + 1
    if span == 1:
        return np.array([low]), np.zeros(len(starts), np.intp)
    if span > len(starts):  # An array indexed by window would be longer than the slice.
        return np.unique(starts, return_inverse=True)
    numbers = (starts - low) // size_ms
    present = np.zeros(span, np.bool_)
    present[numbers] = True
    return np.flatnonzero(present) * size_ms + low, (np.cumsum(present) - 1)[numbers]
