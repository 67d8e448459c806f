"""Whole jobs in one process that meet damage: nothing is lost, and nothing is there twice."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.spark.hurried import HurriedSource
from tests.unit.local.test_in_process_stop import JOB, Asked, Read, dies_at_the_end
from weir.common import Row, Types, WatermarkStrategy
from weir.config import CheckpointConfig, JobConfig, RestartConfig, RestartStrategyKind
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.execution import capturing
from weir.fault_points import listening
from weir.graph.logical import JobGraph
from weir.ids import CheckpointId
from weir.jobmaster.collected_output import ComesAgain, Deliveries
from weir.local.cluster import JobResult, run_in_process
from weir.operators.sinks import ParquetSink
from weir.operators.sinks.parquet_sink import committed_files
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    CheckpointTriggered,
    JobEvent,
    Notice,
)
from weir.protocol.lifecycle import JobStatus
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout

pytestmark = pytest.mark.usefixtures("simulated_time")

COUNT, RATE = 6_000, 400.0  # Far more than any of these tests lets pass before it hurries.
AT = 200  # Records before a stop is asked for.
ROW = Types.ROW_NAMED(["number"], [Types.LONG()])
STOPS = [CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN]


def config(tmp_path: Path, interval_ms: int | None, *, restarts: int = 3) -> JobConfig:
    checkpoints = CheckpointConfig(
        interval_ms=interval_ms, storage=str(tmp_path / "storage"), inline_max_bytes=0
    )
    kind = RestartStrategyKind.FIXED_DELAY if restarts else RestartStrategyKind.NONE
    restart = RestartConfig(kind=kind, attempts_max=restarts, delay_ms=0)
    return JobConfig(name="windows", checkpoints=checkpoints, restart=restart, parallelism=2)


def number(index: int) -> int:
    Read.count += 1
    return index


def numbers(directory: Path, *, prints: bool = False, parallelism: int = 2) -> JobGraph:
    """All numbers up to COUNT, collected and as files; printed as well where that is asked for.

    They come slowly until ``hurry``, so that the input does not end before all was done to the job.
    """
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    source = HurriedSource(number, COUNT, RATE, directory / "hurry")
    stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
    rows = stream.rebalance().map(lambda index: index)
    rows.map(lambda index: Row(number=index), ROW).sink_to(ParquetSink(directory / "output"))
    if prints:
        rows.print()
    with capturing() as capture:
        rows.execute_and_collect()
    return capture.jobs[0].graph


def hurry(directory: Path) -> None:
    (directory / "hurry").touch()


def files(directory: Path) -> list[int]:
    """The numbers in the committed files."""
    tables = map(pq.read_table, committed_files(directory / "output"))
    return sorted(n for table in tables for n in table.column("number").to_pylist())


class Damage:
    """Damages the state of the third checkpoint once it has completed, then fails the attempt."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.damaged: CheckpointId | None = None
        self.has_failed = False
        self.restored: list[CheckpointId | None] = []
        self.notices: list[str] = []

    def on_event(self, event: JobEvent) -> None:
        match event:
            case CheckpointSettled(checkpoint_id=number, failure=None) if number >= 3:
                if self.damaged is None:
                    self._damage(number)
            case AttemptStarted(restored_checkpoint=restored):
                self.restored.append(restored)
            case Notice(text=text):
                self.notices.append(text)

    def _damage(self, number: CheckpointId) -> None:
        checkpoint = self._directory / "storage" / JobLayout(JOB).checkpoint(number)
        file = next(file for file in checkpoint.rglob("*numbers*") if file.is_file())
        file.write_bytes(file.read_bytes() + b"damage")
        self.damaged = number

    def at(self, point: str, where: Mapping[str, Any]) -> None:
        if point == "snapshot.frozen" and self.damaged is not None and not self.has_failed:
            self.has_failed = True  # The next checkpoint begins: this one's rows were delivered.
            hurry(self._directory)
            raise RuntimeError("dies")


def test_rows_behind_a_damaged_checkpoint_are_collected_once_and_lines_are_counted(
    tmp_path: Path,
) -> None:
    """They had reached the driver; going back past that checkpoint produces them again."""
    lines: list[str] = []
    graph = numbers(tmp_path, prints=True)
    deliveries = Deliveries(graph, lines.append)
    sizes: list[tuple[int, int]] = []

    def take_back(comes_again: ComesAgain) -> int:
        before = len(deliveries.collected)
        again = deliveries.take_back(comes_again)
        sizes.append((before - len(deliveries.collected), again))
        return again

    damage = Damage(tmp_path)
    with listening(damage.at):
        ended = run_in_process(
            graph,
            config(tmp_path, 100),
            job_id=JOB,
            emit=damage.on_event,
            collect=deliveries.collect,
            take_back=take_back,
        )
    assert (ended.status, damage.has_failed) == (JobStatus.FINISHED, True)
    assert damage.damaged is not None
    assert damage.restored == [None, damage.damaged - 1]
    ((dropped, again),) = sizes
    assert dropped == again > 0, "nothing of the damaged checkpoint had reached the driver"
    assert sorted(deliveries.collected) == files(tmp_path) == list(range(COUNT))
    assert not list((tmp_path / "output" / "_withdrawn").rglob("*")), "withdrawn files outlive it"
    assert len(lines) == COUNT + again
    assert [note for note in damage.notices if "printed" in note] == [
        f"the job goes on from checkpoint {damage.damaged - 1}, so {again:,} lines that were "
        "printed after it may be printed again"
    ]


@pytest.mark.parametrize("interval_ms", [100, None])
@pytest.mark.parametrize("kind", STOPS)
@pytest.mark.parametrize("told", [None, 2])
def test_a_stopped_job_that_goes_on_shows_nothing_again(
    tmp_path: Path,
    interval_ms: int | None,
    kind: CheckpointKind,
    told: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The rows that waited for the stop's savepoint were shown when the job ended with it.

    ``told``: the stop's attempt dies when so many subtasks had finished, and another one completes
    the stop.
    """
    if told is not None:
        dies_at_the_end(monkeypatch, told)
    settings = config(tmp_path, interval_ms)
    asked = Asked(kind, tmp_path / "savepoint", AT)
    stopped = asked.run(numbers(tmp_path), settings)
    assert (stopped.status, asked.failed) == (JobStatus.FINISHED, [])
    attempts = [event for event in asked.events if isinstance(event, AttemptStarted)]
    assert len(attempts) == (1 if told is None else 2)
    assert 0 < len(stopped.collected) < COUNT
    monkeypatch.undo()
    hurry(tmp_path)
    again = run_in_process(
        numbers(tmp_path, parallelism=3),
        settings,
        job_id=JOB,
        restore_from=RestoreRequest.parse(str(tmp_path / "savepoint")),
    )
    assert (again.status, again.cause) == (JobStatus.FINISHED, "")
    assert sorted(stopped.collected + again.collected) == files(tmp_path) == list(range(COUNT))


def test_a_savepoint_that_is_damaged_is_refused_at_once_and_nothing_has_changed(
    tmp_path: Path,
) -> None:
    """No other one is taken in its stead: it was asked for. Repaired, the job goes on from it."""
    settings, savepoint = config(tmp_path, 100), tmp_path / "savepoint"
    stopped = Asked(CheckpointKind.STOP_SUSPEND, savepoint, AT).run(numbers(tmp_path), settings)
    hurry(tmp_path)
    shown = files(tmp_path)
    file = next(file for file in savepoint.rglob("*numbers*") if file.is_file())
    whole = file.read_bytes()

    def goes_on() -> JobResult:
        asked_for = RestoreRequest.parse(str(savepoint))
        return run_in_process(numbers(tmp_path), settings, job_id=JOB, restore_from=asked_for)

    file.write_bytes(whole + b"damage")
    refused = goes_on()
    assert (refused.status, refused.collected) == (JobStatus.FAILED, [])
    assert file.name in refused.cause
    assert files(tmp_path) == shown
    file.write_bytes(whole)
    again = goes_on()
    assert (again.status, again.cause) == (JobStatus.FINISHED, "")
    assert sorted(stopped.collected + again.collected) == files(tmp_path) == list(range(COUNT))


class FailingDrain(Asked):
    """A stop with drain whose savepoint cannot be written."""

    def __init__(self, directory: Path) -> None:
        super().__init__(CheckpointKind.STOP_DRAIN, directory / "savepoint", AT)
        self.directory = directory
        self.number: CheckpointId | None = None
        self.hits: list[str] = []
        self.restored: list[CheckpointId | None] = []

    def on_event(self, event: JobEvent) -> None:
        match event:
            case CheckpointTriggered(kind=CheckpointKind.STOP_DRAIN, checkpoint_id=number):
                self.number = number
            case AttemptStarted(restored_checkpoint=restored):
                self.restored.append(restored)

    def at(self, point: str, where: Mapping[str, Any]) -> None:
        if point == "snapshot.write" and where["id"] == self.number and not self.hits:
            self.hits.append(str(where["subtask"]))
            hurry(self.directory)
            raise RuntimeError("disk full")

    def fails(self, settings: JobConfig) -> JobResult:
        with listening(self.at):
            ended = run_in_process(
                numbers(self.directory),
                settings,
                job_id=JOB,
                emit=self.on_event,
                meanwhile=self,
            )
        assert len(self.hits) == 1
        assert self.done == []
        return ended


def test_a_drain_that_fails_without_checkpoints_begins_again_and_every_record_counts_once(
    tmp_path: Path,
) -> None:
    """Collected rows had been delivered at once: they are taken back."""
    asked = FailingDrain(tmp_path)
    ended = asked.fails(config(tmp_path, None))
    assert (ended.status, asked.restored) == (JobStatus.FINISHED, [None, None])
    assert sorted(ended.collected) == files(tmp_path) == list(range(COUNT))
    (error,) = asked.failed
    assert "disk full" in error
    assert "where the drain has ended the sources, which cannot be undone" in error


def test_a_drain_that_fails_goes_back_to_the_newest_checkpoint(tmp_path: Path) -> None:
    asked = FailingDrain(tmp_path)
    ended = asked.fails(config(tmp_path, 100))
    first, second = asked.restored
    assert (ended.status, first) == (JobStatus.FINISHED, None)
    assert second is not None
    assert sorted(ended.collected) == files(tmp_path) == list(range(COUNT))


def test_a_drain_that_fails_where_nothing_restarts_the_job_fails_it_and_says_what_is_lost(
    tmp_path: Path,
) -> None:
    asked = FailingDrain(tmp_path)
    ended = asked.fails(config(tmp_path, None, restarts=0))
    assert ended.status == JobStatus.FAILED
    assert "disk full" in ended.cause
    assert "it has completed no checkpoint, so a restart begins where the job began" in ended.cause
    assert files(tmp_path) == [], "uncommitted output was shown"
