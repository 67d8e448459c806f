"""State of five times the memory that its slot may have, through checkpoint, kill and restore."""

from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.spark.blobs import BLOB_BYTES, Blobs, Huge, Written, key_of
from tests.spark.harness import Listening, Recorder, collect, environment
from tests.spark.large_state import run_large_state
from weir.common import WatermarkStrategy
from weir.datastream.connectors import DataGeneratorSource
from weir.errors import JobFailedError
from weir.protocol.events import JobChanged, WorkerStarted
from weir.protocol.slot_memory import MemoryLimit, MemorySource

STATE_BYTES = 2_000_000_000
LIMIT_BYTES = 400_000_000
KEYS = STATE_BYTES // BLOB_BYTES + 100
PADDING = 4_000  # As long as a slow machine needs for a checkpoint.


def test_two_gigabytes_of_state_in_a_slot_of_400_megabytes(local: SparkContext, disk: Path) -> None:
    result, watcher, keys = run_large_state(
        disk, state_bytes=STATE_BYTES, limit_bytes=LIMIT_BYTES, padding=PADDING
    )
    assert watcher.killed is not None
    assert watcher.stored >= STATE_BYTES
    (recovered,) = result.history.recoveries
    assert "killed by signal 9" in recovered.cause
    assert recovered.restored_bytes >= STATE_BYTES

    rows = [tuple(row) for row in result.collected]
    assert sorted(key for key, *_ in rows) == list(range(keys))
    assert all(is_right for _, is_right, _ in rows)
    assert {pid for *_, pid in rows} == set(watcher.peaks) - {watcher.killed}

    assert watcher.limits == [MemoryLimit(LIMIT_BYTES, MemorySource.SETTING)] * 2
    peaks = {pid: peak.resident for pid, peak in watcher.peaks.items()}
    assert all(100_000_000 < peak < LIMIT_BYTES for peak in peaks.values()), peaks


@pytest.mark.parametrize("is_one_value", [False, True], ids=["many", "one"])
def test_state_above_the_limit_ends_with_its_name_and_the_restart_strategy_applies(
    local: SparkContext, disk: Path, is_one_value: bool
) -> None:
    """In memory: as many values as there come, or one that is larger than the limit."""
    settings = {
        "taskmanager.memory.process.size": "300 mb",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "1",
        "restart-strategy.fixed-delay.delay": "0 ms",
    }
    env = environment(disk / "checkpoints", 60_000, parallelism=1, settings=settings)
    source = DataGeneratorSource(abs if is_one_value else Written(KEYS), KEYS, 2_000.0)
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "written")
    keyed = stream.key_by(abs) if is_one_value else stream.key_by(key_of)
    recorder = Recorder()
    with Listening(recorder), pytest.raises(JobFailedError) as failed:
        collect(keyed.process(Huge() if is_one_value else Blobs()).uid("blobs"), "too much")
    assert len(recorder.events_of(WorkerStarted)) == 2
    causes = [event.cause for event in recorder.events_of(JobChanged) if event.cause]
    assert len(causes) == 3  # Of each attempt, and of the job.
    for cause in (*causes, str(failed.value)):
        assert "of memory, more than its limit of 314.6 MB (taskmanager.memory" in cause
        assert f"{'huge' if is_one_value else 'blob'}' of blobs-0" in cause
        assert "state.backend.type: rocksdb" in cause
