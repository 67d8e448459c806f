"""Pipelines and functions that the tests of the kit run."""

from collections.abc import Iterator
from typing import Any

from weir.common import Row, Time, Types, WatermarkStrategy
from weir.datastream import (
    DataStream,
    KeyedProcessFunction,
    OutputTag,
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    ValueStateDescriptor,
)
from weir.datastream.connectors import DataGeneratorSource

QUIET = OutputTag("quiet")
MINUTE_MS = 60_000


class Totals(KeyedProcessFunction):
    """The total per sensor; a note when a sensor was quiet for a minute, by either time."""

    def __init__(self, by_processing_time: bool = False) -> None:
        self.by_processing_time = by_processing_time

    def open(self, runtime_context: Any) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self.total.update((self.total.value() or 0) + value.value)
        timers = ctx.timer_service()
        if self.by_processing_time:
            timers.register_processing_time_timer(timers.current_processing_time() + MINUTE_MS)
        else:
            timers.register_event_time_timer(ctx.timestamp() + MINUTE_MS)
        yield value.sensor, self.total.value()

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        yield QUIET, (ctx.get_current_key(), timestamp)


def reading(sensor: str, value: int) -> Row:
    return Row(sensor=sensor, value=value)


def totals(env: StreamExecutionEnvironment, *, by_processing_time: bool = False) -> None:
    """Totals of readings, and notes on quiet sensors."""
    source = DataGeneratorSource(lambda index: reading("unused", index))
    readings = env.from_source(source, WatermarkStrategy.no_watermarks(), "readings")
    made = readings.key_by(lambda row: row.sensor).process(Totals(by_processing_time))
    made.uid("totals").print().uid("out")
    made.get_side_output(QUIET).print().uid("quiet")


def by_minute(env: StreamExecutionEnvironment) -> None:
    """Vectorised sums by minute, whose source assigns event time."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at")
    source = DataGeneratorSource(lambda index: Row(shop="unused", amount=index, at=index))
    orders: DataStream = env.from_source(source, strategy, "orders")
    (
        orders.key_by("shop")
        .window(TumblingEventTimeWindows.of(Time.minutes(1)))
        .aggregate_batches(revenue=("amount", "sum"))
        .print()
    )
