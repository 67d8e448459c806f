"""Local copies of state: the cost of writing them, a restore from them, and a whole restart.

The storage is a directory of the same disk, as there is no other here: what a restore saves where
the storage lies behind a network is not in these rows. They say that a copy is read as quickly as a
stored file is, its checksum compared; what a snapshot pays for it; and what a restart takes.

The restore and the snapshot are of one subtask with state in the heap, with and without copies in
turns, so that both meet the same machine.
"""

import os
import signal
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.benchmarks.jobs import SOURCE, run_job, spark
from tests.benchmarks.pieces import CyclingKeys, FirstOutputSink, TimedSource
from tests.benchmarks.report import Row
from weir.common import WatermarkStrategy
from weir.common.typeinfo import Types
from weir.config import StateConfig
from weir.datastream import StreamExecutionEnvironment
from weir.ids import AttemptNumber, CheckpointId, JobId, KeyGroupRange, OperatorId, SubtaskId
from weir.protocol.deployment import RestoredHandle
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    JobEvent,
    Recovered,
    WorkerStarted,
)
from weir.state.descriptors import ValueStateDescriptor
from weir.state.store import OperatorStateStore
from weir.storage.local import LocalStore
from weir.storage.local_copies import LocalCopies, StateReader
from weir.storage.writer import StoredSnapshotWriter

GROUPS = KeyGroupRange(0, 127)
KEYS = 4_000_000
INTERVAL_MS = 500
CHECKPOINTS_BETWEEN = 3  # Faults.
RESTORE_RATIO_MAX = 1.2
_JOB, _SUBTASK = JobId("benchmark"), SubtaskId(OperatorId("op"), 0)
_VALUE = "x" * 100


def local_copies(quick: bool) -> list[Row]:
    """A restart and a restore from local copies against the storage, and what copies cost."""
    keys, turns = (100_000, 3) if quick else (1_000_000, 9)
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        size, written, restored = _measured(Path(name), keys, turns)
    note = f"{size / 1e6:,.0f} MB of state, {turns} times; both directories on the same disk"
    return [
        _restart_row(2 if quick else 5, (KEYS // 10) if quick else KEYS),
        _row(
            "a restore from local copies", "from the stored files", restored, note,
            RESTORE_RATIO_MAX,
        ),
        _row("a snapshot that is copied as well", "the same without copies", written, note, None),
    ]  # fmt: skip


@dataclass(slots=True)
class Killer:
    """Hears a job, kills a worker ``count`` times with checkpoints between, then lets it end."""

    stop: Path
    count: int
    restarts_ms: list[float] = field(default_factory=list)  # Until all subtasks ran again.
    local_share: float = 0.0  # Of the bytes that were restored.
    _killed: int = 0
    _completed: int = 0
    _pids: dict[int, int] = field(default_factory=dict)

    def __call__(self, event: JobEvent) -> None:
        match event:
            case AttemptStarted():
                self._completed = 0
            case WorkerStarted(slot_index=slot, pid=pid):
                self._pids[slot] = pid
            case Recovered(redeploy_ms=redeploy_ms, restore_ms=restore_ms):
                self.restarts_ms.append(redeploy_ms + restore_ms)
                self.local_share = (event.restored_local_bytes or 0) / event.restored_bytes
            case CheckpointSettled(failure=None):
                self._completed += 1
                if self._completed == CHECKPOINTS_BETWEEN:
                    if self._killed == self.count:
                        self.stop.touch()
                    else:
                        self._killed += 1
                        os.kill(self._pids[1], signal.SIGKILL)


def _restart_row(count: int, keys: int) -> Row:
    spent: dict[bool, list[float]] = {True: [], False: []}
    share = 0.0
    with spark():
        for keeps in (True, False, False, True):
            killer = _restarts(count, keys, keeps=keeps)
            spent[keeps] += killer.restarts_ms
            share = max(share, killer.local_share)
    local, stored = median(spent[True]), median(spent[False])
    told = {keeps: ", ".join(f"{ms:,.0f}" for ms in times) for keeps, times in spent.items()}
    return Row(
        what="a worker is killed → all subtasks run with their state, from local copies",
        unit="ms",
        weir=local,
        baseline=stored,
        ratio=local / stored,
        against="the same without copies",
        target="none",
        met=None,
        note=f"{keys:,} keys with a sum each, {share:.0%} of the bytes from copies: {told[True]} "
        f"ms; without copies {told[False]} ms",
    )


def _restarts(count: int, keys: int, *, keeps: bool) -> Killer:
    with tempfile.TemporaryDirectory(prefix="weir-bench-") as name:
        directory = Path(name)
        killer = Killer(directory / "stop", count)

        def build(env: StreamExecutionEnvironment) -> None:
            source = TimedSource(
                CyclingKeys(keys), stop=str(killer.stop), fill_rows=keys, paced_rows_per_second=1e5
            )
            rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
            sums = rows.key_by("key").aggregate_batches(total=("value", "sum"))
            sums.sink_to(FirstOutputSink(directory))

        run_job(
            build,
            killer,
            storage=directory / "chk",
            interval_ms=INTERVAL_MS,
            state=StateConfig(local_copies=keeps, local_copies_directory=str(directory / "copies")),
        )
    return killer


def _row(
    what: str,
    against: str,
    pairs: Sequence[tuple[float, float]],
    note: str,
    most: float | None,
) -> Row:
    ratio = median(one / other for one, other in pairs)
    return Row(
        what=what,
        unit="ms",
        weir=median(one for one, _ in pairs),
        baseline=median(other for _, other in pairs),
        ratio=ratio,
        against=against,
        target="none" if most is None else f"ratio ≤ {most:g}",
        met=None if most is None else ratio <= most,
        note=note,
    )


def _measured(
    directory: Path, keys: int, turns: int
) -> tuple[int, list[tuple[float, float]], list[tuple[float, float]]]:
    """The bytes of the state; milliseconds of snapshots and restores, each with copies first."""
    store = OperatorStateStore(GROUPS, 128, keyed=True, read=lambda handle: b"")
    state = store.keyed.get_state(ValueStateDescriptor("text", Types.STRING()))
    for key in range(keys):
        store.keyed.set_current_key(key)
        state.update(f"{key}{_VALUE}")
    files = LocalStore(directory / "checkpoints")
    (directory / "copies").mkdir(mode=0o700)
    copies = LocalCopies(directory / "copies", 1 << 40)
    size = 0
    written: list[tuple[float, float]] = []
    restored: list[tuple[float, float]] = []
    for turn in range(turns):
        spent: list[tuple[float, float]] = []
        for keeper in (copies, None) if turn % 2 else (None, copies):
            checkpoint = CheckpointId(1 + 2 * turn + (keeper is None))
            writer = StoredSnapshotWriter(
                files, _JOB, AttemptNumber(1), checkpoint, _SUBTASK,
                inline_max=1, cancelled=lambda: False, copies=keeper,
            )  # fmt: skip
            parts = store.freeze(checkpoint)
            began = time.perf_counter()
            handles = [handle for part in parts for handle in part.write(writer)]
            wrote_ms = (time.perf_counter() - began) * 1e3
            for part in parts:
                part.release()
            size = sum(handle.size for handle in handles)
            reader = StateReader(files, _JOB, keeper)
            began = time.perf_counter()
            OperatorStateStore(
                GROUPS, 128, keyed=True, read=reader.read,
                restored=[RestoredHandle(handle) for handle in handles],
            )  # fmt: skip
            spent.append((wrote_ms, (time.perf_counter() - began) * 1e3))
            if reader.local_size != (size if keeper is not None else 0):
                raise RuntimeError("the restore did not read what it was to read")
            if keeper is not None:
                keeper.completed(checkpoint)
            writer.discard()
        one, other = spent if turn % 2 else reversed(spent)
        written.append((one[0], other[0]))
        restored.append((one[1], other[1]))
    return size, written, restored
