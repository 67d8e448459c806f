"""A pipeline whose barriers overtake records: its keyed operator is slower than its sources.

Parameters: ``output``, a directory; ``records`` of each of two sources. Checkpoints begin aligned
and are unaligned after ``TIMEOUT_MS``. Nothing is slow any more once there is a file beside the
output that says to hurry.
"""

import time
from pathlib import Path
from typing import Any

from tests.e2e.pipeline import hurry_file
from tests.spark.harness import numbered, tagged_union, to_files
from weir.common import Duration
from weir.datastream import MapFunction, StreamExecutionEnvironment

RATE = 400.0  # Of each source a second,
PAUSE_S = 0.008  # which is far more than two subtasks take that need so long for each record.
TIMEOUT_MS = 60


class Slowing(MapFunction):
    """Takes its time for each record, until the file is there."""

    def __init__(self, hurry: Path) -> None:
        self._hurry = hurry
        self._is_slow = True

    def map(self, value: Any) -> Any:
        if self._is_slow:
            time.sleep(PAUSE_S)
            self._is_slow = not self._hurry.exists()
        return value


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(300)
    config = env.get_checkpoint_config()
    config.enable_unaligned_checkpoints()
    config.set_aligned_checkpoint_timeout(Duration.of_millis(TIMEOUT_MS))
    output = Path(env.get_job_parameter("output", "output"))
    records = int(env.get_job_parameter("records", "1000"))
    hurry = hurry_file(output)
    stream = numbered(tagged_union(env, records, RATE, hurry=hurry))
    to_files(stream.map(Slowing(hurry)).uid("slow"), output)
    env.execute("overtaking")


if __name__ == "__main__":
    main()
