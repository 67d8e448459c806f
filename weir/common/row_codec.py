"""Rows as data: the bytes by which records without columns leave a process, and come back the same.

They go to other slots, to the driver and, where a sink keeps rows back, into checkpoints. Reading
them runs no code. One byte tells the form of the rest:

- ``PLAIN``: values that MessagePack has: None, bool, int of 64 bits, float, str, bytes, and lists
  and dicts (of text keys) of them. Written and read by ``msgspec``, about as fast as pickles.
- ``TUPLES``: tuples of them, of dates, decimals and UUIDs, and of tuples, where all rows have one
  *shape*, which is written once; ``Row`` objects as well, with their field names.
- ``TAGGED``: any value of ``DYNAMIC``, each with its type beside it, as JSON: slower.
- ``PICKLED``: any object, and only where the job allows pickles, which run code when they are read.
"""

import datetime as dt
import io
import json
import pickle
import struct
from collections.abc import Iterable, Sequence
from decimal import Decimal
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from typing import Any, TypeAlias
from uuid import UUID

import cloudpickle
import msgspec

from weir.common.row import Row, row_class
from weir.common.types.dynamic import UntypedValueError, tagged, untagged
from weir.errors import SchemaError

ADVICE = (
    "emit plain values, declare output_type on the operator that makes it, or allow pickles with "
    "--allow-pickled-state (weir.state.allow-pickled)"
)
DEPTH_MAX = 16

_HEAD = struct.Struct("!BI")  # The form, and the bytes of the shape.
_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
_CONTAINERS = frozenset({list, dict})
_DAMAGES = (
    *(struct.error, msgspec.MsgspecError, RecursionError, ArithmeticError),
    *(ValueError, LookupError, TypeError, AttributeError),
)
_MISFITS = (OverflowError, UnicodeEncodeError, RecursionError, TypeError, msgspec.MsgspecError)

# Classes that travel as text where a whole column is of one of them; beside None.
_TEXTS: dict[str, type] = {
    "date": dt.date,
    "datetime": dt.datetime,  # Without a zone.
    "decimal": Decimal,
    "uuid": UUID,
}
_TEXT_NAMES = {kind: name for name, kind in _TEXTS.items()}

# None: any value that MessagePack has. A list: tuples of this length, with the shapes of its items.
Shape: TypeAlias = "list[Shape] | str | None"


class Form(IntEnum):
    """The forms of rows."""

    PLAIN = 1
    TUPLES = 2
    TAGGED = 3
    PICKLED = 4


def encode_rows(rows: Sequence[Any], *, pickles: bool = False) -> bytes:
    """The rows as bytes.

    Args:
        pickles: Whether rows that are no data may be pickled.

    Raises:
        SchemaError: A row is no data, and pickles are not allowed, or it cannot be pickled either.
    """
    try:
        return _encode_natively(rows) or _tagged_bytes(rows)
    except UntypedValueError as error:
        problem = f"a record holds a {error.class_name}, which cannot leave its process as data"
        cause: Exception = error
    except (*_MISFITS, SchemaError) as error:
        problem, cause = f"a record cannot leave its process as data: {error}", error
    if not pickles:
        raise SchemaError(f"{problem}; {ADVICE}") from cause
    return _HEAD.pack(Form.PICKLED, 0) + _pickled(list(rows))


def decode_rows(data: bytes | bytearray | memoryview, *, pickles: bool = False) -> list[Any]:
    """The rows that ``encode_rows`` turned into these bytes.

    Args:
        pickles: Whether the job allows pickles.

    Raises:
        ValueError: These are no rows, or damaged ones.
        SchemaError: They are pickled, and pickles are not allowed, or cannot be read.
    """
    view = memoryview(data)
    try:
        number, shape_bytes = _HEAD.unpack_from(view)
        form, described = Form(number), bytes(view[_HEAD.size :][:shape_bytes])
        body = view[_HEAD.size + shape_bytes :]
        match form:
            case Form.PLAIN:
                return _decoder("null").decode(body)
            case Form.TUPLES:
                return _decode_tuples(described.decode(), body)
            case Form.TAGGED:
                return list(map(untagged, json.loads(bytes(body))))
            case Form.PICKLED:
                if not pickles:
                    raise SchemaError(f"records came as pickles; {ADVICE}")
                return _unpickled(body)
    except _DAMAGES as error:
        raise ValueError(f"damaged rows: {error!r}") from error


def _encode_natively(rows: Sequence[Any]) -> bytes | None:
    kinds = set(map(type, rows))
    names: tuple[str, ...] | None = None
    is_row = False
    if len(kinds) == 1 and issubclass(kind := next(iter(kinds)), Row):
        names, is_row = kind.field_names, True
        if kind is not (Row if names is None else row_class(names)):
            return None  # A class of the pipeline's, which a reader does not know.
    shape = _shape(rows, kinds, 0, is_row=is_row)
    if shape is _NO_SHAPE:
        return None
    try:
        body = _encoder.encode(rows if type(rows) is list else list(rows))
    except _MISFITS:
        return None
    if shape is None:
        return _HEAD.pack(Form.PLAIN, 0) + body
    described = json.dumps([shape, is_row, names], separators=(",", ":")).encode()
    return _HEAD.pack(Form.TUPLES, len(described)) + described + body


_encoder = msgspec.msgpack.Encoder()
_NO_SHAPE: Any = object()


def _shape(values: Sequence[Any], kinds: set[type], depth: int, *, is_row: bool = False) -> Any:
    """The shape of all these values; ``_NO_SHAPE`` if there is none."""
    if kinds <= _SCALARS:
        return None
    if depth > DEPTH_MAX:
        return _NO_SHAPE
    if kinds == {tuple} or is_row:
        if len(set(map(len, values))) != 1:
            return _NO_SHAPE
        columns = zip(*values, strict=True)
        shapes = [_shape(column, set(map(type, column)), depth + 1) for column in columns]
        return _NO_SHAPE if any(shape is _NO_SHAPE for shape in shapes) else shapes
    if len(classes := kinds - {type(None)}) == 1 and (name := _TEXT_NAMES.get(*classes)):
        return name if name != "datetime" or all(map(_is_local, values)) else _NO_SHAPE
    if not kinds <= _SCALARS | _CONTAINERS:
        return _NO_SHAPE
    return None if _is_plain(values, kinds, depth) else _NO_SHAPE


def _is_plain(values: Iterable[Any], kinds: set[type], depth: int) -> bool:
    """Whether values in these containers, at any depth, are what MessagePack gives back."""
    if depth > DEPTH_MAX:
        return False
    items: list[Any] = []
    if list in kinds:
        items += chain.from_iterable(value for value in values if type(value) is list)
    if dict in kinds:
        dicts = [value for value in values if type(value) is dict]
        if not {str}.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        items += chain.from_iterable(map(dict.values, dicts))
    inner = set(map(type, items))
    if inner <= _SCALARS:
        return True
    return inner <= _SCALARS | _CONTAINERS and _is_plain(items, inner, depth + 1)


def _is_local(moment: dt.datetime | None) -> bool:
    return moment is None or (moment.tzinfo is None and not moment.fold)


def _decode_tuples(described: str, body: memoryview) -> list[Any]:
    shape, is_row, names = json.loads(described)
    rows = _decoder(json.dumps(shape)).decode(body)
    if not is_row:
        return rows
    made = Row if names is None else row_class(tuple(map(str, names)))
    return [tuple.__new__(made, row) for row in rows]


@lru_cache(maxsize=256)
def _decoder(shape: str) -> "msgspec.msgpack.Decoder[list[Any]]":
    return msgspec.msgpack.Decoder(list[_type_of(json.loads(shape))])  # type: ignore[misc]


def _type_of(shape: Any) -> Any:
    if shape is None:
        return Any
    if isinstance(shape, str):
        return _TEXTS[shape] | None
    return tuple[tuple(map(_type_of, shape))]  # type: ignore[misc]


def _tagged_bytes(rows: Sequence[Any]) -> bytes:
    return _HEAD.pack(Form.TAGGED, 0) + json.dumps([tagged(row) for row in rows]).encode()


def _pickled(rows: list[Any]) -> bytes:
    try:
        return pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError):
        # A class of the user's script, which has no importable name in a worker process.
        return _pickled_by_value(rows)
    except TypeError as error:
        raise _unpicklable(error) from error


def _pickled_by_value(rows: list[Any]) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(rows)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise _unpicklable(error) from error
    return data


def _unpicklable(error: Exception) -> SchemaError:
    return SchemaError(
        f"a record cannot be sent to another process: {error}; emit plain values, or declare "
        "output_type on the operator that makes it"
    )


def _unpickled(data: memoryview) -> list[Any]:
    try:
        rows = pickle.load(io.BytesIO(data))
    except Exception as error:  # Of the user's classes; the bytes are as they were sent.
        raise SchemaError(
            f"a record that was sent to another process cannot be read there: {error!r}; emit "
            "plain values, or declare output_type on the operator that makes it"
        ) from error
    if not isinstance(rows, list):
        raise ValueError(f"rows are a {rows.__class__.__name__} and not a list")
    return rows
