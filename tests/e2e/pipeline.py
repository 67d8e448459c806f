"""The pipeline of the kills: numbered records of two sources into Parquet files.

Parameters: ``output``, a directory; ``records`` of each source and ``rate``, theirs a second until
there is a file beside the output that says to hurry; ``timeout_ms`` of a checkpoint.
"""

from pathlib import Path

from tests.spark.pipeline import build
from weir.datastream import StreamExecutionEnvironment


def hurry_file(output: Path) -> Path:
    """The file that makes the sources of the job with this output hurry once it is there."""
    return output.with_name(f"{output.name}.hurry")


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(300)
    env.get_checkpoint_config().set_checkpoint_timeout(
        int(env.get_job_parameter("timeout_ms", "60000"))
    )
    output = Path(env.get_job_parameter("output", "output"))
    records = int(env.get_job_parameter("records", "1000"))
    rate = float(env.get_job_parameter("rate", "1000"))
    build(env, output, records, rate, hurry_file(output))
    env.execute("kills")


if __name__ == "__main__":
    main()
