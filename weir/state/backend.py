"""The keyed state of one operator subtask: its states by name, over the tables of a backend.

It declares and restores states, converts what was restored, and has the current key, on which all
states act. The values lie in the tables of a backend (``backends``).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from weir.common.clock import Clock, SystemClock
from weir.common.typeinfo import TypeInformation
from weir.errors import ConfigError, ProtocolError
from weir.graph.key_groups import Key, key_group
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.state.backends.base import (
    FrozenChanges,
    FrozenEntries,
    FrozenParts,
    Held,
    StateTable,
    StateTables,
)
from weir.state.backends.heap import HeapTables
from weir.state.codec import SlotKey, key_of_slot, slot_key
from weir.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    ValueStateDescriptor,
)
from weir.state.evolution import (
    Declaration,
    Evolution,
    Guard,
    Judge,
    Verdict,
    describe_state,
    evolve_state,
)
from weir.state.expiring import (
    ExpiringAggregatingState,
    ExpiringListState,
    ExpiringMapState,
    ExpiringReducingState,
    ExpiringValueState,
)
from weir.state.expiry import Expiry, StateTime, Sweep, expiring_type, live, undated
from weir.state.keyed import (
    AggregatingState,
    ListState,
    MapState,
    ReducingState,
    State,
    ValueState,
    no_key,
)
from weir.state.shared import ChangeLog

S = TypeVar("S", bound=State)

_NO_KEY = 1 << 62  # Larger than any list of groups, so that an access without a key fails there.


class Cursor:
    """The current key: its group's index in the range, and its slot key."""

    __slots__ = ("group", "slot")

    def __init__(self) -> None:
        self.group = _NO_KEY
        self.slot: SlotKey = None


def file_name(state: str, part: int = 0) -> str:
    """The name of a state's files."""
    return f"state+{part}.{state}" if part else f"state.{state}"


@dataclass(frozen=True, slots=True)
class FrozenState:
    """The values of one state as they were at a barrier."""

    name: str
    kind: str
    type_info: TypeInformation
    tables: FrozenEntries
    part: int = 0  # Above 0: restored in another type than part 0, and not declared yet.
    limit_ms: int | None = None  # Of its time-to-live at the barrier.
    changes: FrozenChanges | None = None  # None: all values are to be written.
    parts: FrozenParts | None = None  # None: no value is read in parts.


class FrozenKeyedState:
    """All states of a backend as they were at a barrier; safe to read from another thread."""

    def __init__(
        self,
        checkpoint_id: CheckpointId,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        states: tuple[FrozenState, ...],
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

    def __init__(
        self,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        allow_pickled_state: bool = True,
        judge: Judge | None = None,
        clock: Clock | None = None,
        tables: StateTables | None = None,
    ) -> None:
        """An empty backend.

        Args:
            allow_pickled_state: False refuses states whose type is stored as pickles.
            judge: Called for every declared state, which it may refuse.
            clock: The clock by which state expires; None: the machine's.
            tables: The tables to keep values in; None: in memory.
        """
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.cursor = Cursor()
        self.time = StateTime(clock or SystemClock())
        self.sweeps: list[Sweep] = []  # Of the declared states that expire.
        self._allow_pickled_state = allow_pickled_state
        self._judge = judge or Guard()
        self.tables: StateTables = tables or HeapTables(key_groups)
        # One per state; several for a state restored in several types, until it is declared.
        self._tables: dict[str, list[StateTable]] = {}
        self._states: dict[str, tuple[StateDescriptor, Any]] = {}
        self._changes: list[ChangeLog[SlotKey]] | None = None  # Of the declared states.

    def set_current_key(self, key: Key) -> None:
        """Act on ``key`` from now on.

        Raises:
            KeyTypeError: The key has no canonical encoding.
            ProtocolError: The key's group belongs to another subtask.
        """
        self.set_current_key_and_group(key, key_group(key, self.max_parallelism))

    def set_current_key_and_group(self, key: Key, group: int) -> None:
        """Act on ``key``, whose key group the caller knows already, from now on."""
        groups = self.key_groups
        if not groups.first <= group <= groups.last:
            raise ProtocolError(
                f"key {key!r} of key group {group} reached the subtask that owns {groups.first} to "
                f"{groups.last}"
            )
        cursor = self.cursor
        cursor.slot = key if type(key) is int or type(key) is str else slot_key(key)
        cursor.group = group - groups.first

    def get_current_key(self) -> Key:
        """The key that states act on.

        Raises:
            UserError: There is no current key.
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
        return self._state(ValueStateDescriptor, descriptor, ValueState, ExpiringValueState)

    def get_list_state(self, descriptor: ListStateDescriptor) -> ListState:
        """A list per key."""
        return self._state(ListStateDescriptor, descriptor, ListState, ExpiringListState)

    def get_map_state(self, descriptor: MapStateDescriptor) -> MapState:
        """A dictionary per key."""
        return self._state(MapStateDescriptor, descriptor, MapState, ExpiringMapState)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor) -> ReducingState:
        """One reduced value per key."""
        return self._state(
            ReducingStateDescriptor,
            descriptor,
            lambda t, c: ReducingState(t, c, descriptor.reduce),
            lambda t, c, e: ExpiringReducingState(t, c, e, descriptor.reduce),
        )

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor) -> AggregatingState:
        """One accumulator per key."""
        return self._state(
            AggregatingStateDescriptor,
            descriptor,
            lambda t, c: AggregatingState(t, c, descriptor.agg_function),
            lambda t, c, e: ExpiringAggregatingState(t, c, e, descriptor.agg_function),
        )

    def record_changes(self) -> list[ChangeLog[SlotKey]]:
        """Log the changes of every state declared from now on; the list grows with them."""
        if self._changes is None:
            self._changes = []
        return self._changes

    def undo(self) -> None:
        """Put back every value that has changed since the logs were cleared."""
        for name in self._states:
            for table in self._tables[name]:
                table.undo()

    def keys(self, name: str) -> Iterator[Key]:
        """All keys that have a value in the state of this name, by key group."""
        for table in self._tables.get(name, ()):
            for group in range(len(table.tables)):
                yield from map(key_of_slot, table.slots(group))

    def values_of(self, key: Key) -> dict[str, Any]:
        """Copies of a key's values by the name of their state, accumulators as they are.

        What has expired is left out.

        Raises:
            ProtocolError: The key's group belongs to another subtask.
        """
        group = key_group(key, self.max_parallelism)
        if group not in self.key_groups:
            raise ProtocolError(f"key {key!r} of key group {group} belongs to another subtask")
        slot, values = slot_key(key), {}
        for name, tables in self._tables.items():
            for table in tables:
                value = table.tables[group - self.key_groups.first].get(slot)
                if value is not None and table.expiry is not None:
                    value = live(table.kind, value, table.expiry.limit_ms())
                if value is not None:
                    copier = table.type_info.copier
                    copied = value if copier is None else copier(value)
                    if table.divides and not copied:
                        continue  # All of its items were removed.
                    values[name] = copied if table.expiry is None else undated(table.kind, copied)
        return values

    def freeze(
        self, checkpoint_id: CheckpointId, base_id: CheckpointId | None = None
    ) -> FrozenKeyedState:
        """A view of all states as they are now.

        Args:
            base_id: As the barrier has it: the checkpoint that this one may build on.

        Units: O(states x key groups), independent of the number of keys.
        """
        parts = [
            (part, table) for tables in self._tables.values() for part, table in enumerate(tables)
        ]
        view = self.tables.freeze([table for _, table in parts], checkpoint_id, base_id)
        nothing = [None] * len(parts)
        changes: Sequence[FrozenChanges | None] = view.changes or nothing
        in_parts: Sequence[FrozenParts | None] = view.parts or nothing
        frozen = tuple(
            FrozenState(
                table.name,
                table.kind,
                table.type_info,
                entries,
                part,
                None if table.expiry is None else table.expiry.limit_ms(),
                # Values of several types wait for their declaration, which writes them anew.
                changed if len(self._tables[table.name]) == 1 else None,
                of_parts,
            )
            for (part, table), entries, changed, of_parts in zip(
                parts, view.entries, changes, in_parts, strict=True
            )
        )
        return FrozenKeyedState(
            checkpoint_id, self.key_groups, self.max_parallelism, frozen, view.release
        )

    def go_on_from(
        self, checkpoint_id: CheckpointId, files: Mapping[str, Sequence[StateHandle]]
    ) -> None:
        """All restored values are those of a checkpoint that the next may build on.

        Args:
            files: All files of states that lie in shared ones alone, by their names.
        """
        self.tables.go_on_from(
            checkpoint_id,
            {
                tables[0]: files[file_name(name)]
                for name, tables in self._tables.items()
                if len(tables) == 1 and file_name(name) in files
            },
        )

    def held(self) -> dict[str, Held]:
        """The entries of each state in memory, by its name. From any thread."""
        known = [(name, list(tables)) for name, tables in list(self._tables.items())]
        return {name: Held.sum(table.held() for table in tables) for name, tables in known}

    def stored_types(self, name: str) -> list[TypeInformation]:
        """The types that a state of this name was restored in; empty where none was restored.

        Once the state is declared, its declared type.
        """
        return [table.type_info for table in self._tables.get(name, ())]

    def restored_table(self, name: str, kind: str, type_info: TypeInformation) -> StateTable:
        """The table to put restored values of a state into.

        Values of several types stay apart until the state is declared: a subtask converts restored
        state when its function declares it, which some may not have done by a checkpoint.
        """
        tables = self._tables.setdefault(name, [])
        for table in tables:
            if table.kind == kind and table.type_info == type_info:
                return table
        tables.append(self.tables.table(name, kind, type_info))
        return tables[-1]

    def _state(
        self,
        wanted: type[StateDescriptor],
        descriptor: StateDescriptor,
        make: Callable[[StateTable, Cursor], S],
        make_expiring: Callable[[StateTable, Cursor, Expiry], S],
    ) -> S:
        if not isinstance(descriptor, wanted):
            method = f"get_{'' if wanted.kind == 'value' else f'{wanted.kind}_'}state"
            is_other = isinstance(descriptor, StateDescriptor)
            raise ConfigError(
                f"{method} takes the state's descriptor, {wanted.__name__}(...), not "
                f"{f'a {type(descriptor).__name__}' if is_other else repr(descriptor)}"
            )
        name, kind, type_info = descriptor.name, descriptor.kind, descriptor.type_info
        if type_info.has_pickles and not self._allow_pickled_state:
            raise ConfigError(
                f"state {name!r} is declared as {type_info}, which is stored as pickles, and "
                "restoring those runs code; declare a type for its values, or allow it with "
                "--allow-pickled-state (weir.state.allow-pickled)"
            )
        known, state = self._states.get(name, (None, None))
        if known is not None:
            if known.kind != kind or known.type_info != type_info:
                raise ConfigError(
                    f"state {name!r} is declared twice: as {known.kind} of {known.type_info} and "
                    f"as {kind} of {type_info}; give one of them another name"
                )
            if known.ttl_config != descriptor.ttl_config:
                raise ConfigError(
                    f"state {name!r} is declared twice, with another time-to-live; give one of "
                    "them another name"
                )
            return cast(S, state)
        if descriptor.ttl_config is None:
            table = self._declared(name, kind, type_info, None)
        else:
            expiry = Expiry.configured(descriptor.ttl_config, self.time)
            stored = expiring_type(kind, type_info, expiry.domain)
            table = self._declared(name, kind, stored, expiry)
        if self._changes is not None:
            self._changes.append(table.record_changes())
        if table.expiry is None:
            made = make(table, self.cursor)
        else:
            made = make_expiring(table, self.cursor, table.expiry)
            if table.expiry.in_background:
                self.sweeps.append(Sweep(table, table.expiry))
        self._states[name] = descriptor, made
        return made

    def _declared(
        self, name: str, kind: str, type_info: TypeInformation, expiry: Expiry | None
    ) -> StateTable:
        """The table of a state, with its restored values converted to the declared type."""
        declared = describe_state(kind, type_info)
        restored = self._tables.get(name, [])
        if not restored:
            self._judge(Declaration(name, kind, declared))
        evolutions: list[Evolution] = []
        for part in restored:
            types = (part.kind, part.type_info), (kind, type_info)
            evolution = (
                evolve_state(*types) if expiry is None else evolve_state(*types, expiry.touch)
            )
            stored = describe_state(part.kind, part.type_info)
            self._judge(Declaration(name, kind, declared, stored, evolution))
            evolutions.append(evolution)
        is_same = len(restored) == 1 and evolutions[0].verdict is Verdict.KEPT
        parts = [
            part if is_same else self.tables.evolved(part, type_info, evolution.convert)
            for part, evolution in zip(restored, evolutions, strict=True)
            if evolution.verdict is not Verdict.UNMAPPABLE
        ]
        if not parts:
            parts = [self.tables.table(name, kind, type_info)]
        table, *others = parts
        table.expiry = expiry
        for other in others:
            for group in range(len(other.tables)):
                for slot, value in other.entries(group):
                    table.put(group, slot, value)
        self._tables[name] = [table]
        return table
