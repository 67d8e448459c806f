"""Two streams in one, repartitioned on the way."""

from pyflink.common import Row, Types
from pyflink.datastream import KeySelector, MapFunction, Partitioner, StreamExecutionEnvironment


class Double(MapFunction):
    def map(self, value):
        return value * 2


class ByParity(Partitioner):
    def partition(self, key, num_partitions):
        return key % num_partitions


class Itself(KeySelector):
    def get_key(self, value):
        return value


def main():
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.set_max_parallelism(16)
    one = env.from_collection([1, 2, 3], type_info=Types.INT()).name("one")
    other = env.from_collection([10, 20], type_info=Types.INT()).rebalance()
    both = one.union(other, one.map(Double(), output_type=Types.INT()).uid("double"))
    (
        both.partition_custom(ByParity(), Itself())
        .map(
            lambda n: Row(n, "big" if n > 5 else "small"),
            output_type=Types.ROW_NAMED(["n", "size"], [Types.INT(), Types.STRING()]),
        )
        .filter(lambda row: row.n != 3)
        .key_by(lambda row: row["size"], key_type=Types.STRING())
        .map(lambda row: f"{row['size']} {row[0]}", output_type=Types.STRING())
        .disable_chaining()
        .print()
        .name("to standard output")
    )
    env.execute("union")


if __name__ == "__main__":
    main()
