"""``Types``: what a record, a key or a piece of state is made of.

A type says how Python values lie in an Arrow column and come back from it, whether they can be
changed in place, and how to copy them if so. Names and meaning are PyFlink's. ``None`` fits every
type. Types without an Arrow counterpart of unlimited size (``BIG_INT``, ``BIG_DEC``) are stored as
decimal text, so that no digit is lost. ``PICKLED_BYTE_ARRAY`` is the only type that stores pickles,
and only because it was asked for by name; reading such state back runs code from the file, so
restoring it needs the user's consent.
"""

import copy
import datetime as dt
import json
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import accumulate, pairwise
from typing import Any, ClassVar, TypeAlias

import cloudpickle
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.common.row import Row, rows_of
from weir.errors import SchemaError

Copier: TypeAlias = Callable[[Any], Any]
Wire: TypeAlias = str | list[Any]  # JSON: a name, or a name and its arguments.


class TypeInformation(ABC):
    """How values of one type are stored; equal types are equal objects."""

    @property
    @abstractmethod
    def arrow_type(self) -> pa.DataType:
        """The type of the Arrow column that holds such values."""

    @abstractmethod
    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        """The values as an Arrow column.

        Shape: n values -> n entries; None becomes null.

        Raises:
            SchemaError: A value does not fit; it is named, and so is the field that holds it.
        """

    @abstractmethod
    def from_arrow(self, array: pa.Array) -> list[Any]:
        """The Python values of a column that ``to_arrow`` could have made."""

    @abstractmethod
    def to_wire(self) -> Wire:
        """The type as JSON; ``type_from_wire`` reads it."""

    @property
    def copier(self) -> Copier | None:
        """Copies a value so deep that changing one cannot be seen in the other.

        None where values cannot be changed in place and need no copy.
        """
        return None

    @property
    def is_mutable(self) -> bool:
        """Whether a value can be changed in place."""
        return self.copier is not None

    @property
    def has_pickles(self) -> bool:
        """Whether a stored value holds pickles, which run code when they are read."""
        return False

    def __str__(self) -> str:
        wire = self.to_wire()
        return wire if isinstance(wire, str) else json.dumps(wire)


@dataclass(frozen=True, slots=True)
class BasicTypeInfo(TypeInformation):
    """A type whose values Arrow takes and gives as they are, once they passed a check."""

    name: str
    stored_as: pa.DataType
    accepts: tuple[type, ...]
    refuses: tuple[type, ...] = ()  # Subclasses of what is accepted that Arrow would alter.

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
            f"{_shown(value)} of type {type(value).__name__} does not fit {self.name}{why}"
        )


class _CharTypeInfo(BasicTypeInfo):
    __slots__ = ()

    def check(self, values: Sequence[Any]) -> None:
        for value in values:
            if value is not None and len(value) != 1:
                self._refuse(value, " (one character)")


class _ZonedTypeInfo(BasicTypeInfo):
    """Datetimes that must, or times that must not, know their offset from UTC."""

    __slots__ = ()
    zoned: ClassVar[dict[str, bool]] = {"INSTANT": True, "SQL_TIMESTAMP": False, "SQL_TIME": False}

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
                    f"{_shown(value)} of type {type(value).__name__} does not fit {self.name}"
                )
        return pa.array([None if value is None else str(value) for value in values], pa.string())

    def from_arrow(self, array: pa.Array) -> list[Any]:
        return [None if text is None else self.number(text) for text in array.to_pylist()]

    def to_wire(self) -> Wire:
        return self.name


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

    def to_wire(self) -> Wire:
        return "PICKLED_BYTE_ARRAY"

    @property
    def copier(self) -> Copier | None:
        return copy_object

    @property
    def has_pickles(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RowTypeInfo(TypeInformation):
    """Records of fixed fields, as ``Row`` (or plain tuples), stored as an Arrow struct.

    ``defaults`` are what restored rows get in fields that they were stored without; they are no
    part of the type.
    """

    field_types: tuple[TypeInformation, ...]
    names: tuple[str, ...] | None = None
    is_tuple: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        if self.names is not None and len(self.names) != len(self.field_types):
            raise SchemaError(
                f"{len(self.names)} field names for {len(self.field_types)} field types"
            )
        if self.names is not None and len(set(self.names)) != len(self.names):
            raise SchemaError(f"field names repeat: {', '.join(self.names)}")
        kinds = dict(zip(self.field_names, self.field_types, strict=True))
        for name, value in self.defaults.items():
            if name not in kinds:
                raise SchemaError(f"there is no field {name} to have a default")
            try:
                kinds[name].to_arrow([value])
            except SchemaError as cause:
                raise SchemaError(f"default of field {name}: {cause}") from cause

    def default_of(self, name: str) -> Any:
        """What restored rows get in a field that they were stored without."""
        return self.defaults.get(name)

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the columns: those given, else f0, f1 and so on."""
        return self.names or tuple(f"f{index}" for index in range(len(self.field_types)))

    def get_field_names(self) -> list[str]:
        """The names of the fields, in order."""
        return list(self.field_names)

    def get_field_types(self) -> list[TypeInformation]:
        """The types of the fields, in order."""
        return list(self.field_types)

    @property
    def arrow_type(self) -> pa.DataType:
        pairs = zip(self.field_names, self.field_types, strict=True)
        return pa.struct([pa.field(name, kind.arrow_type) for name, kind in pairs])

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        missing = [value is None for value in values]
        width = len(self.field_types)
        blank = (None,) * width
        rows = [blank if value is None else self._positional(value) for value in values]
        columns = list(zip(*rows, strict=True)) if rows else [()] * width
        arrays = []
        for name, kind, column in zip(self.field_names, self.field_types, columns, strict=True):
            try:
                arrays.append(kind.to_arrow(column))
            except SchemaError as cause:
                raise SchemaError(f"field {name}: {cause}") from cause
        if not width:
            return pa.array([None if gone else {} for gone in missing], self.arrow_type)
        fields = list(self.arrow_type)
        mask = pa.array(missing) if any(missing) else None
        return pa.StructArray.from_arrays(arrays, fields=fields, mask=mask)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        fields = range(len(self.field_types))
        columns = [self.field_types[i].from_arrow(array.field(i)) for i in fields]
        tuples = zip(*columns, strict=True) if columns else [()] * len(array)
        rows: list[Any]
        if self.is_tuple:
            rows = list(tuples)
        elif self.names is None:
            rows = [tuple.__new__(Row, values) for values in tuples]
        else:
            rows = list(rows_of(self.names, tuples))
        return _with_nulls(rows, array)

    def to_wire(self) -> Wire:
        kinds = [kind.to_wire() for kind in self.field_types]
        if self.is_tuple:
            return ["TUPLE", kinds]
        return ["ROW", kinds] if self.names is None else ["ROW_NAMED", list(self.names), kinds]

    @property
    def copier(self) -> Copier | None:
        copiers = [kind.copier for kind in self.field_types]
        if not any(copiers):
            return None

        def copy_row(row: Any) -> Any:
            if row is None:
                return None
            values = row.values() if isinstance(row, Mapping) else row
            copied = [c(v) if c else v for c, v in zip(copiers, values, strict=True)]
            if isinstance(row, Mapping):
                return dict(zip(row, copied, strict=True))
            return copied if isinstance(row, list) else tuple.__new__(type(row), copied)

        return copy_row

    @property
    def has_pickles(self) -> bool:
        return any(kind.has_pickles for kind in self.field_types)

    def _positional(self, value: Any) -> Sequence[Any]:
        own: Any = None
        if isinstance(value, Mapping):
            own, value = tuple(value), tuple(value.values())
        elif isinstance(value, Row):
            own = value.field_names
        elif not isinstance(value, (tuple, list)):
            raise SchemaError(f"{_shown(value)} of type {type(value).__name__} is no row")
        if len(value) != len(self.field_types):
            raise SchemaError(
                f"{_shown(value)} has {len(value)} fields instead of {len(self.field_types)}"
            )
        if own is None or self.names is None or own == self.names:
            return tuple(value)
        by_name = dict(zip(own, value, strict=True))
        for name in self.names:
            if name not in by_name:
                raise SchemaError(f"{_shown(value)} has no field {name}; it has {', '.join(own)}")
        return [by_name[name] for name in self.names]


@dataclass(frozen=True, slots=True)
class ListTypeInfo(TypeInformation):
    """Lists of one element type."""

    element_type: TypeInformation
    name: str = "LIST"

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.element_type.arrow_type)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and not isinstance(value, (list, tuple)):
                raise SchemaError(
                    f"{_shown(value)} of type {type(value).__name__} does not fit {self.name}"
                )
        flat = [item for value in values if value is not None for item in value]
        if self.name == "PRIMITIVE_ARRAY" and None in flat:
            raise SchemaError("None does not fit in a PRIMITIVE_ARRAY; use BASIC_ARRAY")
        try:
            items = self.element_type.to_arrow(flat)
        except SchemaError as cause:
            raise SchemaError(f"element: {cause}") from cause
        return pa.ListArray.from_arrays(_offsets(values), items, self.arrow_type)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        items = self.element_type.from_arrow(array.flatten())
        lengths = pc.fill_null(pc.list_value_length(array), 0).to_pylist()
        ends = list(accumulate(lengths))
        lists = [items[end - size : end] for end, size in zip(ends, lengths, strict=True)]
        return _with_nulls(lists, array)

    def to_wire(self) -> Wire:
        return [self.name, self.element_type.to_wire()]

    @property
    def copier(self) -> Copier | None:
        inner = self.element_type.copier
        if inner is None:
            return lambda value: None if value is None else list(value)
        return lambda value: None if value is None else [inner(item) for item in value]

    @property
    def has_pickles(self) -> bool:
        return self.element_type.has_pickles


@dataclass(frozen=True, slots=True)
class MapTypeInfo(TypeInformation):
    """Dictionaries of one key type and one value type; their order is kept."""

    key_type: TypeInformation
    value_type: TypeInformation

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.map_(self.key_type.arrow_type, self.value_type.arrow_type)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and not isinstance(value, Mapping):
                raise SchemaError(f"{_shown(value)} of type {type(value).__name__} is no dict")
        maps = [value for value in values if value is not None]
        keys = [key for value in maps for key in value]
        if None in keys:
            raise SchemaError("None cannot be a key in a MAP")
        try:
            key_array = self.key_type.to_arrow(keys)
        except SchemaError as cause:
            raise SchemaError(f"key: {cause}") from cause
        try:
            items = self.value_type.to_arrow([item for value in maps for item in value.values()])
        except SchemaError as cause:
            raise SchemaError(f"value: {cause}") from cause
        return pa.MapArray.from_arrays(_offsets(values), key_array, items, self.arrow_type)

    def from_arrow(self, array: pa.Array) -> list[Any]:
        if not len(array):
            return []
        bounds = array.offsets.to_pylist()
        low, count = bounds[0], bounds[-1] - bounds[0]
        keys = self.key_type.from_arrow(array.keys.slice(low, count))
        items = self.value_type.from_arrow(array.items.slice(low, count))
        maps = [
            dict(zip(keys[start - low : end - low], items[start - low : end - low], strict=True))
            for start, end in pairwise(bounds)
        ]
        return _with_nulls(maps, array)

    def to_wire(self) -> Wire:
        return ["MAP", self.key_type.to_wire(), self.value_type.to_wire()]

    @property
    def copier(self) -> Copier | None:
        inner = self.value_type.copier
        if inner is None:
            return lambda value: None if value is None else dict(value)
        return lambda value: None if value is None else {k: inner(v) for k, v in value.items()}

    @property
    def has_pickles(self) -> bool:
        return self.key_type.has_pickles or self.value_type.has_pickles


_BASIC: dict[str, TypeInformation] = {
    kind.name: kind
    for kind in (
        BasicTypeInfo("STRING", pa.string(), (str,)),
        BasicTypeInfo("BYTE", pa.int8(), (int, np.integer), (bool,)),
        BasicTypeInfo("BOOLEAN", pa.bool_(), (bool, np.bool_)),
        BasicTypeInfo("SHORT", pa.int16(), (int, np.integer), (bool,)),
        BasicTypeInfo("INT", pa.int32(), (int, np.integer), (bool,)),
        BasicTypeInfo("LONG", pa.int64(), (int, np.integer), (bool,)),
        BasicTypeInfo("FLOAT", pa.float32(), (float, int, np.number), (bool,)),
        BasicTypeInfo("DOUBLE", pa.float64(), (float, int, np.number), (bool,)),
        _CharTypeInfo("CHAR", pa.string(), (str,)),
        _TextTypeInfo("BIG_INT", int),
        _TextTypeInfo("BIG_DEC", Decimal),
        _ZonedTypeInfo("INSTANT", pa.timestamp("us", "UTC"), (dt.datetime,)),
        BasicTypeInfo("SQL_DATE", pa.date32(), (dt.date,), (dt.datetime,)),
        _ZonedTypeInfo("SQL_TIME", pa.time64("us"), (dt.time,)),
        _ZonedTypeInfo("SQL_TIMESTAMP", pa.timestamp("us"), (dt.datetime,)),
        BasicTypeInfo("BYTES", pa.binary(), (bytes,)),
    )
}
_PICKLED = PickledTypeInfo()
_PRIMITIVE = frozenset({"BYTE", "BOOLEAN", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "CHAR"})


class Types:
    """The types a pipeline can declare, under PyFlink's names."""

    @staticmethod
    def STRING() -> TypeInformation:
        """Text: ``str``."""
        return _BASIC["STRING"]

    @staticmethod
    def BYTE() -> TypeInformation:
        """``int`` of 8 bits."""
        return _BASIC["BYTE"]

    @staticmethod
    def BOOLEAN() -> TypeInformation:
        """``bool``."""
        return _BASIC["BOOLEAN"]

    @staticmethod
    def SHORT() -> TypeInformation:
        """``int`` of 16 bits."""
        return _BASIC["SHORT"]

    @staticmethod
    def INT() -> TypeInformation:
        """``int`` of 32 bits."""
        return _BASIC["INT"]

    @staticmethod
    def LONG() -> TypeInformation:
        """``int`` of 64 bits."""
        return _BASIC["LONG"]

    @staticmethod
    def FLOAT() -> TypeInformation:
        """``float``, stored with 32 bits."""
        return _BASIC["FLOAT"]

    @staticmethod
    def DOUBLE() -> TypeInformation:
        """``float``."""
        return _BASIC["DOUBLE"]

    @staticmethod
    def CHAR() -> TypeInformation:
        """``str`` of one character."""
        return _BASIC["CHAR"]

    @staticmethod
    def BIG_INT() -> TypeInformation:
        """``int`` of any size."""
        return _BASIC["BIG_INT"]

    @staticmethod
    def BIG_DEC() -> TypeInformation:
        """``Decimal`` of any size."""
        return _BASIC["BIG_DEC"]

    @staticmethod
    def INSTANT() -> TypeInformation:
        """A point in time: ``datetime`` with a zone; comes back in UTC."""
        return _BASIC["INSTANT"]

    @staticmethod
    def SQL_DATE() -> TypeInformation:
        """``date``."""
        return _BASIC["SQL_DATE"]

    @staticmethod
    def SQL_TIME() -> TypeInformation:
        """``time`` without a zone."""
        return _BASIC["SQL_TIME"]

    @staticmethod
    def SQL_TIMESTAMP() -> TypeInformation:
        """``datetime`` without a zone."""
        return _BASIC["SQL_TIMESTAMP"]

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> TypeInformation:
        """Any object, as a pickle. Restoring such state must be allowed by a flag."""
        return _PICKLED

    @staticmethod
    def ROW(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """``Row`` of unnamed fields."""
        return RowTypeInfo(tuple(field_types))

    @staticmethod
    def ROW_NAMED(
        field_names: Sequence[str],
        field_types: Sequence[TypeInformation],
        *,
        defaults: Mapping[str, Any] | None = None,
    ) -> RowTypeInfo:
        """``Row`` of named fields; ``defaults``, by name, are for rows restored without them."""
        return RowTypeInfo(tuple(field_types), tuple(field_names), defaults=dict(defaults or {}))

    @staticmethod
    def TUPLE(field_types: Sequence[TypeInformation]) -> RowTypeInfo:
        """``tuple`` of fixed length."""
        return RowTypeInfo(tuple(field_types), is_tuple=True)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list`` of numbers or bools without None; ``bytes`` when the element is ``BYTE``."""
        if element_type.to_wire() == "BYTE":
            return _BASIC["BYTES"]
        if element_type.to_wire() not in _PRIMITIVE:
            raise SchemaError(f"{element_type} is not primitive; use Types.OBJECT_ARRAY")
        return ListTypeInfo(element_type, "PRIMITIVE_ARRAY")

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list`` of a basic type, None allowed."""
        if element_type.to_wire() not in _BASIC:
            raise SchemaError(f"{element_type} is not basic; use Types.OBJECT_ARRAY")
        return ListTypeInfo(element_type, "BASIC_ARRAY")

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation) -> TypeInformation:
        """``list`` of any type, None allowed."""
        return ListTypeInfo(element_type, "OBJECT_ARRAY")

    @staticmethod
    def MAP(key_type: TypeInformation, value_type: TypeInformation) -> TypeInformation:
        """``dict``."""
        return MapTypeInfo(key_type, value_type)

    @staticmethod
    def LIST(element_type: TypeInformation) -> TypeInformation:
        """``list`` of any type."""
        return ListTypeInfo(element_type)


def type_from_wire(wire: Wire) -> TypeInformation:
    """The type that ``to_wire`` wrote.

    Raises:
        SchemaError: It is none, or one of a newer version of Weir.
    """
    match wire:
        case "PICKLED_BYTE_ARRAY":
            return _PICKLED
        case "DYNAMIC":
            from weir.common.dynamic import DYNAMIC  # It stands on this module.

            return DYNAMIC
        case str(name) if name in _BASIC:
            return _BASIC[name]
        case ["ROW", list(kinds)]:
            return RowTypeInfo(tuple(map(type_from_wire, kinds)))
        case ["ROW_NAMED", list(names), list(kinds)]:
            return RowTypeInfo(tuple(map(type_from_wire, kinds)), tuple(names))
        case ["TUPLE", list(kinds)]:
            return RowTypeInfo(tuple(map(type_from_wire, kinds)), is_tuple=True)
        case ["MAP", key, value]:
            return MapTypeInfo(type_from_wire(key), type_from_wire(value))
        case ["LIST" | "PRIMITIVE_ARRAY" | "BASIC_ARRAY" | "OBJECT_ARRAY" as name, element]:
            return ListTypeInfo(type_from_wire(element), name)
        case _:
            raise SchemaError(f"{wire!r} is no type of this version of Weir")


_IMMUTABLE = frozenset(
    {type(None), bool, int, float, complex, str, bytes, Decimal}
    | {dt.date, dt.time, dt.datetime, dt.timedelta}
)


def copy_object(value: Any) -> Any:
    """A copy that shares nothing that can be changed."""
    return value if type(value) in _IMMUTABLE else copy.deepcopy(value)


def _pickled(value: Any) -> bytes:
    try:
        data: bytes = cloudpickle.dumps(value)
    except (pickle.PicklingError, TypeError, AttributeError) as cause:
        raise SchemaError(
            f"{_shown(value)} of type {type(value).__name__} cannot be pickled: {cause}"
        ) from cause
    return data


def _offsets(values: Sequence[Any]) -> pa.Array:
    """List offsets over ``values``; a null offset makes its entry null."""
    ends = list(accumulate((0 if v is None else len(v) for v in values), initial=0))
    gone = [value is None for value in values]
    return (
        pa.array(ends, pa.int32(), mask=np.array([*gone, False]))
        if any(gone)
        else pa.array(ends, pa.int32())
    )


def _with_nulls(values: list[Any], array: pa.Array) -> list[Any]:
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            values[index] = None
    return values


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
