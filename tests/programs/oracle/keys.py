"""Keys: how they are taken from a record, and what tells them apart."""

import datetime as dt
import math
from collections.abc import Callable
from decimal import Decimal
from enum import Enum
from typing import Any

from tests.programs.oracle.calls import Refused
from weir.common import Row
from weir.datastream.functions import KeySelector


def key_function(key: Any) -> Callable[[Any], Any]:
    """The function that takes the key from a record; ``key`` is one, or names columns."""
    if isinstance(key, KeySelector):
        return key.get_key
    if callable(key):
        function: Callable[[Any], Any] = key
        return function
    names = (key,) if isinstance(key, str) else tuple(key)
    if len(names) == 1:
        return lambda row: row[names[0]]
    return lambda row: tuple(row[name] for name in names)


def identity(key: Any) -> Any:
    """The identity of a key: 1, True, 1.0 and Decimal(1) are four of them.

    Raises:
        Refused: It cannot be a key.
    """
    kind = type(key)
    if kind is tuple:
        return tuple(identity(item) for item in key)
    if kind is float:
        if math.isnan(key):
            raise Refused("NaN cannot be a key")
        return ("float", 0.0 if key == 0 else key)
    if kind is Decimal:
        return ("Decimal", 0 if key == 0 else key.normalize())
    if kind is dt.datetime and key.utcoffset() is not None:
        return ("aware", key.astimezone(dt.UTC).isoformat())
    if not isinstance(key, type(None) | bool | int | str | bytes | dt.date | Enum) and (
        kind.__name__ != "UUID"
    ):
        raise Refused(f"{key!r} cannot be a key")
    return (kind.__name__, key)


def hashable(value: Any) -> Any:
    """A key with tuples in place of rows and lists."""
    return tuple(map(hashable, value)) if isinstance(value, Row | list) else value
