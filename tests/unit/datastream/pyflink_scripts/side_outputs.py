"""Records sorted into the main output and two side outputs."""

from pyflink.common import Types
from pyflink.datastream import OutputTag, ProcessFunction, StreamExecutionEnvironment

if __name__ == "__main__":
    env = StreamExecutionEnvironment.get_execution_environment()
    even = OutputTag("even", Types.INT())
    words = OutputTag("words", Types.STRING())

    class Sort(ProcessFunction):
        def process_element(self, value, ctx: ProcessFunction.Context):
            if isinstance(value, str):
                yield words, value
            elif value % 2 == 0:
                yield even, value
            else:
                yield value

    odd = env.from_collection([1, 2, "three", 4, 5]).process(Sort(), output_type=Types.INT())
    odd.map(lambda n: f"odd {n}", Types.STRING()).print()
    odd.get_side_output(even).map(lambda n: f"even {n}", Types.STRING()).print()
    odd.get_side_output(words).print("word")
    env.execute("sorted")
