"""Growth of what a job costs with its channels, operators, keys and parallelism.

At each size a job runs twice: *busy*, with records and a checkpoint every second, and *idle*, with
one record a second for each subtask of the source, and without checkpoints. By keys it runs once,
as fast as it can: its tables have to be filled. A row shows the largest size beside the smallest;
no cost may grow faster than the size does.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import pyarrow as pa

from tests.benchmarks.hops import DriverMeter
from tests.benchmarks.jobs import (
    PARALLELISM,
    SOURCE,
    Rate,
    RateMeter,
    durations_ms,
    run_job,
    spark,
)
from tests.benchmarks.pieces import CyclingKeys, TimedSource
from tests.benchmarks.report import Row, readable
from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import BlackHoleSink

SECONDS = 12.0
SETTLE_S = 4.0
FILL_ROWS_PER_SECOND = 400_000  # At the least, of new keys.
INTERVAL_MS = 1_000
FEW_KEYS = 1_000


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a job: rebalances before a running sum, subtasks of each, keys, and records."""

    hops: int = 0
    parallelism: int = PARALLELISM
    keys: int = FEW_KEYS
    rows_per_second: float | None = 50_000.0  # None: as many as it can take.

    @property
    def channels(self) -> int:
        """All-to-all channels of all hops, and of the exchange before the sum."""
        return self.parallelism**2 * (self.hops + 1)


@dataclass(frozen=True, slots=True)
class Cost:
    """Processor time of the workers together and of the driver."""

    busy: float  # In percents of a core; at full speed in milliseconds for a thousand rows.
    driver: float  # In percents of a core.
    idle: float | None  # In percents of a core; None: not measured.
    checkpoint_ms: float  # The median.


@dataclass(frozen=True, slots=True)
class Dimension:
    """Jobs that differ in one thing; ``counts`` is how much each has of it."""

    name: str
    sizes: Sequence[Size]
    counts: Sequence[int]


def _slow(hops: int, parallelism: int) -> Size:
    return Size(hops=hops, parallelism=parallelism, rows_per_second=float(parallelism))


HOPS = 1, 10, 100, 500
# Each hop has the square of the parallelism of channels: 10, 64, 1,024 and 9,984 of them.
CHANNELS = _slow(9, 1), _slow(0, 8), _slow(15, 8), _slow(155, 8)
KEYS = 1_000, 100_000, 1_000_000, 5_000_000
PARALLELISMS = 1, 2, 4, 8
DIMENSIONS = (
    Dimension("hops", [_slow(hops, 2) for hops in HOPS], HOPS),
    Dimension("channels", CHANNELS, [size.channels for size in CHANNELS]),
    Dimension("keys", [Size(keys=keys, rows_per_second=None) for keys in KEYS], KEYS),
    Dimension("parallelism", [Size(parallelism=p) for p in PARALLELISMS], PARALLELISMS),
)


def growth(quick: bool) -> list[Row]:
    """Processor time and checkpoints by channels, operators in a row, keys and parallelism."""
    rows: list[Row] = []
    for dimension in DIMENSIONS:
        count = 2 if quick else len(dimension.sizes)
        costs = [cost_of(size, 5.0 if quick else SECONDS) for size in dimension.sizes[:count]]
        rows += rows_of(dimension.name, dimension.counts[:count], costs)
    return rows


def rows_of(name: str, counts: Sequence[int], costs: Sequence[Cost]) -> list[Row]:
    """A row for each cost, from the smallest size to the largest."""
    first, last = f"{counts[0]:,}", f"{counts[-1]:,}"
    most = counts[-1] / counts[0]
    idle = [cost.idle for cost in costs if cost.idle is not None]
    rows = []
    for measure, unit, values in (
        ("workers, busy", "% of a core" if idle else "ms/1,000 rows", [c.busy for c in costs]),
        ("driver, busy", "% of a core", [cost.driver for cost in costs]),
        ("workers, idle", "% of a core", idle),
        ("a checkpoint", "ms", [cost.checkpoint_ms for cost in costs]),
    ):
        if not values:
            continue
        ratio = values[-1] / values[0] if values[0] else float("inf")
        between = zip(counts, values, strict=True)
        rows.append(
            Row(
                what=f"{name}, {first} to {last}: {measure}",
                unit=unit,
                weir=values[-1],
                baseline=values[0],
                ratio=ratio,
                against=f"{name}: {first}",
                target=f"ratio ≤ {most:g}",
                met=ratio <= most,
                note=", ".join(f"{count:,}: {readable(value, unit)}" for count, value in between),
            )
        )
    return rows


def cost_of(size: Size, seconds: float) -> Cost:
    """The cost of a job of this size, busy and, unless at full speed, idle."""
    with spark(f"local[{size.parallelism}]", size.parallelism):
        rate, driver, checkpoint_ms = _run(size, size.rows_per_second, seconds, INTERVAL_MS)
        if size.rows_per_second is None:
            return Cost(1e6 / rate.per_cpu_second, driver, None, checkpoint_ms)
        idle, _, _ = _run(size, float(size.parallelism), seconds, None)
    return Cost(rate.core_percents, driver, idle.core_percents, checkpoint_ms)


def _run(
    size: Size, rows_per_second: float | None, seconds: float, interval_ms: int | None
) -> tuple[Rate, float, float]:
    """The workers' rate, the driver's share in percents of a core, and the checkpoints' median."""
    settle_s = SETTLE_S
    if rows_per_second is None:
        settle_s += size.keys / FILL_ROWS_PER_SECOND
    workers, driver = RateMeter(settle_s), DriverMeter(settle_s)

    def build(env: StreamExecutionEnvironment) -> None:
        source = TimedSource(
            CyclingKeys(size.keys), seconds=settle_s + seconds, rows_per_second=rows_per_second
        )
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
        for hop in range(size.hops):
            stream = stream.rebalance().map_batches(_passed).uid(f"hop-{hop}")
        summed = stream.key_by("key").aggregate_batches(total=("value", "sum")).uid("sums")
        summed.sink_to(BlackHoleSink()).uid("sink")

    with TemporaryDirectory(prefix="weir-bench-") as name:
        history = run_job(
            build,
            workers,
            driver,
            storage=Path(name),
            interval_ms=interval_ms,
            parallelism=size.parallelism,
        )
    took_ms = durations_ms(history)
    return (
        workers.rate(),
        100 * driver.share(),
        median(took_ms[len(took_ms) // 3 :] or [0.0]),
    )


def _passed(batch: pa.RecordBatch) -> pa.RecordBatch:
    return batch
