"""The contract of a type: columns, normal form, copies and wire form of its values."""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from weir.errors import SchemaError

Copier: TypeAlias = Callable[[Any], Any]
Normaliser: TypeAlias = Callable[[Any], Any]
Wire: TypeAlias = str | list[Any]  # JSON: a name, or a name and its arguments.


class TypeInformation(ABC):
    """The storage of values of one type; equal types are equal objects."""

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
        """The Python values of a column as ``to_arrow`` makes it."""

    @abstractmethod
    def to_wire(self) -> Wire:
        """The type as JSON; ``type_from_wire`` reads it."""

    def normaliser(self) -> Normaliser:
        """A function that normalises a value: ``from_arrow(to_arrow([value]))``.

        It raises SchemaError where the value does not fit. Its result shares no mutable part with
        its argument.
        """
        return lambda value: self.from_arrow(self.to_arrow([value]))[0]

    def normalise_all(self, values: list[Any]) -> list[Any]:
        """The values normalised; the list itself where all of them are normal already.

        Shape: n values -> n values.

        Raises:
            SchemaError: A value does not fit; it is named, and so is the field that holds it.
        """
        return values if self.holds(values) else self.from_arrow(self.to_arrow(values))

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether the values certainly are normal and immutable; False where that is unknown."""
        return False

    @property
    def copier(self) -> Copier | None:
        """A function that copies a value deeply; None where values are immutable."""
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


def check_is_type(given: Any) -> None:
    """Check that a part of a type is a type.

    Raises:
        SchemaError: It is not; the message says how to write one.
    """
    if not isinstance(given, TypeInformation):
        name = getattr(given, "__name__", None) or shown(given)
        raise SchemaError(
            f"{name} is no type; write Types.STRING(), Types.LONG() and so on, with parentheses"
        )


def shown(value: Any) -> str:
    """``repr`` cut to a length that fits a message; never raises."""
    try:
        text = repr(value)
    except Exception:  # As that of an integer of some thousand digits does.
        return f"a {type(value).__name__} that cannot be shown"
    return text if len(text) <= 80 else f"{text[:77]}..."
