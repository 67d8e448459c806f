"""The pipeline of the going-back benchmarks: totals of so many keys, and when they came out.

Parameters: ``directory`` for everything it leaves; ``keys``, ``rate`` in rows a second and
``interval_ms`` between checkpoints.
"""

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tests.benchmarks.pieces import CyclingKeys
from weir.common import WatermarkStrategy
from weir.common.batch import Batch
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource, ParquetSink
from weir.operators.base import Operator
from weir.operators.sinks.pending_commits import Sink

FILED_KEYS = 1_000  # The totals of these go to files as well: a rollback has something to move.


class Outputs(NamedTuple):
    """When the first and the last output of one subtask of an attempt came, on the wall clock."""

    attempt: int
    first_ns: int
    last_ns: int


def outputs(directory: Path) -> Iterator[Outputs]:
    """The output times that the sinks noted in a job's directory."""
    for path in directory.glob("out-*"):
        attempt, _, first_ns = map(int, path.name.split("-")[1:])
        yield Outputs(attempt, first_ns, path.stat().st_mtime_ns)


@dataclass(frozen=True, slots=True)
class TimesSink(Sink):
    """Keeps a file ``out-<attempt>-<subtask>-<first ns>`` whose time is that of the last output."""

    into: Path

    def create_operator_factory(self) -> Callable[[], Operator]:
        return _TimesFactory(self.into)


@dataclass(frozen=True, slots=True)
class _TimesFactory:
    directory: Path

    def __call__(self) -> Operator:
        return _TimesOperator(self.directory)


class _TimesOperator(Operator):
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._file: Path | None = None

    def on_batch(self, batch: Batch, input_index: int) -> None:
        if self._file is None:
            at, ctx = time.time_ns(), self.ctx
            self._file = self._directory / f"out-{ctx.attempt}-{ctx.subtask.index}-{at}"
            self._file.touch()
        os.utime(self._file)


def is_filed(batch: pa.RecordBatch) -> pa.Array:
    """The rows that go to files."""
    return pc.less(batch["key"], FILED_KEYS)


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(int(env.get_job_parameter("interval_ms", "1000")))
    directory = Path(env.get_job_parameter("directory", "."))
    keys = CyclingKeys(int(env.get_job_parameter("keys", "1000")))
    rate = float(env.get_job_parameter("rate", "1000"))
    source = DataGeneratorSource(keys, rows_per_second=rate, vectorised=True)
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
    totals = rows.key_by("key").aggregate_batches(total=("value", "sum")).uid("totals")
    totals.sink_to(TimesSink(directory)).uid("times")
    files = ParquetSink(directory / "output")
    totals.filter_batches(is_filed).uid("filed").sink_to(files).uid("files")
    env.execute("going-back")


if __name__ == "__main__":
    main()
