"""Copies of records, so that no two owners share a mutable one.

A value that leaves an operator, or goes to a second consumer, is copied for its receiver: the
function that made it may keep it and change it later, and state may hold the very same object.
``own`` makes the copy, by type. Values that cannot be changed are not copied, nor are tuples and
rows of them.

Source: Flink, TypeSerializer.copy and CopyingChainingOutput.
"""

import copy
import datetime as dt
import re
import types
import zoneinfo
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from itertools import chain
from typing import Any, Final
from uuid import UUID

import numpy as np
import pyarrow as pa

from weir.errors import SchemaError

# Checked for each record: the classes of immutable values.
IMMUTABLE: Final[frozenset[type]] = frozenset(
    {type(None), bool, int, float, complex, str, bytes, range, Decimal, Fraction, UUID}
    | {dt.date, dt.time, dt.datetime, dt.timedelta, dt.timezone, zoneinfo.ZoneInfo}
)
# Immutable with their subclasses: Arrow's arrays, batches and scalars, and references to code.
_IMMUTABLE_BASES = (
    *(Enum, np.generic, pa.Array, pa.ChunkedArray, pa.RecordBatch, pa.Table, pa.Scalar),
    *(pa.Schema, pa.DataType, pa.Field, pa.Buffer),
    *(type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType, re.Pattern),
)
_Copier = Callable[[Any], Any]


def own(value: Any) -> Any:
    """A copy that shares no mutable part; the value itself where it has none.

    Raises:
        SchemaError: The value holds an object that cannot be copied, such as a lock or a file.
    """
    kind = type(value)
    if kind is tuple:  # The most frequent by far.
        for item in value:
            if type(item) not in IMMUTABLE:
                return _own_tuple(value)
        return value
    if kind in IMMUTABLE:
        return value
    copier = _COPIERS.get(kind)
    if copier is None:
        copier = _COPIERS[kind] = _copier_of_class(kind)
    return copier(value)


def own_rows(rows: list[Any]) -> list[Any]:
    """The records for a second consumer; the list itself where all of them are immutable."""
    kinds = set(map(type, rows)) - IMMUTABLE
    if not kinds:
        return rows
    if all(issubclass(kind, tuple) for kind in kinds):
        of_tuples = rows if kinds == set(map(type, rows)) else [r for r in rows if type(r) in kinds]
        if IMMUTABLE.issuperset(map(type, chain.from_iterable(of_tuples))):
            return rows
    return [own(row) for row in rows]


def _itself(value: Any) -> Any:
    return value


def _own_tuple(value: tuple[Any, ...]) -> tuple[Any, ...]:
    for item in value:
        if type(item) not in IMMUTABLE:
            break
    else:
        return value
    items = [item if type(item) in IMMUTABLE else own(item) for item in value]
    if all(map(_is_same, items, value)):
        return value
    return tuple.__new__(type(value), items)


def _own_list(value: list[Any]) -> list[Any]:
    return [item if type(item) in IMMUTABLE else own(item) for item in value]


def _own_dict(value: dict[Any, Any]) -> dict[Any, Any]:
    return {
        key if type(key) in IMMUTABLE else own(key): item if type(item) in IMMUTABLE else own(item)
        for key, item in value.items()
    }


def _own_set(value: set[Any]) -> set[Any]:
    return set(map(own, value))


def _own_frozenset(value: frozenset[Any]) -> frozenset[Any]:
    return value if IMMUTABLE.issuperset(map(type, value)) else frozenset(map(own, value))


def _own_object(value: Any) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # Raised by the class of the value.
        raise SchemaError(
            f"a record holds a {type(value).__name__}, which cannot be copied ({error}), so it "
            "cannot go to the next operator: emit plain values, or let operators share their "
            "records with env.get_config().enable_object_reuse()"
        ) from error


def _is_same(one: Any, other: Any) -> bool:
    return one is other


_COPIERS: dict[type, _Copier] = {
    tuple: _own_tuple,
    list: _own_list,
    dict: _own_dict,
    set: _own_set,
    frozenset: _own_frozenset,
    bytearray: bytearray,
}


def _copier_of_class(kind: type) -> _Copier:
    if issubclass(kind, _IMMUTABLE_BASES):
        return _itself
    if issubclass(kind, tuple) and not kind.__dictoffset__:  # A Row, or a named tuple.
        return _own_tuple
    return _own_object
