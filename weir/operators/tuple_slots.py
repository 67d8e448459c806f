"""Table slots of tuple keys, looked up without making a tuple per row.

A table looks tuples up one by one, as Python values, since only their canonical form decides the
key group. This index in front of the table does so once per distinct key: it numbers the values of
each key column, joins the numbers of a row pair by pair into one number, and keeps the slot of that
number. It lies in arrays of the same kind as the table, and is not part of the state; after a
restore it is built anew as keys arrive.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from weir.errors import KeyTypeError
from weir.operators.row_groups import Indices
from weir.state.columns.integer_index import IntegerIndex
from weir.state.columns.key_index import KeyIndex

if TYPE_CHECKING:
    from weir.state.columns.changed_rows import Slots
    from weir.state.columns.table import ColumnarTable

_SIZE_MIN = 1_024
_UNKNOWN = 0  # The slot of the null key, which is no tuple.


class TupleSlots:
    """The slots of rows of several key columns, for one table and one list of column types."""

    def __init__(self, table: "ColumnarTable", kinds: Sequence[pa.DataType]) -> None:
        """No row was looked up so far.

        Raises:
            KeyTypeError: A column is nested.
        """
        self._table = table
        self._arrays = table.arrays
        self._columns = [KeyIndex(_plain(kind), self._arrays) for kind in kinds]
        self._joins = [IntegerIndex(self._arrays) for _ in kinds[1:]]
        self._slots: Indices = self._arrays.zeros(_SIZE_MIN, np.int64)

    def slots_of(self, columns: Sequence[pa.Array]) -> "Slots":
        """The slot of every row; a key not seen before gets a new one.

        Raises:
            KeyTypeError: A key has no canonical encoding.
            ProtocolError: A key belongs to another subtask.
        """
        codes = self._columns[0].add(columns[0])
        for column, index, join in zip(columns[1:], self._columns[1:], self._joins, strict=True):
            codes = join.add(codes << 32 | index.add(column))
        if (count := len(self._joins[-1])) > len(self._slots):
            self._slots = self._arrays.grown(self._slots, count)
        slots: Indices = self._slots[codes]
        unknown = np.flatnonzero(slots == _UNKNOWN)
        if len(unknown):
            new, at = np.unique(codes[unknown], return_index=True)
            rows = pa.array(unknown[at])
            self._slots[new] = self._table.slots_of(tuples_of([c.take(rows) for c in columns]))
            slots = self._slots[codes]
        return slots


def tuples_of(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    """The rows of several columns as tuples."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of a key column's values."""
    if pa.types.is_nested(kind):
        raise KeyTypeError(
            f"a key column of type {kind} has no canonical encoding; name its fields"
        )
    return kind.value_type if pa.types.is_dictionary(kind) else kind
