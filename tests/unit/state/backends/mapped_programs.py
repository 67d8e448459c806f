"""A table larger than the memory for it: started by a test, prints the growth of its own memory.

``python -m tests.unit.state.backends.mapped_programs DIRECTORY KIND KEYS``, where the kind is the
name of an Arrow type: the bytes of the stored table, and the most anonymous memory above that at
first, with its snapshots and then with its restore.
"""

import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa

from weir.config import StateBackendKind, StateConfig
from weir.ids import AttemptNumber, CheckpointId, JobId, KeyGroupRange, OperatorId, SubtaskId
from weir.protocol.deployment import RestoredHandle
from weir.state.backends.choice import open_tables
from weir.state.store import OperatorStateStore
from weir.storage.local import LocalStore
from weir.storage.manifest import read_handle
from weir.storage.writer import StoredSnapshotWriter

GROUPS = KeyGroupRange(0, 31)
COLUMNS = {f"n{i}": np.dtype(np.int64) for i in range(16)}
SLICE_ROWS, STEP = 16_384, 1_000_003
JOB, SUBTASK = JobId("job"), SubtaskId(OperatorId("op"), 0)


def anonymous() -> int:
    """The bytes of anonymous memory of this process."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) << 10


class Peak:
    """The most anonymous memory of this process, as a thread sees it."""

    def __init__(self) -> None:
        self.most = anonymous()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        while True:
            self.most = max(self.most, anonymous())
            threading.Event().wait(0.003)


def change(store: OperatorStateStore, kind: pa.DataType, add: int, keys: int) -> None:
    """Add to the values of keys, of which there may be none so far."""
    table = store.table("rows", kind, COLUMNS)
    for start in range(0, keys, SLICE_ROWS):
        numbers = np.arange(start, min(start + SLICE_ROWS, keys))
        slots = table.slots_of(pa.array(numbers * STEP).cast(kind))
        for index, column in enumerate(table.columns.values()):
            column.add(slots, numbers * index + add)


def main(directory: str, kind: pa.DataType, keys: int) -> None:
    """Fill a table, change it beside its snapshots, whole and of changes, and restore it."""
    config = StateConfig(backend=StateBackendKind.ROCKSDB, directory=directory)
    store = OperatorStateStore(
        GROUPS, 32, keyed=True, read=lambda handle: b"", tables=open_tables(config, GROUPS)
    )
    change(store, kind, 1, 10)
    peak = Peak()
    first = peak.most
    change(store, kind, 1, keys)
    change(store, kind, 0, 10)
    files = LocalStore(directory + "/snapshots")
    whole = _written(store, files, 1, 0, kind, keys)
    _written(store, files, 2, 1, kind, keys // 8)
    grown = peak.most - first
    store.close()
    peak.most = anonymous()
    restored = OperatorStateStore(
        GROUPS,
        32,
        keyed=True,
        restored=[RestoredHandle(handle, GROUPS) for handle in whole],
        read=lambda handle: read_handle(files, JOB, handle),
        tables=open_tables(config, GROUPS),
    )
    table = restored.table("rows", kind, COLUMNS)
    assert len(table) == keys
    for start in range(10, keys, SLICE_ROWS):
        numbers = np.arange(start, min(start + SLICE_ROWS, keys))
        slots = table.slots_of(pa.array(numbers * STEP).cast(kind))
        for index, column in enumerate(table.columns.values()):
            assert (column.gather(slots) == numbers * index + 1).all()
    restored.close()
    print(sum(handle.size for handle in whole), grown, peak.most - first)


def _written(
    store: OperatorStateStore,
    files: LocalStore,
    number: int,
    base: int,
    kind: pa.DataType,
    keys: int,
) -> tuple:  # type: ignore[type-arg]
    """The files of a checkpoint, while values of so many keys change."""
    checkpoint_id = CheckpointId(number)
    out = StoredSnapshotWriter(
        files, JOB, AttemptNumber(1), checkpoint_id, SUBTASK,
        inline_max=0, cancelled=lambda: False,
    )  # fmt: skip
    parts = store.freeze(checkpoint_id, CheckpointId(base))
    handles = []
    thread = threading.Thread(target=lambda: handles.extend(h for p in parts for h in p.write(out)))
    change(store, kind, 7, keys)  # First, so that every chunk has to be saved.
    thread.start()
    change(store, kind, 5, keys)
    thread.join()
    for part in parts:
        part.release()
    assert handles
    return tuple(handles)


if __name__ == "__main__":
    main(sys.argv[1], pa.type_for_alias(sys.argv[2]), int(sys.argv[3]))
