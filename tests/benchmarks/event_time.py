"""The cost of event time that passes fast: the flights, of which an hour has 38."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.report import Row
from weir.common.batch import Batch
from weir.config import JobConfig
from weir.datastream import StreamExecutionEnvironment
from weir.examples import flights
from weir.examples.flights_data import write_flights
from weir.local.cluster import run_in_process
from weir.operators.watermark_output import WatermarkOutput

PARALLELISM = 2
HOURS = 365 * 24
RATIO_MAX = 0.1


def event_time(quick: bool) -> list[Row]:
    """Processor time of an hour of event time, beside batches that are cut at every watermark."""
    pairs: list[tuple[float, float]] = []
    with TemporaryDirectory(prefix="weir-bench-") as name:
        table = Path(name, "flights.parquet")
        write_flights(str(table))
        for _ in range(1 if quick else 3):
            whole = _hour_ms(table)
            with _cut_at_watermarks():
                pairs.append((whole, _hour_ms(table)))
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
            note=f"a year in one process, parallelism {PARALLELISM}, as fast as it goes",
        )
    ]


def _hour_ms(table: Path) -> float:
    """Processor time of the whole job by hours of event time."""
    with TemporaryDirectory(prefix="weir-bench-") as output:
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(PARALLELISM)
        flights.build(env, str(table), output, None)
        graph = env.get_job_graph("flights")
        started = time.process_time()
        run_in_process(graph, JobConfig(name="flights", parallelism=PARALLELISM))
        return (time.process_time() - started) * 1_000 / HOURS


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
