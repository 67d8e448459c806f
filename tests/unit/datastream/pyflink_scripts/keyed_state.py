"""All kinds of keyed state in one function."""

from pyflink.common.typeinfo import Types
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.datastream.functions import (
    AggregateFunction,
    FlatMapFunction,
    ReduceFunction,
    RuntimeContext,
)
from pyflink.datastream.state import (
    AggregatingState,
    AggregatingStateDescriptor,
    ListState,
    ListStateDescriptor,
    MapState,
    MapStateDescriptor,
    ReducingState,
    ReducingStateDescriptor,
)


class Greater(ReduceFunction):
    def reduce(self, value1, value2):
        return max(value1, value2)


class Sum(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + value

    def get_result(self, accumulator):
        return accumulator

    def merge(self, a, b):
        return a + b


class Remember(FlatMapFunction):
    def open(self, runtime_context: RuntimeContext):
        self.seen: ListState[int] = runtime_context.get_list_state(
            ListStateDescriptor("seen", Types.INT())
        )
        self.counts: MapState[int, int] = runtime_context.get_map_state(
            MapStateDescriptor("counts", Types.INT(), Types.INT())
        )
        self.greatest: ReducingState = runtime_context.get_reducing_state(
            ReducingStateDescriptor("greatest", Greater(), Types.INT())
        )
        self.total: AggregatingState = runtime_context.get_aggregating_state(
            AggregatingStateDescriptor("total", Sum(), Types.INT())
        )

    def flat_map(self, value):
        key, number = value
        self.seen.add(number)
        self.counts.put(number, (self.counts.get(number) or 0) + 1)
        self.greatest.add(number)
        self.total.add(number)
        if self.counts.get(number) == 2:
            yield f"{key}: {list(self.seen.get())} {self.greatest.get()} {self.total.get()}"
            self.seen.clear()


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.from_collection([("a", 1), ("b", 7), ("a", 5), ("a", 1), ("b", 7)]).key_by(
        lambda pair: pair[0]
    ).flat_map(Remember(), output_type=Types.STRING()).print()
    env.execute("state")


if __name__ == "__main__":
    main()
