"""Two number sources, split into even and odd and summed: a checkpoint small enough to look at.

At parallelism 2 the key "even" belongs to subtask 1 and "odd" to subtask 0, so both sources feed
both sums, and a barrier has to be aligned at each. A checkpoint is six acknowledgements: one from
each source, whose state is the next number; one from each sum, whose state is the sum; one from
each sink, whose state is the lines since the checkpoint before.

Run it: ``python -m weir.examples.odd_even``.
"""

from collections.abc import Iterator
from operator import add
from textwrap import shorten

import pyarrow as pa

from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import NumberSequenceSource
from weir.jobmaster.history import CheckpointRecord
from weir.protocol.messages import OperatorAck

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


def saved(ack: OperatorAck) -> Iterator[str]:
    """The saved state in an acknowledgement; all of it is small enough to travel inside."""
    for handle in ack.handles:
        assert handle.inline is not None
        if handle.kind == "keyed":
            for row in pa.ipc.open_file(handle.inline).read_all().to_pylist():
                yield f"{handle.name} of {row['key']!r} is {row['value']}"
        else:
            yield f"{handle.name} {handle.inline.decode()}"


def acknowledgements(record: CheckpointRecord) -> Iterator[str]:
    """A line per acknowledgement of a checkpoint."""
    yield f"checkpoint {record.checkpoint_id}: {len(record.acks)} acknowledgements"
    for subtask, ack in sorted(record.acks.items()):
        yield shorten(f"{subtask}: {'; '.join(saved(ack)) or 'no state'}", 100, placeholder=" ...")


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    build(env)
    history = env.execute("odd even").history
    for record in history.checkpoints.values():
        if record.is_completed:
            print("\n".join(acknowledgements(record)))


if __name__ == "__main__":
    main()
