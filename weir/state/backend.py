"""Keyed state as dictionaries, one per state and key group, frozen by marking them.

Freezing hands the very dictionaries to the snapshot and marks every group; the first write to a
marked group replaces the live dictionary by a copy, so what was frozen never changes again. Values
that can be changed in place need more: a shallow copy of the dictionary still shares them. While
any frozen view is alive, such a value is copied the first time it is handed out or changed, once
per key and freeze. An object that user code kept from before the barrier is beyond this: state must
be asked for anew for each record, as functions do anyway.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from weir.common.typeinfo import TypeInformation
from weir.errors import ConfigError, ProtocolError, RestoreError
from weir.graph.key_groups import Key, key_group
from weir.ids import CheckpointId, KeyGroupRange
from weir.state.codec import SlotKey, key_of_slot, slot_key
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from weir.state.keyed import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
    no_key,
)

Table = dict[SlotKey, Any]
S = TypeVar("S", bound=State)

_NO_KEY = 1 << 62  # Larger than any list of groups, so that an access without a key fails there.


class Cursor:
    """The current key: its group's place in the range, and what tables look it up by."""

    __slots__ = ("group", "slot")

    def __init__(self) -> None:
        self.group = _NO_KEY
        self.slot: SlotKey = None


class StateTable:
    """The values of one state, in one dictionary per key group, with copy on write."""

    __slots__ = ("_copier", "_frozen", "_owned", "kind", "marked", "name", "tables", "type_info")

    def __init__(self, name: str, kind: str, type_info: TypeInformation, groups: int) -> None:
        self.name = name
        self.kind = kind
        self.type_info = type_info
        self.tables: list[Table] = [{} for _ in range(groups)]
        self.marked = bytearray(groups)  # 1: the dictionary belongs to a frozen view as well.
        self._copier = type_info.copier
        # Of mutable values, while a view is alive: the keys whose value no view shares.
        self._owned: list[set[SlotKey]] | None = None
        self._frozen = 0  # Views alive.

    @property
    def is_mutable(self) -> bool:
        """Whether its values can be changed in place."""
        return self._copier is not None

    def unshare(self, group: int) -> None:
        """Give the live state a dictionary of its own; the old one is the frozen view's."""
        self.tables[group] = self.tables[group].copy()
        self.marked[group] = 0

    def own(self, group: int, slot: SlotKey) -> Any:
        """The value, in a form that no frozen view shares; None where there is none."""
        table = self.tables[group]
        value = table.get(slot)
        if self._owned is None or self._copier is None or value is None:
            return value
        owned = self._owned[group]
        if slot not in owned:
            value = self._copier(value)
            self.put(group, slot, value)
        return value

    def put(self, group: int, slot: SlotKey, value: Any) -> None:
        """Set the value, which is the live state's own from now on."""
        if self.marked[group]:
            self.unshare(group)
        self.tables[group][slot] = value
        if self._owned is not None:
            self._owned[group].add(slot)

    def remove(self, group: int, slot: SlotKey) -> None:
        """Forget the value, if there is one."""
        if slot in self.tables[group]:
            if self.marked[group]:
                self.unshare(group)
            del self.tables[group][slot]

    def freeze(self) -> "FrozenTable":
        """Share everything with a view that never changes."""
        groups = len(self.tables)
        self._frozen += 1
        self.marked[:] = b"\1" * groups
        if self._copier is not None:
            self._owned = [set() for _ in range(groups)]
        return FrozenTable(self.name, self.kind, self.type_info, tuple(self.tables))

    def release(self) -> None:
        """A view is not needed any more; with the last one, nothing is shared."""
        self._frozen -= 1
        if not self._frozen:
            self.marked[:] = bytes(len(self.tables))
            self._owned = None

    def __len__(self) -> int:
        return sum(map(len, self.tables))


@dataclass(frozen=True, slots=True)
class FrozenTable:
    """The values of one state as they were at a barrier.

    Shape: one dictionary per key group of the range, in order.
    """

    name: str
    kind: str
    type_info: TypeInformation
    tables: tuple[Table, ...]

    def __len__(self) -> int:
        return sum(map(len, self.tables))


class FrozenKeyedState:
    """All states of a backend as they were at a barrier; safe to read from another thread."""

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        states: tuple[FrozenTable, ...],
        release: Callable[[], None],
    ) -> None:
        self.checkpoint_id = checkpoint_id
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.states = states
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """End the sharing; on the loop thread, and without effect when repeated."""
        if self._release is not None:
            self._release()
            self._release = None
            self.states = ()


class KeyedStateBackend:
    """The keyed state of one operator subtask. States act on the current key."""

    def __init__(self, key_groups: KeyGroupRange, max_parallelism: int) -> None:
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.cursor = Cursor()
        self._tables: dict[str, StateTable] = {}
        self._states: dict[str, tuple[StateDescriptor, Any]] = {}

    def set_current_key(self, key: Key) -> None:
        """Act on ``key`` from now on.

        Raises:
            KeyTypeError: The key has no canonical encoding.
            ProtocolError: The key's group belongs to another subtask.
        """
        self.set_current_key_and_group(key, key_group(key, self.max_parallelism))

    def set_current_key_and_group(self, key: Key, group: int) -> None:
        """The same for a caller who knows the key's group already."""
        groups = self.key_groups
        if not groups.first <= group <= groups.last:
            raise ProtocolError(
                f"key {key!r} of key group {group} came to the subtask that owns {groups.first} to "
                f"{groups.last}"
            )
        cursor = self.cursor
        cursor.slot = key if type(key) is int or type(key) is str else slot_key(key)
        cursor.group = group - groups.first

    def get_current_key(self) -> Key:
        """The key that states act on.

        Raises:
            UserError: There is none.
        """
        if self.cursor.group == _NO_KEY:
            raise no_key()
        return key_of_slot(self.cursor.slot)

    @property
    def current_group(self) -> int:
        """The key group of the current key."""
        if self.cursor.group == _NO_KEY:
            raise no_key()
        return self.cursor.group + self.key_groups.first

    def get_state(self, descriptor: ValueStateDescriptor) -> ValueState:
        """One value per key."""
        return self._state(descriptor, ValueState)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A list per key."""
        return self._state(descriptor, ListState)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """A dictionary per key."""
        return self._state(descriptor, MapState)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """One reduced value per key."""
        return self._state(descriptor, lambda t, c: ReducingState(t, c, descriptor.reduce))

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """One accumulator per key."""
        return self._state(descriptor, lambda t, c: AggregatingState(t, c, descriptor.agg_function))

    def keys(self, name: str) -> Iterator[Key]:
        """All keys that have a value in the state of this name, by key group."""
        table = self._tables.get(name)
        for slots in table.tables if table else ():
            yield from map(key_of_slot, list(slots))

    def freeze(self, checkpoint_id: CheckpointId) -> FrozenKeyedState:
        """A view of all states as they are now.

        Units: O(states x key groups), whatever the number of keys.
        """
        tables = tuple(self._tables.values())

        def release() -> None:
            for table in tables:
                table.release()

        frozen = tuple(table.freeze() for table in tables)
        return FrozenKeyedState(
            checkpoint_id, self.key_groups, self.max_parallelism, frozen, release
        )

    def restored_table(self, name: str, kind: str, type_info: TypeInformation) -> StateTable:
        """The table to put restored values of a state into.

        Raises:
            RestoreError: Pieces of the snapshot contradict each other.
        """
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = StateTable(name, kind, type_info, len(self.key_groups))
        elif table.kind != kind or table.type_info != type_info:
            raise RestoreError(
                f"state {name!r} is {table.kind} of {table.type_info} in one part of the checkpoint"
                f" and {kind} of {type_info} in another"
            )
        return table

    def _state(self, descriptor: StateDescriptor, make: Callable[[StateTable, Cursor], S]) -> S:
        name, kind, type_info = descriptor.name, descriptor.kind, descriptor.type_info
        known, state = self._states.get(name, (None, None))
        if known is not None:
            if known.kind != kind or known.type_info != type_info:
                raise ConfigError(
                    f"state {name!r} is declared twice: as {known.kind} of {known.type_info} and "
                    f"as {kind} of {type_info}; give one of them another name"
                )
            return cast(S, state)
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = StateTable(name, kind, type_info, len(self.key_groups))
        elif table.kind != kind or table.type_info != type_info:
            raise RestoreError(
                f"state {name!r} is {table.kind} of {table.type_info} in the checkpoint, but the "
                f"program declares {kind} of {type_info}; keep the old type, or use a new name"
            )
        made = make(table, self.cursor)
        self._states[name] = descriptor, made
        return made
