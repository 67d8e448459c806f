"""A keyed running aggregate: against a loop without a framework; with checkpoints or without."""

import os
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import hirola
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.benchmarks.jobs import SOURCE, Rate, RateMeter, run_job, spark
from tests.benchmarks.pieces import KeyedRows, TimedSource
from tests.benchmarks.report import Row, readable, speed_row
from weir.common import WatermarkStrategy
from weir.config import ChannelConfig
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import ParquetSource
from weir.operators.sinks import BlackHoleSink
from weir.operators.sources import Source

SLICE = ChannelConfig().batch_rows_max  # The loop's batches are as large as Weir's.
INTERVAL_MS = 1_000


def aggregate(quick: bool) -> list[Row]:
    """Keyed running sums at parallelism 2, per CPU-second of all worker processes."""
    seconds, settle_s, rounds = (5.0, 2.0, 1) if quick else (12.0, 4.0, 3)
    rows = []
    with spark():
        for keys in (1_000, 100_000, 1_000_000):
            pairs, wall = [], []
            for _ in range(rounds):
                rate = weir_rate(keys, seconds, settle_s, INTERVAL_MS)
                pairs.append((rate.per_cpu_second, loop_rate(keys, seconds / 2, settle_s / 2)))
                wall.append(rate.per_second / 2)
            rows.append(
                speed_row(
                    f"running sum, {_short(keys)} keys, per CPU-second",
                    "rows/s",
                    pairs,
                    against="NumPy/Arrow loop, one process",
                    # Of few keys the loop does next to nothing but make rows.
                    at_least=0.85 if keys >= 100_000 else 0.5,
                    note=f"{readable(float(np.median(wall)), 'rows/s')} per core by the clock",
                )
            )
    return rows


def parquet(quick: bool) -> list[Row]:
    """The same sums over Parquet files, of whose columns they need two."""
    links, settle_s, rounds = (40, 2.0, 1) if quick else (150, 3.0, 3)
    rows = []
    with spark():
        for keys in (100_000, 1_000_000):
            pairs = []
            with TemporaryDirectory(prefix="weir-bench-") as directory:
                files = write_files(Path(directory), keys, links)
                for _ in range(rounds):
                    rate = parquet_rate(Path(directory), settle_s)
                    pairs.append((rate.per_cpu_second, parquet_loop_rate(files, keys)))
            rows.append(
                speed_row(
                    f"running sum over Parquet, {_short(keys)} keys, per CPU-second",
                    "rows/s",
                    pairs,
                    against="NumPy/Arrow loop over the same columns, one process",
                    at_least=0.7,
                )
            )
    return rows


FILE_ROWS = 1_000_000


def write_files(directory: Path, keys: int, links: int) -> list[Path]:
    """One file under many names: keys, values, and columns that the sums do not need."""
    columns = KeyedRows(keys)(np.arange(FILE_ROWS))
    numbers = np.arange(FILE_ROWS)
    table = pa.table(
        {
            "at": pa.array(numbers, pa.timestamp("ms")),
            "key": columns.column("key"),
            "name": pa.array([f"name {number % 5_000}" for number in numbers]),
            "value": columns.column("value"),
            "note": pa.array([f"{number * 2654435761 % 2**32:x}" for number in numbers]),
            "weight": pa.array(numbers * 0.5),
        }
    )
    files = [directory / f"part-{i:04}.parquet" for i in range(links)]
    pq.write_table(table, files[0], row_group_size=FILE_ROWS // 8)
    for link in files[1:]:
        os.link(files[0], link)
    return files


def parquet_rate(directory: Path, settle_s: float) -> Rate:
    """The rate at which Weir keeps running sums over the files, each of its rows once."""
    meter = RateMeter(settle_s)

    def build(env: StreamExecutionEnvironment) -> None:
        running_sum(env, ParquetSource(directory))

    with TemporaryDirectory(prefix="weir-bench-") as storage:
        run_job(build, meter, storage=Path(storage), interval_ms=INTERVAL_MS)
    return meter.rate()


def parquet_loop_rate(files: list[Path], keys: int) -> float:
    """Rows per CPU-second of the loop by hand, which names the columns that it reads."""
    loop = _Loop(keys, combines=2 * keys <= SLICE)
    row_count, begun = 0, 0.0
    for i, path in enumerate(files[:24]):
        if i == 4:  # All keys are in the table.
            row_count, begun = 0, time.thread_time()
        with pq.ParquetFile(path) as file:
            for batch in file.iter_batches(SLICE, columns=["key", "value"], use_threads=False):
                loop.add(batch)
                row_count += batch.num_rows
    return row_count / (time.thread_time() - begun)


def checkpoints(quick: bool) -> list[Row]:
    """The same job with checkpoints every second and without, by the clock."""
    seconds, settle_s, rounds = (5.0, 2.0, 1) if quick else (15.0, 4.0, 5)
    rows = []
    with spark():
        for keys, at_least, target in (
            (100_000, 0.97, "costs ≤ 3 %"),
            (1_000_000, 0.90, "costs ≤ 10 %"),
        ):
            pairs, cpu = [], []
            for _ in range(rounds):
                taken = weir_rate(keys, seconds, settle_s, INTERVAL_MS)
                none = weir_rate(keys, seconds, settle_s, None)
                pairs.append((taken.per_second, none.per_second))
                cpu.append(taken.per_cpu_second / none.per_cpu_second)
            rows.append(
                speed_row(
                    f"checkpoints every 1 s, {_short(keys)} keys",
                    "rows/s",
                    pairs,
                    against="no checkpoints",
                    at_least=at_least,
                    target=target,
                    note=f"ratio {np.median(cpu):.2f} per CPU-second",
                )
            )
    return rows


def running_sum(env: StreamExecutionEnvironment, source: Source) -> None:
    """Add the job of running sums by key over what a source reads."""
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
    rows.key_by("key").aggregate_batches(total=("value", "sum")).sink_to(BlackHoleSink())


def weir_rate(keys: int, seconds: float, settle_s: float, interval_ms: int | None) -> Rate:
    """The rate at which Weir keeps running sums."""
    meter = RateMeter(settle_s)

    def build(env: StreamExecutionEnvironment) -> None:
        running_sum(env, TimedSource(KeyedRows(keys), seconds=seconds))

    with TemporaryDirectory(prefix="weir-bench-") as directory:
        run_job(build, meter, storage=Path(directory), interval_ms=interval_ms)
    return meter.rate()


def loop_rate(keys: int, seconds: float, settle_s: float) -> float:
    """Rows per CPU-second of what one would write by hand: no exchange, no checkpoints, one core.

    It makes the same batches, and of every slice a batch of the keys in it and their sums so far.
    Whether to combine a slice first is decided by the author of the loop, who knows the data.
    """
    make = KeyedRows(keys)
    loop = _Loop(keys, combines=2 * keys <= SLICE)
    index = np.arange(SLICE)
    row_count, begun = 0, time.thread_time()
    counted_from: tuple[int, float] | None = None
    while (now := time.thread_time()) - begun < seconds:
        if counted_from is None and now - begun >= settle_s:
            counted_from = row_count, now
        loop.add(make(index))
        index += SLICE
        row_count += SLICE
    assert counted_from is not None
    return (row_count - counted_from[0]) / (now - counted_from[1])


class _Loop:
    def __init__(self, keys: int, *, combines: bool) -> None:
        self._table = hirola.HashTable(2 * keys, np.int64, almost_full=None)
        self._totals = np.zeros(2 * keys, np.int64)
        self._first = np.zeros(2 * keys, np.int64)
        self._combines = combines

    def add(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        keys, values = batch.column(0), batch.column(1).to_numpy()
        if self._combines:
            encoded = keys.dictionary_encode()
            keys = encoded.dictionary
            sums = np.zeros(len(keys), np.int64)
            np.add.at(sums, encoded.indices.to_numpy(), values)
            slots = self._table.add(keys.to_numpy())
            self._totals[slots] += sums
        else:
            slots = self._table.add(keys.to_numpy())
            np.add.at(self._totals, slots, values)
            rows = np.arange(len(slots))
            self._first[slots] = rows
            once = np.flatnonzero(self._first[slots] == rows)
            keys, slots = keys.take(pa.array(once)), slots[once]
        return pa.record_batch([keys, pa.array(self._totals[slots])], names=["key", "total"])


def _short(keys: int) -> str:
    return f"{keys // 1_000_000} M" if keys >= 1_000_000 else f"{keys // 1_000} k"
