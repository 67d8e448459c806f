"""Windows whose records are aggregated as they come, and handed to a WindowFunction."""

from collections.abc import Iterable

from pyflink.common.time import Time
from pyflink.common.typeinfo import Types
from pyflink.common.watermark_strategy import TimestampAssigner, WatermarkStrategy
from pyflink.datastream.functions import AggregateFunction, WindowFunction
from pyflink.datastream.stream_execution_environment import StreamExecutionEnvironment
from pyflink.datastream.window import TimeWindow, TumblingEventTimeWindows


class Average(AggregateFunction):
    def create_accumulator(self):
        return 0, 0

    def add(self, value, accumulator):
        return accumulator[0] + value[1], accumulator[1] + 1

    def get_result(self, accumulator):
        return accumulator[0] / accumulator[1]

    def merge(self, a, b):
        return a[0] + b[0], a[1] + b[1]


class WithWindow(WindowFunction[float, tuple, str, TimeWindow]):
    def apply(self, key: str, window: TimeWindow, inputs: Iterable[float]):
        for average in inputs:
            yield key, window.max_timestamp(), average


class ThirdField(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[2]


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    readings = env.from_collection(
        [("a", 1, 100), ("b", 10, 200), ("a", 3, 900), ("a", 5, 1_100)],
        type_info=Types.TUPLE([Types.STRING(), Types.LONG(), Types.LONG()]),
    ).assign_timestamps_and_watermarks(
        WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(ThirdField())
    )
    windows = readings.key_by(lambda r: r[0]).window(TumblingEventTimeWindows.of(Time.seconds(1)))
    windows.aggregate(
        Average(),
        window_function=WithWindow(),
        accumulator_type=Types.TUPLE([Types.LONG(), Types.LONG()]),
        output_type=Types.TUPLE([Types.STRING(), Types.LONG(), Types.DOUBLE()]),
    ).print()
    env.execute("averages")


if __name__ == "__main__":
    main()
