"""The cost of incremental checkpoints, of state of each kind, beside full ones.

One subtask, a hundredth of its keys changed since the last checkpoint. Processor time of the
snapshot's thread, and bytes: the mean of one time round, for a slice of the state, or all of it, is
written anew now and then. Full checkpoints of the same state are taken in between.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tests.benchmarks.report import Row
from weir.common.typeinfo import Types
from weir.config import StateBackendKind, StateConfig
from weir.ids import AttemptNumber, CheckpointId, JobId, KeyGroupRange, OperatorId, SubtaskId
from weir.state.backends.choice import open_tables
from weir.state.descriptors import ValueStateDescriptor
from weir.state.store import OperatorStateStore
from weir.storage.local import LocalStore
from weir.storage.writer import StoredSnapshotWriter

GROUPS = KeyGroupRange(0, 127)
CHANGED_SHARE = 0.01
FULL_EVERY = 8  # Checkpoints.
BYTES_RATIO_MAX = CPU_RATIO_MAX = 0.05
_JOB, _SUBTASK = JobId("benchmark"), SubtaskId(OperatorId("op"), 0)

Change = Callable[["npt.NDArray[np.int64]", int], None]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of state, and how many of its checkpoints come before and in one time round."""

    name: str
    backend: StateBackendKind
    before: int
    around: int
    change: Callable[[OperatorStateStore], Change]


def _objects(store: OperatorStateStore) -> Change:
    state = store.keyed.get_state(ValueStateDescriptor("count", Types.LONG()))

    def change(keys: "npt.NDArray[np.int64]", value: int) -> None:
        for n, key in enumerate(keys.tolist()):
            store.keyed.set_current_key(key)
            state.update(value + key)
            if n % 2_048 == 0:
                store.tidy()

    return change


def _columns(store: OperatorStateStore) -> Change:
    table = store.table("counts", pa.int64(), {"count": np.int64})

    def change(keys: "npt.NDArray[np.int64]", value: int) -> None:
        table.column("count").scatter(table.slots_of(keys), value + keys)

    return change


# Slices are rewritten from 48 files on, every third time; a table at a half.
KINDS = (
    Kind("in memory", StateBackendKind.HASHMAP, 64, 48, _objects),
    Kind("in RocksDB", StateBackendKind.ROCKSDB, 64, 48, _objects),
    Kind("in columns", StateBackendKind.ROCKSDB, 2, 51, _columns),
)


@dataclass(frozen=True, slots=True)
class _Taken:
    """One checkpoint: processor time, bytes that it wrote, bytes that a restore of it reads."""

    cpu_ms: float
    written: int
    whole: int


def increments(quick: bool) -> list[Row]:
    """Bytes and processor time of checkpoints of 1 % changed keys against those of all."""
    rows = []
    for kind in KINDS:
        for keys in (100_000,) if quick else (1_000_000, 5_000_000):
            ones, fulls = _measured(kind, keys)
            longest = max(one.whole for one in ones) / fulls[0].whole
            note = (
                f"1 % of 16 bytes each changed, {len(ones)} times; a restore reads {longest:.2f} "
                f"times the bytes of a full one at most"
            )
            what = f"an incremental checkpoint of {keys:,} keys {kind.name}"
            rows += [
                _row(
                    f"{what} writes", "B",
                    [one.written for one in ones], [one.written for one in fulls],
                    BYTES_RATIO_MAX, note,
                ),
                _row(
                    f"{what}: processor time", "ms",
                    [one.cpu_ms for one in ones], [one.cpu_ms for one in fulls],
                    CPU_RATIO_MAX, note,
                ),
            ]  # fmt: skip
    return rows


def _row(
    what: str,
    unit: str,
    ones: Sequence[float],
    fulls: Sequence[float],
    most: float,
    note: str,
) -> Row:
    ratio = mean(ones) / mean(fulls)
    return Row(
        what=what,
        unit=unit,
        weir=mean(ones),
        baseline=mean(fulls),
        ratio=ratio,
        against="a full one of the same state",
        target=f"ratio ≤ {most:g}",
        met=ratio <= most,
        note=note,
    )


def _measured(kind: Kind, keys: int) -> tuple[list[_Taken], list[_Taken]]:
    """Incremental and full checkpoints."""
    rng = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as directory:
        local = f"{directory}/state"
        config = StateConfig(backend=kind.backend, directory=local, incremental=True)
        store = OperatorStateStore(
            GROUPS, 128, keyed=True, read=lambda handle: b"", tables=open_tables(config, GROUPS)
        )
        files = LocalStore(f"{directory}/checkpoints")
        change = kind.change(store)
        change(np.arange(keys), 0)
        _take(store, files, 1, 0)
        ones, fulls = [], []
        for number in range(2, 2 + kind.before + kind.around):
            change(rng.choice(keys, int(keys * CHANGED_SHARE), replace=False), number)
            one = _take(store, files, number, number - 1)
            if number < 2 + kind.before:
                continue
            ones.append(one)
            if len(ones) % FULL_EVERY == 1:
                fulls.append(_take(store, files, 1_000 + number, None))
        store.close()
    return ones, fulls


def _take(store: OperatorStateStore, files: LocalStore, number: int, base: int | None) -> _Taken:
    checkpoint_id = CheckpointId(number)
    writer = StoredSnapshotWriter(
        files, _JOB, AttemptNumber(1), checkpoint_id, _SUBTASK,
        inline_max=20_000, cancelled=lambda: False,
    )  # fmt: skip
    parts = store.freeze(checkpoint_id, None if base is None else CheckpointId(base))
    started = time.thread_time()
    handles = [handle for part in parts for handle in part.write(writer)]
    spent = time.thread_time() - started
    for part in parts:
        part.release()
    written = sum(handle.size for handle in handles if writer.is_new(handle))
    return _Taken(spent * 1e3, written, sum(handle.size for handle in handles))
