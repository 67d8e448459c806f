"""Which rows of a slice belong together, as numbers from 0 that arrays can be indexed by."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Groups:
    """The groups of n rows.

    Shape: ``codes`` has one group number per row, ``first_rows`` one row per group, in the order in
    which the groups first appear.
    """

    codes: Indices
    first_rows: Indices

    @property
    def is_identity(self) -> bool:
        """Whether every row is a group of its own."""
        return len(self.codes) == len(self.first_rows)


def group_rows(columns: Sequence[pa.Array]) -> Groups:
    """Rows that are equal in all columns; nulls equal each other."""
    codes, count = _codes(columns[0])
    for column in columns[1:]:
        more, more_count = _codes(column)
        # At most 8,192 rows a slice, so both counts are small and their product fits.
        codes, count = _codes(pa.array(codes * more_count + more))
    first_rows = np.empty(count, np.int64)
    first_rows[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)  # The first one is written last.
    return Groups(codes, first_rows)


class SlotGrouper:
    """Groups rows by table slot, with a scratch array as long as the table instead of a sort."""

    def __init__(self) -> None:
        self._first_at: Indices = np.empty(0, np.int64)

    def group(self, slots: Indices, slot_count: int) -> Groups:
        """Rows of the same slot; slots lie below ``slot_count``."""
        if len(self._first_at) < slot_count:
            self._first_at = np.empty(2 * slot_count, np.int64)
        rows = np.arange(len(slots))
        self._first_at[slots[::-1]] = rows[::-1]
        first = self._first_at[slots]
        is_first = first == rows
        first_rows = np.flatnonzero(is_first)
        if len(first_rows) == len(slots):
            return Groups(rows, rows)
        return Groups((np.cumsum(is_first) - 1)[first], first_rows)


def _codes(column: pa.Array) -> tuple[Indices, int]:
    if pa.types.is_dictionary(column.type):
        # It may hold values that no row has, and one value twice.
        column = column.cast(column.type.value_type)
    encoded = column.dictionary_encode(null_encoding="encode")
    return encoded.indices.to_numpy().astype(np.int64), len(encoded.dictionary)
