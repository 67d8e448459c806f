"""The time of a record from its creation to the sink, when the job has half its load."""

from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from tests.benchmarks.jobs import SOURCE, RateMeter, run_job, spark
from tests.benchmarks.pieces import BIN_US, CreatedSource, KeyedRows, LatencySink
from tests.benchmarks.report import Row, limit_row, readable
from weir.common import WatermarkStrategy
from weir.config import ChannelConfig
from weir.datastream import StreamExecutionEnvironment

KEYS = 100_000
INTERVAL_MS = 1_000
P99_MAX_MS = 50.0
RATIO_MAX = 1.2
SETTLE_S = 3.0


def latency(quick: bool) -> list[Row]:
    """p99 from creation to sink at half the full rate, with checkpoints and without."""
    seconds, rounds = (4.0, 1) if quick else (15.0, 3)
    with spark():
        full, _ = latency_at(seconds / 2, None, None)
        taken, none = [], []
        for _ in range(rounds):
            taken.append(latency_at(seconds, full / 2, INTERVAL_MS)[1])
            none.append(latency_at(seconds, full / 2, None)[1])
    p50, p99 = median(p for p, _ in taken), median(p for _, p in taken)
    base = median(p for _, p in none)
    return [
        limit_row(
            "latency at half load, checkpoints every 1 s: p99",
            "ms",
            p99,
            at_most=P99_MAX_MS,
            baseline=base,
            against="no checkpoints",
            note=(
                f"{readable(full / 2, 'rows/s')} of {readable(full, 'rows/s')}; median latency "
                f"{p50:.1f} ms; created when the rate says, so the source's portions count"
            ),
        ),
        Row(
            what="what checkpoints add to that",
            unit="ms",
            weir=p99,
            baseline=base,
            ratio=p99 / base,
            against="no checkpoints",
            target=f"ratio ≤ {RATIO_MAX:g}",
            met=p99 <= RATIO_MAX * base,
        ),
    ]


def latency_at(
    seconds: float,
    rows_per_second: float | None,
    interval_ms: int | None,
    channels: ChannelConfig | None = None,
) -> tuple[float, tuple[float, float]]:
    """Rows per second, and median and 99th percentile of the latency in milliseconds."""
    meter = RateMeter(SETTLE_S)
    with TemporaryDirectory(prefix="weir-bench-") as name:
        directory = Path(name)

        def build(env: StreamExecutionEnvironment) -> None:
            source = CreatedSource(KeyedRows(KEYS), SETTLE_S + seconds, rows_per_second)
            rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
            sums = rows.key_by("key").aggregate_batches(
                total=("value", "sum"), created_ns=("created_ns", "max")
            )
            sums.sink_to(LatencySink(directory, SETTLE_S))

        run_job(build, meter, storage=directory / "chk", interval_ms=interval_ms, channels=channels)
        counts = np.sum([np.load(path) for path in directory.glob("latency-*.npy")], axis=0)
    reached = np.cumsum(counts) / counts.sum()
    p50, p99 = (float(np.searchsorted(reached, q) + 1) * BIN_US / 1e3 for q in (0.5, 0.99))
    return meter.rate().per_second, (p50, p99)
