"""State evolution: whether stored state fits the program's declarations, and its conversion.

This module decides for a restore and for its preview alike. Types are compared recursively:

- Fields that are new get the default their type declares, else None; new columns of a table zero.
- Types are *widened* where every stored value has one exact counterpart: ``INT`` to ``LONG``, to
  ``BIG_INT``, to ``DOUBLE``; ``FLOAT`` to ``DOUBLE``; arrays without None to those that allow it;
  any type but pickles to ``DYNAMIC``. ``LONG`` to ``DOUBLE`` is no widening: not every long has a
  double.
- Fields that are no longer declared lose their values, which must be allowed
  (``allow_non_restored_state``).
- Anything else cannot be mapped.

Named fields are matched by their names, others by their positions, so those can only be added at
the end. A timer is the same in every program; operator state is JSON, which carries its types, and
only its mode can differ.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from weir.common.row import Row, row_class
from weir.common.typeinfo import (
    ListTypeInfo,
    MapTypeInfo,
    RowTypeInfo,
    TypeInformation,
)
from weir.common.types.base import Copier
from weir.common.types.dynamic import DynamicTypeInfo
from weir.errors import RestoreError
from weir.state.expiry import UNDATED, dated, plain_type, redated, undated

Converter: TypeAlias = Callable[[Any], Any]
TableTypes: TypeAlias = tuple[pa.DataType | None, Mapping[str, np.dtype[Any]]]  # Keys, columns.


class Verdict(StrEnum):
    """The fate of stored state in a restore."""

    KEPT = "kept"
    CHANGED = "changed"
    UNMAPPABLE = "unmappable"


@dataclass(frozen=True, slots=True)
class Evolution:
    """The conversion of stored values to a declared type."""

    verdict: Verdict = Verdict.KEPT
    differences: tuple[str, ...] = ()  # Each in words.
    losses: tuple[str, ...] = ()  # The differences that drop stored values.
    convert: Converter | None = None  # None: the values stay unchanged.


@dataclass(frozen=True, slots=True)
class Declaration:
    """A state as the program declares it, and as the checkpoint holds it."""

    name: str
    form: str  # The kind of keyed state, the mode of operator state, "table" or "timers".
    declared: str
    stored: str | None = None  # None: the checkpoint holds nothing of it.
    evolution: Evolution = Evolution()

    def refusal(self, operator: str = "", *, allow_loss: bool = False) -> str | None:
        """The error by which a restore is refused because of this state; None: it is not."""
        evolution = self.evolution
        if evolution.verdict is Verdict.UNMAPPABLE:
            advice = "keep the old type, or use a new name"
        elif evolution.losses and not allow_loss:
            advice = (
                "keep what is dropped, use a new name, or set allow_non_restored_state "
                "(--allow-non-restored-state) to lose it"
            )
        else:
            return None
        where = f"operator {operator!r}: " if operator else ""
        if self.form == "table":
            held = f"table {self.name!r} has {self.stored}, but the program declares"
        else:
            held = (
                f"state {self.name!r} is {self.stored} in the checkpoint, but the program declares"
            )
        reasons = (
            evolution.losses if evolution.verdict is Verdict.CHANGED else evolution.differences
        )
        return f"{where}{held} {self.declared} ({'; '.join(reasons)}); {advice}"


Judge: TypeAlias = Callable[[Declaration], None]


@dataclass(frozen=True, slots=True)
class Guard:
    """The judge of a restore: raises for a state that cannot be restored."""

    operator: str = ""
    allow_loss: bool = False

    def __call__(self, declaration: Declaration) -> None:
        """Check a declared state.

        Raises:
            RestoreError: The stored state cannot be converted, or would lose values.
        """
        refusal = declaration.refusal(self.operator, allow_loss=self.allow_loss)
        if refusal is not None:
            raise RestoreError(refusal)


def evolve(stored: TypeInformation, declared: TypeInformation) -> Evolution:
    """The evolution of values of the stored type to the declared type."""
    if stored == declared:
        return Evolution()
    match stored, declared:
        case RowTypeInfo(), RowTypeInfo():
            return _evolve_row(stored, declared)
        case ListTypeInfo(), ListTypeInfo():
            return _evolve_list(stored, declared)
        case MapTypeInfo(), MapTypeInfo():
            return _evolve_map(stored, declared)
        case _, DynamicTypeInfo() if not stored.has_pickles:
            return Evolution(Verdict.CHANGED, (f"{stored} is widened to {declared}",))
    return _evolve_basic(stored, declared)


def evolve_state(
    stored: tuple[str, TypeInformation],
    declared: tuple[str, TypeInformation],
    touch: Callable[[], int] = lambda: UNDATED,
) -> Evolution:
    """The evolution of a keyed state, by its kind and type.

    Args:
        touch: The time that entries get which have none by the clock of the declared time-to-live.

    Source: FLINK-32955: a time-to-live may be added to state and taken away.
    """
    kind = declared[0]
    if stored[0] != kind:
        return _unmappable(f"{_article(stored[0])} state is no {kind} state")
    (old, old_domain), (new, new_domain) = plain_type(*stored), plain_type(*declared)
    inner = evolve(old, new)
    if inner.verdict is Verdict.UNMAPPABLE or old_domain is new_domain is None:
        return inner
    if old_domain == new_domain:
        if inner.convert is None:
            return inner
        change = None
    elif new_domain is None:
        change = "its time-to-live is taken away"
    elif old_domain is None:
        change = "a time-to-live is added, which begins with the restore"
    else:
        change = f"its time-to-live begins anew in {new_domain.replace('_', ' ')}"
    of_plain = inner.convert or _same

    def convert(value: Any) -> Any:
        plain = of_plain(value if old_domain is None else undated(kind, value))
        if new_domain is None:
            return plain
        return redated(kind, value, plain) if change is None else dated(kind, plain, touch())

    told = inner.differences if change is None else (change, *inner.differences)
    return Evolution(Verdict.CHANGED, told, inner.losses, convert)


def evolve_table(stored: TableTypes, declared: TableTypes) -> Evolution:
    """The evolution of a columnar table, by the type of its keys and its columns."""
    differences: list[str] = []
    losses: list[str] = []
    refused: list[str] = []
    key, wanted_key = stored[0], declared[0]
    if key != wanted_key:
        if wider_key(key, wanted_key) == wanted_key:
            differences.append(f"keys: {key} is widened to {wanted_key}")
        else:
            refused.append(f"keys of {key} cannot become keys of {wanted_key}")
    for name, dtype in declared[1].items():
        old = stored[1].get(name)
        if old is None:
            differences.append(f"column {name} is added, zero in what was stored")
        elif old != dtype:
            if is_wider(old, dtype):
                differences.append(f"column {name}: {old} is widened to {dtype}")
            else:
                refused.append(f"column {name}: {old} cannot become {dtype}")
    losses += [f"column {name} is dropped" for name in stored[1] if name not in declared[1]]
    if refused:
        return _unmappable(*refused, *losses)
    if not differences and not losses:
        return Evolution()
    return Evolution(Verdict.CHANGED, (*differences, *losses), tuple(losses))


def unite_tables(one: TableTypes, other: TableTypes) -> TableTypes:
    """The narrowest types that hold the rows of two tables.

    Raises:
        ValueError: No types hold the rows of both.
    """
    key = wider_key(one[0], other[0])
    if wider_key(other[0], one[0]) != key:
        raise ValueError(f"keys of {one[0]} and keys of {other[0]} have no type in common")
    columns = {**one[1], **other[1]}
    for name in one[1].keys() & other[1].keys():
        old, new = one[1][name], other[1][name]
        if not is_wider(old, new):
            if not is_wider(new, old):
                raise ValueError(f"column {name} is {old} in one part and {new} in another")
            columns[name] = old
    return key, columns


def evolve_mode(stored: str, declared: str) -> Evolution:
    """The evolution of operator state, by its mode."""
    if stored == declared:
        return Evolution()
    return _unmappable(f"{stored} state cannot be redistributed as {declared} state")


def is_wider(stored: np.dtype[Any], declared: np.dtype[Any]) -> bool:
    """Whether every number of ``stored`` has an exact counterpart in ``declared``."""
    if stored.kind == "b" or declared.kind == "b" or stored.kind in "mM" or declared.kind in "mM":
        return bool(stored == declared)
    if stored.kind in "iu" and declared.kind == "f":
        return stored.itemsize * 8 <= np.finfo(declared).nmant + 1
    return bool(np.can_cast(stored, declared, "safe"))


def wider_key(one: pa.DataType | None, other: pa.DataType | None) -> pa.DataType | None:
    """The type that holds the keys of both, where keys hash alike in both; else the first type."""
    if one is None or other is None or one == other:
        return one
    if _is_int_key(one) and _is_int_key(other):
        two = (np.dtype(one.to_pandas_dtype()), np.dtype(other.to_pandas_dtype()))
        return other if is_wider(*two) else one
    texts = (pa.string(), pa.large_string())
    if one in texts and other in texts:
        return pa.large_string()
    return one


def describe_table(types: TableTypes) -> str:
    """A table's schema in words."""
    key, columns = types
    listed = ", ".join(f"{name} {_named(dtype)}" for name, dtype in columns.items()) or "none"
    return f"keys of {key} and columns {listed}"


@lru_cache(maxsize=64)  # NumPy takes microseconds to name one, and every window has a table.
def _named(dtype: np.dtype[Any]) -> str:
    return str(dtype)


def describe_state(kind: str, type_info: TypeInformation) -> str:
    """A keyed state's kind and type in words."""
    plain, domain = plain_type(kind, type_info)
    if domain is None:
        return f"{kind} of {type_info}"
    return f"{kind} of {plain} with a time-to-live in {domain.replace('_', ' ')}"


# Basic types.

_INTS = ("BYTE", "SHORT", "INT", "LONG", "BIG_INT")
_BITS = {"BYTE": 8, "SHORT": 16, "INT": 32}
_MANTISSA = {"FLOAT": 24, "DOUBLE": 53}
_SAME_VALUES = {("FLOAT", "DOUBLE"), ("CHAR", "STRING")}


def _evolve_basic(stored: TypeInformation, declared: TypeInformation) -> Evolution:
    one, other = str(stored), str(declared)
    widened = Evolution(Verdict.CHANGED, (f"{one} is widened to {other}",))
    if (one, other) in _SAME_VALUES:
        return widened
    if one in _INTS:
        if other in _INTS and _INTS.index(one) < _INTS.index(other):
            return widened
        if other in _MANTISSA and _BITS.get(one, 64) <= _MANTISSA[other]:
            return Evolution(Verdict.CHANGED, widened.differences, convert=_over(float))
        if other == "BIG_DEC":
            return Evolution(Verdict.CHANGED, widened.differences, convert=_over(Decimal))
    return _unmappable(f"{one} cannot become {other}")


# Types made of others.


def _evolve_list(stored: ListTypeInfo, declared: ListTypeInfo) -> Evolution:
    if declared.name == "PRIMITIVE_ARRAY" != stored.name:
        return _unmappable(f"a {stored.name} may hold None, which a PRIMITIVE_ARRAY does not")
    inner = evolve(stored.element_type, declared.element_type)
    differences = [f"element: {difference}" for difference in inner.differences]
    if inner.verdict is Verdict.UNMAPPABLE:
        return _unmappable(*differences)
    if stored.name != declared.name:
        differences.insert(0, f"{stored.name} is widened to {declared.name}")
    convert = inner.convert
    return Evolution(
        Verdict.CHANGED,
        tuple(differences),
        tuple(f"element: {loss}" for loss in inner.losses),
        None if convert is None else _over(lambda items: list(map(convert, items))),
    )


def _evolve_map(stored: MapTypeInfo, declared: MapTypeInfo) -> Evolution:
    keys = evolve(stored.key_type, declared.key_type)
    values = evolve(stored.value_type, declared.value_type)
    differences = (
        *(f"key: {difference}" for difference in keys.differences),
        *(f"value: {difference}" for difference in values.differences),
    )
    if Verdict.UNMAPPABLE in (keys.verdict, values.verdict):
        return _unmappable(*differences)
    if keys.losses:  # Keys that differ only in dropped fields would become one.
        return _unmappable(
            *(f"key: {loss}, so keys would no longer differ" for loss in keys.losses)
        )
    convert: Converter | None = None
    if keys.convert is not None or values.convert is not None:
        of_key, of_value = keys.convert or _same, values.convert or _same
        convert = _over(lambda held: {of_key(k): of_value(v) for k, v in held.items()})
    losses = tuple(f"value: {loss}" for loss in values.losses)
    return Evolution(Verdict.CHANGED, differences, losses, convert)


@dataclass(frozen=True, slots=True)
class _Field:
    """The source of a field of a declared row."""

    index: int | None  # In the stored row; None: it is new.
    convert: Converter | None = None
    default: Any = None
    copier: Copier | None = None  # Of the default, where it can be changed in place.

    def read(self, row: Sequence[Any]) -> Any:
        if self.index is None:
            return self.default if self.copier is None else self.copier(self.default)
        value = row[self.index]
        return value if self.convert is None else self.convert(value)


def _evolve_row(stored: RowTypeInfo, declared: RowTypeInfo) -> Evolution:
    one, other = _form(stored), _form(declared)
    if one != other:
        return _unmappable(f"{_article(one)} cannot become {_article(other)}")
    old = {name: index for index, name in enumerate(stored.field_names)}
    differences: list[str] = []
    losses: list[str] = []
    refused: list[str] = []
    fields: list[_Field] = []
    for name, kind in zip(declared.field_names, declared.field_types, strict=True):
        index = old.get(name)
        if index is None:
            default = kind.normaliser()(declared.default_of(name))
            differences.append(f"field {name} is added, {default!r} in what was stored")
            fields.append(_Field(None, default=default, copier=kind.copier))
            continue
        inner = evolve(stored.field_types[index], kind)
        told = [f"field {name}: {difference}" for difference in inner.differences]
        (refused if inner.verdict is Verdict.UNMAPPABLE else differences).extend(told)
        losses += [f"field {name}: {loss}" for loss in inner.losses]
        fields.append(_Field(index, inner.convert))
    dropped = [f"field {name} is dropped" for name in old if name not in declared.field_names]
    differences += dropped
    losses += dropped
    if refused:
        return _unmappable(*refused, *losses)
    indices = [field.index for field in fields if field.index is not None]
    if indices != sorted(indices):
        differences.append(f"the fields are in another order: {', '.join(declared.field_names)}")
    convert = None
    if indices != list(range(len(old))) or any(f.index is None or f.convert for f in fields):
        convert = _row_converter(declared, fields)
    return Evolution(Verdict.CHANGED, tuple(differences), tuple(losses), convert)


def _row_converter(declared: RowTypeInfo, fields: Iterable[_Field]) -> Converter:
    if declared.is_tuple:
        made: type[tuple[Any, ...]] = tuple
    else:
        made = Row if declared.names is None else row_class(declared.names)
    readers = [field.read for field in fields]
    return _over(lambda row: tuple.__new__(made, [read(row) for read in readers]))


def _form(kind: RowTypeInfo) -> str:
    if kind.is_tuple:
        return "tuple"
    return "row of unnamed fields" if kind.names is None else "row of named fields"


def _over(convert: Converter) -> Converter:
    """``convert``, but None stays None."""
    return lambda value: None if value is None else convert(value)


def _same(value: Any) -> Any:
    return value


def _unmappable(*reasons: str) -> Evolution:
    return Evolution(Verdict.UNMAPPABLE, reasons)


def _article(words: str) -> str:
    return f"{'an' if words[0] in 'aeiou' else 'a'} {words}"


def _is_int_key(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) and not pa.types.is_uint64(kind)
