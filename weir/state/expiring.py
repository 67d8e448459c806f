"""The states a function works with, with a time-to-live (``expiry``).

A read that meets an expired entry removes it, and returns nothing of it; where the configuration
lets it return what has expired, it returns that once. Lists and maps expire entry by entry.

Source: Flink, ``TtlValueState``, ``TtlListState``, ``TtlMapState`` and their like.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from weir.errors import SchemaError
from weir.state.expiry import Expiry, has_expired, plain_type
from weir.state.keyed import AggregatingState, ListState, MapState, ReducingState, State, ValueState

if TYPE_CHECKING:
    from weir.state.backend import Cursor
    from weir.state.backends.base import StateTable


class _OneValue(State):
    """One value per key, with its time."""

    def __init__(self, table: "StateTable", cursor: "Cursor", expiry: Expiry) -> None:
        State.__init__(self, table, cursor)
        self._expiry = expiry
        self._normalise = plain_type(table.kind, table.type_info)[0].normaliser()

    def _pair(self) -> Any:
        return self._own() if self._mutable else self._shared()

    def _live(self) -> Any:
        """The time and the value, if it has not expired; None otherwise."""
        pair = self._pair()
        if pair is None or has_expired(pair[0], self._expiry.limit_ms()):
            return None
        return pair

    def _read(self) -> Any:
        """The value for a reader, which touches or removes it."""
        pair = self._pair()
        if pair is None:
            return None
        expiry = self._expiry
        if has_expired(pair[0], expiry.limit_ms()):
            self.clear()
            return pair[1] if expiry.returns_expired else None
        if expiry.on_read:
            self._put((expiry.touch(pair[0]), pair[1]))
        return pair[1]

    def _write(self, value: Any) -> None:
        before = self._shared()
        touched = self._expiry.touch() if before is None else self._expiry.touch(before[0])
        self._put((touched, value))


class ExpiringValueState(_OneValue, ValueState):
    """One value with a time-to-live."""

    def value(self) -> Any:
        """The value, or None."""
        return self._read()

    def update(self, value: Any) -> None:
        """Set the value; None clears it.

        Raises:
            SchemaError: The value does not fit the state's type.
        """
        value = self._normal(value)
        if value is None:
            self.clear()
        else:
            self._write(value)


class ExpiringReducingState(_OneValue, ReducingState):
    """A value into which every added one is reduced, with a time-to-live."""

    def __init__(
        self,
        table: "StateTable",
        cursor: "Cursor",
        expiry: Expiry,
        reduce: Callable[[Any, Any], Any],
    ) -> None:
        super().__init__(table, cursor, expiry)
        self._reduce = reduce

    def get(self) -> Any:
        """The reduced value, or None."""
        return self._read()

    def add(self, value: Any) -> None:
        """Reduce one more value into it; what has expired is left out."""
        pair = self._live()
        self._write(self._normal(value if pair is None else self._reduce(pair[1], value)))


class ExpiringAggregatingState(_OneValue, AggregatingState):
    """An accumulator into which every added value is folded, with a time-to-live."""

    def __init__(
        self, table: "StateTable", cursor: "Cursor", expiry: Expiry, function: Any
    ) -> None:
        super().__init__(table, cursor, expiry)
        self._function = function

    def get(self) -> Any:
        """The result over all added values, or None where there are none."""
        kept = self._read()
        return None if kept is None else self._function.get_result(kept)

    def add(self, value: Any) -> None:
        """Fold one more value into it; what has expired is left out."""
        pair = self._live()
        kept = self._function.create_accumulator() if pair is None else pair[1]
        self._write(self._normal(self._function.add(value, kept)))


class ExpiringListState(ListState):
    """A list whose elements have a time-to-live each."""

    __slots__ = ("_expiry",)

    def __init__(self, table: "StateTable", cursor: "Cursor", expiry: Expiry) -> None:
        State.__init__(self, table, cursor)
        self._expiry = expiry
        plain: Any = plain_type(table.kind, table.type_info)[0]
        self._normalise = plain.normaliser()
        self._normalise_element = plain.element_type.normaliser()

    def get(self) -> list[Any]:
        """The elements, in a list of the caller's own."""
        own = self._own()
        if own is None:
            return []
        kept = list(own)
        expiry = self._expiry
        limit_ms = expiry.limit_ms()
        live = [pair for pair in kept if not has_expired(pair[0], limit_ms)]
        seen = [pair[1] for pair in (kept if expiry.returns_expired else live)]
        if expiry.on_read:
            live = [(expiry.touch(touched_ms), value) for touched_ms, value in live]
        if not live:
            self.clear()
        elif expiry.on_read or len(live) < len(kept):
            own[:] = live
        return seen

    def __iter__(self) -> Iterator[Any]:
        """The elements, all of them read at once."""
        return iter(self.get())

    def add(self, value: Any) -> None:
        """Append an element."""
        try:
            value = self._normalise_element(value)
        except SchemaError as error:
            raise self._misfit(error) from error
        self._extend([value])

    def update(self, values: Iterable[Any]) -> None:
        """Replace all elements; without any the state is cleared."""
        if new := self._normal(list(values)):
            touched_ms = self._expiry.touch()
            self._put([(touched_ms, value) for value in new])
        else:
            self.clear()

    def _extend(self, new: list[Any]) -> None:
        touched_ms = self._expiry.touch()
        super()._extend([(touched_ms, value) for value in new])


class ExpiringMapState(MapState):
    """A dictionary whose entries have a time-to-live each."""

    __slots__ = ("_expiry",)

    def __init__(self, table: "StateTable", cursor: "Cursor", expiry: Expiry) -> None:
        State.__init__(self, table, cursor)
        self._expiry = expiry
        plain: Any = plain_type(table.kind, table.type_info)[0]
        self._values_mutable = plain.value_type.is_mutable
        self._normalise_value = plain.value_type.normaliser()
        self._normalise_key = plain.key_type.normaliser()

    def get(self, key: Any) -> Any:
        """The value under ``key``, or None."""
        pair = self._met(self._key(key))
        return None if pair is None else pair[1]

    def get_normal(self, key: Any) -> Any:
        """The value under a key that is normalised already; it may be changed in place."""
        pair = self._met(key)
        return None if pair is None else pair[1]

    def put_normal(self, key: Any, value: Any) -> None:
        """Set a value under a key, both normalised already."""
        kept = self._own()
        if kept is None:
            self._put({key: (self._expiry.touch(), value)})
            return
        before = kept.get(key)
        touched_ms = self._expiry.touch() if before is None else self._expiry.touch(before[0])
        kept[key] = (touched_ms, value)
        if self._divides:
            self._table.grown(self._cursor.group, self._cursor.slot)

    def contains(self, key: Any) -> bool:
        """Whether there is a value under ``key``."""
        return self._met(self._key(key)) is not None

    def items(self) -> Iterator[tuple[Any, Any]]:
        """All keys and values."""
        return self._met_all()

    def keys(self) -> Iterator[Any]:
        """All keys."""
        return (key for key, _ in self._met_all())

    def values(self) -> Iterator[Any]:
        """All values."""
        return (value for _, value in self._met_all())

    def is_empty(self) -> bool:
        """Whether there is no value at all."""
        kept = self._shared()
        if kept is None or self._expiry.returns_expired:
            return super().is_empty()
        limit_ms = self._expiry.limit_ms()
        return all(has_expired(touched_ms, limit_ms) for touched_ms, _ in kept.values())

    def _met(self, key: Any) -> Any:
        """The time and the value under a key for a reader, which touches or removes it."""
        kept = self._seen()
        pair = None if kept is None else kept.get(key)
        if pair is None:
            return None
        expiry = self._expiry
        if has_expired(pair[0], expiry.limit_ms()):
            kept = self._own()
            del kept[key]
            if not kept:
                self.clear()
            return pair if expiry.returns_expired else None
        if expiry.on_read:
            self._own()[key] = (expiry.touch(pair[0]), pair[1])
        return pair

    def _met_all(self) -> Iterator[tuple[Any, Any]]:
        """All keys and values for a reader, which touches or removes them."""
        kept = self._seen()
        if kept is None:
            return iter(())
        if not isinstance(kept, dict):
            return self._met_each(self._own())
        expiry = self._expiry
        limit_ms = expiry.limit_ms()
        expired = {key for key, pair in kept.items() if has_expired(pair[0], limit_ms)}
        if expired or expiry.on_read:
            kept = self._own()
        seen = [
            (key, pair[1])
            for key, pair in kept.items()
            if expiry.returns_expired or key not in expired
        ]
        for key in expired:
            del kept[key]
        if expiry.on_read:
            for key, (touched_ms, value) in kept.items():
                kept[key] = (expiry.touch(touched_ms), value)
        if not kept:
            self.clear()
        return iter(seen)

    def _met_each(self, kept: Any) -> Iterator[tuple[Any, Any]]:
        """The keys and values of a map on disk, each touched or removed when a reader meets it."""
        expiry = self._expiry
        limit_ms = expiry.limit_ms()
        for key, (seen_ms, value) in kept.items():
            # The reader may have set or removed it since the iteration began.
            now = kept.get(key) if expiry.on_read or has_expired(seen_ms, limit_ms) else None
            if now is not None and has_expired(now[0], limit_ms):
                del kept[key]
            elif now is not None and expiry.on_read:
                kept[key] = (expiry.touch(now[0]), now[1])
            if expiry.returns_expired or not has_expired(seen_ms, limit_ms):
                yield key, value
