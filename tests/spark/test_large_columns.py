"""Columns of several times the memory that their slot may have, through checkpoint and kill."""

from pathlib import Path

from pyspark import SparkContext

from tests.spark.harness import Listening, collect, environment
from tests.spark.hurried import HurriedSource
from tests.spark.watcher import Watcher
from tests.spark.wide_sums import COLUMNS, RowsBehindPadding, compared, name_of, rows_of
from weir.common import WatermarkStrategy
from weir.datastream.connectors import DataGeneratorSource
from weir.protocol.slot_memory import MemoryLimit, MemorySource

KEYS = 1_700_000
STATE_BYTES = KEYS * (COLUMNS * 9 + 10)  # A sum is eight bytes and a flag.
LIMIT_BYTES = 260_000_000
PADDING, PADDING_RATE = 4_000, 20.0  # As long as a slow machine needs for a checkpoint.


def test_sums_of_several_times_the_memory_of_their_slot(local: SparkContext, disk: Path) -> None:
    settings = {
        "taskmanager.memory.process.size": str(LIMIT_BYTES),
        "state.backend.type": "rocksdb",
        "state.backend.rocksdb.localdir": str(disk / "state"),
    }
    env = environment(disk / "checkpoints", 2_000, parallelism=1, settings=settings)
    hurry = disk / "hurry"
    written = DataGeneratorSource(rows_of, KEYS, vectorised=True)
    behind = HurriedSource(RowsBehindPadding(PADDING), PADDING + KEYS, PADDING_RATE, hurry)
    behind.vectorised = True
    streams = [
        env.from_source(source, WatermarkStrategy.no_watermarks(), name).uid(name)
        for source, name in ((written, "written"), (behind, "compared"))
    ]
    sums = {name_of(i): (name_of(i), "sum") for i in range(COLUMNS)}
    stream = streams[0].union(streams[1]).key_by("key").aggregate_batches(n=("*", "count"), **sums)
    with Watcher(hurry, STATE_BYTES) as watcher, Listening(watcher):
        result = collect(stream.uid("sums").flat_map_batches(compared), "large columns")
    assert watcher.killed is not None
    (recovered,) = result.history.recoveries
    assert "killed by signal 9" in recovered.cause
    assert recovered.restored_bytes >= STATE_BYTES > 2.4 * LIMIT_BYTES

    keys, total, wrong, pids = zip(*map(tuple, result.collected), strict=True)
    assert (sum(keys), sum(total), sum(wrong)) == (KEYS, KEYS * (KEYS - 1) // 2, 0)
    assert set(pids) == set(watcher.peaks) - {watcher.killed}

    assert watcher.limits == [MemoryLimit(LIMIT_BYTES, MemorySource.SETTING)] * 2
    peaks = watcher.peaks
    assert all(50_000_000 < peak.anonymous < LIMIT_BYTES for peak in peaks.values()), peaks
    assert all(peak.resident > 2 * LIMIT_BYTES for peak in peaks.values()), "no page had to leave"
