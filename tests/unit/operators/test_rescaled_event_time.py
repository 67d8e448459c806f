"""Whole jobs in one process that are stopped and go on with other parallelism, by event time.

Records come in the order of their times, so a late record is late because of the rescale. What the
windows counted in both runs is compared with what one undisturbed run counts. Time is moved by the
event queue alone: on a busy machine one source subtask would be far ahead of the others, and what
is late would depend on it.
"""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.common import Duration, WatermarkStrategy
from weir.config import CheckpointConfig, JobConfig
from weir.datastream import StreamExecutionEnvironment, TumblingEventTimeWindows
from weir.datastream.connectors import DataGeneratorSource, ParquetSink, ParquetSource
from weir.datastream.execution import capturing
from weir.graph.logical import JobGraph
from weir.ids import JobId
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import JobResult, run_in_process
from weir.operators.base import Poll
from weir.operators.sinks.parquet_sink import committed_files
from weir.operators.sources.split_source import Source, SplitSourceOperator
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus
from weir.storage.catalog import RestoreRequest

pytestmark = pytest.mark.usefixtures("simulated_time")

COUNT, WINDOW_MS, BOUND_MS, RATE = 4_000, 100, 200, 8_000
JOB = JobId("rescaled")
WINDOWS = Counter(dict.fromkeys(range(0, COUNT, WINDOW_MS), WINDOW_MS))


LATE = 3_400  # The index of a record that may carry a time from long ago.


def record(indices: Any) -> pa.RecordBatch:
    return pa.record_batch({"ts": pa.array(indices), "word": pa.array(indices % 3)})


def record_or_late(indices: Any) -> pa.RecordBatch:
    return pa.record_batch(
        {"ts": pa.array(np.where(indices == LATE, 50, indices)), "word": pa.array(indices % 3)}
    )


def generated_late(root: Path) -> Source:
    return DataGeneratorSource(record_or_late, COUNT, RATE, vectorised=True)


def files_late(root: Path, *, write_statistics: bool = False) -> Source:
    path = root / "input.parquet"
    if not path.exists():
        columns = record_or_late(np.arange(COUNT))
        pq.write_table(
            pa.Table.from_batches([columns]),
            path,
            row_group_size=50,
            write_statistics=write_statistics,
        )
    return ParquetSource(path, rows_per_second=RATE)


def files_announced(root: Path) -> Source:
    return files_late(root, write_statistics=True)


def generated(root: Path) -> Source:
    return DataGeneratorSource(record, COUNT, RATE, vectorised=True)


def row_groups(root: Path) -> Source:
    path = root / "input.parquet"
    if not path.exists():
        columns = {"ts": list(range(COUNT)), "word": [i % 3 for i in range(COUNT)]}
        pq.write_table(pa.table(columns), path, row_group_size=50)
    return ParquetSource(path, rows_per_second=RATE)


def files(root: Path) -> Source:
    """Twelve files without statistics, of which each subtask reads every so many."""
    directory = root / "input"
    if not directory.exists():
        directory.mkdir()
        for i in range(12):
            start, stop = COUNT * i // 12, COUNT * (i + 1) // 12
            columns = {"ts": list(range(start, stop)), "word": [0] * (stop - start)}
            path = directory / f"{i:02}.parquet"
            pq.write_table(pa.table(columns), path, write_statistics=False)
    return ParquetSource(directory, rows_per_second=RATE, split_by="file")


SOURCES = [generated, row_groups, files]


def pipeline(source: Source, output: Path, parallelism: int) -> JobGraph:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    env.set_max_parallelism(8)
    strategy = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(BOUND_MS))
    (
        env.from_source(source, strategy.with_timestamp_column("ts"), "numbers")
        .key_by("word")
        .window(TumblingEventTimeWindows.of(Duration.of_millis(WINDOW_MS)))
        .aggregate_batches(n=("*", "count"))
        .sink_to(ParquetSink(output))
        .uid("files")
    )
    with capturing() as capture:
        env.execute("rescaled")
    return capture.jobs[0].graph


def counts(output: Path) -> Counter[int]:
    """Records by window."""
    counted: Counter[int] = Counter()
    for file in committed_files(output):
        for row in pq.read_table(file).to_pylist():
            counted[row["window_start"]] += row["n"]
    return counted


class Stopping:
    """Stops the job with a savepoint once each source subtask has emitted enough."""

    def __init__(
        self, target: Path, subtasks: int, at_records: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.target = target
        self.done: list[str] = []
        self._emitted: Counter[int] = Counter()
        self._subtasks = subtasks
        self._at_records = at_records
        self._has_asked = False
        poll = SplitSourceOperator.poll

        def counting(operator: Any, records_max: int) -> Poll:
            before = operator.ctx.output.records
            outcome = poll(operator, records_max)
            emitted = operator.ctx.output.records - before
            self._emitted[operator.ctx.subtask.index] += emitted
            return outcome

        monkeypatch.setattr(SplitSourceOperator, "poll", counting)

    @property
    def _is_due(self) -> bool:
        enough = [index for index, n in self._emitted.items() if n >= self._at_records]
        return len(enough) == self._subtasks

    def __call__(self, master: JobMaster) -> None:
        if self._has_asked or master.status is not JobStatus.RUNNING or not self._is_due:
            return
        self._has_asked = True
        master.savepoint(
            "stop", CheckpointKind.STOP_SUSPEND, str(self.target),
            done=self.done.append, failed=self.done.append,
        )  # fmt: skip


def run(graph: JobGraph, root: Path, parallelism: int, **kwargs: Any) -> JobResult:
    checkpoints = CheckpointConfig(interval_ms=100, storage=str(root / "storage"))
    config = JobConfig(name="rescaled", checkpoints=checkpoints, parallelism=parallelism)
    result = run_in_process(graph, config, **kwargs)
    assert (result.status, result.cause) == (JobStatus.FINISHED, "")
    return result


def stopped_and_rescaled(
    make: Callable[[Path], Source],
    before: int,
    after: int,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Counter[int]:
    """The counts of the windows in a run that was stopped midway, and in the one that went on."""
    output, savepoint = root / "output", root / "savepoint"
    stopping = Stopping(savepoint, before, COUNT // before * 2 // 5, monkeypatch)
    first = pipeline(make(root), output, before)
    run(first, root, before, job_id=JOB, meanwhile=stopping)
    assert stopping.done == [str(savepoint)]
    assert 0 < counts(output).total() < COUNT - WINDOW_MS  # Closed some, and left much.

    restore = RestoreRequest.parse(str(savepoint))
    run(pipeline(make(root), output, after), root, after, job_id=JOB, restore_from=restore)
    return counts(output)


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize(("before", "after"), [(3, 1), (2, 1), (3, 2), (2, 3), (1, 4)])
def test_nothing_in_order_is_late_after_a_rescale(
    make: Callable[[Path], Source],
    before: int,
    after: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert stopped_and_rescaled(make, before, after, tmp_path, monkeypatch) == WINDOWS


@pytest.mark.parametrize("make", [generated_late, files_late])
@pytest.mark.parametrize(("before", "after"), [(3, 1), (1, 2)])
def test_what_is_late_without_a_rescale_is_late_with_one(
    make: Callable[[Path], Source],
    before: int,
    after: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = WINDOWS - Counter([LATE])
    run(pipeline(make(tmp_path), tmp_path / "undisturbed", before), tmp_path / "alone", before)
    assert counts(tmp_path / "undisturbed") == expected
    assert stopped_and_rescaled(make, before, after, tmp_path, monkeypatch) == expected


@pytest.mark.parametrize("parallelism", [1, 3])
def test_what_statistics_announce_is_on_time(parallelism: int, tmp_path: Path) -> None:
    graph = pipeline(files_announced(tmp_path), tmp_path / "output", parallelism)
    run(graph, tmp_path, parallelism)
    assert counts(tmp_path / "output") == WINDOWS - Counter([LATE]) + Counter([0])
