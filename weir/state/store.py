"""The state store of one operator subtask, which its context offers and its snapshots freeze.

Keyed state, timers and tables belong to key groups; list and broadcast state to the subtask. The
store creates each of them when it is first used or restored, and freezes all of them in one step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from weir.common.clock import Clock
from weir.errors import ConfigError, CorruptStateError, RestoreError, UserError
from weir.graph.key_groups import Key, key_group
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.protocol.deployment import RestoredHandle
from weir.state.backend import KeyedStateBackend
from weir.state.backends.base import Held, StateTables
from weir.state.chains import by_name, is_shared, parts_to_read
from weir.state.columns.table import ColumnarTable
from weir.state.evolution import (
    Declaration,
    Evolution,
    Guard,
    Judge,
    Verdict,
    describe_table,
    evolve_mode,
    evolve_table,
    unite_tables,
)
from weir.state.expiry import SLICE_ENTRIES
from weir.state.keyed_timers import KeyedTimers
from weir.state.operator_state import BroadcastState, Mode, OperatorListState
from weir.state.snapshot import KeyedPart, restore
from weir.storage.writer import StoredSnapshotWriter


class SnapshotPart(Protocol):
    """A part of a snapshot, frozen at a barrier."""

    def write(self, writer: StoredSnapshotWriter) -> Sequence[StateHandle]:
        """Store the part; on the snapshot thread, which may do I/O."""

    def release(self) -> None:
        """Release the part, which is stored or dropped; on the loop thread."""


class OperatorStateStore:
    """The state of one operator subtask."""

    def __init__(
        self,
        key_groups: KeyGroupRange,
        max_parallelism: int,
        *,
        keyed: bool,
        restored: Iterable[RestoredHandle] = (),
        read: Callable[[StateHandle], bytes],
        allow_pickled_state: bool = False,
        operator: str = "",
        allow_non_restored_state: bool = False,
        judge: Judge | None = None,
        clock: Clock | None = None,
        tables: StateTables | None = None,
        restored_id: CheckpointId | None = None,
    ) -> None:
        """Restore the state of the handles.

        Args:
            keyed: Whether the operator's input is a keyed stream.
            restored: The handles of the checkpoint that belong to this subtask.
            read: Reads the checked bytes of a handle.
            operator: The operator's name, for errors.
            allow_non_restored_state: Whether state that the program does not declare may be
                dropped.
            judge: Called for every declared state; None refuses state that cannot be mapped.
            clock: The clock by which state expires; None: the machine's.
            tables: The tables of the backend for values per key; None: in memory.
            restored_id: The checkpoint of the handles, if the next one may name files of it.

        Raises:
            CorruptStateError: The bytes of a handle are damaged.
            RestoreError: The state of a handle does not fit the job.
        """
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.restored = False  # Whether any state was restored.
        self.restored_bytes = 0
        self.is_keyed = keyed  # Whether the operator's input is a keyed stream.
        self._judge = judge or Guard(operator, allow_non_restored_state)
        self._keyed = KeyedStateBackend(
            key_groups,
            max_parallelism,
            allow_pickled_state=allow_pickled_state,
            judge=self._judge,
            clock=clock,
            tables=tables,
        )
        self._timers = KeyedTimers(key_groups, max_parallelism, self._keyed.tables)
        self._tables: dict[str, ColumnarTable] = {}
        self._lists: dict[str, OperatorListState] = {}
        self._broadcasts: dict[str, BroadcastState] = {}
        self._declared_tables: set[str] = set()
        self._declared_modes: dict[str, str] = {}  # Of operator state, by name.
        self._timers_restored = self._timers_declared = False
        target = _Target(self._keyed, self._timers, self._restored_table)
        parts = parts_to_read(tuple(restored), key_groups)
        for piece, valid in parts:
            self.restored = True
            self.restored_bytes += piece.handle.size
            data = read(piece.handle)
            match piece.handle.kind, piece.handle.mode:
                case "keyed", _ if keyed:
                    groups = piece.key_groups or key_groups
                    restore(
                        data, groups, target, valid=valid, allow_pickled_state=allow_pickled_state
                    )
                    self._timers_restored |= piece.handle.name == "timers"
                case "keyed", _:
                    if refusal := keyless_refusal(
                        operator, piece.handle.name, allow_loss=allow_non_restored_state
                    ):
                        raise RestoreError(refusal)
                case "operator", "broadcast":
                    self._broadcast(piece.handle.name).restore(data)
                case "operator", ("split" | "union") as mode:
                    self._list(piece.handle.name, mode).restore(data, piece.share)
                case kind, mode:
                    raise CorruptStateError(f"there is no state of kind {kind} and mode {mode}")
            del data  # Before the next is read.
        if restored_id is not None and keyed:
            self._go_on_from(restored_id, [piece.handle for piece, _ in parts])

    @property
    def keyed(self) -> KeyedStateBackend:
        """State per key.

        Raises:
            UserError: The stream has no key.
        """
        self._check_keyed()
        return self._keyed

    @property
    def timers(self) -> KeyedTimers:
        """Timers per key.

        Raises:
            UserError: The stream has no key.
        """
        self._check_keyed()
        if not self._timers_declared:
            self._timers_declared = True
            stored = "timers" if self._timers_restored else None
            self._judge(Declaration("timers", "timers", "timers", stored))
        return self._timers

    def table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        """The columnar state of this name, with its restored values.

        Raises:
            UserError: The stream has no key.
        """
        self._check_keyed()
        return self._table(name, key_type, columns)

    def drop_table(self, name: str) -> None:
        """Drop a columnar state; snapshots already frozen keep it."""
        self._tables.pop(name, None)
        self._declared_tables.discard(name)

    def list_state(self, name: str, mode: Mode = "split") -> OperatorListState:
        """The list of this name; on a rescale its items are split, or every subtask gets all.

        Raises:
            RestoreError: The checkpoint holds state of this name with another mode.
            ConfigError: The program declared state of this name with another mode before.
        """
        if self._declare_mode(name, mode) is Verdict.UNMAPPABLE:
            self._lists.pop(name, None)
        return self._list(name, mode)

    def broadcast_state(self, name: str) -> BroadcastState:
        """The map of this name, which is the same in every subtask.

        Raises:
            RestoreError: The checkpoint holds a list of this name.
            ConfigError: The program declared a list of this name before.
        """
        self._declare_mode(name, BroadcastState.mode)
        return self._broadcast(name)

    def owns(self, key: Key) -> bool:
        """Whether the key belongs to this subtask.

        Raises:
            KeyTypeError: The key has no canonical encoding.
        """
        return key_group(key, self.max_parallelism) in self.key_groups

    def values_of(self, key: Key) -> dict[str, Any]:
        """Copies of a key's values by the name of their state; of a table a dict by column.

        Raises:
            UserError: The stream has no key.
            ProtocolError: The key belongs to another subtask.
        """
        self._check_keyed()
        tables = {name: table.values_of(key) for name, table in self._tables.items()}
        return {**self._keyed.values_of(key), **{name: row for name, row in tables.items() if row}}

    def times_of(self, key: Key) -> dict[str, list[int]]:
        """The times of a key's timers by time domain, ascending.

        Raises:
            UserError: The stream has no key.
            ProtocolError: The key belongs to another subtask.
        """
        self._check_keyed()
        return {domain: queue.times_of(key) for domain, queue in self._timers.queues.items()}

    def record_changes(self) -> "Changes":
        """The changes to keyed values and timers, logged from now on; before states are declared.

        Raises:
            UserError: The stream has no key.
        """
        self._check_keyed()
        return Changes(self._keyed, self._timers)

    def sweep_due_ms(self) -> int | None:
        """The processing time at which expired state is looked for next; None: at no time yet."""
        if not self._keyed.sweeps:
            return None
        dues = (sweep.due_ms() for sweep in self._keyed.sweeps)
        return min((due for due in dues if due is not None), default=None)

    def tidy(self) -> None:
        """Do the backend's slice of work, and remove a slice of the state that has expired.

        Between two slices of records.

        Units: at most ``SLICE_ENTRIES`` entries are looked at, but the elements of one list, and
        the keys of one key group, at once.
        """
        self._keyed.tables.tidy()
        self._timers.tidy()
        left = SLICE_ENTRIES
        for sweep in self._keyed.sweeps:
            left -= sweep.step(left)
            if left <= 0:
                return

    def give_back(self) -> None:
        """Move to disk what the backend can; between two slices of records.

        Raises:
            StorageError: The local disk failed.
        """
        self._keyed.tables.give_back()

    def held(self) -> dict[str, Held]:
        """The entries of each state in memory, by its name. From any thread."""
        held = self._keyed.held()
        if len(self._timers):
            held["timers"] = self._timers.held()
        held |= {name: Held(len(table), table.nbytes) for name, table in list(self._tables.items())}
        held |= {name: state.held() for name, state in list(self._lists.items())}
        held |= {name: state.held() for name, state in list(self._broadcasts.items())}
        return held

    def freeze(
        self, checkpoint_id: CheckpointId, base_id: CheckpointId | None = None
    ) -> list[SnapshotPart]:
        """All state as it is now.

        Args:
            base_id: As the barrier has it: the checkpoint that this one may build on.

        Units: O(states x key groups + chunks), independent of the number of keys.
        """
        parts: list[SnapshotPart] = []
        if self.is_keyed:
            parts.append(KeyedPart(self._keyed.freeze(checkpoint_id, base_id)))
            parts.append(KeyedPart(self._timers.freeze(checkpoint_id, base_id)))
            tables = self._tables.values()
            parts += [KeyedPart(table.freeze(checkpoint_id, base_id)) for table in tables]
        parts += [state.freeze() for state in self._lists.values()]
        parts += [state.freeze() for state in self._broadcasts.values()]
        return parts

    def close(self) -> None:
        """Release what the backend holds, such as files on local disk."""
        self._keyed.tables.close()

    def _go_on_from(self, checkpoint_id: CheckpointId, handles: Sequence[StateHandle]) -> None:
        """The next checkpoint may name restored files of states that lie in such alone."""
        shared = {
            name: files
            for name, files in by_name([h for h in handles if h.kind == "keyed"]).items()
            if all(is_shared(file, self.key_groups) for file in files)
        }
        if shared:
            self._keyed.go_on_from(checkpoint_id, shared)
        self._timers.go_on_from(checkpoint_id, shared.get("timers", ()))
        for name, table in self._tables.items():
            table.go_on_from(checkpoint_id, shared.get(f"table.{name}", ()))

    def _table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        table = self._tables.get(name)
        if name in self._declared_tables and table is not None:
            table.expect(key_type, columns)
            return table
        declared = key_type, {column: np.dtype(dtype) for column, dtype in columns.items()}
        shown = describe_table(declared)
        evolution, stored = Evolution(), None
        if table is not None:
            types = table.key_type, table.dtypes
            evolution, stored = evolve_table(types, declared), describe_table(types)
        self._judge(Declaration(name, "table", shown, stored, evolution))
        if table is None or evolution.verdict is Verdict.UNMAPPABLE:
            table = self._new_table(name, key_type, columns)
        elif evolution.verdict is Verdict.CHANGED:
            table = table.evolved(key_type, columns)
        self._tables[name] = table
        self._declared_tables.add(name)
        return table

    def _restored_table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = self._new_table(name, key_type, columns)
            return table
        # Subtasks convert a table when they first use it, which some had not done at the
        # checkpoint.
        mine = table.key_type, table.dtypes
        try:
            both = unite_tables(mine, (key_type, {k: np.dtype(v) for k, v in columns.items()}))
        except ValueError as cause:
            raise RestoreError(
                f"the parts of table {name!r} in the checkpoint contradict each other: {cause}"
            ) from cause
        if both != mine:
            table = self._tables[name] = table.evolved(*both)
        return table

    def _new_table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        return ColumnarTable(
            name,
            key_type,
            columns,
            self.key_groups,
            self.max_parallelism,
            notes_changes=self._keyed.tables.is_incremental,
            arrays=self._keyed.tables.arrays,
        )

    def _list(self, name: str, mode: Mode) -> OperatorListState:
        state = self._lists.get(name)
        if state is None:
            state = self._lists[name] = OperatorListState(name, mode)
        return state

    def _broadcast(self, name: str) -> BroadcastState:
        return self._broadcasts.setdefault(name, BroadcastState(name))

    def _declare_mode(self, name: str, mode: str) -> Verdict:
        """Compare the mode of operator state with its restored or declared one."""
        declared = self._declared_modes.get(name)
        if declared is not None:
            if declared != mode:
                raise ConfigError(
                    f"state {name!r} is declared twice: as {declared} and as {mode}; give one of "
                    "them another name"
                )
            return Verdict.KEPT
        held: OperatorListState | BroadcastState | None = self._lists.get(name)
        if held is None:
            held = self._broadcasts.get(name)
        evolution = Evolution() if held is None else evolve_mode(held.mode, mode)
        stored = None if held is None else f"{held.mode} state"
        self._judge(Declaration(name, mode, f"{mode} state", stored, evolution))
        self._declared_modes[name] = mode
        return evolution.verdict

    def _check_keyed(self) -> None:
        if not self.is_keyed:
            raise UserError("keyed state and timers need a keyed stream; call key_by(...) before")


class Changes:
    """The changes to the keyed values and timers of a subtask since they were last kept.

    Units: a mutable value (a list, a map, an object) is copied at its first use after ``keep``.
    """

    def __init__(self, keyed: KeyedStateBackend, timers: KeyedTimers) -> None:
        self._keyed = keyed
        self._timers = tuple(timers.queues.values())
        self._of_timers = [queue.record_changes() for queue in self._timers]
        self._of_values = keyed.record_changes()

    def keep(self) -> None:
        """Keep the changes so far, for good."""
        for log in self._of_values:
            log.clear()
        for timers in self._of_timers:
            timers.clear()

    def undo(self) -> None:
        """Put values and timers back as they were when changes were last kept."""
        self._keyed.undo()
        for queue in self._timers:
            queue.undo()


class _Target:
    """The receiver of restored keyed state."""

    def __init__(
        self,
        keyed: KeyedStateBackend,
        timers: KeyedTimers,
        table: Callable[[str, pa.DataType | None, Mapping[str, npt.DTypeLike]], ColumnarTable],
    ) -> None:
        self.keyed = keyed
        self.timers = timers
        self.table = table


def keyless_refusal(operator: str, name: str, *, allow_loss: bool) -> str | None:
    """The error for keyed state of an operator whose stream has no key; None: loss is allowed."""
    if allow_loss:
        return None
    where = f"operator {operator!r}: " if operator else ""
    return (
        f"{where}the checkpoint holds keyed state ({name}), but the operator's stream has no key "
        "any more; call key_by(...) before it, give it another uid, or set "
        "allow_non_restored_state (--allow-non-restored-state) to leave that state behind"
    )
