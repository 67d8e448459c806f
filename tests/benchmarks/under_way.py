"""From a kill to the successor's first output, where the checkpoint holds much under way.

A slow operator keeps its channels full, as wide as their credit is. A worker is killed as soon as a
checkpoint has stored as much as that, and the successor restores it.
"""

import os
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pyarrow as pa

from tests.benchmarks.jobs import PARALLELISM, SOURCE, run_job, spark
from tests.benchmarks.pieces import FirstOutputSink, KeyedRows, TimedSource
from tests.benchmarks.report import Row, limit_row
from weir.common import WatermarkStrategy
from weir.config import ChannelConfig
from weir.datastream import MapFunction, StreamExecutionEnvironment
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    JobEvent,
    Recovered,
    WorkerStarted,
)
from weir.protocol.messages import Acknowledged

KEYS = 100_000
ROW_S = 20e-6
INTERVAL_MS = 500
SMALL, LARGE = 1 << 20, 27 << 20  # Credit of a channel; there are four.
FULL = 0.8  # Of the credit; the rest pays for the number of batches.
AT_MOST_MS = 1_500.0


class Slow(MapFunction):
    """Takes its time for every row, until the file ``stop`` is there."""

    def __init__(self, stop: Path) -> None:
        self._stop = stop

    def map(self, value: pa.RecordBatch) -> pa.RecordBatch:
        if not self._stop.exists():
            time.sleep(value.num_rows * ROW_S)
        return value


@dataclass(slots=True)
class KillerWhenFull:
    """Hears a job and kills a worker whenever a checkpoint holds enough; then the job may end."""

    stop: Path
    enough: float  # Bytes under way.
    count: int
    pids: dict[int, int] = field(default_factory=dict)
    stored: Counter[int] = field(default_factory=Counter)  # Bytes under way, by checkpoint.
    made: list[tuple[int, int, int]] = field(default_factory=list)  # Attempt, at ns, bytes.
    restore_ms: list[float] = field(default_factory=list)
    attempt: int = 0

    def __call__(self, event: JobEvent) -> None:
        match event:
            case AttemptStarted(attempt=attempt):
                self.attempt = attempt
            case WorkerStarted(slot_index=slot, pid=pid):
                self.pids[slot] = pid
            case Acknowledged(checkpoint_id=checkpoint_id, operators=operators):
                size = sum(one.metrics.bytes_persisted_in_flight for one in operators)
                self.stored[checkpoint_id] += size
            case CheckpointSettled(checkpoint_id=checkpoint_id, failure=None):
                self._completed(self.stored[checkpoint_id])
            case Recovered(restore_ms=restore_ms):
                self.restore_ms.append(restore_ms)
                if len(self.restore_ms) == self.count:
                    self.stop.touch()

    def _completed(self, size: int) -> None:
        is_new = not self.made or self.made[-1][0] < self.attempt
        if size >= self.enough and is_new and len(self.made) < self.count:
            self.made.append((self.attempt, time.time_ns(), size))
            os.kill(self.pids[1], signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Times:
    first_output_ms: list[float]
    restore_ms: list[float]
    mean_bytes: float


def under_way(quick: bool) -> list[Row]:
    """First output after a worker was killed, with about 100 MB of records under way."""
    count = 3 if quick else 7
    with spark():
        small, large = _times(SMALL, count), _times(LARGE, count)
    size, restore_s = large.mean_bytes / 1e6, median(large.restore_ms) / 1e3
    return [
        limit_row(
            f"a worker is killed with {size:.0f} MB of records under way → first output",
            "ms",
            median(large.first_output_ms),
            at_most=AT_MOST_MS,
            baseline=median(small.first_output_ms),
            against=f"{small.mean_bytes / 1e6:.0f} MB under way",
            note=f"restored in {restore_s * 1e3:,.0f} ms, {size / restore_s:,.0f} MB/s; {count} "
            "times: " + ", ".join(f"{ms:,.0f}" for ms in large.first_output_ms) + " ms",
        )
    ]


def _times(credit_bytes: int, count: int) -> _Times:
    with TemporaryDirectory(prefix="weir-bench-") as name:
        directory = Path(name)
        stop = directory / "stop"
        killer = KillerWhenFull(stop, FULL * credit_bytes * PARALLELISM**2, count)

        def build(env: StreamExecutionEnvironment) -> None:
            source = TimedSource(KeyedRows(KEYS), stop=str(stop))
            rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
            rows.rebalance().map_batches(Slow(stop)).sink_to(FirstOutputSink(directory))

        run_job(
            build,
            killer,
            storage=directory / "chk",
            interval_ms=INTERVAL_MS,
            alignment_timeout_ms=0,
            channels=ChannelConfig(credit_bytes=credit_bytes),
        )
        first_ns: dict[int, int] = {}
        for path in directory.glob("first-*"):
            attempt, _, at_ns = map(int, path.name.split("-")[1:])
            first_ns[attempt] = min(at_ns, first_ns.get(attempt, at_ns))
    return _Times(
        [(first_ns[attempt + 1] - at_ns) / 1e6 for attempt, at_ns, _ in killer.made],
        killer.restore_ms,
        sum(size for *_, size in killer.made) / len(killer.made),
    )
