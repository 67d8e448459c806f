"""Types made of others: rows, lists and maps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from weir.common.row import Row, row_class, rows_of
from weir.common.types.base import (
    Copier,
    Normaliser,
    TypeInformation,
    Wire,
    check_is_type,
    shown,
)
from weir.errors import SchemaError


@dataclass(frozen=True, slots=True)
class RowTypeInfo(TypeInformation):
    """Records of fixed fields, as ``Row`` (or plain tuples), stored as an Arrow struct.

    ``defaults`` are the values that restored rows get in fields that they were stored without; they
    are no part of the type.
    """

    field_types: tuple[TypeInformation, ...]
    names: tuple[str, ...] | None = None
    is_tuple: bool = False
    defaults: Mapping[str, Any] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        for kind in self.field_types:
            check_is_type(kind)
        if self.names is not None and len(self.names) != len(self.field_types):
            raise SchemaError(
                f"{len(self.names)} field names ({', '.join(map(str, self.names))}) for "
                f"{len(self.field_types)} field types; give each field a name and a type"
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
        """The value that restored rows get in a field that they were stored without."""
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
            copied = [c(v) if c else v for c, v in zip(copiers, row, strict=True)]
            return tuple.__new__(type(row), copied)

        return copy_row

    @property
    def row_class(self) -> type[tuple[Any, ...]]:
        """The class of the records: tuple, ``Row``, or the ``Row`` of these names."""
        if self.is_tuple:
            return tuple
        return Row if self.names is None else row_class(self.names)

    def normaliser(self) -> Normaliser:
        made, width = self.row_class, len(self.field_types)
        normalisers = [kind.normaliser() for kind in self.field_types]

        def fitted(value: Any) -> Any:
            if value is None:
                return None
            try:
                if type(value) is not made or len(value) != width:
                    return tuple.__new__(made, map(_call, normalisers, self._positional(value)))
                for fit, item in zip(normalisers, value):  # noqa: B905 - as long as one another
                    if fit(item) is not item:
                        return tuple.__new__(made, map(_call, normalisers, value))
            except SchemaError:
                _refuse(self, value)  # Names the field as well.
            return value  # Nothing in it could be changed, nor was it.

        return fitted

    def holds(self, values: Sequence[Any]) -> bool:
        if not values or set(map(type, values)) != {self.row_class}:
            return False
        if set(map(len, values)) != {len(self.field_types)}:
            return False
        columns = zip(*values, strict=True)
        return all(map(_holds, self.field_types, columns))

    @property
    def has_pickles(self) -> bool:
        return any(kind.has_pickles for kind in self.field_types)

    def _positional(self, value: Any) -> Sequence[Any]:
        names: Any = None
        if isinstance(value, Mapping):
            if self.names is not None:
                return self._by_name(value)
            value = tuple(value.values())
        elif isinstance(value, Row):
            names = value.field_names
        elif not isinstance(value, (tuple, list)):
            raise SchemaError(f"{shown(value)} of type {type(value).__name__} is no row")
        if len(value) != len(self.field_types):
            raise SchemaError(
                f"{shown(value)} has {len(value)} fields instead of the {len(self.field_types)} "
                f"of its type{self._listed}"
            )
        if names is None or self.names is None or names == self.names:
            return tuple(value)
        by_name = dict(zip(names, value, strict=True))
        for name in self.names:
            if name not in by_name:
                raise SchemaError(f"{shown(value)} has no field {name}; it has {', '.join(names)}")
        return [by_name[name] for name in self.names]

    @property
    def _listed(self) -> str:
        return f" ({', '.join(self.names)})" if self.names else ""

    def _by_name(self, value: Mapping[Any, Any]) -> list[Any]:
        """The fields of a dict; None for those that it leaves out."""
        assert self.names is not None
        fields = [value.get(name) for name in self.names]
        if unknown := [str(name) for name in value if name not in self.names]:
            raise SchemaError(
                f"{shown(value)} has a field {', '.join(unknown)} that the type does not have; "
                f"declared are {', '.join(self.names)}"
            )
        return fields


@dataclass(frozen=True, slots=True)
class ListTypeInfo(TypeInformation):
    """Lists of one element type."""

    element_type: TypeInformation
    name: str = "LIST"

    def __post_init__(self) -> None:
        check_is_type(self.element_type)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.element_type.arrow_type)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and not isinstance(value, (list, tuple)):
                raise SchemaError(
                    f"{shown(value)} of type {type(value).__name__} does not fit {self.name}"
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

    def normaliser(self) -> Normaliser:
        fit, nullable = self.element_type.normaliser(), self.name != "PRIMITIVE_ARRAY"

        def fitted(value: Any) -> Any:
            if value is None:
                return None
            if isinstance(value, (list, tuple)) and (nullable or None not in value):
                try:
                    return [fit(item) for item in value]
                except SchemaError as cause:
                    raise SchemaError(f"element: {cause}") from cause
            _refuse(self, value)

        return fitted

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

    def __post_init__(self) -> None:
        check_is_type(self.key_type)
        check_is_type(self.value_type)

    @property
    def arrow_type(self) -> pa.DataType:
        return pa.map_(self.key_type.arrow_type, self.value_type.arrow_type)

    def to_arrow(self, values: Sequence[Any]) -> pa.Array:
        for value in values:
            if value is not None and not isinstance(value, Mapping):
                raise SchemaError(f"{shown(value)} of type {type(value).__name__} is no dict")
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

    def normaliser(self) -> Normaliser:
        fit_key, fit = self.key_type.normaliser(), self.value_type.normaliser()

        def fitted(value: Any) -> Any:
            if value is None:
                return None
            try:
                if isinstance(value, Mapping) and None not in value:
                    return {fit_key(key): fit(item) for key, item in value.items()}
            except SchemaError:
                pass  # The error does not tell whether it was a key or a value.
            _refuse(self, value)

        return fitted

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


def _refuse(kind: TypeInformation, value: Any) -> NoReturn:
    """Raise the SchemaError of a value that is known not to fit."""
    kind.to_arrow([value])
    raise AssertionError(f"{shown(value)} fits {kind} after all")


def _call(function: Normaliser, value: Any) -> Any:
    return function(value)


def _holds(kind: TypeInformation, values: Sequence[Any]) -> bool:
    return kind.holds(values)


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
