"""The pipeline of the kills: numbered records of two sources into Parquet files.

Parameters: ``output``, a directory; ``records`` of each source and ``rate``, theirs a second;
``timeout_ms`` of a checkpoint.
"""

from pathlib import Path

from tests.spark.pipeline import build
from weir.datastream import StreamExecutionEnvironment


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(300)
    env.get_checkpoint_config().set_checkpoint_timeout(
        int(env.get_job_parameter("timeout_ms", "60000"))
    )
    output = Path(env.get_job_parameter("output", "output"))
    records = int(env.get_job_parameter("records", "1000"))
    build(env, output, records, float(env.get_job_parameter("rate", "1000")))
    env.execute("kills")


if __name__ == "__main__":
    main()
