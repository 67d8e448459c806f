"""The cost of event time that passes fast: the flights, of which an hour has 38."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow.parquet as pq

from tests.benchmarks.report import Row
from weir.common.batch import Batch
from weir.config import JobConfig
from weir.datastream import StreamExecutionEnvironment
from weir.examples import flights, flights_data
from weir.local.cluster import run_in_process
from weir.operators.watermark_output import WatermarkOutput

PARALLELISM = 2
FLIGHTS = 60_000
HOUR_MS = 3_600_000
RATIO_MAX = 0.1


def event_time(quick: bool) -> list[Row]:
    """Processor time of an hour of event time, beside batches that are cut at every watermark."""
    pairs: list[tuple[float, float]] = []
    with TemporaryDirectory(prefix="weir-bench-") as name:
        table = Path(name, "flights.parquet")
        first = flights_data.flights().slice(0, FLIGHTS)
        pq.write_table(first, table, row_group_size=flights_data.ROW_GROUP_ROWS)
        scheduled_ms = first["scheduled_ms"].to_numpy()
        hours = float(scheduled_ms.max() - scheduled_ms.min()) / HOUR_MS
        for _ in range(1 if quick else 3):
            whole = _cpu_ms(table) / hours
            with _cut_at_watermarks():
                pairs.append((whole, _cpu_ms(table) / hours))
    ratio = median(whole / cut for whole, cut in pairs)
    return [
        Row(
            what="an hour of event time of the flights: processor time",
            unit="ms",
            weir=median(whole for whole, _ in pairs),
            baseline=median(cut for _, cut in pairs),
            ratio=ratio,
            against="batches are cut at every watermark",
            target=f"ratio ≤ {RATIO_MAX:g}",
            met=ratio <= RATIO_MAX,
            note=f"{hours:,.0f} hours in one process, parallelism {PARALLELISM}, without a limit",
        )
    ]


def _cpu_ms(table: Path) -> float:
    """Processor time of the whole job."""
    with TemporaryDirectory(prefix="weir-bench-") as output:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(PARALLELISM)
        flights.build(env, str(table), output, None)
        graph = env.get_job_graph("flights")
        started = time.process_time()
        run_in_process(graph, JobConfig(name="flights", parallelism=PARALLELISM))
        return (time.process_time() - started) * 1_000


@contextmanager
def _cut_at_watermarks() -> Iterator[None]:
    production = WatermarkOutput._emit_within

    def emit_cut(self: WatermarkOutput, batch: Batch, *places: Any) -> None:
        emit, self._output = self._output, _Cutting(self._output)
        production(self, batch, *places)
        self._output = emit

    WatermarkOutput._emit_within = emit_cut  # type: ignore[method-assign]
    try:
        yield
    finally:
        WatermarkOutput._emit_within = production  # type: ignore[method-assign]


class _Cutting:
    """An output that gets batches cut at the watermarks between their records."""

    def __init__(self, output: Any) -> None:
        self._output = output

    def emit(self, batch: Batch) -> None:
        """Send the records up to each watermark, then the watermark."""
        for records, watermark_ms in batch.cut():
            self._output.emit(records)
            if watermark_ms is not None:
                self._output.emit_watermark(watermark_ms)
