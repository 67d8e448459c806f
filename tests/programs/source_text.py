"""A program as Python source: what runs, and what a person may paste and run again."""

from tests.programs.model import Output, Program

PRELUDE = """\
import datetime as dt
from decimal import Decimal
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tests.programs.values import Colour, parquet_of
from weir.common import *
from weir.datastream import *
from weir.datastream.connectors import *
"""

MAIN = """
if __name__ == "__main__":
    from tests.programs.check import show
    from tests.programs.run import Variation

    show(__file__, {variation})
"""


def body_of(program: Program) -> str:
    """The statements that build the pipeline in an environment called ``env``."""
    stages = "\n".join(stage.text for stage in program.stages)
    sinks = "".join(map(_sink, program.outputs))
    return f"{stages}\n{sinks}"


def _sink(output: Output) -> str:
    # As many subtasks as its stream has: otherwise the records would be dealt out once more.
    tuned = f".set_parallelism({output.parallelism})" if output.parallelism else ""
    return f'{output.stream}.sink_to(CollectSink()).uid("{output.uid}"){tuned}\n'


def script_of(program: Program, variation: object) -> str:
    """A whole script, which prints both results when it is run."""
    environment = "env = StreamExecutionEnvironment.get_execution_environment()\n"
    main = MAIN.format(variation=variation)
    return f"{PRELUDE}\n{environment}\n{body_of(program)}{main}"
