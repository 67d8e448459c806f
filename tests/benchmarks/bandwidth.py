"""The rate at which a snapshot reaches the disk, against writing the same bytes."""

import os
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa

from tests.benchmarks.report import Row, readable, speed_row
from weir.common import Types
from weir.datastream import ValueStateDescriptor
from weir.graph.key_groups import key_group_range
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.state.store import OperatorStateStore
from weir.storage.local import LocalStore
from weir.storage.writer import StoredSnapshotWriter

MAX_PARALLELISM = 128
PIECE_BYTES = 1 << 20
JOB = JobId("bandwidth")


def bandwidth(quick: bool) -> list[Row]:
    """Writing a frozen state with fsync, in one thread, with nothing beside it."""
    rounds = 3 if quick else 9
    keys = 200_000 if quick else 1_000_000
    rows = []
    for what, state in (
        ("columnar state, 4 columns", _columnar(4 * keys)),
        ("object state, one integer per key", _objects(keys)),
    ):
        pairs, sizes = [], []
        for _ in range(rounds):
            with TemporaryDirectory(prefix="weir-bench-") as directory:
                size, seconds = _snapshot(state, Path(directory, "snapshot"))
                plain_s = _plain_write(Path(directory))
            pairs.append((size / seconds, size / plain_s))
            sizes.append(size)
        rows.append(
            speed_row(
                f"snapshot of {what}",
                "B/s",
                pairs,
                against="write and fsync of the same bytes",
                at_least=0.8,
                note=f"{readable(median(sizes), 'B')}; file and directories synced",
            )
        )
    return rows


def _columnar(keys: int) -> OperatorStateStore:
    state = _empty()
    columns = {f"c{i}": np.int64 for i in range(4)}
    table = state.table("aggregates", pa.int64(), columns)
    slots = table.slots_of(np.arange(keys))
    for number, name in enumerate(columns):
        table.column(name).scatter(slots, np.arange(keys) * number)
    return state


def _objects(keys: int) -> OperatorStateStore:
    state = _empty()
    value = state.keyed.get_state(ValueStateDescriptor("n", Types.LONG()))
    for key in range(keys):
        state.keyed.set_current_key(key)
        value.update(key)
    return state


def _empty() -> OperatorStateStore:
    def read(handle: StateHandle) -> bytes:
        raise AssertionError("nothing is restored")

    groups = key_group_range(MAX_PARALLELISM, 1, 0)
    return OperatorStateStore(groups, MAX_PARALLELISM, keyed=True, read=read)


def _snapshot(state: OperatorStateStore, directory: Path) -> tuple[int, float]:
    """Bytes and seconds."""
    writer = StoredSnapshotWriter(
        LocalStore(directory),
        JOB,
        AttemptNumber(1),
        CheckpointId(1),
        SubtaskId(OperatorId("op"), 0),
        inline_max=20_000,
        cancelled=lambda: False,
    )
    parts = state.freeze(CheckpointId(1))
    started = time.perf_counter()
    size = sum(handle.size for part in parts for handle in part.write(writer))
    seconds = time.perf_counter() - started
    for part in parts:
        part.release()
    return size, seconds


def _plain_write(directory: Path) -> float:
    """Seconds to write what lies in the directory once more, file by file."""
    contents = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    started = time.perf_counter()
    for number, content in enumerate(contents):
        with open(directory / f"plain-{number}", "wb", buffering=0) as file:
            view = memoryview(content)
            for start in range(0, len(content), PIECE_BYTES):
                file.write(view[start : start + PIECE_BYTES])
            os.fsync(file.fileno())
    return time.perf_counter() - started
