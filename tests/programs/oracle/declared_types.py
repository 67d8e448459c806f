"""Declared types, and the form in which each of them has a value."""

import copy
import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import numpy as np

from tests.programs.oracle.calls import Refused
from weir.common import Row
from weir.common.row import rows_of

_INTEGERS = {"BYTE": 8, "SHORT": 16, "INT": 32, "LONG": 64}
_EXACTLY: dict[str, type] = {"BIG_INT": int, "BIG_DEC": Decimal}
_INSTANCES: dict[str, type] = {"STRING": str, "CHAR": str, "BYTES": bytes, "SQL_TIME": dt.time}


class Misfit(Exception):
    """A value does not fit a declared type."""


@dataclass(frozen=True)
class Type:
    """A type of ``Types``."""

    name: str
    inner: tuple["Type", ...] = ()
    fields: tuple[str, ...] | None = None

    def put(self, value: Any) -> Any:
        """The value as this type has it.

        Raises:
            Misfit: It does not fit.
        """
        if value is None:
            return None
        put = getattr(self, f"_put_{self.name.lower()}", None)
        return self._put_basic(value) if put is None else put(value)

    def _demand(self, fits: bool, value: Any) -> None:
        if not fits:
            raise Misfit(f"{value!r} does not fit {self.name}")

    def _put_basic(self, value: Any) -> Any:
        if self.name in _INTEGERS:
            bits = _INTEGERS[self.name]
            self._demand(isinstance(value, int | np.integer) and type(value) is not bool, value)
            self._demand(-(1 << (bits - 1)) <= value < 1 << (bits - 1), value)
            return int(value)
        if self.name in ("FLOAT", "DOUBLE"):
            self._demand(isinstance(value, float | int | np.number), value)
            self._demand(type(value) is not bool, value)
            return float(np.float32(value)) if self.name == "FLOAT" else float(value)
        if self.name in _EXACTLY:
            self._demand(type(value) is _EXACTLY[self.name], value)
            return value
        self._demand(isinstance(value, _INSTANCES[self.name]), value)
        self._demand(self.name != "CHAR" or len(value) == 1, value)
        return value

    def _put_boolean(self, value: Any) -> bool:
        self._demand(isinstance(value, bool | np.bool_), value)
        return bool(value)

    def _put_sql_date(self, value: Any) -> Any:
        self._demand(isinstance(value, dt.date) and not isinstance(value, dt.datetime), value)
        return value

    def _put_sql_timestamp(self, value: Any) -> Any:
        self._demand(isinstance(value, dt.datetime) and value.utcoffset() is None, value)
        return value

    def _put_instant(self, value: Any) -> Any:
        self._demand(isinstance(value, dt.datetime) and value.utcoffset() is not None, value)
        return value.astimezone(dt.UTC)

    def _put_pickled_byte_array(self, value: Any) -> Any:
        return value

    def _put_list(self, value: Any) -> list[Any]:
        self._demand(isinstance(value, list | tuple), value)
        return [self.inner[0].put(item) for item in value]

    def _put_map(self, value: Any) -> dict[Any, Any]:
        self._demand(isinstance(value, Mapping), value)
        self._demand(None not in value, value)
        keys, values = self.inner
        return {keys.put(key): values.put(item) for key, item in value.items()}

    def _put_tuple(self, value: Any) -> Any:
        return self._row(value)

    def _put_row(self, value: Any) -> Any:
        return self._row(value)

    def _put_row_named(self, value: Any) -> Any:
        return self._row(value)

    def _row(self, value: Any) -> Any:
        own = None
        if isinstance(value, Mapping):
            own, value = tuple(value), tuple(value.values())
        elif isinstance(value, Row):
            own = value.field_names
        self._demand(isinstance(value, tuple | list), value)
        self._demand(len(value) == len(self.inner), value)
        if own is not None and self.fields is not None and own != self.fields:
            self._demand(set(own) == set(self.fields), value)
            value = [value[own.index(name)] for name in self.fields]
        values = tuple(kind.put(item) for kind, item in zip(self.inner, value, strict=True))
        if self.name == "TUPLE":
            return values
        return Row(*values) if self.fields is None else rows_of(self.fields, [values])[0]


class Types:
    """Stands in for ``weir.common.Types``."""

    LIST = staticmethod(lambda item: Type("LIST", (item,)))
    PRIMITIVE_ARRAY = staticmethod(
        lambda item: Type("BYTES") if item.name == "BYTE" else Type("LIST", (item,))
    )
    MAP = staticmethod(lambda key, value: Type("MAP", (key, value)))
    TUPLE = staticmethod(lambda kinds: Type("TUPLE", tuple(kinds)))
    ROW = staticmethod(lambda kinds: Type("ROW", tuple(kinds)))
    ROW_NAMED = staticmethod(lambda names, kinds: Type("ROW_NAMED", tuple(kinds), tuple(names)))


for _name in (
    *("STRING", "BYTE", "BOOLEAN", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "CHAR", "BIG_INT"),
    *("BIG_DEC", "INSTANT", "SQL_DATE", "SQL_TIME", "SQL_TIMESTAMP"),
    "PICKLED_BYTE_ARRAY",
):
    setattr(Types, _name, staticmethod(lambda name=_name: Type(name)))


def applied(kind: Type | None, value: Any, names: str = "") -> Any:
    """A copy of the value, of the declared type where one is declared.

    Raises:
        Refused: It does not fit.
    """
    if kind is None:
        return copy.deepcopy(value)
    try:
        return copy.deepcopy(kind.put(value))
    except Misfit as error:
        raise Refused(str(error), names) from error
