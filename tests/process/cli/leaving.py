"""A keyed pipeline into Parquet files, whose state lies in files of its own; to be killed.

Arguments: ``output``, a directory, and ``hurry``: once that file is there, the input comes at once.
"""

from pathlib import Path

from tests.spark.hurried import HurriedSource
from weir.common import Configuration, Types, WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import ParquetSink

RECORDS, KEYS, RATE = 30_000, 20, 250.0  # Two minutes, unless it is to hurry.
ROW = Types.ROW_NAMED(["key", "number"], [Types.LONG(), Types.LONG()])


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.configure(Configuration({"execution.checkpointing.data-inline-threshold": "1"}))
    hurry = Path(env.get_job_parameter("hurry", "hurry"))
    source = HurriedSource(lambda i: (i % KEYS, 1), RECORDS, RATE, hurry)
    numbered = (
        env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers")
        .key_by(lambda row: row[0], key_type=Types.LONG())
        .reduce(lambda a, b: (a[0], a[1] + b[1]))
        .uid("count")
    )
    rows = numbered.map(lambda row: row, ROW).uid("rows")
    rows.sink_to(ParquetSink(env.get_job_parameter("output", "output"))).uid("files")
    env.execute("leaving")


if __name__ == "__main__":
    main()
