"""A worker: what reaches its subtasks, and what becomes of errors."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.builders import barrier, edge, graph, node, subtask
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.gate_harness import FakeTransport, records
from tests.unit.worker.subtask_harness import (
    ATTEMPT,
    JOB,
    Counting,
    Passing,
    Reports,
    SnapshotQueue,
)
from weir.common.batch import Batch
from weir.common.typeinfo import Types
from weir.config import ChannelConfig, CheckpointConfig, JobConfig
from weir.graph.logical import Partitioning
from weir.ids import ChannelId, CheckpointId, OperatorId
from weir.operators.base import Operator, OperatorContext, Poll, SourceOperator
from weir.operators.sources import Source, SplitReader
from weir.operators.sources.split_source import EMPTY_WAIT_MS
from weir.output.output_claims import claim_output
from weir.protocol.deployment import Address, Deploy, StopProcess
from weir.protocol.elements import CheckpointKind, EndOfInput
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    SubtaskChanged,
    SubtaskMetrics,
    TriggerCheckpoint,
)
from weir.storage.local_copies import LocalCopies
from weir.storage.store import checksum_of
from weir.worker.metrics_reports import INTERVAL_NS
from weir.worker.ports import (
    Call,
    CommandArrived,
    ConnectionBroken,
    CreditGranted,
    ElementArrived,
)
from weir.worker.subtask import Progress, Subtask
from weir.worker.worker import Worker

CHANNEL = ChannelId(0)


class Failing(Passing):
    """Raises where it is told to, what it is told to."""

    def __init__(self, where: str, kind: type[BaseException] = ValueError) -> None:
        super().__init__()
        self.where = where
        self.kind = kind

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        if self.where == "open":
            raise self.kind("cannot open")

    def on_batch(self, batch: Batch, input_index: int) -> None:
        raise self.kind("cannot process")

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        if self.where == "snapshot":
            raise self.kind("cannot freeze")

    def close(self) -> None:
        if self.where == "close":
            raise self.kind("cannot close")


class WorkerHarness:
    """A worker of the only slot of ``source -> sink``, with the operators at hand."""

    def __init__(
        self,
        sink: Callable[[], Operator] = Passing,
        *,
        source: Callable[[], Operator] | None = None,
        records: int = 0,
        credit_bytes: int = 1_000,
        cpu_wait_ns: Callable[[], int] | None = None,
        memory_bytes: Callable[[], int] | None = None,
        copies: LocalCopies | None = None,
        output: str | None = None,
    ) -> None:
        self.made: list[Operator] = []
        self.clock = ManualClock()
        self.reports, self.transport, self.snapshots = Reports(), FakeTransport(), SnapshotQueue()
        job = graph(
            [
                node("source", factory=source or partial(Counting, records)),
                node("sink", factory=self._making(sink), files=output),
            ],
            [edge("source", "sink", Partitioning.REBALANCE)],
        )
        config = JobConfig(
            checkpoints=CheckpointConfig(interval_ms=1_000),
            channels=ChannelConfig(credit_bytes=credit_bytes, batch_credit_bytes=0),
        )
        self.worker = Worker(
            job, config, ATTEMPT, JOB, 0,
            inbox=self.snapshots, transport=self.transport, reporter=self.reports,
            snapshot_thread=self.snapshots, clock=self.clock, copies=copies,
            **({} if cpu_wait_ns is None else {"cpu_wait_ns": cpu_wait_ns}),
            **({} if memory_bytes is None else {"memory_bytes": memory_bytes}),
        )  # fmt: skip

    def _making(self, factory: Callable[[], Operator]) -> Callable[[], Operator]:
        def make() -> Operator:
            self.made.append(factory())
            return self.made[-1]

        return make

    @property
    def sink(self) -> Any:
        return self.made[0]

    def deploy(self, *, completes_stop: bool = False, claimed_output: tuple[str, ...] = ()) -> None:
        command = Deploy(
            attempt=ATTEMPT, job_id=JOB, slot_addresses=(Address("here", 1),), storage=None,
            restored_checkpoint=None, restored_storage=None, restored_directory="", restores=(),
            max_parallelism=((OperatorId("source"), 128), (OperatorId("sink"), 128)),
            completes_stop=completes_stop, claimed_output=claimed_output,
        )  # fmt: skip
        self.worker.handle(CommandArrived(command))

    def command(self, command: Any) -> None:
        self.worker.handle(CommandArrived(command))

    def run(self) -> float | None:
        """Let the loop come round until nothing is left to do; how long it would sleep."""
        for _ in range(100):
            pause = self.worker.run_once()
            if pause != 0:
                return pause
        raise AssertionError("the loop never rests")

    @property
    def failures(self) -> list[SubtaskChanged]:
        return [r for r in self.reports if isinstance(r, SubtaskChanged) and r.cause]


def test_deployed_subtasks_run_and_say_so() -> None:
    harness = WorkerHarness(records=2)
    harness.deploy()
    assert harness.reports.statuses == ["running", "running"]
    harness.run()
    assert harness.transport.taken(0)[:2] == [[0], [1]]


def test_what_peers_send_before_the_deployment_is_kept_in_order() -> None:
    harness = WorkerHarness()
    for row in ("a", "b"):
        harness.worker.handle(ElementArrived(CHANNEL, records(row)))
    harness.deploy()
    harness.run()
    assert harness.sink.seen.get() == ["a", "b"]


def test_to_complete_a_stop_everything_runs_and_finishes_at_once() -> None:
    """The savepoint was durable and the attempt that took it died: opening has committed for it."""
    harness = WorkerHarness(records=2)
    harness.deploy(completes_stop=True)
    assert harness.reports.statuses == ["running", "running", "finished", "finished"]
    harness.command(TriggerCheckpoint(ATTEMPT, barrier(1), (subtask("source-0"),)))
    assert harness.run() is None
    harness.snapshots.run()
    assert harness.transport.taken(0) == []
    assert harness.reports.acknowledged == []
    assert harness.sink.calls == []


def test_a_trigger_reaches_every_subtask_and_a_completion_too() -> None:
    harness = WorkerHarness(records=1)
    harness.deploy()
    harness.command(TriggerCheckpoint(ATTEMPT, barrier(1), (subtask("source-0"),)))
    harness.worker.handle(ElementArrived(CHANNEL, barrier(1)))
    harness.run()
    harness.snapshots.run()
    assert harness.reports.acknowledged == [1, 1]
    harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(1)))
    assert harness.sink.calls == [("completed", 1)]


class Quiet(Operator):
    """Passes records on, and commits nothing."""

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self.ctx.output.emit(batch)


def test_what_has_ended_takes_triggers_and_finishes_with_the_final_completion() -> None:
    harness = WorkerHarness(Quiet)
    harness.deploy()
    harness.worker.handle(ElementArrived(CHANNEL, EndOfInput()))
    harness.run()
    assert harness.reports.statuses[2:] == ["ended", "ended"]
    harness.command(TriggerCheckpoint(ATTEMPT, barrier(1), (subtask("source-0"),)))
    assert harness.reports.acknowledged == [1, 1]
    harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(1), final=True))
    assert harness.reports.statuses[4:] == ["finished", "finished"]


def test_what_a_stop_suspends_finishes_with_its_completion_though_it_commits_nothing() -> None:
    harness = WorkerHarness(Quiet, records=10)
    harness.deploy()
    stop = barrier(1, kind=CheckpointKind.STOP_SUSPEND)
    harness.command(TriggerCheckpoint(ATTEMPT, stop, (subtask("source-0"),)))
    harness.worker.handle(ElementArrived(CHANNEL, stop))
    harness.run()
    assert harness.reports.statuses[2:] == []
    harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(1), final=True))
    assert harness.reports.statuses[2:] == ["finished", "finished"]


def test_the_end_of_a_checkpoint_deletes_copies_on_the_thread_of_snapshots(tmp_path: Path) -> None:
    copies = LocalCopies(tmp_path, 1 << 20)
    harness = WorkerHarness(copies=copies)
    harness.deploy()
    for number in (1, 2, 3):
        copies.put(CheckpointId(number), b"x" * number, checksum_of(b"x" * number))
    commands = (
        (CheckpointAborted(ATTEMPT, CheckpointId(3)), 2),
        (CheckpointCompleted(ATTEMPT, CheckpointId(2)), 1),
    )
    for command, left in commands:
        before = len(list(tmp_path.iterdir()))
        harness.command(command)
        assert len(list(tmp_path.iterdir())) == before
        harness.snapshots.run()
        assert len(list(tmp_path.iterdir())) == left


@pytest.mark.parametrize("where", ["on_batch", "snapshot"])
def test_a_subtask_that_raises_ends_the_attempt_with_its_traceback(where: str) -> None:
    harness = WorkerHarness(partial(Failing, where))
    harness.deploy()
    harness.worker.handle(
        ElementArrived(CHANNEL, barrier(1) if where == "snapshot" else records("a"))
    )
    assert harness.run() is None
    (failure,) = harness.failures
    assert failure.chain == subtask("sink-0")
    assert "ValueError: cannot" in failure.cause


@pytest.mark.parametrize("where", ["open", "on_batch", "snapshot", "close"])
def test_a_subtask_that_would_end_the_process_ends_the_attempt(where: str) -> None:
    harness = WorkerHarness(partial(Failing, where, SystemExit))
    harness.deploy()
    if where in ("on_batch", "snapshot"):
        came = barrier(1) if where == "snapshot" else records("a")
        harness.worker.handle(ElementArrived(CHANNEL, came))
    harness.run()
    harness.worker.close()
    (failure,) = harness.failures
    assert failure.chain == (subtask("source-0") if where == "open" else subtask("sink-0"))
    assert "SystemExit: cannot" in failure.cause


def test_a_failed_worker_commits_nothing_and_reports_once() -> None:
    harness = WorkerHarness(partial(Failing, "on_batch"))
    harness.deploy()
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))
    harness.run()
    harness.worker.handle(ConnectionBroken("slot 1", "reset"))
    harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(1)))
    assert harness.sink.calls == []
    assert len(harness.failures) == 1
    assert harness.worker.run_once() is None


def test_an_operator_that_cannot_be_opened_is_reported_not_raised() -> None:
    harness = WorkerHarness(partial(Failing, "open"))
    harness.deploy()
    (failure,) = harness.failures
    assert "cannot open" in failure.cause
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))  # No operator is there to take it.
    assert harness.worker.run_once() is None


def test_no_sink_opens_in_another_directory_than_the_drivers(tmp_path: Path) -> None:
    """In one that the driver could not claim it opens unchecked."""
    output = str(tmp_path)
    harness = WorkerHarness(output=output)
    harness.deploy(claimed_output=(output,))
    (failure,) = harness.failures
    assert f"{output} is not the job's output on" in failure.cause
    for claimed in ((), ("/elsewhere",), (output,)):
        if output in claimed:
            claim_output(output, JOB, ATTEMPT)
        harness = WorkerHarness(output=output)
        harness.deploy(claimed_output=claimed)
        assert harness.reports.statuses == ["running", "running"]


def test_a_lost_peer_is_named_as_a_consequence() -> None:
    harness = WorkerHarness()
    harness.deploy()
    harness.worker.handle(ConnectionBroken("slot 1", "reset"))
    (failure,) = harness.failures
    assert failure.details == {"lost_peer": "slot 1"}
    assert "lost the connection to slot 1: reset" in failure.cause


def test_credit_lets_what_waited_go() -> None:
    harness = WorkerHarness(records=3, credit_bytes=1)
    harness.deploy()
    harness.run()
    (first,) = [e for _, e in harness.transport.sent]
    harness.worker.handle(CreditGranted(CHANNEL, first.size))  # type: ignore[union-attr]
    assert harness.transport.taken(0) == [[0], [1]]


def test_a_loop_held_by_back_pressure_sleeps_until_something_arrives() -> None:
    harness = WorkerHarness(records=3, credit_bytes=1)
    harness.deploy()
    assert harness.run() is None


def test_a_timer_bounds_the_sleep() -> None:
    harness = WorkerHarness()
    harness.deploy()
    harness.run()
    harness.sink.timer_ms = harness.clock.ms + 1_500
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))
    assert harness.run() == 1.5
    harness.clock.ms += 1_500
    harness.run()
    assert harness.sink.calls == [("timer", harness.clock.ms)]


class Endless(Counting):
    """Always has a record."""

    def poll(self, records_max: int) -> Poll:
        super().poll(records_max)
        return Poll.MORE


def test_a_subtask_that_is_never_without_work_leaves_the_others_their_turn() -> None:
    harness = WorkerHarness(source=lambda: Endless(1_000), credit_bytes=1 << 20)
    harness.deploy()
    source, sink = harness.worker.subtasks
    for turn in range(1, 101):
        harness.worker.handle(ElementArrived(CHANNEL, records("a")))
        assert harness.worker.run_once() == 0
        assert (source.records_in, sink.records_in) == (turn, turn)


def test_a_subtask_without_work_is_not_stepped(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = WorkerHarness(source=lambda: Endless(1_000))
    harness.deploy()
    harness.worker.run_once()
    stepped: list[str] = []
    step = Subtask.step

    def noting(one: Subtask, **how: bool) -> Progress:
        stepped.append(str(one.chain))
        return step(one, **how)

    monkeypatch.setattr(Subtask, "step", noting)
    for _ in range(10):
        harness.worker.run_once()
    assert stepped == ["source-0"] * 10
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))
    harness.worker.run_once()
    harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(1)))
    harness.worker.run_once()
    assert stepped[10:] == ["source-0", "sink-0", "source-0"]
    assert harness.sink.calls == [("completed", 1)]


def test_metrics_come_at_intervals_however_idle_it_is() -> None:
    harness = WorkerHarness()
    harness.deploy()
    harness.run()
    harness.clock.ms += INTERVAL_NS // 1_000_000
    harness.run()
    assert len([r for r in harness.reports if isinstance(r, SubtaskMetrics)]) == 2


def test_metrics_of_a_subtask_that_is_held_go_on_where_one_that_rests_is_reported_rarely() -> None:
    """Though neither is stepped any more."""
    harness = WorkerHarness(records=3, credit_bytes=1)
    harness.deploy()
    harness.run()
    for _ in range(20):
        harness.clock.ms += INTERVAL_NS // 1_000_000
        assert harness.run() is None
    metrics = [r for r in harness.reports if isinstance(r, SubtaskMetrics)]
    held = [r.back_pressured_ms for r in metrics if r.chain == subtask("source-0")]
    assert len(set(held)) == len(held) == 20
    assert sum(r.chain == subtask("sink-0") for r in metrics) < 10
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))
    harness.run()
    harness.clock.ms += INTERVAL_NS // 1_000_000
    harness.run()
    *_, sink = (r for r in harness.reports if isinstance(r, SubtaskMetrics))
    assert (sink.chain, sink.records_in) == (subtask("sink-0"), 1)


class Slow(Passing):
    """Takes five seconds for everything; notes what the loop says of itself meanwhile."""

    def __init__(self, harness: "WorkerHarness") -> None:
        super().__init__()
        self.harness = harness
        self.noted: list[Any] = []

    def _take_long(self) -> None:
        worker, clock = self.harness.worker, self.harness.clock
        self.noted.append((worker.calling, clock.monotonic_ns() - worker.calling_since_ns))
        clock.ms += 5_000

    def open(self, ctx: OperatorContext) -> None:
        super().open(ctx)
        self._take_long()

    def on_batch(self, batch: Batch, input_index: int) -> None:
        self._take_long()

    def on_checkpoint_completed(self, checkpoint_id: CheckpointId) -> None:
        self._take_long()


def slow_harness(records: int = 0) -> WorkerHarness:
    made: list[WorkerHarness] = []
    made.append(WorkerHarness(lambda: Slow(made[0]), records=records))
    made[0].deploy()
    made[0].run()
    made[0].reports.clear()
    return made[0]


def test_a_call_that_takes_long_is_busy_time_of_its_own_subtask_once_it_ends() -> None:
    """The other subtask of the slot waits for its turn, and did nothing meanwhile."""
    harness = slow_harness()
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))
    harness.run()
    source, sink = (r for r in harness.reports if isinstance(r, SubtaskMetrics))
    assert (sink.busy_ms, sink.back_pressured_ms) == (5_000, 0)
    assert (source.busy_ms, source.back_pressured_ms) == (0, 0)
    assert source.idle_ms == sink.idle_ms + 5_000


def test_a_commit_that_takes_long_is_busy_time_as_well() -> None:
    harness = slow_harness()
    harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(1)))
    harness.run()
    _, sink = (r for r in harness.reports if isinstance(r, SubtaskMetrics))
    assert sink.busy_ms == 5_000


def test_the_loop_notes_whom_it_calls_and_since_when() -> None:
    harness = slow_harness()
    harness.worker.handle(ElementArrived(CHANNEL, records("a")))
    harness.run()
    harness.command(CheckpointCompleted(ATTEMPT, CheckpointId(1)))
    assert harness.sink.noted == [(subtask("sink-0"), 0)] * 3  # Opening was the first.
    assert harness.worker.calling is None


class Waiting(SourceOperator):
    """Asks for records for three milliseconds, finds none, and is to ask again in ten."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.next_ms = 0

    def poll(self, records_max: int) -> Poll:
        self.clock.ms += 3
        self.next_ms = self.clock.ms + 10
        return Poll.WAIT

    def next_timer_ms(self) -> int:
        return self.next_ms


def test_a_source_without_data_is_idle_also_while_it_asks() -> None:
    made: list[WorkerHarness] = []
    made.append(WorkerHarness(source=lambda: Waiting(made[0].clock)))
    harness = made[0]
    harness.deploy()
    for _ in range(60):
        assert harness.run() == 0.01
        harness.clock.ms += 10
    metrics = [r for r in harness.reports if isinstance(r, SubtaskMetrics)][-2]
    assert metrics.chain == subtask("source-0")
    assert (metrics.busy_ms, metrics.back_pressured_ms) == (0, 0)
    assert metrics.idle_ms >= INTERVAL_NS // 1_000_000


class Trickle(Source):
    """One endless split, whose records a test puts at its end; counts how often it was asked."""

    bounded = False
    type_info = Types.LONG()

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.asked = 0

    def discover(self, parallelism: int) -> list[dict[str, Any]]:
        return [{}]

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        return _TrickleReader(self, position or 0)


class _TrickleReader(SplitReader):
    def __init__(self, source: Trickle, index: int) -> None:
        self._source = source
        self._index = index

    @property
    def position(self) -> int:
        return self._index

    def read(self, rows_max: int) -> Batch:
        self._source.asked += 1
        rows = self._source.rows[self._index : self._index + rows_max]
        self._index += len(rows)
        return Batch.of_rows(rows, self._source.type_info)


def test_an_endless_source_that_has_nothing_is_asked_now_and_then() -> None:
    source = Trickle()
    harness = WorkerHarness(source=source.create_operator_factory(1))
    harness.deploy()

    def pass_time(span_ms: int) -> None:
        """Let the loop come round for so long; a round without a pause takes a millisecond."""
        end_ms = harness.clock.ms + span_ms
        while harness.clock.ms < end_ms:
            pause = harness.worker.run_once()
            assert pause is not None
            harness.clock.ms += max(1, round(pause * 1_000))

    pass_time(1_000)
    assert 0 <= source.asked - 1_000 // EMPTY_WAIT_MS <= 1
    source.rows += [1, 2]
    pass_time(EMPTY_WAIT_MS + 1)
    assert harness.transport.taken(0) == [[1, 2]]
    source.rows.append(3)
    pass_time(EMPTY_WAIT_MS + 1)
    assert harness.transport.taken(0) == [[3]]


def test_a_call_of_another_thread_runs_on_the_loop() -> None:
    harness = WorkerHarness()
    called: list[int] = []
    harness.worker.handle(Call(partial(called.append, 1)))
    assert called == [1]


def test_told_to_stop_it_is_finished_and_closes_everything() -> None:
    harness = WorkerHarness()
    harness.deploy()
    harness.command(StopProcess(ATTEMPT))
    assert harness.worker.finished
    harness.worker.close()
    assert harness.sink.calls == ["close"]


def test_an_operator_that_cannot_be_closed_is_reported() -> None:
    harness = WorkerHarness(partial(Failing, "close"))
    harness.deploy()
    harness.worker.close()
    assert "cannot close" in harness.failures[0].cause


def test_the_end_of_a_source_reaches_its_channel() -> None:
    harness = WorkerHarness()
    harness.deploy()
    harness.run()
    assert harness.transport.taken(0)[-1] == EndOfInput()
