"""A loop that stays in one call: what the thread beside it notices, and what real workers say."""

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import FrameType

import pytest

from tests.builders import barrier, subtask
from tests.process.worker.fake_master import FakeMaster, fake_master, supervisor
from tests.process.worker.fake_master import program as dumped
from tests.processes import stopped
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.subtask_harness import ATTEMPT, Reports
from tests.waiting import wait_until
from weir.channels.control_connection import ControlConnection
from weir.common import WatermarkStrategy
from weir.common.clock import SystemClock
from weir.common.tracebacks import STACK_FRAMES_MAX, users_stack
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.execution import capturing
from weir.graph.logical import JobGraph
from weir.ids import AttemptNumber, OperatorId, SubtaskId
from weir.operators.sources import DataGeneratorSource
from weir.protocol.deployment import StopProcess, WorkerExited, WorkerReady
from weir.protocol.messages import (
    IT_KEPT_THE_LOCK,
    IT_WAITS,
    IT_WAS_FROZEN,
    AlignmentProgress,
    SubtaskMetrics,
    SubtaskStalled,
    TriggerCheckpoint,
)
from weir.worker.inbox import ThreadInbox
from weir.worker.process import SnapshotWorker
from weir.worker.stacks import frames_of, write_stderr
from weir.worker.stalls import StallWatch, cpu_ns
from weir.worker.standstill import Standstill, Standstills, StandstillWatch
from weir.worker.template import WORKER

STALL_S = 4.0


class Loop:
    """A loop's notes, and a thread of its own that stands in a function of the user's."""

    def __init__(self) -> None:
        self.calling: SubtaskId | None = None
        self.calling_since_ns = 0
        self.clock = ManualClock()
        self.reports = Reports()
        self.still_ms = 0  # Of the time since the look before: the process hardly ran.
        self._let_go = threading.Event()
        self._stands = threading.Event()
        self._thread = threading.Thread(target=self._stand_still)

    def _stand_still(self) -> None:
        self._stands.set()
        self._let_go.wait()

    @contextmanager
    def watched(self) -> Iterator[StallWatch]:
        self._thread.start()
        self._stands.wait()
        assert self._thread.ident is not None
        try:
            yield StallWatch(
                self, self._thread.ident, ATTEMPT, clock=self.clock, reporter=self.reports,
                still_ns=lambda: self.still_ms * 1_000_000,
            )  # fmt: skip
        finally:
            self._let_go.set()
            self._thread.join()

    def call(self, name: str) -> None:
        self.calling_since_ns, self.calling = self.clock.monotonic_ns(), subtask(name)

    @property
    def stalls(self) -> list[tuple[str, float]]:
        return [(str(r.chain), r.stalled_ms) for r in self.reports]


def test_a_call_that_lasts_is_reported_after_a_second_and_every_second() -> None:
    loop = Loop()
    with loop.watched() as watch:
        loop.call("map-0")
        for _ in range(13):
            loop.clock.ms += 250
            watch.look()
    assert loop.stalls == [("map-0", 1_000), ("map-0", 2_000), ("map-0", 3_000)]
    report = loop.reports[0]
    assert report.since_ms == loop.clock.now_ms() - 13 * 250
    assert "in _stand_still" in report.stack


@pytest.mark.parametrize(("used", "waits"), [(0.0, True), (0.04, True), (0.06, False), (1, False)])
def test_a_call_that_uses_no_processor_is_reported_as_one_that_waits(
    used: float, waits: bool
) -> None:
    """``used`` is the share of the time in which the loop's thread had a processor."""
    loop = Loop()
    with loop.watched() as watch:
        watch._cpu_ns = lambda thread: round(used * loop.clock.monotonic_ns())
        loop.call("map-0")
        for _ in range(5):
            loop.clock.ms += 250
            watch.look()
    (report,) = loop.reports
    assert report.stack.endswith(f"  {IT_WAITS}\n") is waits
    assert "in _stand_still" in report.stack


def test_a_call_that_was_met_late_is_not_said_to_wait() -> None:
    loop = Loop()
    with loop.watched() as watch:
        watch._cpu_ns = lambda thread: 0
        for _ in range(2):
            loop.call("map-0")  # Another call each time.
            loop.clock.ms += 1_250
            watch.look()
    assert [IT_WAITS in report.stack for report in loop.reports] == [False, False]


def test_the_processor_time_of_a_thread_is_its_own() -> None:
    loop = Loop()
    with loop.watched():
        stands = cpu_ns(loop._thread.ident or 0) or 0
        mine = time.thread_time_ns()
        while time.thread_time_ns() < mine + 20_000_000:
            pass
        assert (cpu_ns(loop._thread.ident or 0) or 0) < stands + 10_000_000
        assert (cpu_ns(threading.get_ident()) or 0) >= mine + 20_000_000


class Passed:
    """The time between two looks, the wait for a processor in it, and who had the lock."""

    def __init__(self, loop: Loop) -> None:
        self.waited_ns = self.sleeps = 0
        assert loop._thread.ident is not None
        self._loop = loop
        self.standstills = Standstills(
            loop.clock, waited_ns=lambda: self.waited_ns, sleeps=lambda: self.sleeps
        )
        self.watch = StandstillWatch(
            loop, loop._thread.ident, ATTEMPT, subtask("source-0"),
            standstills=self.standstills, clock=loop.clock, reporter=loop.reports,
        )  # fmt: skip

    def look(self, ms: int, *, lock_ms: int = 0, waited_ms: int = 0) -> None:
        """``lock_ms``: for so long the looking thread asked for the interpreter lock."""
        self._loop.clock.ms += ms
        self.sleeps += 1 + int(lock_ms / 1_000 / sys.getswitchinterval())
        self.waited_ns += waited_ms * 1_000_000
        self.watch.look()


@pytest.mark.parametrize("name", ["map-0", None])
def test_a_process_that_stood_still_is_reported_when_it_goes_on(name: str | None) -> None:
    loop = Loop()
    with loop.watched():
        passed = Passed(loop)
        if name is not None:
            loop.call(name)
        for _ in range(20):
            passed.look(70)
        passed.look(4_000, lock_ms=300)
        passed.look(70)
    (report,) = loop.reports
    assert (str(report.chain), report.stalled_ms) == (name or "source-0", 4_000)
    assert report.since_ms == loop.clock.now_ms() - 4_070
    assert report.stack.strip() == IT_WAS_FROZEN


def test_a_call_that_kept_the_interpreter_lock_is_reported_with_its_stack() -> None:
    loop = Loop()
    with loop.watched():
        passed = Passed(loop)
        passed.look(70)
        loop.call("map-0")
        passed.look(4_000, lock_ms=500)
        loop.clock.ms += 3_900
        loop.call("sink-0")  # At the end of that time: another call kept the lock.
        passed.look(100, lock_ms=3_900)
    (report,) = loop.reports
    assert (str(report.chain), report.stalled_ms) == ("map-0", 4_000)
    assert "in _stand_still" in report.stack
    assert report.stack.endswith(f"  {IT_KEPT_THE_LOCK}\n")


@pytest.mark.parametrize(
    ("ms", "lock_ms", "waited_ms"), [(900, 0, 0), (4_000, 0, 2_000), (4_000, 1_000, 2_500)]
)
def test_a_short_pause_or_a_starved_process_is_no_standstill(
    ms: int, lock_ms: int, waited_ms: int
) -> None:
    loop = Loop()
    with loop.watched():
        passed = Passed(loop)
        loop.call("map-0")
        passed.look(ms, lock_ms=lock_ms, waited_ms=waited_ms)
    assert loop.reports == []


@pytest.mark.parametrize(
    ("ms", "lock_ms", "waited_ms", "still_ms"),
    [
        (300, 0, 0, 0),  # As long as a look at a sleeping loop is away.
        (600, 0, 0, 600),  # Too short for a report, and much of what would be a stall.
        (600, 0, 600, 600),  # A starved process does not run either.
        (600, 300, 0, 0),
        (4_000, 0, 0, 4_000),
    ],
)
def test_the_time_in_which_a_process_hardly_ran_is_known(
    ms: int, lock_ms: int, waited_ms: int, still_ms: int
) -> None:
    loop = Loop()
    with loop.watched():
        passed = Passed(loop)
        passed.look(ms, lock_ms=lock_ms, waited_ms=waited_ms)
        assert passed.standstills.still_ns == still_ms * 1_000_000
        passed.look(70)
        assert passed.standstills.still_ns == 0


def test_the_time_in_which_the_process_hardly_ran_is_none_of_a_calls() -> None:
    loop = Loop()
    with loop.watched() as watch:
        watch._cpu_ns = lambda thread: loop.clock.monotonic_ns() // 25
        loop.call("map-0")
        for ms, still_ms in ((250, 0), (700, 650), (600, 600), (250, 0), (250, 0), (250, 0)):
            loop.clock.ms += ms
            loop.still_ms = still_ms
            watch.look()
    (report,) = loop.reports
    assert report.stalled_ms == 250 + 50 + 3 * 250
    assert report.since_ms == loop.clock.now_ms() - 2_300
    assert IT_WAITS not in report.stack


def test_a_freeze_before_a_call_was_met_counts_from_its_beginning() -> None:
    loop = Loop()
    with loop.watched() as watch:
        for name in ("map-0", "sink-0"):  # A freeze of the call before is none of the next one's.
            loop.call(name)
            loop.still_ms = 3_000
            loop.clock.ms += 900
            watch.look()
            loop.still_ms = 0
            loop.clock.ms += 999
            watch.look()
            assert loop.stalls == []
        loop.clock.ms += 1
        watch.look()
    assert loop.stalls == [("sink-0", 1_000)]


def test_a_thread_that_waits_for_the_interpreter_lock_is_told_from_a_frozen_one() -> None:
    """In a call into C that waits and keeps the lock: no processor is used then either."""
    kept: list[Standstill | None] = []
    ready, done = threading.Event(), threading.Event()

    def look() -> None:
        standstills = Standstills(SystemClock(), waited_ns=lambda: 0)
        ready.set()
        while not done.wait(0.05):
            kept.append(standstills.look())

    thread = threading.Thread(target=look)
    thread.start()
    ready.wait()
    ctypes.PyDLL(None).usleep(1_500_000)
    wait_until(lambda: any(kept), "a look came back after the call")
    done.set()
    thread.join()
    (stood,) = filter(None, kept)
    assert stood.kept_the_lock


def test_a_loop_that_comes_round_or_calls_nothing_is_not_reported() -> None:
    loop = Loop()
    with loop.watched() as watch:
        for _ in range(10):
            loop.call("map-0")
            loop.clock.ms += 900
            watch.look()
        loop.calling = None  # It sleeps; the time of the last call stands.
        loop.clock.ms += 5_000
        watch.look()
    assert loop.stalls == []


def test_each_call_that_lasts_is_reported_on_its_own() -> None:
    loop = Loop()
    with loop.watched() as watch:
        for name in ("map-0", "sink-0"):
            loop.call(name)
            loop.clock.ms += 1_100
            watch.look()
    assert loop.stalls == [("map-0", 1_100), ("sink-0", 1_100)]


def test_a_loop_that_came_round_while_it_was_looked_at_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the frames of the next call would be told of the one before."""
    loop = Loop()

    def meanwhile(frame: object) -> object:
        loop.call("sink-0")
        return frames_of(frame)  # type: ignore[arg-type]

    monkeypatch.setattr("weir.worker.stalls.frames_of", meanwhile)
    with loop.watched() as watch:
        loop.call("map-0")
        loop.clock.ms += 1_100
        watch.look()
    assert loop.stalls == []


def test_a_loop_that_went_to_sleep_while_it_was_looked_at_is_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Or the frames of its sleep would be told as the call's."""
    loop = Loop()

    def meanwhile(frame: object) -> object:
        loop.calling = None
        return frames_of(frame)  # type: ignore[arg-type]

    monkeypatch.setattr("weir.worker.stalls.frames_of", meanwhile)
    with loop.watched() as watch:
        loop.call("map-0")
        loop.clock.ms += 1_100
        watch.look()
    assert loop.stalls == []


def test_a_stack_whose_source_cannot_be_read_is_no_reason_to_keep_silent() -> None:
    """The source of a zipped module in another encoding, for one, which ``zipimport`` refuses."""

    class Zipped:
        def get_source(self, name: str) -> str:
            return b"caf\xe9".decode()

    loop = Loop()
    names = {"__name__": "zipped", "__loader__": Zipped(), "stand": loop._stand_still}
    exec(compile("def call():\n    stand()\n", "/nowhere/jobs.zip/zipped.py", "exec"), names)
    loop._thread = threading.Thread(target=names["call"])  # type: ignore[arg-type]
    with loop.watched() as watch:
        loop.call("map-0")
        loop.clock.ms += 1_100
        watch.look()
    assert loop.stalls == [("map-0", 1_100)]
    assert "cannot be shown: UnicodeDecodeError" in loop.reports[0].stack


@pytest.mark.parametrize("is_read", [False, True])
def test_stacks_that_are_not_taken_end_no_process(
    is_read: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    monkeypatch.setattr("weir.worker.stacks.STDERR", writer)
    if not is_read:
        os.close(reader)
    try:
        write_stderr("x" * (4 << 20))  # More than a pipe holds.
        if is_read:
            assert os.read(reader, 1) == b"x"
    finally:
        os.close(writer)
        if is_read:
            os.close(reader)


def test_a_deep_stack_keeps_both_ends() -> None:
    """On a thread of its own, so that no frame of what started the tests is the first."""

    def outermost() -> str:
        return there(100)

    def there(depth: int) -> str:
        return back(depth) if depth else innermost()

    def back(depth: int) -> str:
        return there(depth - 1)

    def innermost() -> str:
        return users_stack(frames_of(sys._getframe()))

    with ThreadPoolExecutor(1) as pool:
        stack = pool.submit(outermost).result()
    assert stack.count("  File ") == STACK_FRAMES_MAX
    assert "in innermost" in stack.splitlines()[-2]
    assert "in outermost" in stack.splitlines()[0]
    assert "frames are left out" in stack


def test_a_stack_without_a_frame_of_the_user_is_shown_whole() -> None:
    snapshots = SnapshotWorker(ThreadInbox(lambda: None))
    try:
        frame = wait_until(lambda: _frame_of("weir-snapshots"), "its thread stands in Weir")
        assert frame is not None
        stack = users_stack(frames_of(frame))
    finally:
        snapshots.stop()
    assert "weir/worker/process.py" in stack


def _frame_of(thread_name: str) -> FrameType | None:
    """The frame that the thread stands in; None while it does not stand in Weir."""
    (ident,) = [t.ident for t in threading.enumerate() if t.name == thread_name]
    frame = sys._current_frames().get(ident or 0)
    return frame if frame is not None and "process.py" in frame.f_code.co_filename else None


# Worker processes.


def look_up(value: int) -> int:
    """A slow service: the fifth of the records of the second subtask takes it seconds."""
    if value == 9:
        wait_for_the_answer()
    return value


def wait_for_the_answer() -> None:
    time.sleep(STALL_S)


def pipeline(parallelism: int) -> JobGraph:
    """Records of a source, looked up in its chain, summed by key."""
    env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(parallelism)
    source = DataGeneratorSource(lambda index: index, rows_per_second=100)
    (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
        .uid("numbers")
        .map(look_up)
        .uid("lookups")
        .key_by(lambda value: value % 8)
        .reduce(lambda one, other: one + other)
        .uid("sums")
        .print()
        .uid("out")
    )
    with capturing() as capture:
        env.execute("slow")
    return capture.jobs[0].graph


@contextmanager
def running(
    parallelism: int,
) -> Iterator[tuple[FakeMaster, list[tuple[ControlConnection, WorkerReady]]]]:
    """The pipeline in worker processes; in the end they are told to stop, and do."""
    graph = pipeline(parallelism)
    groups = tuple((operator.uid, 128) for operator in graph.operators)
    with fake_master() as master, _supervisors(master, parallelism):
        workers = master.deploy_workers(dumped(graph), *range(parallelism), max_parallelism=groups)
        yield master, workers
        for worker, _ in workers:
            master.send(worker, StopProcess(AttemptNumber(1)))
        for _ in workers:
            assert master.expect(WorkerExited)[1].exit_code == 0


@contextmanager
def _supervisors(master: FakeMaster, count: int) -> Iterator[None]:
    if count == 0:
        yield
        return
    with supervisor(master, count - 1, worker=WORKER), _supervisors(master, count - 1):
        yield


def heard_until(
    master: FakeMaster, holds: Callable[[list[object]], bool], expectation: str
) -> list[object]:
    """Everything that the workers reported, once that holds of it."""
    heard: list[object] = []

    def hear() -> bool:
        heard.extend(message for _, message in master.unseen)
        master.unseen.clear()
        return holds(heard)

    master.pump_until(hear, lambda: f"{expectation}; heard {heard[-20:]}")
    return heard


def test_a_map_that_sleeps_is_named_with_its_function_and_shows_as_busy_when_it_ends() -> None:
    with running(2) as (master, _):
        heard = heard_until(
            master,
            lambda heard: (
                any(isinstance(m, SubtaskStalled) for m in heard)
                and isinstance(heard[-1], SubtaskMetrics)
                and _busy_ms(heard) > 1_000 * STALL_S
            ),
            "the map has ended",
        )
    stalls = [m for m in heard if isinstance(m, SubtaskStalled)]
    assert {str(m.chain) for m in stalls} == {"numbers-1"}
    assert [m.stalled_ms // 1_000 for m in stalls[:2]] == [1, 2]
    assert len({m.since_ms for m in stalls}) == 1
    for stall in stalls:
        frames = [line for line in stall.stack.splitlines() if line.startswith("  File ")]
        assert [frame.rpartition(" in ")[2] for frame in frames] == [
            "look_up",
            "wait_for_the_answer",
        ]
    *_, line, note = stalls[0].stack.splitlines()
    assert ("time.sleep(STALL_S)" in line, note.strip()) == (True, IT_WAITS)
    assert _idle_never_shrinks(heard)


def test_the_time_in_which_its_process_was_stopped_is_none_of_a_calls() -> None:
    frozen_s = 1.3

    def stalls(heard: list[object], *, of_process: bool) -> list[float]:
        stalls = [m for m in heard if isinstance(m, SubtaskStalled)]
        return [m.stalled_ms for m in stalls if (IT_WAS_FROZEN in m.stack) is of_process]

    with running(2) as (master, workers):
        heard_until(master, lambda heard: bool(stalls(heard, of_process=False)), "the map stalls")
        with stopped(workers[1][1].pid):
            time.sleep(frozen_s)
        heard = heard_until(
            master,
            lambda heard: (
                bool(stalls(heard, of_process=True) and stalls(heard, of_process=False))
                and _busy_ms(heard) > 1_000 * STALL_S
            ),
            "both are reported, and the map has ended",
        )
    assert max(stalls(heard, of_process=True)) >= 1_000 * frozen_s
    assert max(stalls(heard, of_process=False)) <= 1_000 * (STALL_S - frozen_s + 0.4)


def test_a_barrier_held_back_is_reported_with_the_sender_it_is_awaited_from() -> None:
    """The trigger finds the second source in a call, so that its barrier is late at both sums."""
    with running(2) as (master, workers):
        heard = heard_until(
            master, lambda heard: any(isinstance(m, SubtaskStalled) for m in heard), "one stalls"
        )
        sources = (SubtaskId(OperatorId("numbers"), 0), SubtaskId(OperatorId("numbers"), 1))
        now_ms = time.time_ns() // 1_000_000
        command = TriggerCheckpoint(ATTEMPT, barrier(1, triggered_at_ms=now_ms), sources)
        for worker, _ in workers:
            master.send(worker, command)
        heard += heard_until(
            master,
            lambda heard: sum(isinstance(m, AlignmentProgress) for m in heard) >= 2,
            "two align",
        )
    progress = [m for m in heard if isinstance(m, AlignmentProgress)]
    first, second = progress[:2]
    assert str(first.chain) == "sums-0"  # The loop of the other is the one that stands still.
    assert first.checkpoint_id == second.checkpoint_id == 1
    assert first.waited_ms >= 250
    assert second.waited_ms - first.waited_ms > 400
    (gate,) = first.gates
    assert gate.upstream == ("numbers-0", "numbers-1")
    came_ms, awaited = gate.arrived_ms
    assert came_ms is not None
    assert came_ms < 1
    assert awaited is None
    assert gate.blocked_ms[0] > 200
    assert gate.ended == (False, False)


def _busy_ms(heard: list[object]) -> float:
    return max(
        (m.busy_ms for m in heard if isinstance(m, SubtaskMetrics) and m.chain.index == 1),
        default=0.0,
    )


def _idle_never_shrinks(heard: list[object]) -> bool:
    by_chain: dict[SubtaskId, list[float]] = {}
    for message in heard:
        if isinstance(message, SubtaskMetrics):
            by_chain.setdefault(message.chain, []).append(message.idle_ms)
    return all(idle == sorted(idle) for idle in by_chain.values())
