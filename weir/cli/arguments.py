"""What may be given on the command line. Imports nothing heavy, so that --help is immediate."""

import argparse
import re
from argparse import ArgumentParser, ArgumentTypeError, RawDescriptionHelpFormatter
from importlib.metadata import version

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)?")
_UNIT_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}
_STATE_ROWS = 20

_RUN_EPILOG = """\
examples:
  weir run pipeline.py
  weir run pipeline.py --parallelism 4 --interval 1s --storage /shared/checkpoints
  weir run pipeline.py --storage /shared/checkpoints --restore latest
  weir run pipeline.py --restore /shared/checkpoints/my-job-1a2b3c4d/chk-7
  weir run weir.examples.flights --master spark://host:7077 --arg output=/shared/flights

What is given here goes over what the script sets. Progress goes to standard error: a live
table in a terminal, else a line per change and checkpoint. Ctrl-C cancels the job.

exit codes:
  0    the job finished
  1    the job failed; its cause is printed
  2    the arguments or the pipeline are wrong; nothing ran
  130  the job was cancelled with Ctrl-C
"""

_CHECKPOINTS_EPILOG = """\
examples:
  weir checkpoints /shared/checkpoints                      all jobs
  weir checkpoints /shared/checkpoints/my-job-1a2b3c4d      one job
  weir checkpoints /shared/checkpoints --json | jq '.jobs[].checkpoints[0]'

exit codes:
  0  everything is whole (or was not verified)
  1  something is damaged, or the storage cannot be read
  2  there is no checkpoint storage at URI
"""

_INSPECT_EPILOG = """\
examples:
  weir inspect /shared/checkpoints/my-job-1a2b3c4d/chk-7
  weir inspect .../chk-7 --state sum-1                      all state of an operator
  weir inspect .../chk-7 --state sum-1/totals --limit 100   one state
  weir inspect .../chk-7 --json

exit codes:
  0  everything is whole (or was not verified)
  1  something is damaged, or the storage cannot be read
  2  there is no completed checkpoint at URI, or it has no such state
"""


def parser() -> ArgumentParser:
    """The parser of the whole command line."""
    whole = ArgumentParser(
        prog="weir",
        description="Stateful streaming on Spark: run pipelines, look at their checkpoints.",
    )
    whole.add_argument("--version", action="version", version=f"weir {version('weir-streaming')}")
    commands = whole.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    _add_checkpoints(commands)
    _add_inspect(commands)
    return whole


def duration_ms(text: str) -> int:
    """Milliseconds from ``1s``, ``500ms``, ``2min`` or a plain number of milliseconds."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ArgumentTypeError(f"{text!r} is no duration; give for example 500ms, 1s or 2min")
    return round(float(found[1]) * _UNIT_MS[found[2] or "ms"])


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def key_value(text: str) -> tuple[str, str]:
    """The two sides of ``key=value``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def _add_run(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    run = _command(commands, "run", "run a pipeline and show its progress", _RUN_EPILOG)
    run.add_argument("pipeline", help="a script, or the name of a module that can be imported")
    run.add_argument("--master", help="Spark's: local[2], spark://host:7077, yarn ...")
    run.add_argument("--parallelism", type=positive, metavar="N", help="subtasks per operator")
    run.add_argument(
        "--interval", type=duration_ms, metavar="TIME", help="between checkpoints: 1s, 500ms, 1000"
    )
    run.add_argument(
        "--mode",
        choices=("exactly-once", "at-least-once"),
        help="what a restore may do to a record",
    )
    run.add_argument(
        "--storage", metavar="DIR", help="where checkpoints are kept; all machines must reach it"
    )
    run.add_argument(
        "--restore", metavar="latest|URI", help="begin with the job's newest checkpoint, or this"
    )
    run.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="restore although the checkpoint has state of operators that are gone",
    )
    run.add_argument(
        "--allow-pickled-state",
        action="store_true",
        help="let state be declared as pickles; restoring those runs code",
    )
    run.add_argument("--events", metavar="FILE", help="write every event to FILE as JSON lines")
    run.add_argument(
        "--arg",
        type=key_value,
        action="append",
        default=[],
        dest="args",
        metavar="KEY=VALUE",
        help="an argument of the pipeline (env.get_job_parameter); may be repeated",
    )


def _add_checkpoints(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    listing = _command(
        commands, "checkpoints", "list jobs and checkpoints of a storage", _CHECKPOINTS_EPILOG
    )
    listing.add_argument("uri", metavar="URI", help="a checkpoint storage, or a job's directory")
    _add_reading(listing)


def _add_inspect(commands: "argparse._SubParsersAction[ArgumentParser]") -> None:
    look = _command(commands, "inspect", "show what a checkpoint consists of", _INSPECT_EPILOG)
    look.add_argument("uri", metavar="URI", help="the directory of a checkpoint: .../<job>/chk-7")
    look.add_argument(
        "--state", metavar="OPERATOR[/NAME]", help="print the state of an operator, by its uid"
    )
    look.add_argument(
        "--limit",
        type=positive,
        default=_STATE_ROWS,
        metavar="N",
        help=f"rows of state to print (default {_STATE_ROWS})",
    )
    _add_reading(look)


def _add_reading(command: ArgumentParser) -> None:
    command.add_argument(
        "--no-verify", action="store_true", help="do not read the state files; fast"
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def _command(
    commands: "argparse._SubParsersAction[ArgumentParser]", name: str, does: str, epilog: str
) -> ArgumentParser:
    return commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
