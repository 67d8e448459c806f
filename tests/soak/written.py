"""A program of the generator as part of a job whose outputs outlive their driver.

A sink that hands its rows to the driver ends with it, so the programs of a round end in Parquet
files: a row holds one record, as text. Their sources are slowed down, else nothing of a program
would be left to be killed. Slots import this module, so it knows nothing of how programs are drawn.
"""

import base64
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cloudpickle

from tests.programs.build import compiled, namespace
from tests.programs.values import parquet_of
from weir.common import Types
from weir.datastream import MapFunction, StreamExecutionEnvironment
from weir.datastream.connectors import ParquetSink

ROWS_A_SECOND = 3.0  # Of a source that has thirty at most.
ROW = Types.ROW_NAMED(["record"], [Types.STRING()])


class AsText(MapFunction):
    """A record as a row of text."""

    def map(self, value: Any) -> Any:
        return (base64.b64encode(cloudpickle.dumps(value)).decode(),)


def write(
    env: StreamExecutionEnvironment,
    text: str,
    outputs: Iterable[tuple[str, str, int | None]],
    directory: Path,
    inputs: Path,
) -> None:
    """Add a program to a job, whose outputs go to directories below ``directory``."""
    production = env.from_source

    def slowed(source: Any, *arguments: Any, **named: Any) -> Any:
        source.rows_per_second = ROWS_A_SECOND
        return production(source, *arguments, **named)

    names = namespace() | {"env": env, "parquet_of": partial(parquet_of, below=inputs)}
    with patch.object(env, "from_source", slowed):
        exec(compiled(text), names)
    for uid, stream, parallelism in outputs:
        name = f"{directory.name} {uid}"
        rows = names[stream].map(AsText(), ROW).uid(f"{name} text")
        files = rows.sink_to(ParquetSink(directory / uid)).uid(f"{name} files")
        if parallelism:  # As many subtasks as its stream has: else records are dealt out again.
            rows.set_parallelism(parallelism)
            files.set_parallelism(parallelism)
