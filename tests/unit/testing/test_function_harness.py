"""One function stepped by hand, with the state, timers and snapshots of a job."""

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.unit.testing.pipelines import QUIET, Totals, reading
from weir.common import Time
from weir.datastream import (
    BatchProcessFunction,
    FilterFunction,
    FlatMapFunction,
    MapFunction,
    OutputTag,
    ProcessFunction,
    ReduceFunction,
    TumblingEventTimeWindows,
)
from weir.errors import ConfigError, GraphError, SubtaskError, UserError
from weir.protocol.elements import MIN_WATERMARK_MS
from weir.testing import FunctionHarness

pytest_plugins = ["weir.testing.pytest_plugin"]

Make = Callable[..., FunctionHarness]
LARGE = OutputTag("large")


def sensor(row: Any) -> Any:
    return row.sensor


def test_each_element_shows_its_output_state_and_timers(function_harness: Make) -> None:
    totals = function_harness(Totals(), key_by=sensor)
    assert totals.process_element(reading("a", 1), 0) == [("a", 1)]
    assert totals.process_element(reading("a", 2), 1_000) == [("a", 3)]
    assert totals.output == [("a", 1), ("a", 3)]
    assert totals.timed_output == [(("a", 1), 0), (("a", 3), 1_000)]
    assert totals.state("a") == {"total": 3}
    assert totals.timers("a") == {"event_time": [60_000, 61_000], "processing_time": []}
    assert totals.state("b") == {}


def test_event_time_fires_what_is_due(function_harness: Make) -> None:
    totals = function_harness(Totals(), key_by=sensor)
    totals.process_elements([reading("a", 1), reading("b", 1)], [0, 1])
    assert totals.watermark_ms == MIN_WATERMARK_MS
    totals.advance_watermark(60_000)
    assert totals.side_output(QUIET) == [("a", 60_000)]
    assert totals.watermark_ms == 60_000


def test_processing_time_fires_what_is_due(function_harness: Make) -> None:
    totals = function_harness(Totals(by_processing_time=True), key_by=sensor, start_ms=500)
    totals.process_element(reading("a", 1))
    totals.advance_processing_time(59_999)
    assert totals.side_output(QUIET) == []
    totals.advance_processing_time(1)
    assert totals.side_output(QUIET) == [("a", 60_500)]
    assert totals.processing_time_ms == 60_500


def test_a_restart_keeps_what_is_in_the_snapshot_and_nothing_else(function_harness: Make) -> None:
    class Counting(Totals):
        def open(self, runtime_context: Any) -> None:
            super().open(runtime_context)
            self.seen = 0

        def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
            self.seen += 1
            yield self.seen
            yield from super().process_element(value, ctx)

    counting = function_harness(Counting(), key_by=sensor)
    counting.process_element(reading("a", 1), 0)
    assert counting.process_element(reading("a", 2), 0) == [2, ("a", 3)]
    counting.restart()
    assert counting.timers("a")["event_time"] == [60_000]
    assert counting.process_element(reading("a", 4), 0) == [1, ("a", 7)]
    counting.advance_watermark(60_000)
    assert counting.side_output(QUIET) == [("a", 60_000)]


class Doubled(MapFunction):
    def map(self, value: Any) -> Any:
        return 2 * value


class Words(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        return value.split()


class Odd(FilterFunction):
    def filter(self, value: Any) -> bool:
        return bool(value % 2)


class Sum(ReduceFunction):
    def reduce(self, value1: Any, value2: Any) -> Any:
        return value1 + value2


class Sorted(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield (LARGE, value) if value > 9 else value


class Positive(BatchProcessFunction):
    def process_batch(self, batch: pa.RecordBatch, ctx: Any) -> Iterator[pa.RecordBatch]:
        yield batch.filter(pc.greater(batch["n"], 0))


@pytest.mark.parametrize(
    ("function", "key_by", "given", "made"),
    [
        (Doubled(), None, [1, 2], [2, 4]),
        (Words(), None, ["to be", "or"], ["to", "be", "or"]),
        (Odd(), None, [1, 2, 3], [1, 3]),
        (Sum(), abs, [1, 1, 2], [1, 2, 2]),
        (Sorted(), None, [1, 10], [1]),
        (Positive(), None, [pa.record_batch({"n": [0, 1]})], [(1,)]),
        (lambda stream: stream.map(lambda n: n + 1), None, [1], [2]),
        (lambda stream: stream.min(), abs, [2, 2], [2, 2]),
    ],
)
def test_every_kind_of_function_runs(
    function_harness: Make, function: Any, key_by: Any, given: list[Any], made: list[Any]
) -> None:
    assert function_harness(function, key_by=key_by).process_elements(given) == made


def test_a_window_fires_and_is_late(function_harness: Make) -> None:
    windowed = function_harness(
        lambda stream: stream.window(TumblingEventTimeWindows.of(Time.seconds(1))).reduce(
            lambda a, b: a + b
        ),
        key_by=abs,
    )
    windowed.process_elements([5, 5], [0, 999])
    assert windowed.advance_watermark(999) == [10]
    assert windowed.process_element(5, 3) == []


def test_a_failing_function_names_the_record(function_harness: Make) -> None:
    with pytest.raises(SubtaskError, match="on the record None: TypeError"):
        function_harness(Doubled()).process_element(None)


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (Totals(), "a Totals needs a key|a KeyedProcessFunction needs a key"),
        (Sum(), "a Sum needs a key: give key_by"),
        (3, "3 is no function object"),
        (lambda n: n + 1, "lambda stream: stream.map"),
        (lambda stream: "made", "returned 'made' for a stream"),
        (lambda stream: stream.map(str).map(str), "these are 'Map', 'Map'"),
        (lambda stream: stream, "these are none"),
    ],
)
def test_what_is_no_function_is_refused(function: Any, says: str) -> None:
    with pytest.raises(GraphError, match=says):
        FunctionHarness(function)


def test_state_without_a_key_is_refused(function_harness: Make) -> None:
    with pytest.raises(UserError, match="key_by"):
        function_harness(Doubled()).state("a")


def test_timers_without_end_are_refused(
    function_harness: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Endless(Totals):
        def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
            ctx.timer_service().register_event_time_timer(timestamp)
            yield timestamp

    monkeypatch.setattr("weir.testing.function_harness.ROUNDS_MAX", 3)
    endless = function_harness(Endless(), key_by=sensor)
    endless.process_element(reading("a", 1), 0)
    with pytest.raises(ConfigError, match="does not come to rest"):
        endless.advance_watermark(60_000)
