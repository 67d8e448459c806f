"""A pipeline for ``weir run``: numbered records of two sources into Parquet files.

Arguments: ``output``, a directory; ``records`` of each source and ``rate``, theirs a second;
``copies``, a directory for local copies of state.
"""

from pathlib import Path

from tests.spark.harness import environment, numbered, tagged_union, to_files
from weir.datastream import StreamExecutionEnvironment

NAME = "driven"


def copies_in(directory: str) -> dict[str, str]:
    """The settings with which slots copy all their state there."""
    return {
        "execution.checkpointing.local-backup.enabled": "true",
        "execution.checkpointing.local-backup.dirs": directory,
        "execution.checkpointing.data-inline-threshold": "1 b",
    }


def build(
    env: StreamExecutionEnvironment,
    output: Path,
    records: int,
    rate: float,
    hurry: Path | None = None,
) -> None:
    """Add the pipeline to ``env``; its sources keep to no rate once ``hurry`` is there."""
    to_files(numbered(tagged_union(env, records, rate, hurry=hurry)), output)


def main() -> None:
    env = environment(None)
    if copies := env.get_job_parameter("copies", ""):
        env.configure(copies_in(copies))
    output = Path(env.get_job_parameter("output", "output"))
    records = int(env.get_job_parameter("records", "1000"))
    build(env, output, records, float(env.get_job_parameter("rate", "1000")))
    env.execute(NAME)


if __name__ == "__main__":
    main()
