"""The next version of ``tests.e2e.pipeline``: the same operators, one with other code.

It writes ``writer`` plus ``VERSION``, so that a row says which version wrote it. Parameters beside
those of the first version: ``raises``, a file; where it is given, the code raises as it opens in a
worker process, once it has left that file. The preview, which opens it elsewhere, cannot know that.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.e2e.pipeline import hurry_file
from tests.spark.functions import Numbering, key_of
from tests.spark.harness import tagged_union, to_files
from weir.config import RestartConfig, RestartStrategyKind
from weir.datastream import RuntimeContext, StreamExecutionEnvironment

VERSION = 100


class NumberingAnew(Numbering):
    """Numbers records as the first version does, with its state."""

    def __init__(self, raises: str) -> None:
        self._raises = raises

    def open(self, runtime_context: RuntimeContext) -> None:
        super().open(runtime_context)
        self._subtask += VERSION
        is_worker = Path(sys.argv[0]).name == "template.py"
        if self._raises and is_worker:
            Path(self._raises).touch()
            raise ValueError("the new version has a bug")

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        yield from super().process_element(value, ctx)


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(300)
    env.set_restart_strategy(RestartConfig(kind=RestartStrategyKind.NONE))
    output = Path(env.get_job_parameter("output", "output"))
    records = int(env.get_job_parameter("records", "1000"))
    rate = float(env.get_job_parameter("rate", "1000"))
    numbering = NumberingAnew(env.get_job_parameter("raises", ""))
    stream = tagged_union(env, records, rate, hurry=hurry_file(output))
    to_files(stream.key_by(key_of).process(numbering).uid("numbering"), output)
    env.execute("kills")


if __name__ == "__main__":
    main()
