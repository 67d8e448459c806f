"""A processing-time timer that is ahead when the input ends, job parameters, more functions."""

from pyflink.common.typeinfo import Types
from pyflink.datastream import (
    FilterFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.data_stream import DataStream
from pyflink.datastream.execution_mode import RuntimeExecutionMode


class Words(FlatMapFunction):
    def flat_map(self, value):
        yield from value.split()


class Long(FilterFunction):
    def filter(self, value):
        return len(value) > 2


class Soon(KeyedProcessFunction):
    def open(self, runtime_context):
        self.greeting = runtime_context.get_job_parameter("greeting", "hello")

    def process_element(self, value, ctx):
        now = ctx.timer_service().current_processing_time()
        ctx.timer_service().register_processing_time_timer(now + 3_600_000)
        yield f"{self.greeting} {value}"

    def on_timer(self, timestamp, ctx):
        yield f"bye {ctx.get_current_key()}"


def greetings(env: StreamExecutionEnvironment) -> DataStream:
    return (
        env.from_collection(["to ada", "to bob"], type_info=Types.STRING())
        .flat_map(Words(), output_type=Types.STRING())
        .filter(Long())
        .key_by(lambda word: word)
        .process(Soon(), output_type=Types.STRING())
    )


if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_runtime_mode(RuntimeExecutionMode.STREAMING)
    greetings(env).print()
    env.execute("greetings")
