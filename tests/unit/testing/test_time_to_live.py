"""State with a time-to-live in functions: by the time of records, timers and the job's clock."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.unit.testing.pipelines import reading
from weir.common import Row, Types
from weir.common.watermark_strategy import WatermarkStrategy
from weir.datastream import (
    KeyedProcessFunction,
    MapFunction,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from weir.datastream.connectors import DataGeneratorSource
from weir.datastream.state import StateTtlConfig
from weir.testing import (
    FunctionHarness,
    KillPoint,
    PipelineHarness,
    Timed,
    Watermark,
    assert_same_output,
    run,
)

pytest_plugins = ["weir.testing.pytest_plugin"]

Make = Callable[..., PipelineHarness]
TTL_MS = 1_000


def last_reading(*, event_time: bool) -> ValueStateDescriptor:
    descriptor = ValueStateDescriptor("last", Types.LONG())
    builder = StateTtlConfig.new_builder(TTL_MS)
    descriptor.enable_time_to_live((builder.use_event_time() if event_time else builder).build())
    return descriptor


class Before(MapFunction):
    """Each reading with the one before, if that is recent."""

    def __init__(self, event_time: bool) -> None:
        self.event_time = event_time

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(last_reading(event_time=self.event_time))

    def map(self, value: Any) -> tuple[str, int, int | None]:
        before = self.last.value()
        self.last.update(value.value)
        return value.sensor, value.value, before


class BeforeAndAfter(KeyedProcessFunction):
    """The same, and the reading that is still there some time later, by event time."""

    def open(self, runtime_context: Any) -> None:
        self.last = runtime_context.get_state(last_reading(event_time=True))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        before = self.last.value()
        self.last.update(value.value)
        for later_ms in (TTL_MS - 1, TTL_MS):
            ctx.timer_service().register_event_time_timer(ctx.timestamp() + later_ms)
        yield ctx.get_current_key(), value.value, before

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield "at", timestamp, self.last.value()


def mapped(env: StreamExecutionEnvironment, *, event_time: bool = True) -> None:
    source = DataGeneratorSource(lambda index: reading("unused", index))
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings")
    keyed = readings.key_by(lambda row: row.sensor)
    keyed.map(Before(event_time)).uid("before").print()


def processed(env: StreamExecutionEnvironment) -> None:
    source = DataGeneratorSource(lambda index: reading("unused", index))
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings")
    readings.key_by(lambda row: row.sensor).process(BeforeAndAfter()).print()


def test_event_time_counts_from_the_record_and_to_the_watermark(pipeline_harness: Make) -> None:
    job = pipeline_harness(mapped)
    job.send(Timed(reading("a", 1), 100), Watermark(0), Timed(reading("b", 1), 900))
    # One call: the watermarks lie between the records of a batch, and count at their places.
    job.send(
        Watermark(1_099),
        Timed(reading("a", 2), 1_200),
        Watermark(2_199),
        Timed(reading("a", 3), 2_300),
        Watermark(3_300),
        Timed(reading("a", 4), 3_400),
        Timed(reading("b", 2), 3_400),
        Timed(reading("a", 5), 3_350),
        Watermark(4_399),
        Timed(reading("a", 6), 4_500),  # Late records took nothing from the state's time.
    )
    assert job.output() == [
        ("a", 1, None), ("b", 1, None), ("a", 2, 1), ("a", 3, 2), ("a", 4, None), ("b", 2, None),
        ("a", 5, 4), ("a", 6, 5),
    ]  # fmt: skip


def test_a_timer_sees_state_as_of_its_time_however_far_the_watermark_went(
    pipeline_harness: Make,
) -> None:
    job = pipeline_harness(processed)
    job.send(Timed(reading("a", 1), 0), Timed(reading("b", 7), 400), Watermark(1_000_000))
    assert job.output() == [
        ("a", 1, None), ("b", 7, None), ("at", 999, 1), ("at", 1_000, None), ("at", 1_399, 7),
        ("at", 1_400, None),
    ]  # fmt: skip


def test_the_end_of_the_input_expires_nothing(pipeline_harness: Make) -> None:
    job = pipeline_harness(processed)
    job.send(Timed(reading("a", 1), 0), Watermark(10))
    job.finish()
    assert job.committed() == [("a", 1, None), ("at", 999, 1), ("at", 1_000, None)]


def with_watermarks() -> list[Any]:
    """Readings of three sensors, with gaps below and above the time-to-live."""
    elements: list[Any] = []
    at_ms = 0
    for number in range(60):
        at_ms += 700 if number % 9 < 4 else 90
        elements.append(Timed(reading("abc"[number % 3], number), at_ms))
        if number % 4 == 3:
            elements.append(Watermark(at_ms - 50))
    return elements


@pytest.mark.parametrize("pipeline", [mapped, processed])
@pytest.mark.parametrize("point", [KillPoint.WRITE, KillPoint.COMMIT])
def test_a_killed_run_forgets_what_an_undisturbed_one_does(
    pipeline: Callable[[StreamExecutionEnvironment], None], point: KillPoint
) -> None:
    undisturbed = run(pipeline, with_watermarks(), parallelism=2)
    killed = run(pipeline, with_watermarks(), parallelism=2, kill=point, kill_at=3)
    befores = [record[2] for record in undisturbed.output if record[0] != "at"]
    assert befores.count(None) > 6
    assert befores.count(None) < len(befores) - 6
    assert_same_output(undisturbed.output, killed.output)


def test_processing_time_goes_on_over_a_restart(pipeline_harness: Make) -> None:
    job = pipeline_harness(lambda env: mapped(env, event_time=False), start_ms=5_000)
    job.send(reading("a", 1), reading("b", 1))
    job.checkpoint()
    job.advance_processing_time(600)
    job.kill()
    assert job.restarts == 1
    job.advance_processing_time(399)
    assert job.state("before", "a") == {"last": 1}
    job.send(reading("b", 2))
    job.advance_processing_time(1)
    assert job.state("before", "a") == {}
    assert job.state("before", "b") == {"last": 2}


def test_an_idle_job_forgets_by_itself(pipeline_harness: Make) -> None:
    """Without a record, a timer or a checkpoint: a sweep runs when it is due."""
    job = pipeline_harness(lambda env: mapped(env, event_time=False))
    job.send(*(reading(str(number), number) for number in range(5_000)))
    table = job._owner("before", "0").state.keyed._tables["last"][0]
    assert len(table) == 5_000
    job.advance_processing_time(TTL_MS - 1)
    assert len(table) == 5_000
    job.advance_processing_time(TTL_MS + 1)
    assert len(table) == 0


def test_the_function_harness_lets_state_expire() -> None:
    with FunctionHarness(Before(event_time=False), key_by=lambda row: row.sensor) as before:
        row = Row(sensor="a", value=1)
        assert before.process_element(row) == [("a", 1, None)]
        before.advance_processing_time(TTL_MS - 1)
        before.restart()
        assert before.process_element(row) == [("a", 1, 1)]
        before.advance_processing_time(TTL_MS)
        assert before.process_element(row) == [("a", 1, None)]
