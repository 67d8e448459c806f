"""Two number sources, split into even and odd and summed: a checkpoint small enough to look at.

At parallelism 2 the key "even" belongs to subtask 1 and "odd" to subtask 0, so both sources feed
both sums, and a barrier has to be aligned at each. A checkpoint is six acknowledgements: one from
each source, whose state is the next number; one from each sum, whose state is the sum; one from
each sink, whose state is what was printed since the checkpoint before.

Run it: ``python -m weir.examples.odd_even``.
"""

from operator import add

from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import NumberSequenceSource

NUMBERS = 200
NUMBERS_PER_SECOND = 50  # By each source: some four seconds, and as many checkpoints.


def parity(number: int) -> str:
    return "odd" if number % 2 else "even"


def build(env: StreamExecutionEnvironment) -> None:
    """Add the pipeline to ``env``."""
    env.set_parallelism(2)
    ones, thousands = (
        env.from_source(
            NumberSequenceSource(start, start + NUMBERS - 1, rows_per_second=NUMBERS_PER_SECOND),
            WatermarkStrategy.no_watermarks(),
            name,
        ).set_parallelism(1)
        for name, start in (("from one", 1), ("from a thousand", 1_000))
    )
    ones.union(thousands).key_by(parity).reduce(add).name("sum").print()


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    build(env)
    env.execute("odd even")


if __name__ == "__main__":
    main()
