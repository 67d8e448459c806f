"""Builders for tests that write and restore snapshots."""

from collections.abc import Callable, Mapping

import numpy.typing as npt
import pyarrow as pa

from weir.graph.key_groups import key_group_range
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.state.backend import KeyedStateBackend
from weir.state.columns.table import ColumnarTable
from weir.state.keyed_timers import KeyedTimers
from weir.state.snapshot import KeyedPart, restore
from weir.state.timers import Timer, TimerQueue
from weir.storage.manifest import read_handle
from weir.storage.store import CheckpointStore
from weir.storage.writer import StoredSnapshotWriter

JOB = JobId("job")
ONE = CheckpointId(1)


def snapshot_writer(
    store: CheckpointStore,
    index: int = 0,
    *,
    inline_max: int | None = 20_000,
    cancelled: Callable[[], bool] = lambda: False,
) -> StoredSnapshotWriter:
    subtask = SubtaskId(OperatorId("op"), index)
    return StoredSnapshotWriter(
        store, JOB, AttemptNumber(1), ONE, subtask, inline_max=inline_max, cancelled=cancelled
    )


def due(queue: TimerQueue, until_ms: int) -> list[Timer]:
    """All timers due by then, as they fire."""
    return list(iter(lambda: queue.poll(until_ms), None))


class Subtask:
    """The keyed state of one subtask, as a restore sees it."""

    def __init__(self, index: int = 0, parallelism: int = 1, groups: int = 16) -> None:
        self.index = index
        self.key_groups = key_group_range(groups, parallelism, index)
        self.max_parallelism = groups
        self.keyed = KeyedStateBackend(self.key_groups, groups)
        self.timers = KeyedTimers(self.key_groups, groups)
        self.tables: dict[str, ColumnarTable] = {}

    def table(
        self, name: str, key_type: pa.DataType | None, columns: Mapping[str, npt.DTypeLike]
    ) -> ColumnarTable:
        if name not in self.tables:
            self.tables[name] = ColumnarTable(
                name, key_type, columns, self.key_groups, self.max_parallelism, chunk_rows=16
            )
        return self.tables[name]

    def snapshot(self, writer: StoredSnapshotWriter) -> list[StateHandle]:
        """Freeze everything, write it and release it."""
        handles: list[StateHandle] = []
        for source in (self.keyed, self.timers, *self.tables.values()):
            part = KeyedPart(source.freeze(ONE))
            handles += part.write(writer)
            part.release()
        return handles

    def restore(
        self, store: CheckpointStore, handles: list[StateHandle], *, pickles: bool = False
    ) -> None:
        for handle in handles:
            data = read_handle(store, JOB, handle)
            restore(data, self.key_groups, self, allow_pickled_state=pickles)
