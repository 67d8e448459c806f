"""State larger than the memory for it: started by a test, prints the growth of its own memory.

``python -m tests.unit.state.backends.programs BACKEND DIRECTORY [KEYS VALUE_BYTES | map]``
"""

import sys
from pathlib import Path

from weir.common.typeinfo import Types
from weir.config import StateConfig
from weir.ids import (
    AttemptNumber,
    CheckpointId,
    JobId,
    KeyGroupRange,
    OperatorId,
    StateHandle,
    SubtaskId,
)
from weir.protocol.deployment import RestoredHandle
from weir.state.backends import budget
from weir.state.backends.choice import open_tables
from weir.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from weir.state.keyed import ListState, MapState
from weir.state.store import OperatorStateStore
from weir.storage.local import LocalStore
from weir.storage.manifest import read_handle
from weir.storage.writer import StoredSnapshotWriter

GROUPS = KeyGroupRange(0, 31)
KEYS, VALUE_BYTES = 80_000, 3_000  # 240 MB.
TIDIED_BYTES = 1_500_000  # Between two slices.
TEXT = ValueStateDescriptor("text", Types.STRING())
MAP = MapStateDescriptor("map", Types.LONG(), Types.STRING())
LIST = ListStateDescriptor("list", Types.LONG())
JOB = JobId("job")


def peak_kb(*, anew: bool = False) -> int:
    """The most memory that the process has had; ``anew``: from now on."""
    if anew:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0])


def text_of(key: int, value_bytes: int) -> str:
    """The value of a key, which no compression makes small in memory."""
    return f"{key:010}" * (value_bytes // 10)


def written(store: OperatorStateStore, files: LocalStore) -> list[StateHandle]:
    """A snapshot of the state."""
    writer = StoredSnapshotWriter(
        files,
        JOB,
        AttemptNumber(1),
        CheckpointId(1),
        SubtaskId(OperatorId("op"), 0),
        inline_max=0,
        cancelled=lambda: False,
    )
    return [handle for part in store.freeze(CheckpointId(1)) for handle in part.write(writer)]


def main(backend: str, directory: str, keys: int = KEYS, value_bytes: int = VALUE_BYTES) -> None:
    """Fill a state, take a snapshot of it, and restore a part."""
    budget.FRESH_BYTES = 4 << 20  # type: ignore[misc]
    config = StateConfig(backend=backend, directory=directory)  # type: ignore[arg-type]
    store = OperatorStateStore(
        GROUPS, 32, keyed=True, read=lambda handle: b"", tables=open_tables(config, GROUPS)
    )
    state = store.keyed.get_state(TEXT)
    before = peak_kb()
    for key in range(keys):
        store.keyed.set_current_key(key)
        state.update(text_of(key, value_bytes))
        if key % (TIDIED_BYTES // value_bytes) == 0:
            store.tidy()
    files = LocalStore(directory + "/snapshots")
    handles = written(store, files)
    grown_kb = peak_kb() - before
    store.close()
    before = peak_kb(anew=True)
    one = KeyGroupRange(3, 3)  # A group of it, in memory.
    restored = OperatorStateStore(
        one,
        32,
        keyed=True,
        restored=[RestoredHandle(handle, one) for handle in handles],
        read=lambda handle: read_handle(files, JOB, handle),
    )
    state = restored.keyed.get_state(TEXT)
    restored_kb = peak_kb() - before
    owned = [key for key in range(keys) if restored.owns(key)]
    for key in owned:
        restored.keyed.set_current_key(key)
        assert state.value() == text_of(key, value_bytes), key
    print(len(owned), grown_kb, restored_kb)


def one_map(backend: str, directory: str) -> None:
    """Fill the map and the list of one key, take a snapshot of them, and restore it."""
    budget.FRESH_BYTES = 4 << 20  # type: ignore[misc]
    config = StateConfig(backend=backend, directory=directory)  # type: ignore[arg-type]
    files = LocalStore(directory + "/snapshots")

    def opened(handles: list[StateHandle]) -> tuple[OperatorStateStore, MapState, ListState]:
        store = OperatorStateStore(
            GROUPS,
            32,
            keyed=True,
            restored=[RestoredHandle(handle, GROUPS) for handle in handles],
            read=lambda handle: read_handle(files, JOB, handle),
            tables=open_tables(config, GROUPS),
        )
        store.keyed.set_current_key("one")
        return store, store.keyed.get_map_state(MAP), store.keyed.get_list_state(LIST)

    before = peak_kb()
    store, state, numbers = opened([])
    for key in range(KEYS):
        state.put(key, text_of(key, VALUE_BYTES))
        numbers.add_all((2 * key, 2 * key + 1))
        if key % (TIDIED_BYTES // VALUE_BYTES) == 0:
            store.tidy()
    handles = written(store, files)
    grown_kb = peak_kb() - before
    store.close()
    before = peak_kb(anew=True)
    store, state, numbers = opened(handles)
    seen = 0
    for key, text in state.items():
        assert text == text_of(key, VALUE_BYTES), key
        seen += 1
    assert all(number == n for n, number in enumerate(numbers))
    print(seen, grown_kb, peak_kb() - before)


if __name__ == "__main__":
    if sys.argv[3:] == ["map"]:
        one_map(*sys.argv[1:3])
    else:
        main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
