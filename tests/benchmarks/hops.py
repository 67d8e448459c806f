"""The cost of operators that have hardly anything to do: processor and checkpoints of many hops."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil
import pyarrow as pa

from tests.benchmarks.jobs import (
    PARALLELISM,
    SOURCE,
    RateMeter,
    durations_ms,
    run_job,
    spark,
)
from tests.benchmarks.pieces import CreatedSource, KeyedRows
from tests.benchmarks.report import Row, limit_row
from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import BlackHoleSink
from weir.protocol.events import JobEvent
from weir.protocol.messages import SubtaskMetrics

ROWS_PER_SECOND = 2.0
INTERVAL_MS = 1_000
SETTLE_S = 5.0
FEW, MANY = 25, 250
CHECKPOINT_MAX_MS = 250.0
WORKERS_MAX, DRIVER_MAX = 10.0, 5.0  # Percent of a core.


@dataclass(frozen=True, slots=True)
class Cost:
    """Shares are percents of a core."""

    workers: float
    driver: float
    checkpoint_ms: float  # The median.


@dataclass(slots=True)
class DriverMeter:
    """Hears a job and samples the driver's CPU whenever its source reports, after the warm-up."""

    settle_s: float
    _process: psutil.Process = field(default_factory=psutil.Process)
    _samples: list[tuple[float, float]] = field(default_factory=list)

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, SubtaskMetrics) and event.chain.operator == SOURCE:
            cpu = self._process.cpu_times()
            self._samples.append((time.monotonic(), cpu.user + cpu.system))

    def share(self) -> float:
        """CPU seconds per second."""
        window = [s for s in self._samples if s[0] >= self._samples[0][0] + self.settle_s]
        (begun, before), (ended, after) = window[0], window[-1]
        return (after - before) / (ended - begun)


def hops(quick: bool) -> list[Row]:
    """Processor time, and duration of checkpoints, of 250 rebalances at two rows a second."""
    few, many, seconds = (5, 25, 5.0) if quick else (FEW, MANY, 25.0)
    with spark():
        short, long = cost_of(few, seconds, INTERVAL_MS), cost_of(many, seconds, INTERVAL_MS)
        still = cost_of(many, seconds, None)
    channels = PARALLELISM * PARALLELISM * (many + 1)
    size = f"{PARALLELISM * (many + 2):,} subtasks, {channels:,} channels"
    against = f"{few} hops"
    return [
        limit_row(
            f"{many} hops at {ROWS_PER_SECOND:g} rows/s, checkpoints every 1 s: workers",
            "% of a core", long.workers, at_most=WORKERS_MAX, baseline=short.workers,
            against=against, note=f"{size}; without checkpoints {still.workers:.0f} %",
        ),
        limit_row(
            "the same: driver",
            "% of a core", long.driver, at_most=DRIVER_MAX, baseline=short.driver,
            against=against, note=f"without checkpoints {still.driver:.0f} %",
        ),
        limit_row(
            "the same: a checkpoint",
            "ms", long.checkpoint_ms, at_most=CHECKPOINT_MAX_MS, baseline=short.checkpoint_ms,
            against=against, note="the median",
        ),
    ]  # fmt: skip


def cost_of(hop_count: int, seconds: float, interval_ms: int | None) -> Cost:
    """The cost of a job with so many rebalances."""
    workers, driver = RateMeter(SETTLE_S), DriverMeter(SETTLE_S)

    def build(env: StreamExecutionEnvironment) -> None:
        source = CreatedSource(KeyedRows(100), SETTLE_S + seconds, ROWS_PER_SECOND)
        rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
        for hop in range(hop_count):
            rows = rows.rebalance().map_batches(_passed).uid(f"hop-{hop}")
        rows.sink_to(BlackHoleSink()).uid("sink")

    with TemporaryDirectory(prefix="weir-bench-") as name:
        history = run_job(build, workers, driver, storage=Path(name), interval_ms=interval_ms)
    return Cost(
        workers=workers.rate().core_percents,
        driver=100 * driver.share(),
        checkpoint_ms=median(durations_ms(history) or [0.0]),
    )


def _passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
