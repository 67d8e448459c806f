"""Keys that were silent for ten seconds of event time, by state and timers."""

from pyflink.common.time import Duration
from pyflink.common.typeinfo import Types
from pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import KeyedProcessFunction, RuntimeContext
from pyflink.datastream.state import ValueState, ValueStateDescriptor
from pyflink.datastream.time_domain import TimeDomain

EVENTS = [(1_000, "a"), (3_000, "b"), (5_000, "a"), (9_000, "b")]


class EventTime(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return value[0]


class CountWithTimeout(KeyedProcessFunction):
    count: ValueState[int]

    def __init__(self):
        self.count = None
        self.last = None

    def open(self, runtime_context: RuntimeContext):
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self.last = runtime_context.get_state(ValueStateDescriptor("last", Types.LONG()))

    def process_element(self, value, ctx: "KeyedProcessFunction.Context"):
        self.count.update((self.count.value() or 0) + 1)
        if self.last.value() is not None:
            ctx.timer_service().delete_event_time_timer(self.last.value() + 10_000)
        self.last.update(ctx.timestamp())
        ctx.timer_service().register_event_time_timer(ctx.timestamp() + 10_000)

    def on_timer(self, timestamp: int, ctx: "KeyedProcessFunction.OnTimerContext"):
        assert ctx.time_domain() is TimeDomain.EVENT_TIME
        yield ctx.get_current_key(), self.count.value(), timestamp
        self.count.clear()
        self.last.clear()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(100)
    env.from_collection(
        EVENTS, type_info=Types.TUPLE([Types.LONG(), Types.STRING()])
    ).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_bounded_out_of_orderness(
            Duration.of_seconds(1)
        ).with_timestamp_assigner(EventTime())
    ).key_by(lambda event: event[1], key_type=Types.STRING()).process(
        CountWithTimeout(), Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()])
    ).print()
    env.execute("silent keys")


if __name__ == "__main__":
    main()
