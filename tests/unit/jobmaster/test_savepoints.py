"""Going back with a whole job in one process: stopped, restored elsewhere, rolled back and on.

What comes out is compared with what one undisturbed run gives.
"""

import shutil
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.simulation.clock import SimClock
from tests.unit.jobmaster.job_harness import abandoned_ids
from weir.cli import delete_savepoint
from weir.cli.preview import preview
from weir.common import Row, Types, WatermarkStrategy
from weir.config import CheckpointConfig, RestartConfig, RestartStrategyKind
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import NumberSequenceSource, ParquetSink
from weir.datastream.execution import CapturedJob, capturing
from weir.errors import InternalError, RestoreError
from weir.fault_points import listening
from weir.ids import CheckpointId, JobId
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import InProcessCluster
from weir.local.event_queue import EventQueue, Latencies
from weir.operators.sinks.parquet_sink import committed_files
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import CheckpointSettled, CheckpointTriggered, JobEvent, Notice
from weir.protocol.lifecycle import JobStatus
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout, savepoint_location
from weir.storage.local import LocalStore
from weir.storage.store import store_for
from weir.worker.versions import installed_versions

N, RATE, KEYS = 1_000, 1_000, 7
SLOW = RATE // 10  # Of a job that is left before its end, however busy the machine is.
JOB = JobId("job")
COUNT = Types.ROW_NAMED(["key", "n"], [Types.LONG(), Types.LONG()])
SUSPEND, DRAIN = CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN


class Running:
    """One driver of a job."""

    def __init__(
        self,
        root: Path,
        *,
        job: JobId = JOB,
        output: str = "out",
        parallelism: int = 2,
        restore: RestoreRequest | None = None,
        interval_ms: int | None = 50,
        rate: int = RATE,
        **settings: Any,
    ) -> None:
        self.output = root / output
        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(parallelism).set_max_parallelism(16)
        numbers = env.from_source(
            NumberSequenceSource(1, N, rows_per_second=rate),
            WatermarkStrategy.no_watermarks(),
            "numbers",
        ).uid("numbers")
        totals = numbers.map(lambda n: (n % KEYS, 1)).uid("keyed").key_by(lambda pair: pair[0])
        counted = totals.sum(1).uid("sum")
        rows = counted.map(lambda pair: Row(key=pair[0], n=pair[1]), output_type=COUNT).uid("rows")
        rows.sink_to(ParquetSink(self.output)).uid("files")
        with capturing() as capture:
            env.execute("job")
        (captured,) = capture.jobs
        checkpoints = CheckpointConfig(
            interval_ms=interval_ms, storage=str(root / "storage"), retained_max=20, **settings
        )
        restart = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=5, delay_ms=0)
        config = replace(captured.config, checkpoints=checkpoints, restart=restart)
        self.store = store_for(config.checkpoints.storage)
        self.job = job
        self.events: list[JobEvent] = []
        self.heard: list[str] = []
        clock = SimClock()
        self.queue = EventQueue(clock)
        self.cluster = InProcessCluster(
            captured.graph, config, job, events=self.queue, conditions=Latencies()
        )
        self.master = JobMaster(
            captured.graph, config, job, program=b"", store=self.store,
            versions=installed_versions(), cluster=self.cluster, clock=clock,
            emit=self.events.append, collect=lambda *delivery: None, restore_from=restore,
        )  # fmt: skip
        self.cluster.start(self.master)

    def until(self, reached: Callable[[], bool]) -> "Running":
        while not reached():
            if self.master.is_over or not self.queue.run_next():
                raise AssertionError(f"{self.master.status}: {self.master.cause} {self.heard}")
        return self

    def finish(self) -> "Running":
        while not self.master.is_over:
            if not self.queue.run_next():
                raise InternalError("nothing is left to do")
        while self.cluster.processes and self.queue.run_next():
            pass
        assert (self.master.status, self.master.cause) == (JobStatus.FINISHED, "")
        return self

    def after(self, count: int) -> "Running":
        """Once that many checkpoints have completed."""
        return self.until(lambda: len(self.settled) >= count)

    @property
    def settled(self) -> list[int]:
        """The checkpoints that this driver completed."""
        settled = (e for e in self.events if isinstance(e, CheckpointSettled))
        return [e.checkpoint_id for e in settled if e.failure is None]

    def decided(self, kind: CheckpointKind) -> bool:
        """Whether the manifest of a checkpoint of this kind is durable."""
        triggered = (e for e in self.events if isinstance(e, CheckpointTriggered))
        layout = JobLayout(self.job)
        return any(
            e.kind is kind and self.store.exists(layout.manifest(e.checkpoint_id))
            for e in triggered
        )

    def save(self, target: Path, kind: CheckpointKind = CheckpointKind.SAVEPOINT) -> None:
        self.cluster.enter(
            lambda: self.master.savepoint(
                f"r{len(self.heard)}", kind, str(target),
                done=self.heard.append, failed=self.heard.append,
            )
        )  # fmt: skip

    def saved(self, target: Path) -> "Running":
        self.save(target)
        self.until(lambda: bool(self.heard))
        assert self.heard == [str(target)]
        return self

    def has_written(self, root: Path) -> bool:
        """Whether each sink has begun a file."""
        return len(list((root / "out" / "_pending").rglob("*.parquet"))) >= 2

    def cancelled(self) -> None:
        self.cluster.enter(self.master.cancel)
        while not self.master.is_over or self.cluster.processes:
            if not self.queue.run_next():
                break
        assert self.master.status is JobStatus.CANCELED

    @property
    def notes(self) -> list[str]:
        return [e.text for e in self.events if isinstance(e, Notice)]

    def stopped(self, target: Path, kind: CheckpointKind = SUSPEND) -> None:
        self.save(target, kind)
        self.finish()
        assert self.heard == [str(target)]

    @property
    def abandoned(self) -> list[int]:
        return abandoned_ids(self.master)

    @property
    def rows(self) -> list[tuple[int, int]]:
        """The rows that were committed."""
        return rows_of(self.output)


def rows_of(*directories: Path) -> list[tuple[int, int]]:
    tables = [pq.read_table(path) for d in directories for path in committed_files(d)]
    return sorted(tuple(row.values()) for table in tables for row in table.to_pylist())  # type: ignore[misc]


# The running count of each key, once per record.
EXPECTED = sorted(
    (key, count)
    for key in range(KEYS)
    for count in range(1, len(range(key or KEYS, N + 1, KEYS)) + 1)
)


def by_number(root: Path, checkpoint_id: int, **how: bool) -> RestoreRequest:
    return RestoreRequest(str(root / "storage"), JOB, CheckpointId(checkpoint_id), **how)


def test_a_job_stopped_with_a_savepoint_goes_on_elsewhere_and_rescaled(tmp_path: Path) -> None:
    job = Running(tmp_path, rate=SLOW).after(3)
    job.stopped(tmp_path / "one")
    assert 0 < len(job.rows) < N
    moved = shutil.move(tmp_path / "one", tmp_path / "moved")
    shutil.rmtree(tmp_path / "storage")
    request = RestoreRequest.parse(str(moved))
    other = Running(
        tmp_path, job=JobId("other"), output="more", parallelism=3, restore=request
    ).finish()
    assert rows_of(job.output, other.output) == EXPECTED


def test_a_stopped_job_goes_on_as_itself_without_checkpoints_by_the_clock(tmp_path: Path) -> None:
    job = Running(tmp_path, interval_ms=None)
    job.until(lambda: job.master.status is JobStatus.RUNNING)
    job.stopped(tmp_path / "one")
    again = Running(tmp_path, interval_ms=None, restore=RestoreRequest(str(tmp_path / "one")))
    again.finish()
    assert again.rows == EXPECTED


def test_a_drained_job_has_committed_all_that_it_had_read(tmp_path: Path) -> None:
    job = Running(tmp_path, rate=SLOW).after(3)
    job.stopped(tmp_path / "one", DRAIN)
    drained = job.rows
    assert 0 < len(drained) < N
    again = Running(tmp_path, restore=RestoreRequest(str(tmp_path / "one"))).finish()
    assert again.rows == sorted({*drained, *again.rows})


def test_a_savepoint_of_a_running_job_is_a_copy_and_its_fork_has_all_since(tmp_path: Path) -> None:
    job = Running(tmp_path).after(2).saved(tmp_path / "one").finish()
    assert job.rows == EXPECTED
    request = RestoreRequest(str(tmp_path / "one"))
    fork = Running(tmp_path, job=JobId("fork"), output="fork", restore=request).finish()
    assert set(fork.rows) <= set(EXPECTED)
    assert len(fork.rows) == len(set(fork.rows))
    for key in range(KEYS):  # The last of each, back to the first since the savepoint.
        own = [n for k, n in fork.rows if k == key]
        last = max(n for k, n in EXPECTED if k == key)
        assert own == list(range(last - len(own) + 1, last + 1))


class TestOutputThatWaits:
    """A savepoint of a running job commits nothing; its job was never to come to it."""

    def saved(self, root: Path) -> Running:
        job = Running(root, interval_ms=None)
        job.until(lambda: job.master.status is JobStatus.RUNNING)
        job.until(lambda: job.has_written(root)).saved(root / "one")
        assert job.rows == []
        assert list((root / "out" / "_pending").rglob("part-*.parquet"))
        return job

    def fork(self, root: Path, **how: bool) -> Running:
        request = RestoreRequest(str(root / "one"), **how)
        return Running(root, job=JobId("fork"), output="fork", restore=request).finish()

    def test_is_committed_by_another_job_if_its_own_is_over(self, tmp_path: Path) -> None:
        self.saved(tmp_path).cancelled()
        fork = self.fork(tmp_path)
        assert rows_of(tmp_path / "out", fork.output) == EXPECTED
        assert any("job is over, so this job commits them" in note for note in fork.notes)

    def test_is_counted_before_a_restore(self, tmp_path: Path) -> None:
        job = self.saved(tmp_path)
        captured = CapturedJob(job.cluster.graph, job.cluster.config)
        lacking = len(EXPECTED) - len(self.fork(tmp_path).rows)
        (note,) = preview([captured], str(tmp_path / "one")).notes
        assert note.startswith(f"{lacking:,} rows in ")
        assert "unless it claims the savepoint" in note
        job.cancelled()
        (note,) = preview([captured], str(tmp_path / "one"), origin_is_over=True).notes
        assert "any job restored from here commits them" in note
        self.fork(tmp_path, claims=True)
        assert preview([captured], str(tmp_path / "one")).notes == ()

    @pytest.mark.parametrize("how", [{"claims": True}, {"origin_is_over": True}])
    def test_is_committed_by_another_job_that_was_left_it(
        self, tmp_path: Path, how: dict[str, bool]
    ) -> None:
        self.saved(tmp_path)
        fork = self.fork(tmp_path, **how)
        assert rows_of(tmp_path / "out", fork.output) == EXPECTED

    def test_is_left_with_a_word_to_a_job_that_may_yet_commit_it(self, tmp_path: Path) -> None:
        job = self.saved(tmp_path)
        fork = self.fork(tmp_path)
        lacking = len(EXPECTED) - len(fork.rows)
        assert lacking > 0
        assert rows_of(tmp_path / "out") == []
        (note,) = (note for note in fork.notes if "left to it" in note)
        assert f"{lacking:,} rows in " in note
        job.finish()
        assert job.rows == EXPECTED

    def test_is_committed_once_if_its_job_goes_on_after_all(self, tmp_path: Path) -> None:
        job = self.saved(tmp_path)
        self.fork(tmp_path, claims=True)
        adopted = job.rows
        assert adopted
        job.finish()
        assert job.rows == EXPECTED

    def test_survives_a_crash_of_the_job_that_commits_it(self, tmp_path: Path) -> None:
        self.saved(tmp_path).cancelled()
        reached: list[str] = []

        def dies(point: str, where: Mapping[str, object]) -> None:
            if point == "sink.before_adopt":
                reached.append(point)
                if len(reached) == 2:
                    raise RuntimeError("dies here")

        with listening(dies):
            fork = self.fork(tmp_path)
        assert len(reached) > 2
        assert rows_of(tmp_path / "out", fork.output) == EXPECTED


class TestDeletionDuringARestore:
    """A job goes on from a savepoint that is being deleted: one of the two gives way."""

    def restore(self, root: Path, monkeypatch: pytest.MonkeyPatch, *, before: bool) -> Running:
        """A job whose savepoint is deleted just before or after it notes what it goes on from."""
        target = Path(savepoint_location(str(root / "storage"), JOB, "one"))
        Running(root).after(2).stopped(target)
        put, said = LocalStore.put, []

        def noting(store: LocalStore, path: str, data: bytes) -> None:
            if path.startswith(JobLayout(JobId("other")).bases) and not said:
                said.append(path)
                if not before:
                    put(store, path, data)
                with (
                    nullcontext()
                    if before
                    else pytest.raises(RestoreError, match="restored savepoint")
                ):
                    delete_savepoint.run(str(target), is_sure=True)
            put(store, path, data)

        monkeypatch.setattr(LocalStore, "put", noting)
        request = RestoreRequest(str(target))
        other = Running(root, job=JobId("other"), output="more", restore=request)
        while not other.master.is_over:
            assert other.queue.run_next()
        assert said
        return other

    def test_before_it_is_noted_the_savepoint_goes(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = self.restore(tmp_path, monkeypatch, before=True)
        assert job.master.status is JobStatus.FAILED
        assert "cannot restore: there is no checkpoint or savepoint" in job.master.cause

    def test_after_it_is_noted_the_savepoint_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        job = self.restore(tmp_path, monkeypatch, before=False)
        assert job.master.status is JobStatus.FINISHED
        assert rows_of(tmp_path / "out", job.output) == EXPECTED


@pytest.mark.parametrize("kind", [SUSPEND, DRAIN])
def test_a_stop_whose_driver_died_is_completed_by_the_next(
    kind: CheckpointKind, tmp_path: Path
) -> None:
    job = Running(tmp_path, rate=SLOW).after(3)
    job.save(tmp_path / "one", kind)
    job.until(lambda: job.decided(kind))
    again = Running(tmp_path).finish()
    first = again.rows
    assert 0 < len(first) < N
    resumed = Running(tmp_path, restore=RestoreRequest(str(tmp_path / "one"))).finish()
    assert len(resumed.rows) == len(set(resumed.rows))
    if kind is SUSPEND:
        assert resumed.rows == EXPECTED


def test_after_going_back_the_output_is_that_of_a_run_that_never_went_wrong(
    tmp_path: Path,
) -> None:
    job = Running(tmp_path, rate=SLOW).after(6)
    taken = job.settled
    back = Running(tmp_path, restore=by_number(tmp_path, taken[1])).after(3)
    assert set(back.abandoned) >= set(taken[2:])
    forward = Running(tmp_path, restore=by_number(tmp_path, taken[4])).finish()
    assert forward.rows == EXPECTED


def test_going_back_may_leave_the_output_as_it_is(tmp_path: Path) -> None:
    job = Running(tmp_path, rate=SLOW).after(6)
    there = job.rows
    back = Running(
        tmp_path, restore=by_number(tmp_path, job.settled[1], rewinds_output=False)
    ).finish()
    assert set(back.rows) == set(EXPECTED)
    assert len(back.rows) > N, "what was there and came again is there twice"
    assert not (set(there) - set(back.rows))
