"""The states a function works with: value, list, map, reducing and aggregating, per current key.

Names and meaning are PyFlink's. They are thin: a look-up in the dictionary of the current key's
group, and before a write a check whether a frozen view needs the old value. A value that is put is
normalised to the declared type: it comes back the same before a restore and after one, and the
state does not share the caller's object.
"""

from collections.abc import Callable, Iterable, Iterator
from types import GenericAlias
from typing import TYPE_CHECKING, Any, ClassVar, Final

from weir.common.typeinfo import Types
from weir.common.types.base import Normaliser
from weir.errors import SchemaError, UserError

if TYPE_CHECKING:
    from weir.state.backend import Cursor
    from weir.state.backends.base import StateTable


_END: Final = object()


class State:
    """A state of the current key.

    Annotations may name its types, as in ``ValueState[int]``.
    """

    __class_getitem__: ClassVar[Any] = classmethod(GenericAlias)
    __slots__ = ("_cursor", "_divides", "_mutable", "_normalise", "_table", "_tables")

    def __init__(self, table: "StateTable", cursor: "Cursor") -> None:
        self._table = table
        self._cursor = cursor
        self._tables = table.tables
        self._mutable = table.is_mutable
        self._divides = table.divides
        self._normalise = table.type_info.normaliser()

    def clear(self) -> None:
        """Remove the value of the current key."""
        cursor = self._cursor
        try:
            self._table.remove(cursor.group, cursor.slot)
        except IndexError:
            raise no_key() from None

    def _shared(self) -> Any:
        """The value of the current key, for reading only."""
        cursor = self._cursor
        try:
            return self._tables[cursor.group].get(cursor.slot)
        except IndexError:
            raise no_key() from None

    def _own(self) -> Any:
        """The value of the current key, which may be changed or returned to the user."""
        cursor = self._cursor
        try:
            return self._table.own(cursor.group, cursor.slot)
        except IndexError:
            raise no_key() from None

    def _normal(self, value: Any) -> Any:
        """The value as the state's type holds it."""
        try:
            return self._normalise(value)
        except SchemaError as error:
            raise self._misfit(error) from error

    def _misfit(self, error: SchemaError) -> SchemaError:
        return SchemaError(f"state {self._table.name!r}: {error}")

    def _put(self, value: Any) -> None:
        cursor = self._cursor
        try:
            self._table.put(cursor.group, cursor.slot, value)
        except IndexError:
            raise no_key() from None


class ValueState(State):
    """One value."""

    __slots__ = ("_is_long",)

    def __init__(self, table: "StateTable", cursor: "Cursor") -> None:
        super().__init__(table, cursor)
        self._is_long = table.type_info == Types.LONG()  # The most frequent type; checked inline.

    def value(self) -> Any:
        """The value, or None."""
        if self._mutable:
            return self._own()
        cursor = self._cursor
        try:
            return self._tables[cursor.group].get(cursor.slot)
        except IndexError:
            raise no_key() from None

    def update(self, value: Any) -> None:
        """Set the value; None clears it.

        Raises:
            SchemaError: The value does not fit the state's type.
        """
        if not (
            self._is_long
            and type(value) is int
            and -0x8000_0000_0000_0000 <= value <= 0x7FFF_FFFF_FFFF_FFFF
        ):
            value = self._normal(value)
        if value is None:
            self.clear()
        elif self._mutable:
            self._put(value)
        else:
            cursor = self._cursor
            try:
                if self._table.views:
                    self._table.log(cursor.group, cursor.slot)
                self._tables[cursor.group][cursor.slot] = value
            except IndexError:
                raise no_key() from None


class ListState(State):
    """A list."""

    __slots__ = ("_normalise_element",)

    def __init__(self, table: "StateTable", cursor: "Cursor") -> None:
        super().__init__(table, cursor)
        self._normalise_element: Normaliser = table.type_info.element_type.normaliser()  # type: ignore[attr-defined]

    def get(self) -> list[Any]:
        """The elements, in a list of the caller's own."""
        return list(self._own() or ())

    def __iter__(self) -> Iterator[Any]:
        """The elements one by one, however large the list is; not in PyFlink.

        Changes made meanwhile are not seen.
        """
        kept = self._own()
        return iter(self.get()) if kept is None or isinstance(kept, list) else iter(kept)

    def add(self, value: Any) -> None:
        """Append an element."""
        try:
            value = self._normalise_element(value)
        except SchemaError as error:
            raise self._misfit(error) from error
        kept = self._own()
        if kept is None:
            self._put([value])
        else:
            kept.append(value)
            if self._divides:
                self._table.grown(self._cursor.group, self._cursor.slot)

    def add_all(self, values: Iterable[Any]) -> None:
        """Append several elements."""
        self._extend(self._normal(list(values)))

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements; without any the state is cleared."""
        if new := self._normal(list(values)):
            self._put(new)
        else:
            self.clear()

    def _extend(self, new: list[Any]) -> None:
        kept = self._own()
        if kept is not None:
            kept.extend(new)
            if self._divides:
                self._table.grown(self._cursor.group, self._cursor.slot)
        elif new:
            self._put(new)


class MapState(State):
    """A dictionary. An iteration does not see changes made meanwhile."""

    __slots__ = ("_normalise_key", "_normalise_value", "_values_mutable")

    def __init__(self, table: "StateTable", cursor: "Cursor") -> None:
        super().__init__(table, cursor)
        kind: Any = table.type_info
        self._values_mutable: bool = kind.value_type.is_mutable
        self._normalise_value: Normaliser = kind.value_type.normaliser()
        self._normalise_key: Normaliser = kind.key_type.normaliser()

    def get(self, key: Any) -> Any:
        """The value under ``key``, or None."""
        kept = self._seen()
        return None if kept is None else kept.get(self._key(key))

    def get_normal(self, key: Any) -> Any:
        """The value under a key that is normalised already; it may be changed in place."""
        kept = self._own()
        return None if kept is None else kept.get(key)

    def put_normal(self, key: Any, value: Any) -> None:
        """Set a value under a key, both normalised already."""
        kept = self._own()
        if kept is None:
            self._put({key: value})
        else:
            kept[key] = value
            if self._divides:
                self._table.grown(self._cursor.group, self._cursor.slot)

    def put(self, key: Any, value: Any) -> None:
        """Set the value under ``key``."""
        if key is None:
            raise SchemaError(f"state {self._table.name!r}: None cannot be a key")
        try:
            key, value = self._normalise_key(key), self._normalise_value(value)
        except SchemaError as error:
            raise self._misfit(error) from error
        self.put_normal(key, value)

    def put_all(self, dict_value: dict[Any, Any]) -> None:
        """Set several values."""
        for key, value in dict_value.items():
            self.put(key, value)

    def remove(self, key: Any) -> None:
        """Remove the value under ``key``, if there is one."""
        key = self._key(key)
        if key in (self._shared() or ()):
            kept = self._own()
            del kept[key]
            if not kept:
                self.clear()

    def contains(self, key: Any) -> bool:
        """Whether there is a value under ``key``."""
        return self._key(key) in (self._shared() or ())

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys and values."""
        return steady((self._seen() or {}).items())

    def keys(self) -> Iterator[Any]:
        """All keys."""
        return steady((self._shared() or {}).keys())

    def values(self) -> Iterator[Any]:
        """All values."""
        return steady((self._seen() or {}).values())

    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        return next(iter(self._shared() or ()), _END) is _END

    def __contains__(self, key: Any) -> bool:
        return self.contains(key)

    def __iter__(self) -> Iterator[Any]:
        return self.keys()

    def _key(self, key: Any) -> Any:
        try:
            return self._normalise_key(key)
        except SchemaError as error:
            raise self._misfit(error) from error

    def _seen(self) -> Any:
        # Reading copies nothing unless the values themselves could be changed by the reader.
        return self._own() if self._values_mutable else self._shared()


class ReducingState(State):
    """A value into which every added one is reduced."""

    __slots__ = ("_reduce",)

    def __init__(
        self, table: "StateTable", cursor: "Cursor", reduce: Callable[[Any, Any], Any]
    ) -> None:
        super().__init__(table, cursor)
        self._reduce = reduce

    def get(self) -> Any:
        """The reduced value, or None."""
        return self._own()

    def add(self, value: Any) -> None:
        """Reduce one more value into it."""
        kept = self._own()
        self._put(self._normal(value if kept is None else self._reduce(kept, value)))


class AggregatingState(State):
    """An accumulator into which every added value is folded."""

    __slots__ = ("_function",)

    def __init__(self, table: "StateTable", cursor: "Cursor", function: Any) -> None:
        super().__init__(table, cursor)
        self._function = function

    def get(self) -> Any:
        """The result over all added values, or None where there are none."""
        kept = self._own()
        return None if kept is None else self._function.get_result(kept)

    def add(self, value: Any) -> None:
        """Fold one more value into it."""
        kept = self._own()
        if kept is None:
            kept = self._function.create_accumulator()
        self._put(self._normal(self._function.add(value, kept)))


def steady(view: Iterable[Any]) -> Iterator[Any]:
    """An iteration over a map as it is now; over one on disk it is that already."""
    return view if isinstance(view, Iterator) else iter(list(view))


def no_key() -> UserError:
    """The error for state that is used without a current key."""
    return UserError(
        "keyed state was used without a current key; use it while a record or timer is processed, "
        "not in open() or close()"
    )
