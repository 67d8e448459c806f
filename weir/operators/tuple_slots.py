"""Table slots of tuple keys, looked up without making a tuple per row.

A table looks tuples up one by one, as Python values, since only their canonical form decides the
key group. This index in front of the table does so once per distinct key: it numbers the values of
each key column, joins the numbers of a row pair by pair into one number, and keeps the slot of that
number. The index is not part of the state; after a restore it is built anew as keys arrive.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from weir.errors import KeyTypeError
from weir.operators.row_groups import Indices
from weir.state.integer_index import IntegerIndex

if TYPE_CHECKING:
    from weir.state.changed_rows import Slots
    from weir.state.columnar import ColumnarTable

_SIZE_MIN = 1_024
_UNKNOWN = -1


class TupleSlots:
    """The slots of rows of several key columns, for one table and one list of column types."""

    def __init__(self, table: "ColumnarTable", kinds: Sequence[pa.DataType]) -> None:
        self._table = table
        self._columns = [_index_for(kind) for kind in kinds]
        self._joins = [IntegerIndex() for _ in kinds[1:]]
        self._slots: Indices = np.empty(0, np.int64)

    def slots_of(self, columns: Sequence[pa.Array]) -> "Slots":
        """The slot of every row; a key not seen before gets a new one.

        Raises:
            KeyTypeError: A key has no canonical encoding.
            ProtocolError: A key belongs to another subtask.
        """
        codes = self._columns[0].codes(columns[0])
        for column, index, join in zip(columns[1:], self._columns[1:], self._joins, strict=True):
            codes = join.add(codes << 32 | index.codes(column))
        self._make_room(len(self._joins[-1]))
        slots: Indices = self._slots[codes]
        unknown = np.flatnonzero(slots == _UNKNOWN)
        if len(unknown):
            new, at = np.unique(codes[unknown], return_index=True)
            rows = pa.array(unknown[at])
            self._slots[new] = self._table.slots_of(tuples_of([c.take(rows) for c in columns]))
            slots = self._slots[codes]
        return slots

    def _make_room(self, count: int) -> None:
        if count > len(self._slots):
            grown = np.full(max(count, 2 * len(self._slots), _SIZE_MIN), _UNKNOWN, np.int64)
            grown[: len(self._slots)] = self._slots
            self._slots = grown


def tuples_of(columns: Sequence[pa.Array]) -> list[tuple[Any, ...]]:
    """The rows of several columns as tuples."""
    return list(zip(*(column.to_pylist() for column in columns), strict=True))


class _IntegerIndex:
    def __init__(self) -> None:
        self._numbers = IntegerIndex()

    def codes(self, column: pa.Array) -> Indices:
        if not column.null_count:
            return self._numbers.add(column.cast(pa.int64()).to_numpy()) + 1
        codes = np.zeros(len(column), np.int64)  # Null is 0.
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        known = column.drop_null().cast(pa.int64()).to_numpy()
        codes[valid] = self._numbers.add(known) + 1
        return codes


class _ValueIndex:
    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def codes(self, column: pa.Array) -> Indices:
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        encoded = column.dictionary_encode(null_encoding="encode")
        known = self._numbers
        values = encoded.dictionary.to_pylist()
        numbers = np.array([known.setdefault(value, len(known)) for value in values], np.int64)
        codes: Indices = numbers[encoded.indices.to_numpy()]
        return codes


def _index_for(kind: pa.DataType) -> _IntegerIndex | _ValueIndex:
    if pa.types.is_nested(kind):
        raise KeyTypeError(
            f"a key column of type {kind} has no canonical encoding; name its fields"
        )
    is_int64 = pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
    return _IntegerIndex() if is_int64 else _ValueIndex()
