"""``Row``: a tuple whose fields may have names, as in PyFlink, but immutable.

Every set of field names has a class of its own, created once, so that a row of named fields costs
no more than a tuple and ten thousand rows can be made in one call.
"""

from collections.abc import Iterable, Sequence
from functools import cache, partial
from operator import itemgetter
from typing import Any, ClassVar

_FIELDS_FIRST = ("count", "index")  # Tuple methods that rows do not need, and likely field names.


class Row(tuple[Any, ...]):
    """An immutable record: ``Row(1, "a")`` by position or ``Row(id=1, name="a")`` by name.

    Fields are read as ``row[0]``, ``row["name"]`` or ``row.name``.
    """

    __slots__ = ()
    field_names: ClassVar[tuple[str, ...] | None] = None

    def __new__(cls, /, *values: Any, **named: Any) -> "Row":
        if named:
            if values:
                raise TypeError("give a Row either positional or named fields, not both")
            return tuple.__new__(row_class(tuple(named)), named.values())
        return tuple.__new__(cls, values)

    def __getitem__(self, field: Any) -> Any:
        if isinstance(field, str):
            names = self.field_names
            if names is None or field not in names:
                raise KeyError(f"the row has no field {field!r}; it has {names or 'no names'}")
            return tuple.__getitem__(self, names.index(field))
        return tuple.__getitem__(self, field)

    def __setitem__(self, field: Any, value: Any) -> None:
        raise TypeError(_unchanging(self, field))

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(_unchanging(self, name))

    def as_dict(self) -> dict[str, Any]:
        """The fields by name.

        Raises:
            TypeError: The row has no names.
        """
        if self.field_names is None:
            raise TypeError("the row has no field names")
        return dict(zip(self.field_names, self, strict=True))

    def __repr__(self) -> str:
        if self.field_names is None:
            return f"Row({', '.join(map(repr, self))})"
        named = zip(self.field_names, self, strict=True)
        return f"Row({', '.join(f'{name}={value!r}' for name, value in named)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self.field_names, tuple(self))


def _unchanging(row: Row, field: Any) -> str:
    """The refusal of a changed field, with what to write instead."""
    names = row.field_names
    if names is None:
        return "a Row cannot be changed; make another one, such as Row(*values)"
    name = field if field in names else "name"
    return f"a Row cannot be changed; make another one: Row(**{{**row.as_dict(), {name!r}: value}})"


@cache
def row_class(names: tuple[str, ...]) -> type[Row]:
    """The class of rows with these field names, the same one at every call."""
    if not names:
        return Row  # Without fields there is nothing to name.
    attributes: dict[str, Any] = {"__slots__": (), "field_names": names}
    attributes |= {
        name: property(itemgetter(i))
        for i, name in enumerate(names)
        if name in _FIELDS_FIRST or not hasattr(Row, name)
    }
    return type("Row", (Row,), attributes)


def rows_of(names: Sequence[str], values: Iterable[tuple[Any, ...]]) -> list[Row]:
    """One row of these names per tuple of ``values``."""
    return list(map(partial(tuple.__new__, row_class(tuple(names))), values))


def _restore(names: tuple[str, ...] | None, values: tuple[Any, ...]) -> Row:
    return tuple.__new__(Row if names is None else row_class(names), values)
