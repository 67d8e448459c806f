"""State larger than the memory for it: started by a test, prints the growth of its own memory.

``python -m tests.unit.state.backends.programs BACKEND DIRECTORY``
"""

import sys
from pathlib import Path

from weir.common.typeinfo import Types
from weir.config import StateConfig
from weir.ids import AttemptNumber, CheckpointId, JobId, KeyGroupRange, OperatorId, SubtaskId
from weir.protocol.deployment import RestoredHandle
from weir.state.backends import budget
from weir.state.backends.choice import open_tables
from weir.state.descriptors import ValueStateDescriptor
from weir.state.store import OperatorStateStore
from weir.storage.local import LocalStore
from weir.storage.manifest import read_handle
from weir.storage.writer import StoredSnapshotWriter

GROUPS = KeyGroupRange(0, 31)
KEYS, VALUE_BYTES = 80_000, 3_000  # 240 MB.
TEXT = ValueStateDescriptor("text", Types.STRING())


def peak_kb() -> int:
    """The most memory that the process has had."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def text_of(key: int) -> str:
    """The value of a key, which no compression makes small in memory."""
    return f"{key:010}" * (VALUE_BYTES // 10)


def main(backend: str, directory: str) -> None:
    """Fill a state, and take a snapshot of it."""
    budget.FRESH_BYTES = 4 << 20  # type: ignore[misc]
    config = StateConfig(backend=backend, directory=directory)  # type: ignore[arg-type]
    store = OperatorStateStore(
        GROUPS, 32, keyed=True, read=lambda handle: b"", tables=open_tables(config, GROUPS)
    )
    state = store.keyed.get_state(TEXT)
    before = peak_kb()
    for key in range(KEYS):
        store.keyed.set_current_key(key)
        state.update(text_of(key))
        if key % 500 == 0:
            store.tidy()
    files = LocalStore(directory + "/snapshots")
    job, subtask = JobId("job"), SubtaskId(OperatorId("op"), 0)
    writer = StoredSnapshotWriter(
        files,
        job,
        AttemptNumber(1),
        CheckpointId(1),
        subtask,
        inline_max=0,
        cancelled=lambda: False,
    )
    handles = [handle for part in store.freeze(CheckpointId(1)) for handle in part.write(writer)]
    grown_kb = peak_kb() - before
    store.close()
    one = KeyGroupRange(3, 3)  # A group of it, in memory.
    restored = OperatorStateStore(
        one,
        32,
        keyed=True,
        restored=[RestoredHandle(handle, one) for handle in handles],
        read=lambda handle: read_handle(files, job, handle),
    )
    state = restored.keyed.get_state(TEXT)
    keys = [key for key in range(KEYS) if restored.owns(key)]
    for key in keys:
        restored.keyed.set_current_key(key)
        assert state.value() == text_of(key), key
    print(len(keys), grown_kb)


if __name__ == "__main__":
    main(*sys.argv[1:])
