"""Whole jobs in one process that are stopped with a savepoint and go on, or are completed."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from weir.common import Duration, WatermarkStrategy
from weir.config import CheckpointConfig, JobConfig, RestartConfig, RestartStrategyKind
from weir.datastream import StreamExecutionEnvironment, TumblingEventTimeWindows
from weir.datastream.execution import capturing
from weir.fault_points import listening
from weir.graph.logical import JobGraph
from weir.ids import CheckpointId, JobId
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import JobResult, run_in_process
from weir.operators.sinks import ParquetSink
from weir.operators.sinks.parquet_sink import committed_files
from weir.operators.sources import DataGeneratorSource
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import AttemptStarted, JobEvent
from weir.protocol.lifecycle import JobStatus
from weir.storage.catalog import RestoreRequest
from weir.worker.subtask import Subtask

pytestmark = pytest.mark.usefixtures("simulated_time")

COUNT, WINDOW_MS, JOB = 3_000, 1_000, JobId("windows")


class Read:
    """The count of records made since it was reset; there is one process."""

    count = 0


def record(indices: Any) -> pa.RecordBatch:
    Read.count += len(indices)
    return pa.record_batch({"ts": pa.array(indices), "word": pa.array(indices % 3)})


def pipeline(output: Path, *, parallelism: int = 2) -> JobGraph:
    """Counts per word in windows of 1000 records: of three, the last one stays open to the end."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    source = DataGeneratorSource(record, COUNT, rows_per_second=4_000, vectorised=True)
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts")
    (
        env.from_source(source, strategy, "numbers")
        .key_by("word")
        .window(TumblingEventTimeWindows.of(Duration.of_millis(WINDOW_MS)))
        .aggregate_batches(n=("*", "count"))
        .sink_to(ParquetSink(output))
        .uid("files")
    )
    with capturing() as capture:
        env.execute("windows")
    return capture.jobs[0].graph


def counts(output: Path) -> Counter[tuple[int, int]]:
    """Records by word and window; a window that came in two parts is added up."""
    counted: Counter[tuple[int, int]] = Counter()
    for file in committed_files(output):
        for row in pq.read_table(file).to_pylist():
            counted[row["word"], row["window_start"]] += row["n"]
    return counted


def everything() -> Counter[tuple[int, int]]:
    return Counter((i % 3, i // WINDOW_MS * WINDOW_MS) for i in range(COUNT))


class Asked:
    """Asks once, when enough records were read, and keeps what became of it."""

    def __init__(self, kind: CheckpointKind, target: Path, at_records: int = 1_100) -> None:
        self.kind = kind
        self.target = target
        self.at_records = at_records
        self.done: list[str] = []
        self.failed: list[str] = []
        self.events: list[JobEvent] = []
        self.has_asked = False
        Read.count = 0

    def __call__(self, master: JobMaster) -> None:
        if self.has_asked or master.status is not JobStatus.RUNNING:
            return
        if Read.count < self.at_records:
            return
        self.has_asked = True
        master.savepoint(
            "asked", self.kind, str(self.target), done=self.done.append, failed=self.failed.append
        )

    def run(self, graph: JobGraph, config: JobConfig, **kwargs: Any) -> JobResult:
        return run_in_process(
            graph, config, job_id=JOB, emit=self.events.append, meanwhile=self, **kwargs
        )


@pytest.fixture(params=[100, None], ids=["checkpointing", "no checkpointing"])
def config(request: Any, tmp_path: Path) -> JobConfig:
    checkpoints = CheckpointConfig(interval_ms=request.param, storage=str(tmp_path / "storage"))
    restart = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=3, delay_ms=0)
    return JobConfig(name="windows", checkpoints=checkpoints, restart=restart, parallelism=2)


def test_suspended_and_gone_on_nothing_is_missing_and_nothing_twice(
    config: JobConfig, tmp_path: Path
) -> None:
    output, savepoint = tmp_path / "output", tmp_path / "savepoint"
    asked = Asked(CheckpointKind.STOP_SUSPEND, savepoint)
    stopped = asked.run(pipeline(output), config)
    assert (stopped.status, asked.done, asked.failed) == ("finished", [str(savepoint)], [])
    assert 0 < counts(output).total() < COUNT  # Open windows stay open.
    savepoint = savepoint.rename(tmp_path / "moved")
    request = RestoreRequest.parse(str(savepoint))
    again = run_in_process(
        pipeline(output, parallelism=3), config, job_id=JOB, restore_from=request
    )
    assert (again.status, again.cause) == ("finished", "")
    assert counts(output) == everything()


def test_drained_all_windows_close_and_every_record_counts(
    config: JobConfig, tmp_path: Path
) -> None:
    output, savepoint = tmp_path / "output", tmp_path / "savepoint"
    asked = Asked(CheckpointKind.STOP_DRAIN, savepoint)
    stopped = asked.run(pipeline(output), config)
    assert (stopped.status, asked.done, asked.failed) == ("finished", [str(savepoint)], [])
    drained = counts(output).total()
    assert asked.at_records <= drained < COUNT
    request = RestoreRequest.parse(str(savepoint))
    again = run_in_process(pipeline(output), config, job_id=JOB, restore_from=request)
    assert (again.status, again.cause) == ("finished", "")
    assert counts(output) == everything()  # The window that was cut has two rows per word.


def dies_at_the_end(monkeypatch: pytest.MonkeyPatch, told: int) -> None:
    """The attempt dies when ``told`` subtasks have finished for the stop."""
    heard = 0
    on_completed = Subtask.on_completed

    def dying(subtask: Subtask, checkpoint_id: CheckpointId, *, final: bool) -> None:
        nonlocal heard
        heard += final
        if final and heard == told + 1:
            raise RuntimeError("dies")
        on_completed(subtask, checkpoint_id, final=final)

    monkeypatch.setattr(Subtask, "on_completed", dying)


@pytest.mark.parametrize("kind", [CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN])
@pytest.mark.parametrize("told", [0, 2])
def test_a_stop_whose_attempt_dies_at_its_end_is_completed_by_the_next(
    config: JobConfig,
    tmp_path: Path,
    kind: CheckpointKind,
    told: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The savepoint is durable, so the job ends with it, whichever attempt does the rest."""
    dies_at_the_end(monkeypatch, told)
    output, savepoint = tmp_path / "output", tmp_path / "savepoint"
    asked = Asked(kind, savepoint)
    graph = pipeline(output)
    stopped = asked.run(graph, config)
    attempts = [e for e in asked.events if isinstance(e, AttemptStarted)]
    assert (stopped.status, asked.done, asked.failed) == ("finished", [str(savepoint)], [])
    assert len(attempts) == 2
    if kind is CheckpointKind.STOP_DRAIN:
        assert counts(output).total() >= asked.at_records
    monkeypatch.undo()
    run_in_process(graph, config, job_id=JOB, restore_from=RestoreRequest.parse(str(savepoint)))
    assert counts(output) == everything()


def test_a_stop_that_fails_leaves_the_job_to_its_end(config: JobConfig, tmp_path: Path) -> None:
    """Suspended subtasks go on where they were, with all that had come due meanwhile."""
    output, savepoint = tmp_path / "output", tmp_path / "savepoint"
    asked = Asked(CheckpointKind.STOP_SUSPEND, savepoint)
    listened: list[str] = []

    def fail(point: str, where: Mapping[str, Any]) -> None:
        if point == "snapshot.write" and asked.has_asked and not listened:
            listened.append(str(where["subtask"]))
            raise RuntimeError("disk full")

    with listening(fail):
        ended = asked.run(pipeline(output), config)
    assert listened
    assert (ended.status, asked.done) == ("finished", [])
    assert counts(output) == everything()


@pytest.mark.parametrize("kind", [CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN])
def test_what_is_collected_comes_once_although_the_end_is_repeated(
    config: JobConfig, tmp_path: Path, kind: CheckpointKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
    source = DataGeneratorSource(record, COUNT, rows_per_second=4_000, vectorised=True)
    with capturing() as capture:
        (
            env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
            .rebalance()
            .map(lambda row: row["ts"])
            .execute_and_collect()
        )
    asked = Asked(kind, tmp_path / "savepoint")
    dies_at_the_end(monkeypatch, told=2)
    stopped = asked.run(capture.jobs[0].graph, config)
    assert (stopped.status, asked.failed) == ("finished", [])
    assert len([e for e in asked.events if isinstance(e, AttemptStarted)]) == 2
    per_split = [sorted(n for n in stopped.collected if n % 2 == i) for i in range(2)]
    assert per_split == [list(range(i, i + 2 * len(ns), 2)) for i, ns in enumerate(per_split)]
    assert asked.at_records <= len(stopped.collected) < COUNT
