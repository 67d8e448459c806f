"""The cost of an incremental checkpoint of state in RocksDB, beside a full one of the same state.

One subtask, a hundredth of its keys changed since the last checkpoint. Processor time of the
snapshot's thread, and bytes; the two kinds are taken in turns, so both meet the same machine.
"""

import random
import tempfile
import time
from dataclasses import dataclass
from statistics import median

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
BYTES_RATIO_MAX, CPU_RATIO_MAX = 0.2, 0.5
_JOB, _SUBTASK = JobId("benchmark"), SubtaskId(OperatorId("op"), 0)


@dataclass(frozen=True, slots=True)
class _Taken:
    """One checkpoint: processor time, bytes that it wrote, bytes that a restore of it reads."""

    cpu_ms: float
    written: int
    whole: int


def increments(quick: bool) -> list[Row]:
    """Bytes and processor time of a checkpoint of 1 % changed keys against one of all."""
    keys, turns = (100_000, 6) if quick else (1_000_000, 20)
    pairs, chains = _measured(keys, turns)
    written = [(one.written, full.written) for one, full in pairs]
    spent = [(one.cpu_ms, full.cpu_ms) for one, full in pairs]
    note = (
        f"{keys:,} keys of 16 bytes, 1 % of them changed, {turns} times; a restore reads "
        f"{chains:.2f} times the bytes of a full one at most"
    )
    return [
        _row("an incremental checkpoint writes", "B", written, BYTES_RATIO_MAX, note),
        _row("an incremental checkpoint: processor time", "ms", spent, CPU_RATIO_MAX, note),
    ]


def _row(what: str, unit: str, pairs: list[tuple[float, float]], most: float, note: str) -> Row:
    ratio = median(one / full for one, full in pairs)
    return Row(
        what=what,
        unit=unit,
        weir=median(one for one, _ in pairs),
        baseline=median(full for _, full in pairs),
        ratio=ratio,
        against="a full one of the same state",
        target=f"ratio ≤ {most:g}",
        met=ratio <= most,
        note=note,
    )


def _measured(keys: int, turns: int) -> tuple[list[tuple[_Taken, _Taken]], float]:
    """Incremental and full checkpoints in turns; the longest chain by the bytes of a full one."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory() as directory:
        config = StateConfig(backend=StateBackendKind.ROCKSDB, directory=f"{directory}/state")
        store = OperatorStateStore(
            GROUPS, 128, keyed=True, read=lambda handle: b"", tables=open_tables(config, GROUPS)
        )
        files = LocalStore(f"{directory}/checkpoints")
        state = store.keyed.get_state(ValueStateDescriptor("count", Types.LONG()))

        def change(changed: range | list[int], value: int) -> None:
            for n, key in enumerate(changed):
                store.keyed.set_current_key(key)
                state.update(value + key)
                if n % 2_048 == 0:
                    store.tidy()

        change(range(keys), 0)
        _take(store, files, 1, 0)
        number, pairs = 1, []
        for turn in range(turns):
            change(rng.sample(range(keys), int(keys * CHANGED_SHARE)), turn)
            one = _take(store, files, number + 1, number)
            number += 1
            pairs.append((one, _take(store, files, 1_000 + turn, None)))
        store.close()
    return pairs, max(one.whole / full.whole for one, full in pairs)


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
