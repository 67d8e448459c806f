"""The machine's wall clock is set while a job runs: nothing stops and nothing expires."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.local.machine_time import HOUR_MS, MachineTime
from tests.unit.operators.operator_harness import Harness
from weir.common import Duration, Types, WatermarkStrategy
from weir.common.clock import SystemClock
from weir.config import CheckpointConfig, JobConfig, RestartConfig, RestartStrategyKind
from weir.datastream import DataStream, KeyedProcessFunction, StreamExecutionEnvironment
from weir.local.cluster import JobResult, run_in_process
from weir.operators.sinks.collect_sink import CollectSink
from weir.operators.sources import NumberSequenceSource
from weir.operators.watermarks import WatermarkFactory
from weir.protocol.events import AttemptStarted, CheckpointSettled, JobEvent, Recovered
from weir.protocol.lifecycle import JobStatus

MOVES = [pytest.param(-HOUR_MS, id="back"), pytest.param(HOUR_MS, id="ahead")]
ROWS, RATE = 2_000, 200.0  # Ten seconds.
CONFIG = JobConfig(checkpoints=CheckpointConfig(interval_ms=500), heartbeat_timeout_ms=5_000)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> MachineTime:
    return MachineTime().install(monkeypatch)


class Numbers:
    """A source of numbers at a steady rate; something happens at one of them."""

    def __init__(self, machine: MachineTime, at: int, happens: Callable[[], None]) -> None:
        self.machine = machine
        self.at = at
        self.happens = happens
        self.moved_ns: int | None = None

    def __deepcopy__(self, memo: Any) -> "Numbers":
        return self  # The operator's function: all in this process.

    def __call__(self, number: int) -> int:
        if number == self.at and self.moved_ns is None:
            self.happens()
            self.moved_ns = self.machine.passed_ns
        return number


def run(
    env: StreamExecutionEnvironment, config: JobConfig = CONFIG
) -> tuple[JobResult, list[JobEvent]]:
    events: list[JobEvent] = []
    result = run_in_process(env.get_job_graph(), config, emit=events.append)
    return result, events


class Later(KeyedProcessFunction):
    """A timer a second after each record, which says how late it fires."""

    def __init__(self, machine: MachineTime) -> None:
        self.machine = machine
        self.waited_ms: list[float] = []
        self.since_ns: dict[int, int] = {}

    def __deepcopy__(self, memo: Any) -> "Later":
        return self

    def process_element(self, value: int, ctx: KeyedProcessFunction.Context) -> Iterator[int]:
        now = ctx.timer_service().current_processing_time()
        self.since_ns[ctx.get_current_key()] = self.machine.passed_ns
        ctx.timer_service().register_processing_time_timer(now + 1_000)
        yield value

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        since_ns = self.since_ns[ctx.get_current_key()]
        self.waited_ms.append((self.machine.passed_ns - since_ns) / 1e6)


def numbers_of(env: StreamExecutionEnvironment) -> DataStream:
    source = NumberSequenceSource(0, ROWS - 1, rows_per_second=RATE)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")


@pytest.mark.parametrize("by_ms", MOVES)
def test_a_job_goes_on_and_takes_its_checkpoints(machine: MachineTime, by_ms: int) -> None:
    """Ten seconds of a rate-limited source, and the clock is set in the middle."""
    numbers = Numbers(machine, ROWS // 2, lambda: machine.set_wall_clock(by_ms))
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers_of(env).map(numbers, Types.LONG()).sink_to(CollectSink())
    began_ns = machine.passed_ns
    result, events = run(env)
    assert numbers.moved_ns is not None
    assert (result.status, result.cause) == (JobStatus.FINISHED, "")
    assert len(result.collected) == ROWS
    assert sum(isinstance(event, AttemptStarted) for event in events) == 1  # No slot was silent.
    settled = [event for event in events if isinstance(event, CheckpointSettled)]
    assert not [event for event in settled if event.failure is not None]
    assert 9 < (machine.passed_ns - began_ns) / 1e9 < 13
    assert len(settled) >= 15  # Every half second, also behind the middle.
    assert all(0 <= event.duration_ms < 1_000 for event in settled)
    stamps = [event.at_ms for event in settled]
    assert stamps == sorted(stamps)
    assert stamps[-1] - stamps[0] < 13_000


@pytest.mark.parametrize("by_ms", MOVES)
def test_timers_of_processing_time_fire_when_they_would(machine: MachineTime, by_ms: int) -> None:
    numbers = Numbers(machine, ROWS // 2, lambda: machine.set_wall_clock(by_ms))
    later = Later(machine)
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = numbers_of(env).map(numbers, Types.LONG())
    stream.key_by(lambda number: number).process(later, Types.LONG()).sink_to(CollectSink())
    result, _ = run(env)
    assert numbers.moved_ns is not None
    assert result.status is JobStatus.FINISHED
    assert len(later.waited_ms) >= ROWS - 1.2 * RATE  # All but those of the last second.
    assert min(later.waited_ms) >= 999  # Times are whole milliseconds.
    assert max(later.waited_ms) < 1_100


@pytest.mark.parametrize("by_ms", MOVES)
def test_a_restart_waits_for_its_delay(machine: MachineTime, by_ms: int) -> None:
    def fail() -> None:
        machine.set_wall_clock(by_ms)
        failed_ns.append(machine.passed_ns)
        raise OSError("once")

    failed_ns: list[int] = []
    numbers = Numbers(machine, ROWS // 2, lambda: None if failed_ns else fail())
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers_of(env).map(numbers, Types.LONG()).sink_to(CollectSink())
    delayed = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1, delay_ms=2_000)
    result, events = run(env, replace(CONFIG, restart=delayed))
    assert failed_ns
    assert result.status is JobStatus.FINISHED
    assert sorted(result.collected) == list(range(ROWS))
    (recovered,) = [event for event in events if isinstance(event, Recovered)]
    assert recovered.backoff_ms == 2_000
    assert 0 <= recovered.redeploy_ms < 1_000
    begins = [event.at_ms for event in events if isinstance(event, AttemptStarted)]
    assert 2_000 <= begins[1] - begins[0] < 10_000


# The pieces.


@pytest.mark.parametrize("by_ms", MOVES)
def test_the_clock_is_not_set(machine: MachineTime, by_ms: int) -> None:
    clock = SystemClock()
    before_ms = clock.now_ms()
    assert before_ms == machine.time_ns() // 1_000_000
    machine.set_wall_clock(by_ms)
    machine.sleep(5)
    assert clock.now_ms() == before_ms + 5_000
    assert SystemClock().now_ms() == before_ms + 5_000 + by_ms  # The next process begins anew.


def test_a_worker_goes_by_its_drivers_clock(machine: MachineTime) -> None:
    driver = SystemClock()
    machine.set_wall_clock(-HOUR_MS)
    worker = SystemClock()
    assert driver.now_ms() - worker.now_ms() >= HOUR_MS - 1
    worker.follow(driver.now_ms())
    assert abs(driver.now_ms() - worker.now_ms()) <= 1
    machine.sleep(10)
    assert abs(driver.now_ms() - worker.now_ms()) <= 1


@pytest.mark.parametrize("by_ms", MOVES)
def test_a_stream_is_idle_after_its_timeout(machine: MachineTime, by_ms: int) -> None:
    """Neither at once nor in an hour."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_idleness(Duration.of_seconds(5))
    clock = SystemClock()
    harness = Harness(WatermarkFactory(strategy), keyed=False, clock=clock)
    machine.set_wall_clock(by_ms)
    machine.sleep(4.9)
    due_ms = harness.operator.next_timer_ms()
    assert due_ms is not None
    assert clock.now_ms() < due_ms <= clock.now_ms() + 200
    harness.operator.on_processing_time(clock.now_ms())
    assert harness.output.events == []
    machine.sleep(0.2)
    harness.operator.on_processing_time(clock.now_ms())
    assert harness.output.events == [("idle",)]
