"""Event-time windows: all records of each through a ProcessWindowFunction, with late ones aside."""

from collections.abc import Iterable

from pyflink.common import Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import OutputTag, StreamExecutionEnvironment
from pyflink.datastream.functions import ProcessWindowFunction
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows

LATE = OutputTag("late", Types.TUPLE([Types.STRING(), Types.LONG()]))


class Second(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp) -> int:
        return int(value[1])


class CountWindow(
    ProcessWindowFunction[tuple[str, int], tuple[str, int, int, int], str, TimeWindow]
):
    def process(
        self,
        key: str,
        context: ProcessWindowFunction.Context[TimeWindow],
        elements: Iterable[tuple[str, int]],
    ) -> Iterable[tuple[str, int, int, int]]:
        window = context.window()
        return [(key, window.start, window.end, len(list(elements)))]

    def clear(self, context: ProcessWindowFunction.Context) -> None:
        pass


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(1)
    records = [("hi", 1), ("hi", 2), ("hello", 3), ("hi", 4), ("hi", 9), ("hi", 3)]
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Second())
    counted = (
        env.from_collection(records, type_info=Types.TUPLE([Types.STRING(), Types.LONG()]))
        .assign_timestamps_and_watermarks(strategy)
        .key_by(lambda record: record[0], key_type=Types.STRING())
        .window(TumblingEventTimeWindows.of(Time.milliseconds(5)))
        .allowed_lateness(0)
        .side_output_late_data(LATE)
        .process(
            CountWindow(),
            Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG(), Types.LONG()]),
        )
    )
    counted.print()
    counted.get_side_output(LATE).map(lambda record: ("late", record)).print()
    env.execute()
