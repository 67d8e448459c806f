"""All state of one operator subtask: what its context hands it, what its snapshots freeze.

Keyed state, timers and tables belong to key groups; list and broadcast state to the subtask. The
store makes each of them when it is first asked for, or when a restore brings it, and freezes all of
them in one step.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import numpy.typing as npt
import pyarrow as pa

from weir.errors import CorruptStateError, UserError
from weir.ids import CheckpointId, KeyGroupRange, StateHandle
from weir.protocol.deployment import RestoredHandle
from weir.state.backend import KeyedStateBackend
from weir.state.columnar import ColumnarTable
from weir.state.operator_state import BroadcastState, Mode, OperatorListState
from weir.state.snapshot import KeyedPart, restore
from weir.state.timers import KeyedTimers
from weir.storage.writer import StoredSnapshotWriter


class SnapshotPart(Protocol):
    """Something frozen at a barrier."""

    def write(self, writer: StoredSnapshotWriter) -> Sequence[StateHandle]:
        """Store it; on the snapshot thread, which may do I/O."""

    def release(self) -> None:
        """It is stored or given up; on the loop thread."""


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
    ) -> None:
        """Restore what the handles name.

        Args:
            keyed: Whether the operator stands on a keyed stream.
            restored: What of a checkpoint belongs to this subtask.
            read: Fetches the checked bytes of a handle.

        Raises:
            CorruptStateError: A piece is not what was stored.
            RestoreError: A piece does not fit the job.
        """
        self.key_groups = key_groups
        self.max_parallelism = max_parallelism
        self.restored = False  # Whether a checkpoint brought anything.
        self.restored_bytes = 0
        self._is_keyed = keyed
        self._keyed = KeyedStateBackend(
            key_groups, max_parallelism, allow_pickled_state=allow_pickled_state
        )
        self._timers = KeyedTimers(key_groups, max_parallelism)
        self._tables: dict[str, ColumnarTable] = {}
        self._lists: dict[str, OperatorListState] = {}
        self._broadcasts: dict[str, BroadcastState] = {}
        target = _Target(self._keyed, self._timers, self._table)
        for piece in restored:
            self.restored = True
            self.restored_bytes += piece.handle.size
            data = read(piece.handle)
            match piece.handle.kind, piece.handle.mode:
                case "keyed", _:
                    groups = piece.key_groups or key_groups
                    restore(data, groups, target, allow_pickled_state=allow_pickled_state)
                case "operator", "broadcast":
                    self.broadcast_state(piece.handle.name).restore(data)
                case "operator", ("split" | "union") as mode:
                    self.list_state(piece.handle.name, mode).restore(data, piece.share)
                case kind, mode:
                    raise CorruptStateError(f"there is no state of kind {kind} and mode {mode}")

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
        return self._timers

    def table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        """The columnar state of this name, with what was restored of it.

        Raises:
            UserError: The stream has no key.
        """
        self._check_keyed()
        return self._table(name, key_type, columns)

    def drop_table(self, name: str) -> None:
        """Forget a columnar state altogether; snapshots already frozen keep it."""
        self._tables.pop(name, None)

    def list_state(self, name: str, mode: Mode = "split") -> OperatorListState:
        """The list of this name: on rescale its items are dealt out, or everybody gets all."""
        state = self._lists.get(name)
        if state is None:
            state = self._lists[name] = OperatorListState(name, mode)
        return state

    def broadcast_state(self, name: str) -> BroadcastState:
        """The map of this name, which every subtask keeps alike."""
        return self._broadcasts.setdefault(name, BroadcastState(name))

    def freeze(self, checkpoint_id: CheckpointId) -> list[SnapshotPart]:
        """Everything as it is now.

        Units: O(states x key groups + chunks), whatever the number of keys.
        """
        parts: list[SnapshotPart] = []
        if self._is_keyed:
            parts.append(KeyedPart(self._keyed.freeze(checkpoint_id)))
            parts.append(KeyedPart(self._timers.freeze(checkpoint_id)))
            parts += [KeyedPart(table.freeze(checkpoint_id)) for table in self._tables.values()]
        parts += [state.freeze() for state in self._lists.values()]
        parts += [state.freeze() for state in self._broadcasts.values()]
        return parts

    def _table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        table = self._tables.get(name)
        if table is None:
            table = self._tables[name] = ColumnarTable(
                name, key_type, columns, self.key_groups, self.max_parallelism
            )
        table.expect(key_type, columns)
        return table

    def _check_keyed(self) -> None:
        if not self._is_keyed:
            raise UserError("keyed state and timers need a keyed stream; call key_by(...) before")


class _Target:
    """Where restored keyed state goes."""

    def __init__(
        self,
        keyed: KeyedStateBackend,
        timers: KeyedTimers,
        table: Callable[[str, pa.DataType | None, Mapping[str, npt.DTypeLike]], ColumnarTable],
    ) -> None:
        self.keyed = keyed
        self.timers = timers
        self.table = table
