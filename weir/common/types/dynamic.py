"""``DYNAMIC``: the type of values without a declared type.

Every value is stored with its type, as JSON text, so it needs no pickle and comes back unchanged:
None, bool, int, float, str and lists of these as JSON writes them; a dict, and any value without a
JSON form, as an object with one field, its tag. Slower than a declared type, and the only one that
can hold an int now and a float later.
"""

import base64
import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa

from weir.common.ownership import own
from weir.common.row import Row, rows_of
from weir.common.types.base import Copier, Normaliser, TypeInformation, Wire
from weir.common.types.basic import TEXT_BITS, is_writable
from weir.errors import SchemaError

_INT_MAX = 1 << TEXT_BITS
_PLAIN = frozenset({type(None), bool, int, float, str})


@dataclass(frozen=True, slots=True)
class DynamicTypeInfo(TypeInformation):
    """Built-in values of any type, each with its type beside it."""

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        return pa.array(
            [None if v is None else json.dumps(_tagged(v)) for v in values], pa.string()
        )

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if text is None else _untagged(json.loads(text)) for text in array.to_pylist()]

    def normaliser(self) -> Normaliser:
        return _normalised

    def normalise_all(self, values: list[Any]) -> list[Any]:
        return list(map(_normalised, values))

    def to_wire(self) -> Wire:
        return "DYNAMIC"

    @property
    def copier(self) -> Copier | None:
        return own


DYNAMIC = DynamicTypeInfo()


def _normalised(value: Any) -> Any:
    """The value as it will come back, sharing no mutable part."""
    kind = type(value)
    if kind in _PLAIN:
        if kind is not int or -_INT_MAX < value < _INT_MAX:
            return value
    elif kind is tuple or isinstance(value, Row):
        for item in value:
            if type(item) is int:  # The frequent types are checked without a call.
                if -_INT_MAX < item < _INT_MAX:
                    continue
            elif type(item) is str:
                continue
            if _normalised(item) is not item:
                return tuple.__new__(kind, map(_normalised, value))
        return value  # Nothing in it could be changed, nor was it.
    elif kind is list:
        return list(map(_normalised, value))
    elif kind is dict:
        return {_normalised(key): _normalised(item) for key, item in value.items()}
    if kind in _WRITERS:
        tag, write = _WRITERS[kind]
        return _READERS[tag](write(value))
    return _tagged(value)  # Raises the SchemaError.


def _tagged(value: Any) -> Any:
    kind = type(value)
    if kind in _PLAIN:
        if not is_writable(value):
            raise SchemaError(f"an integer of {value.bit_length()} bits is too long to be stored")
        return value
    if kind is tuple:
        return {"tuple": [_tagged(item) for item in value]}
    if kind is list:
        return [_tagged(item) for item in value]
    if kind is dict:
        return {"dict": [[_tagged(key), _tagged(item)] for key, item in value.items()]}
    if isinstance(value, Row):
        return {"row": [value.field_names, [_tagged(item) for item in value]]}
    if kind in _WRITERS:
        tag, write = _WRITERS[kind]
        return {tag: write(value)}
    raise SchemaError(
        f"a value of type {kind.__module__}.{kind.__qualname__} is kept in state, and no type "
        "says how to store it; declare output_type on the operator before, use built-in values, or "
        "allow pickles with Types.PICKLED_BYTE_ARRAY()"
    )


def _untagged(stored: Any) -> Any:
    if isinstance(stored, list):
        return [_untagged(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    ((tag, body),) = stored.items()
    match tag:
        case "tuple":
            return tuple(_untagged(item) for item in body)
        case "dict":
            return {_untagged(key): _untagged(item) for key, item in body}
        case "row":
            names, items = body
            values = tuple(_untagged(item) for item in items)
            return Row(*values) if names is None else rows_of(names, [values])[0]
        case _:
            return _READERS[tag](body)


_WRITERS: dict[type, tuple[str, Callable[[Any], str]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode("ascii")),
    Decimal: ("decimal", str),
    dt.date: ("date", dt.date.isoformat),
    dt.time: ("time", dt.time.isoformat),
    dt.datetime: ("datetime", dt.datetime.isoformat),
    UUID: ("uuid", str),
}
_READERS: dict[str, Callable[[str], Any]] = {
    "bytes": base64.b64decode,
    "decimal": Decimal,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "datetime": dt.datetime.fromisoformat,
    "uuid": UUID,
}
