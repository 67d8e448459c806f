"""State under a key: copied whenever a value goes in or comes out."""

import copy
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.programs.oracle.declared_types import Type, applied


@dataclass(frozen=True)
class Descriptor:
    """Stands in for a state descriptor."""

    kind: str
    name: str
    type: Type
    key_type: Type | None = None
    function: Any = None


def value_descriptor(name: str, kind: Type) -> Descriptor:
    """Stands in for ``ValueStateDescriptor``."""
    return Descriptor("value", name, kind)


def list_descriptor(name: str, kind: Type) -> Descriptor:
    """Stands in for ``ListStateDescriptor``."""
    return Descriptor("list", name, kind)


def map_descriptor(name: str, key: Type, value: Type) -> Descriptor:
    """Stands in for ``MapStateDescriptor``."""
    return Descriptor("map", name, value, key)


def reducing_descriptor(name: str, function: Any, kind: Type) -> Descriptor:
    """Stands in for ``ReducingStateDescriptor``."""
    return Descriptor("reducing", name, kind, function=getattr(function, "reduce", function))


def aggregating_descriptor(name: str, function: Any, kind: Type) -> Descriptor:
    """Stands in for ``AggregatingStateDescriptor``."""
    return Descriptor("aggregating", name, kind, function=function)


class State:
    """All states of one function: values by name and key."""

    def __init__(self) -> None:
        self.key: Any = None
        self.values: dict[tuple[str, Any], Any] = {}

    def get_state(self, descriptor: Descriptor) -> "Kept":
        """The handle of a state."""
        return Kept(self, descriptor)

    def as_it_is(self) -> Callable[[], None]:
        """A function that brings the values of now back."""
        before = dict(self.values)  # Values are replaced, never changed.

        def undo() -> None:
            self.values = before

        return undo

    get_list_state = get_map_state = get_reducing_state = get_aggregating_state = get_state

    def get_index_of_this_subtask(self) -> int:
        """There is one."""
        return 0


class Kept:
    """One state of the current key, of any kind: what goes in and comes out is copied."""

    def __init__(self, state: State, descriptor: Descriptor) -> None:
        self._state = state
        self._descriptor = descriptor

    @property
    def _slot(self) -> tuple[str, Any]:
        return self._descriptor.name, self._state.key

    def _load(self, default: Any = None) -> Any:
        return copy.deepcopy(self._state.values.get(self._slot, default))

    def _store(self, value: Any) -> None:
        self._state.values[self._slot] = value

    def clear(self) -> None:
        self._state.values.pop(self._slot, None)

    # Value.

    def value(self) -> Any:
        return self._load()

    def update(self, value: Any) -> None:
        if self._descriptor.kind == "list":
            value = [applied(self._descriptor.type, item) for item in value] or None
        else:
            value = applied(self._descriptor.type, value)
        if value is None:
            self.clear()
        else:
            self._store(value)

    # List, map.

    def get(self, key: Any = None) -> Any:
        match self._descriptor.kind:
            case "list":
                return self._load([])
            case "map":
                return self._load({}).get(key)
            case "aggregating":
                kept = self._load()
                return None if kept is None else self._descriptor.function.get_result(kept)
        return self._load()

    def add(self, value: Any) -> None:
        kept, function = self._load(), self._descriptor.function
        match self._descriptor.kind:
            case "list":
                self._store([*(kept or []), applied(self._descriptor.type, value)])
            case "aggregating":
                kept = function.create_accumulator() if kept is None else kept
                self._store(applied(self._descriptor.type, function.add(value, kept)))
            case "reducing":
                value = value if kept is None else function(kept, value)
                self._store(applied(self._descriptor.type, value))

    def add_all(self, values: Iterable[Any]) -> None:
        for value in values:
            self.add(value)

    def put(self, key: Any, value: Any) -> None:
        assert self._descriptor.key_type is not None
        kept = self._load({})
        kept[applied(self._descriptor.key_type, key)] = applied(self._descriptor.type, value)
        self._store(kept)

    def remove(self, key: Any) -> None:
        kept = self._load({})
        kept.pop(key, None)
        self._store(kept)

    def contains(self, key: Any) -> bool:
        return key in self._load({})

    def items(self) -> Iterator[tuple[Any, Any]]:
        return iter(self._load({}).items())

    def keys(self) -> Iterator[Any]:
        return iter(self._load({}))

    def values(self) -> Iterator[Any]:
        return iter(self._load({}).values())

    def is_empty(self) -> bool:
        return not self._load({})
