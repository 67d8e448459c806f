"""Types of single values: numbers, text, dates, and pickles.

Each is one Arrow type. Those without an Arrow counterpart of unlimited size (``BIG_INT``,
``BIG_DEC``) are stored as decimal text, so that no digit is lost.
"""

import datetime as dt
import pickle
import struct
import zoneinfo
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from operator import countOf
from typing import Any, ClassVar

import cloudpickle
import numpy as np
import pyarrow as pa

from weir.common.ownership import own
from weir.common.types.base import Copier, Normaliser, TypeInformation, Wire, shown
from weir.errors import SchemaError

_SINGLE = struct.Struct("f")
_UTC = zoneinfo.ZoneInfo("UTC")  # As Arrow gives it back.
_INT64 = pa.int64()
TEXT_BITS = 14_000  # An integer of so many bits has fewer digits than Python writes.


def all_are(kind: type, values: Sequence[Any]) -> bool:
    """Whether the class of each value is exactly this one."""
    return countOf(map(type, values), kind) == len(values)


def integers(values: Sequence[Any]) -> pa.Array | None:
    """64-bit integers as a column, sooner than by Arrow; None: not all are exactly ``int``.

    Raises:
        OverflowError: One needs more than 64 bits.
    """
    if not all_are(int, values):
        return None
    numbers = np.fromiter(values, np.int64, len(values))
    return pa.Array.from_buffers(_INT64, len(numbers), [None, pa.py_buffer(numbers)])


@dataclass(frozen=True, slots=True)
class BasicTypeInfo(TypeInformation):
    """A type whose values Arrow stores and returns unchanged, after a check."""

    name: str
    stored_as: pa.DataType
    plain: type  # The class of the values that ``from_arrow`` returns.
    accepts: tuple[type, ...]
    refuses: tuple[type, ...] = ()  # Subclasses of accepted ones that Arrow would alter.

    @property
    def arrow_type(self) -> pa.DataType:
        return self.stored_as

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        kinds = set(map(type, values))
        kinds.discard(type(None))
        if not all(issubclass(k, self.accepts) and not issubclass(k, self.refuses) for k in kinds):
            self._refuse(next(value for value in values if not self._fits(value)), "")
        self.check(values)
        try:
            return pa.array(values, self.stored_as)
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError) as cause:
            for value in values:
                try:
                    pa.array([value], self.stored_as)
                except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeError) as exact:
                    self._refuse(value, f" ({exact})")
            raise SchemaError(f"values do not fit {self.name}: {cause}") from cause

    def check(self, values: Sequence[Any]) -> None:
        """Refuse values of the right class that the type still excludes."""

    def normaliser(self) -> Normaliser:
        plain, convert = self.plain, TypeInformation.normaliser(self)
        return lambda value: value if type(value) is plain or value is None else convert(value)

    def holds(self, values: Sequence[Any]) -> bool:
        return {self.plain, type(None)}.issuperset(map(type, values))

    def from_arrow(self, array: pa.Array) -> list[Any]:
        values: list[Any] = array.to_pylist()
        return values

    def to_wire(self) -> Wire:
        return self.name

    def _fits(self, value: Any) -> bool:
        return value is None or (
            isinstance(value, self.accepts) and not isinstance(value, self.refuses)
        )

    def _refuse(self, value: Any, why: str) -> None:
        raise SchemaError(
            f"{shown(value)} of type {type(value).__name__} does not fit {self.name}{why}"
        )


class _IntegerTypeInfo(BasicTypeInfo):
    """Integers within the bounds of their column."""

    __slots__ = ()

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        if self.stored_as.bit_width == 64:
            with suppress(OverflowError):  # The general way names the value.
                if (array := integers(values)) is not None:
                    return array
        return BasicTypeInfo.to_arrow(self, values)

    def normaliser(self) -> Normaliser:
        high = 1 << self.stored_as.bit_width - 1
        low, convert = -high, TypeInformation.normaliser(self)

        def fitted(value: Any) -> Any:
            if type(value) is int and low <= value < high:
                return value
            return None if value is None else convert(value)

        return fitted

    def holds(self, values: Sequence[Any]) -> bool:
        if not BasicTypeInfo.holds(self, values):
            return False
        numbers = [value for value in values if value is not None] if None in values else values
        high = 1 << self.stored_as.bit_width - 1
        return not numbers or (min(numbers) >= -high and max(numbers) < high)


class _SingleTypeInfo(BasicTypeInfo):
    """Floats, rounded to 32 bits when they are normalised."""

    __slots__ = ()

    def normaliser(self) -> Normaliser:
        pack, unpack, convert = _SINGLE.pack, _SINGLE.unpack, TypeInformation.normaliser(self)

        def fitted(value: Any) -> Any:
            if type(value) is float:
                try:
                    return unpack(pack(value))[0]
                except OverflowError:  # Arrow makes it infinite.
                    return convert(value)
            return None if value is None else convert(value)

        return fitted

    def holds(self, values: Sequence[Any]) -> bool:
        return False  # Rounding all values costs as much as checking them.


class _StringTypeInfo(BasicTypeInfo):
    """Text that UTF-8 can hold."""

    __slots__ = ()

    def normaliser(self) -> Normaliser:
        convert = TypeInformation.normaliser(self)

        def fitted(value: Any) -> Any:
            if type(value) is str and self._is_encodable(value):
                return value
            return None if value is None else convert(value)

        return fitted

    def holds(self, values: Sequence[Any]) -> bool:
        return BasicTypeInfo.holds(self, values) and self._is_encodable(
            "".join(filter(None, values))
        )

    def _is_encodable(self, text: str) -> bool:
        if text.isascii():
            return True
        try:
            text.encode()
        except UnicodeEncodeError:  # A lone surrogate.
            return False
        return True


class _CharTypeInfo(_StringTypeInfo):
    __slots__ = ()

    def normaliser(self) -> Normaliser:
        return TypeInformation.normaliser(self)

    def holds(self, values: Sequence[Any]) -> bool:
        ones = (value for value in values if value is not None)
        return BasicTypeInfo.holds(self, values) and all(
            len(value) == 1 and self._is_encodable(value) for value in ones
        )

    def check(self, values: Sequence[Any]) -> None:
        for value in values:
            if value is not None and len(value) != 1:
                self._refuse(value, " (one character)")


class _ZonedTypeInfo(BasicTypeInfo):
    """Datetimes that must, or times that must not, know their offset from UTC."""

    __slots__ = ()
    zoned: ClassVar[dict[str, bool]] = {"INSTANT": True, "SQL_TIMESTAMP": False, "SQL_TIME": False}

    def normaliser(self) -> Normaliser:
        plain, convert = self._is_plain, TypeInformation.normaliser(self)
        return lambda value: value if value is None or plain(value) else convert(value)

    def holds(self, values: Sequence[Any]) -> bool:
        return BasicTypeInfo.holds(self, values) and all(
            value is None or self._is_plain(value) for value in values
        )

    def _is_plain(self, value: Any) -> bool:
        zone = _UTC if self.zoned[self.name] else None
        is_plain: bool = type(value) is self.plain and value.tzinfo is zone and not value.fold  # type: ignore[attr-defined]
        return is_plain

    def check(self, values: Sequence[Any]) -> None:
        wanted = self.zoned[self.name]
        for value in values:
            if value is not None and (value.utcoffset() is not None) != wanted:
                self._refuse(value, " (with a zone)" if wanted else " (without a zone)")


@dataclass(frozen=True, slots=True)
class _TextTypeInfo(TypeInformation):
    """Numbers of any size, stored as text so that no digit is lost."""

    name: str
    number: type

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.string()

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and type(value) is not self.number:
                raise SchemaError(
                    f"{shown(value)} of type {type(value).__name__} does not fit {self.name}"
                )
        try:
            return pa.array([None if v is None else str(v) for v in values], pa.string())
        except ValueError as cause:  # Python writes integers of some thousand digits at most.
            raise SchemaError(f"a number is too long to be stored: {cause}") from cause

    def normaliser(self) -> Normaliser:
        number, convert = self.number, TypeInformation.normaliser(self)

        def fitted(value: Any) -> Any:
            if type(value) is number and is_writable(value):
                return value
            return None if value is None else convert(value)

        return fitted

    def holds(self, values: Sequence[Any]) -> bool:
        return {self.number, type(None)}.issuperset(map(type, values)) and all(
            map(is_writable, values)
        )

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if text is None else self.number(text) for text in array.to_pylist()]

    def to_wire(self) -> Wire:
        return self.name


def is_writable(value: Any) -> bool:
    """Whether Python converts a value to text: not an integer of some thousand digits."""
    return type(value) is not int or value.bit_length() < TEXT_BITS


@dataclass(frozen=True, slots=True)
class PickledTypeInfo(TypeInformation):
    """Any Python object, as a pickle: opaque to everything but the same program."""

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.binary()

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        return pa.array([None if v is None else _pickled(v) for v in values], pa.binary())

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if data is None else pickle.loads(data) for data in array.to_pylist()]

    def normaliser(self) -> Normaliser:
        return own

    def normalise_all(self, values: list[Any]) -> list[Any]:
        return list(map(own, values))

    def to_wire(self) -> Wire:
        return "PICKLED_BYTE_ARRAY"

    @property
    def copier(self) -> Copier | None:
        return own

    @property
    def has_pickles(self) -> bool:
        return True


_INTEGERS = (int, np.integer)
_NUMBERS = (float, int, np.number)
BASIC: dict[str, TypeInformation] = {
    kind.name: kind
    for kind in (
        _StringTypeInfo("STRING", pa.string(), str, (str,)),
        _IntegerTypeInfo("BYTE", pa.int8(), int, _INTEGERS, (bool,)),
        BasicTypeInfo("BOOLEAN", pa.bool_(), bool, (bool, np.bool_)),
        _IntegerTypeInfo("SHORT", pa.int16(), int, _INTEGERS, (bool,)),
        _IntegerTypeInfo("INT", pa.int32(), int, _INTEGERS, (bool,)),
        _IntegerTypeInfo("LONG", pa.int64(), int, _INTEGERS, (bool,)),
        _SingleTypeInfo("FLOAT", pa.float32(), float, _NUMBERS, (bool,)),
        BasicTypeInfo("DOUBLE", pa.float64(), float, _NUMBERS, (bool,)),
        _CharTypeInfo("CHAR", pa.string(), str, (str,)),
        _TextTypeInfo("BIG_INT", int),
        _TextTypeInfo("BIG_DEC", Decimal),
        _ZonedTypeInfo("INSTANT", pa.timestamp("us", "UTC"), dt.datetime, (dt.datetime,)),
        BasicTypeInfo("SQL_DATE", pa.date32(), dt.date, (dt.date,), (dt.datetime,)),
        _ZonedTypeInfo("SQL_TIME", pa.time64("us"), dt.time, (dt.time,)),
        _ZonedTypeInfo("SQL_TIMESTAMP", pa.timestamp("us"), dt.datetime, (dt.datetime,)),
        BasicTypeInfo("BYTES", pa.binary(), bytes, (bytes,)),
    )
}
PICKLED = PickledTypeInfo()


def _pickled(value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as cause:
        raise SchemaError(
            f"{shown(value)} of type {type(value).__name__} cannot be pickled: {cause}"
        ) from cause
    return data
