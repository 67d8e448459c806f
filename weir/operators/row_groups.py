"""Groups of equal rows in a slice, numbered from 0, so that arrays can be indexed by group."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Indices = npt.NDArray[np.int64]

SCRATCH_SLOTS_MAX = 1 << 23  # 32 MiB.


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of n rows.

    Shape: ``codes`` has one group number per row, ``first_rows`` the first row of each group.
    """

    codes: Indices
    first_rows: Indices

    @property
    def in_order(self) -> "Groups":
        """The same groups, numbered in the order of their first rows."""
        order = np.argsort(self.first_rows)
        number = np.empty_like(order)
        number[order] = np.arange(len(order))
        return Groups(number[self.codes], self.first_rows[order])

    @property
    def is_identity(self) -> bool:
        """Whether every row is a group of its own."""
        return len(self.codes) == len(self.first_rows)


def group_rows(columns: Sequence[pa.Array]) -> Groups:
    """The groups of rows that are equal in all columns; nulls equal each other."""
    codes, span = _codes(columns[0])
    for column in columns[1:]:
        more, more_span = _codes(column)
        # No span is longer than the slice, so their product fits.
        codes, span = _narrow(codes * more_span + more, 0, span * more_span)
    first_at = _first_rows(codes, span)
    in_use = first_at >= 0
    first_rows = first_at[in_use]
    if len(first_rows) == len(codes):
        return _identity(len(codes))
    if len(first_rows) < span:
        codes = (np.cumsum(in_use) - 1)[codes]
    return Groups(codes, first_rows)


class SlotGrouper:
    """Groups rows by table slot, with a scratch array as long as the table instead of a sort.

    A table may be larger than memory: of a very long one the rows are hashed, in three times as
    long.
    """

    def __init__(self) -> None:
        # Four bytes a slot: of a large table, fewer reads go past the processor's cache.
        self._first_at: npt.NDArray[np.int32] = np.empty(0, np.int32)

    def first_rows(self, slots: Indices, slot_count: int) -> Indices:
        """The first row of each slot, in order; slots lie below ``slot_count``."""
        return self._firsts(slots, slot_count)[1]

    def group(self, slots: Indices, slot_count: int) -> Groups:
        """The groups of rows of the same slot, in the order in which slots first appear.

        Slots lie below ``slot_count``.
        """
        first, first_rows = self._firsts(slots, slot_count)
        if len(first_rows) == len(slots):
            return _identity(len(slots))
        codes = np.empty(len(slots), np.int64)
        codes[first_rows] = np.arange(len(first_rows))
        return Groups(codes[first], first_rows)

    def _firsts(self, slots: Indices, slot_count: int) -> tuple[npt.NDArray[Any], Indices]:
        """The first row with the slot of each row, and the rows that are first."""
        if slot_count > SCRATCH_SLOTS_MAX:
            self._first_at = np.empty(0, np.int32)
            codes, span = _encoded(pa.array(slots))
            first_rows = _first_rows(codes, span)
            return first_rows[codes], first_rows
        if len(self._first_at) < slot_count:
            self._first_at = np.empty(min(2 * slot_count, SCRATCH_SLOTS_MAX), np.int32)
        rows = np.arange(len(slots), dtype=np.int32)
        self._first_at[slots[::-1]] = rows[::-1]
        first = self._first_at.take(slots)
        return first, np.flatnonzero(first == rows)


def _first_rows(codes: Indices, span: int) -> Indices:
    """The first row of each code; -1: no row has it."""
    first_at = np.full(span, -1, np.int64)
    first_at[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # The first one is written last.
    return first_at


def _identity(count: int) -> Groups:
    rows = np.arange(count)
    return Groups(rows, rows)


def _codes(column: pa.Array) -> tuple[Indices, int]:
    """A code per row, equal where the values are, and a number above all codes."""
    kind = column.type
    if pa.types.is_integer(kind) and not pa.types.is_uint64(kind) and not column.null_count:
        values = column.to_numpy().astype(np.int64, copy=False)
        if len(values):
            low, high = int(values.min()), int(values.max())
            return _narrow(values, low, high - low + 1)
    if pa.types.is_dictionary(kind):
        # A dictionary may hold values that no row has, and one value twice.
        column = column.cast(kind.value_type)
    return _encoded(column)


def _narrow(values: Indices, low: int, span: int) -> tuple[Indices, int]:
    """Codes of values from ``low`` to below ``low + span``."""
    # A value is its own code where the arrays indexed by code get no longer than the slice: that
    # spares hashing every row. For longer ones hashing is as fast.
    if span <= len(values):
        return values - low, span
    return _encoded(pa.array(values))


def _encoded(column: pa.Array) -> tuple[Indices, int]:
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
