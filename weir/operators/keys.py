"""The key of a record, computed the same way where records are sent and where they arrive."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter, length_hint
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from weir.common.batch import Batch
from weir.common.row import Row
from weir.common.typeinfo import TypeInformation
from weir.errors import KeyTypeError, UserError, WeirError
from weir.graph import key_groups as scalar
from weir.ids import KeyGroupRange
from weir.operators.partition import key_groups_of
from weir.operators.user_code import all_handled, failure_at, short_repr

KeyGroups = npt.NDArray[np.uint16]


class RowKeySelector(Protocol):
    """Computes keys for the runtime and the keyed operators."""

    @property
    def column_names(self) -> tuple[str, ...] | None:
        """The key's columns, or None where a function computes it."""

    @property
    def label(self) -> str:
        """The selector as errors name it: ``key_by (pipeline.py:12)``."""

    def keys_of_rows(self, rows: Sequence[Any]) -> list[Any]:
        """The key of every row."""

    def keys_of(self, batch: Batch) -> list[Any]:
        """The key of every record, from the batch's columns or rows, whichever it has."""


@dataclass(frozen=True, slots=True)
class FunctionKeySelector:
    """A key computed by the user's function, normalised by ``key_type`` where that is declared."""

    function: Callable[[Any], Any]
    key_type: TypeInformation | None = None
    column_names: None = None
    location: str = field(default="", compare=False)  # Of the call of key_by, for messages.

    @property
    def label(self) -> str:
        """The selector as errors name it: ``key_by (pipeline.py:12)``."""
        return _label(self.location)

    def keys_of_rows(self, rows: Sequence[Any]) -> list[Any]:
        """The key of every row.

        Raises:
            SubtaskError: The function raised; the message names the record.
            KeyTypeError: A key does not fit ``key_type``.
        """
        left = iter(rows)
        try:
            function = self.function
            keys = [function(row) for row in left]
        except WeirError:
            raise
        except Exception as error:
            raise failure_at(f"the function of {self.label}", rows, left, error) from error
        all_handled(self.label, left)
        return keys if self.key_type is None else _as_type(keys, self.key_type, self.label)

    def keys_of(self, batch: Batch) -> list[Any]:
        """The key of every record."""
        return self.keys_of_rows(batch.rows)


@dataclass(frozen=True, slots=True)
class ColumnKeySelector:
    """A key that is one column, or the tuple of several."""

    column_names: tuple[str, ...]
    location: str = field(default="", compare=False)  # Of the call of key_by, for messages.

    @property
    def label(self) -> str:
        """The selector as errors name it: ``key_by (pipeline.py:12)``."""
        return _label(self.location)

    def keys_of_rows(self, rows: Sequence[Any]) -> list[Any]:
        """The key of every row; fields are read by name.

        Raises:
            UserError: A row has no field of such a name.
        """
        left = iter(rows)
        try:
            return list(map(itemgetter(*self.column_names), left))
        except (KeyError, TypeError, IndexError) as error:
            record = rows[len(rows) - length_hint(left) - 1]
            raise UserError(
                f"{self.label} names the field {', '.join(map(repr, self.column_names))}, which "
                f"the record {short_repr(record)} does not have{_fields_of(record)}; give key_by "
                "a function, such as lambda record: record[0], or records with named fields"
            ) from error

    def keys_of(self, batch: Batch) -> list[Any]:
        """The key of every record."""
        if not batch.is_columnar:
            return self.keys_of_rows(batch.rows)
        columns = [column.to_pylist() for column in self.columns_of(batch)]
        return columns[0] if len(columns) == 1 else list(zip(*columns, strict=True))

    def columns_of(self, batch: Batch) -> list[pa.Array]:
        """The key columns.

        Raises:
            UserError: The records have no such column.
            KeyTypeError: A column holds NaN.
        """
        columns = batch.columns
        names = columns.schema.names
        if missing := [name for name in self.column_names if name not in names]:
            raise UserError(
                f"{self.label} names the column {', '.join(missing)}, which the records do not "
                f"have; they have {', '.join(names)}"
            )
        arrays = [columns.column(name) for name in self.column_names]
        for name, array in zip(self.column_names, arrays, strict=True):
            if pa.types.is_floating(array.type) and pc.any(refused := pc.is_nan(array)).as_py():
                row = short_repr(batch.rows[pc.index(refused, True).as_py()])
                raise KeyTypeError(
                    f"{self.label} got the key nan of the column {name} from the record {row}: "
                    f"{scalar.NAN_KEY}"
                )
        return arrays


def _label(location: str) -> str:
    return f"key_by ({location})" if location else "key_by"


def _fields_of(record: Any) -> str:
    names = record.field_names if isinstance(record, Row) else record
    if isinstance(record, Row | dict) and names:
        return f" (it has {', '.join(map(str, names))})"
    return ""


def refused_key(
    selector: RowKeySelector, keys: Sequence[Any], rows: Sequence[Any], error: KeyTypeError
) -> KeyTypeError:
    """The error for the first record whose key has no key group; ``error`` if there is none."""
    for key, row in zip(keys, rows, strict=True):
        try:
            scalar.key_group(key, 1)
        except KeyTypeError as exact:
            named = f" of {', '.join(selector.column_names)}" if selector.column_names else ""
            return KeyTypeError(
                f"{selector.label} got the key {short_repr(key)}{named} from the record "
                f"{short_repr(row)}: {exact}"
            )
    return error


def key_groups_of_keys(keys: Sequence[Any], max_parallelism: int) -> KeyGroups:
    """The key group of every key; whole columns at a time where all keys are of one type.

    Shape: n keys -> n key groups.

    Raises:
        KeyTypeError: A key is NaN, or of a type without a canonical encoding; the message names
            the key.
    """
    kinds = set(map(type, keys))
    columns = _columns_of_tuples(keys) if kinds == {tuple} else _column_of_values(keys, kinds)
    if columns is not None:
        return key_groups_of(columns, max_parallelism)
    groups = (scalar.key_group(key, max_parallelism) for key in keys)
    return np.fromiter(groups, np.uint16, len(keys))


def check_ownership(label: str, keys: Sequence[Any], groups: KeyGroups, own: KeyGroupRange) -> None:
    """Check that all key groups belong to this subtask.

    Raises:
        UserError: One does not, since the key function gave another key where the record was
            sent; the message names the operator and a key.
    """
    if not len(groups) or (own.first <= groups.min() and groups.max() <= own.last):
        return
    stray = np.flatnonzero((groups < own.first) | (groups > own.last))[0]
    raise UserError(
        f"{label} received a record with the key {short_repr(keys[stray])}, which belongs to "
        "another subtask: the key function gave another key when the record was sent. A key must "
        "depend on the record alone, not on time, randomness, hash() of text or outside state."
    )


_COLUMN_TYPES: dict[type, pa.DataType] = {
    int: pa.int64(),
    str: pa.large_string(),
    bytes: pa.large_binary(),
    float: pa.float64(),
    bool: pa.bool_(),
}


def _column_of_values(keys: Sequence[Any], kinds: set[type]) -> list[pa.Array] | None:
    kinds = kinds - {type(None)}
    kind = _COLUMN_TYPES.get(next(iter(kinds))) if len(kinds) == 1 else None
    if kind is None:
        return None
    try:
        return [pa.array(keys, kind, from_pandas=False)]
    except (pa.ArrowException, OverflowError, UnicodeError):  # Beyond 64 bits, or not Unicode.
        return None


def _columns_of_tuples(keys: Sequence[Any]) -> list[pa.Array] | None:
    widths = set(map(len, keys))
    if len(widths) != 1 or min(widths) < 2:
        return None
    columns: list[pa.Array] = []
    for values in zip(*keys, strict=True):
        column = _column_of_values(values, set(map(type, values)))
        if column is None:
            return None
        columns += column
    return columns


def _as_type(keys: list[Any], key_type: TypeInformation, label: str) -> list[Any]:
    try:
        values = key_type.normalise_all(keys)
    except WeirError as error:
        raise KeyTypeError(f"{label} has a key that does not fit its key_type: {error}") from error
    return [_hashable(value) for value in values]


def _hashable(value: Any) -> Any:
    if isinstance(value, Row | list):
        return tuple(map(_hashable, value))
    return value
