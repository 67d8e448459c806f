"""A wrong program run as its author would run it, without Spark, and the words that come of it."""

import logging
import re
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

from weir import common, datastream
from weir.common.tracebacks import without_own_frames
from weir.datastream import connectors
from weir.datastream.execution import ExecutionOptions, overriding
from weir.spark.submit import IN_PROCESS

FILE = "pipeline.py"
SILENT = "(nothing was said)"
_NAMES = {
    name: getattr(module, name)
    for module in (common, datastream, connectors)
    for name in module.__all__
}
_JOB = re.compile(r"job \S+ failed: ")


@dataclass(frozen=True, slots=True)
class Wrong:
    """A program with a mistake, and the message expected.

    The program gets all names of Weir's API, ``env``, and ``directory``, an empty directory but for
    the file ``notes.txt``. Its first line is line 1 of ``pipeline.py``.
    """

    mistake: str
    program: str
    message: str


class _Said(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def run(program: str, directory: Path) -> tuple[list[str], str]:
    """Run a program; returns its warnings, and its error without Weir's frames, empty without."""
    (directory / "notes.txt").write_text("a file")
    said = _Said()
    logger = logging.getLogger("weir")
    logger.addHandler(said)
    names = {**_NAMES, "__name__": "__main__", "directory": str(directory)}
    names["env"] = datastream.StreamExecutionEnvironment.get_execution_environment()
    error = ""
    try:
        with overriding(ExecutionOptions(master=IN_PROCESS)), redirect_stdout(StringIO()):
            exec(compile(program.lstrip("\n"), FILE, "exec"), names)
    except Exception as raised:
        error = without_own_frames(str(raised))
    finally:
        logger.removeHandler(said)
    shown = [text.replace(str(directory), "DIRECTORY") for text in (*said.lines, error)]
    return shown[:-1], shown[-1]


def outcome(program: str, directory: Path) -> str:
    """The first line of a program's error, or its warnings, without the job's id."""
    warnings, error = run(program, directory)
    if error:
        return re.sub(r"[\w-]+-[0-9a-f]{8}", "JOB", _JOB.sub("", error.partition("\n")[0]))
    ours = [
        line for line in warnings if "driver's memory" not in line and " failed after " not in line
    ]
    return "\n".join(ours) or SILENT
