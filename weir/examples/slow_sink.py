"""A sink that cannot keep up: the pipeline that ``docs/checkpoint-modes.md`` measures.

A source makes numbers as fast as it may, a keyed sum keeps a total per key, and a sink takes its
time for every batch, as a database does behind a bulk write. So the channels before the sum are
always full, and the barriers of checkpoints wait behind all that is in them.

Run it: ``weir compare-modes weir.examples.slow_sink``.
"""

import time

import pyarrow as pa
import pyarrow.compute as pc

from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import BlackHoleSink, NumberSequenceSource

# More than a batch has rows: the sum cannot combine any before they are sent.
KEYS = 100_000
ROWS_PER_SECOND = 30_000  # That each subtask of the sink takes.
NUMBERS = 10**12  # More than any run reaches.


def keyed(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The numbers with a key each."""
    value = batch.column(0)
    key = pc.subtract(value, pc.multiply(pc.divide(value, KEYS), KEYS))
    return pa.record_batch({"key": key, "value": value})


class Write:
    """A bulk write that takes its time for each row."""

    def __init__(self, rows_per_second: float) -> None:
        self._rows_per_second = rows_per_second

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        time.sleep(batch.num_rows / self._rows_per_second)
        return batch


def build(env: StreamExecutionEnvironment) -> None:
    """Add the pipeline to ``env``."""
    rows_per_second = float(env.get_job_parameter("rows_per_second", str(ROWS_PER_SECOND)))
    numbers = env.from_source(
        NumberSequenceSource(0, NUMBERS), WatermarkStrategy.no_watermarks(), "numbers"
    )
    sums = numbers.map_batches(keyed).key_by("key").aggregate_batches(total=("value", "sum"))
    sums.map_batches(Write(rows_per_second)).name("write").sink_to(BlackHoleSink())


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1_000)
    build(env)
    env.execute("slow sink")


if __name__ == "__main__":
    main()
