"""``DYNAMIC``: the type of values without a declared type.

Every value is stored with its type, as JSON text, so it needs no pickle and comes back unchanged:
None, bool, int, float, str and lists of these as JSON writes them; a dict, and any value without a
JSON form, NumPy's numbers and arrays among them, as an object with one field, its tag. Slower than
a declared type, and the only one that can hold an int now and a float later.
"""

import base64
import datetime as dt
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa

from weir.common.ownership import own
from weir.common.row import Row, rows_of
from weir.common.types.base import Copier, Normaliser, TypeInformation, Wire
from weir.common.types.basic import TEXT_BITS, is_writable
from weir.errors import SchemaError

_INT_MAX = 1 << TEXT_BITS
_PLAIN = frozenset({type(None), bool, int, float, str})


class UntypedValueError(SchemaError):
    """A value is of a class that is not built in; ``class_name`` is the class."""

    def __init__(self, kind: type) -> None:
        self.class_name = f"{kind.__module__}.{kind.__qualname__}"
        super().__init__(
            f"a value of type {self.class_name} is kept in state, and no type says how to store "
            "it; declare output_type on the operator before, use built-in values, or allow pickles "
            "with Types.PICKLED_BYTE_ARRAY()"
        )


@dataclass(frozen=True, slots=True)
class DynamicTypeInfo(TypeInformation):
    """Built-in values of any type, each with its type beside it."""

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([None if v is None else json.dumps(tagged(v)) for v in values], pa.string())

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if text is None else untagged(json.loads(text)) for text in array.to_pylist()]

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
    return untagged(tagged(value))


def tagged(value: Any) -> Any:
    """The value with its type beside it, as ``json.dumps`` takes it.

    Raises:
        SchemaError: It is, or holds, an object of a class that is not built in.
    """
    kind = type(value)
    if kind in _PLAIN:
        if not is_writable(value):
            raise SchemaError(f"an integer of {value.bit_length()} bits is too long to be stored")
        return value
    if kind is tuple:
        return {"tuple": [tagged(item) for item in value]}
    if kind is list:
        return [tagged(item) for item in value]
    if kind is dict:
        return {"dict": [[tagged(key), tagged(item)] for key, item in value.items()]}
    if isinstance(value, Row):
        return {"row": [value.field_names, [tagged(item) for item in value]]}
    if kind is set or kind is frozenset:
        return {kind.__name__: [tagged(item) for item in value]}
    if kind in _WRITERS:
        tag, write = _WRITERS[kind]
        return {tag: write(value)}
    if kind in _NUMBERS:
        return {"number": [value.dtype.str, value.item()]}
    if kind is np.ndarray and value.dtype.str in _DTYPES:
        data = base64.b64encode(value.tobytes()).decode("ascii")
        return {"array": [value.dtype.str, list(value.shape), data]}
    raise UntypedValueError(kind)


def untagged(stored: Any) -> Any:
    """The value that ``tagged`` turned into ``stored``."""
    if isinstance(stored, list):
        return [untagged(item) for item in stored]
    if not isinstance(stored, dict):
        return stored
    ((tag, body),) = stored.items()
    match tag:
        case "tuple":
            return tuple(untagged(item) for item in body)
        case "dict":
            return {untagged(key): untagged(item) for key, item in body}
        case "row":
            names, items = body
            values = tuple(untagged(item) for item in items)
            return Row(*values) if names is None else rows_of(names, [values])[0]
        case "set":
            return {untagged(item) for item in body}
        case "frozenset":
            return frozenset(untagged(item) for item in body)
        case "number":
            dtype, number = body
            return _DTYPES[dtype].type(number)
        case "array":
            dtype, shape, data = body
            numbers = np.frombuffer(base64.b64decode(data), _DTYPES[dtype])
            return numbers.reshape(shape).copy()
        case _:
            return _READERS[tag](body)


# NumPy's classes of numbers, whose ``item()`` JSON writes exactly.
_NUMBERS = frozenset(
    {np.bool_, np.float16, np.float32, np.float64}
    | {np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64}
)
_DTYPES: "dict[str, np.dtype[Any]]" = {np.dtype(kind).str: np.dtype(kind) for kind in _NUMBERS}
_WRITERS: dict[type, tuple[str, Callable[[Any], str]]] = {
    bytes: ("bytes", lambda value: base64.b64encode(value).decode("ascii")),
    bytearray: ("bytearray", lambda value: base64.b64encode(value).decode("ascii")),
    complex: ("complex", str),
    Decimal: ("decimal", str),
    dt.date: ("date", dt.date.isoformat),
    dt.time: ("time", dt.time.isoformat),
    dt.datetime: ("datetime", dt.datetime.isoformat),
    dt.timedelta: ("timedelta", lambda value: f"{value.days} {value.seconds} {value.microseconds}"),
    UUID: ("uuid", str),
}
_READERS: dict[str, Callable[[str], Any]] = {
    "bytes": base64.b64decode,
    "bytearray": lambda text: bytearray(base64.b64decode(text)),
    "complex": complex,
    "timedelta": lambda text: dt.timedelta(*map(int, text.split())),
    "decimal": Decimal,
    "date": dt.date.fromisoformat,
    "time": dt.time.fromisoformat,
    "datetime": dt.datetime.fromisoformat,
    "uuid": UUID,
}
