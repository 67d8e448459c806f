"""Arguments of the command line. Imports nothing heavy, so that --help is immediate."""

import argparse
import json
import re
from argparse import ArgumentParser, ArgumentTypeError, Namespace, RawDescriptionHelpFormatter
from pathlib import Path
from typing import Any, TypeAlias

import weir
from weir.cli.script_arguments import CommandParser
from weir.cli.up import MANAGE_EPILOG, UP_EPILOG, add_manage, add_up
from weir.errors import ConfigError

Commands: TypeAlias = "argparse._SubParsersAction[CommandParser]"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h)?")
_UNIT_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000}
_STATE_ROWS = 20
_SAVEPOINT_TIMEOUT = "10min"
_MODE_SECONDS, _MODE_TIMEOUT = 20, "200ms"
_JOB_HELP = "the job's directory in its checkpoint storage: STORAGE/JOB"

_RUN_EPILOG = """\
examples:
  weir run pipeline.py
  weir run pipeline.py --master in-process                  in a second, without Spark: to try it
  weir run pipeline.py --input in.txt                       the script's own arguments
  weir run pipeline.py --parallelism 4 --interval 1s --storage /shared/checkpoints
  weir run pipeline.py --storage /shared/checkpoints --restore latest
  weir run pipeline.py --restore /shared/checkpoints/my-job-1a2b3c4d/chk-7
  weir run weir.examples.flights --master spark://host:7077 --arg output=/shared/flights

stop with a savepoint and resume later, here with another parallelism:
  uri=$(weir stop /shared/checkpoints/my-job-1a2b3c4d)
  weir preview pipeline.py --restore "$uri" --parallelism 8
  weir run pipeline.py --storage /shared/checkpoints --restore "$uri" --parallelism 8

fork: a second version beside the first job, which keeps running:
  uri=$(weir savepoint /shared/checkpoints/my-job-1a2b3c4d)
  weir run new.py --storage /shared/checkpoints --restore "$uri" --as-new-job --arg output=/b

roll back to an older checkpoint; later output of file sinks is withdrawn and can be brought back:
  weir run pipeline.py --storage /shared/checkpoints --restore .../my-job-1a2b3c4d/chk-4

Options given here override the script's settings. A job that restores a checkpoint from its own
--storage keeps its id; restored from another storage it is a new job. Progress goes to standard
error: a live table in a terminal, else a line per change and checkpoint. Ctrl-C cancels the job.

exit codes:
  0    the job finished
  1    the job failed; its cause is printed
  2    the arguments or the pipeline are wrong; nothing ran
  130  the job was cancelled with Ctrl-C
"""

_SCRIPT_EPILOG = """\
arguments of the script:
  Options of this command stand before or behind PIPELINE. All else behind it is the script's, as
  "python script.py ..." would give it, and so is all behind --, options of this command included:
    weir run script.py --input in.txt --parallelism 2
    weir run script.py -- --input in.txt --parallelism 7
  --arg KEY=VALUE is another way: env.get_job_parameter reads it, and functions do on the workers.
"""

_SAVEPOINT_EPILOG = """\
examples:
  weir savepoint /shared/checkpoints/my-job-1a2b3c4d
  weir savepoint /shared/checkpoints/my-job-1a2b3c4d --name before-upgrade --timeout 30min
  weir savepoint /shared/checkpoints/my-job-1a2b3c4d --to /backup/savepoints
  uri=$(weir savepoint /shared/checkpoints/my-job-1a2b3c4d) && cp -r "$uri" /elsewhere
  weir savepoint --delete /shared/checkpoints/savepoints/my-job-1a2b3c4d/before-upgrade

A savepoint is a checkpoint with a name and a directory of its own, which may be moved and never
expires. The request reaches the job through its checkpoint storage, and the job keeps running. The
savepoint's URI goes to standard output, everything else to standard error. If a control plane runs
the job, take and delete its savepoints there.

exit codes:
  0    the savepoint was taken (or deleted)
  1    the savepoint failed and the job keeps running; or the storage failed; or the deletion was
       not confirmed
  2    the arguments are wrong, or a job needs the savepoint; nothing was requested or deleted
  3    the savepoint did not complete in time; the message says whether it still may
  130  Ctrl-C; the request was withdrawn, unless the driver had taken it
"""

_STOP_EPILOG = """\
examples:
  weir stop /shared/checkpoints/my-job-1a2b3c4d                      to resume later
  weir stop /shared/checkpoints/my-job-1a2b3c4d --drain              for good; windows close
  uri=$(weir stop /shared/checkpoints/my-job-1a2b3c4d) &&
    weir run pipeline.py --storage /shared/checkpoints --restore "$uri" --parallelism 8

The job takes a savepoint, commits the output up to it and ends; it processes no record after it.
With --drain its sources end first, as at the end of their input: event time advances to its end,
timers fire and windows close. A job restored from that savepoint starts event time anew, so a
record of a closed window opens that window again. If the savepoint fails, the job keeps running
(with --drain: from its newest checkpoint). The savepoint's URI goes to standard output.

exit codes:
  0    the savepoint was taken and the job has ended
  1    the savepoint, the stop or the storage failed; a savepoint that was taken is named
  2    the arguments are wrong; nothing was requested
  3    the savepoint did not complete in time; the message says whether it still may
  130  Ctrl-C; the request was withdrawn, unless the driver had taken it
"""

_PREVIEW_EPILOG = """\
examples:
  weir preview pipeline.py --restore /shared/checkpoints/my-job-1a2b3c4d/chk-7
  weir preview new.py --restore /backup/savepoints/before-upgrade --parallelism 8 --json

Builds the pipeline without running it and compares it with the checkpoint or savepoint, operator by
operator and state by state: kept, new, dropped, changed, or impossible.

exit codes:
  0  a restore would work
  1  a restore would be refused; or the storage cannot be read
  2  the arguments or the pipeline are wrong
"""

_COMPARE_EPILOG = """\
examples:
  weir compare /out/origin/hourly /out/fork/hourly --key carrier --window window_start
  weir compare /out/a /out/b --key id --limit 3
  weir compare /out/a /out/b --json

LEFT and RIGHT are directories of Parquet sinks. Rows are matched by --key and --window together;
without --key by all columns that hold no floating point numbers, so that a wrong count shows as two
rows, one on each side. With --window only windows that both sides have reached are compared: rows
before the other side's first window or after its last one are counted separately.

exit codes:
  0  the outputs are equal
  1  the outputs differ, or a file cannot be read
  2  the arguments are wrong
"""

_COMPARE_MODES_EPILOG = """\
examples:
  weir compare-modes pipeline.py
  weir compare-modes pipeline.py --seconds 30 --rounds 3 --html modes.html
  weir compare-modes pipeline.py --modes aligned,unaligned --interval 500ms --json
  weir compare-modes pipeline.py --master spark://host:7077 --storage /shared/trials

Runs the pipeline once in every mode, one run after the other: without checkpoints (none),
stop-the-world, aligned, at-least-once, unaligned, and timeout: aligned first, unaligned once
--timeout has passed since the trigger. A job that does not end by itself is cancelled after
--seconds. Each run is a new job without state of its own, with checkpoints and file output in a
directory of its own that is deleted afterwards; what the pipeline's functions do outside of Weir
they do in every run. Lines of print() are dropped. Rates leave out the first fifth of a run.

"barrier to sinks" is the time from the trigger until a sink's subtask had its last barrier. Where
barriers are aligned a record takes as long; unaligned ones overtake the records, whose latency is
then not measured.

exit codes:
  0    every run finished, or was cancelled after its time
  1    a run failed; its cause is printed
  2    the arguments or the pipeline are wrong; nothing ran
  130  Ctrl-C
"""

_CHECKPOINTS_EPILOG = """\
examples:
  weir checkpoints /shared/checkpoints                      all jobs
  weir checkpoints /shared/checkpoints/my-job-1a2b3c4d      one job
  weir checkpoints /shared/checkpoints --json | jq '.jobs[].checkpoints[0]'

Savepoints are listed with their names and directories. A checkpoint is abandoned once its job was
restored from an older one; it can be restored by its path until it is deleted.

exit codes:
  0  no checkpoint is damaged (with --no-verify: no manifest)
  1  a checkpoint is damaged, or the storage cannot be read
  2  there is no checkpoint storage at URI
"""

_CLEAN_EPILOG = """\
examples:
  weir clean /shared/checkpoints --dry-run                  all jobs: show, delete nothing
  weir clean /shared/checkpoints/my-job-1a2b3c4d            one job

Deletes what killed, failed and refused jobs left: state of checkpoints that were not completed,
uncommitted output that no checkpoint covers, and all records of a job that has nothing to be
restored. Checkpoints and savepoints that can be restored stay, with all that they need, and so do
files in doubt. A job whose driver lives is left alone, and one whose driver cannot be seen from
this machine, unless --driver-is-gone is given. Running jobs need no cleaning.

exit codes:
  0  nothing is left that nothing needs (with --dry-run: the listing is complete)
  1  a job was left alone, the deletion was not confirmed, or the storage failed
  2  there is no job at URI, or the deletion was refused; the message says why
"""

_DOCTOR_EPILOG = """\
examples:
  weir doctor
  weir doctor --master in-process --storage checkpoints
  weir doctor --master spark://host:7077 --storage /shared/checkpoints

Checks Python, packages, Java, ports and the clock, the storage if one is given (a file is created
if absent, synced, read and deleted), and with Spark's --master the same on its workers, by a small
job. Each check is one line, which begins with ok or wrong.

exit codes:
  0  all is well
  1  something is wrong; its line says what to do
"""

_INSPECT_EPILOG = """\
examples:
  weir inspect /shared/checkpoints/my-job-1a2b3c4d/chk-7
  weir inspect .../chk-7 --state sum-1                      all state of an operator
  weir inspect .../chk-7 --state sum-1/totals --limit 100   one state
  weir inspect .../chk-7 --json
  weir inspect /backup/savepoints/before-upgrade            a savepoint, also after it was moved

exit codes:
  0  no piece of state is damaged (or --no-verify was given)
  1  a piece of state is damaged, or the storage cannot be read
  2  there is no completed checkpoint or savepoint at URI, or it has no such state
"""


class _ShowVersion(argparse.Action):
    """Prints the version. argparse's own takes it as a text, which 27 ms go into at each start."""

    def __call__(self, parser: ArgumentParser, *_: Any) -> None:
        print(f"weir {weir.__version__}")
        parser.exit()


def parser() -> ArgumentParser:
    """The parser of the whole command line."""
    whole = ArgumentParser(
        prog="weir",
        description="Stateful streaming on Spark: run pipelines, take savepoints and restore "
        "them, inspect checkpoints.",
    )
    whole.add_argument("--version", action=_ShowVersion, nargs=0, help="show the version and exit")
    commands = whole.add_subparsers(
        dest="command", required=True, metavar="COMMAND", parser_class=CommandParser
    )
    _add_run(commands)
    _add_savepoint(commands)
    _add_stop(commands)
    _add_preview(commands)
    _add_checkpoints(commands)
    _add_clean(commands)
    _add_inspect(commands)
    _add_compare(commands)
    _add_compare_modes(commands)
    _add_doctor(commands)
    add_up(_command(commands, "up", "start a control plane on this machine", UP_EPILOG))
    add_manage(_command(commands, "manage", "run a command of the control plane", MANAGE_EPILOG))
    return whole


def duration_ms(text: str) -> int:
    """Milliseconds from ``1s``, ``500ms``, ``2min`` or a plain number of milliseconds."""
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise ArgumentTypeError(f"{text!r} is no duration; give for example 500ms, 1s or 2min")
    return round(float(match[1]) * _UNIT_MS[match[2] or "ms"])


def positive(text: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} is no whole number of at least 1")
    return int(text)


def key_value(text: str) -> tuple[str, str]:
    """Key and value of ``key=value``."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ArgumentTypeError(f"{text!r} is not of the form key=value")
    return key, value


def _add_run(commands: Commands) -> None:
    run = _command(
        commands, "run", "run a pipeline and show its progress", _RUN_EPILOG, runs_script=True
    )
    run.add_argument(
        "--master",
        help="in-process: this process, without Spark, which starts in a second; or Spark's "
        "master: local[2], spark://host:7077, yarn ... (default: local Spark, a core per slot)",
    )
    run.add_argument("--parallelism", type=positive, metavar="N", help="subtasks per operator")
    run.add_argument(
        "--interval",
        type=duration_ms,
        metavar="TIME",
        help="time between checkpoints: 1s, 500ms or 1000 (in milliseconds)",
    )
    run.add_argument(
        "--mode",
        choices=("exactly-once", "at-least-once", "stop-the-world"),
        help="after a restore each record counts exactly once, or at least once; stop-the-world: "
        "exactly once, and the pipeline pauses until the checkpoint is written",
    )
    run.add_argument(
        "--storage",
        metavar="DIR",
        help="directory of the checkpoints; all machines of the job must reach it",
    )
    run.add_argument(
        "--restore",
        metavar="latest|URI",
        help="start from the job's newest checkpoint (latest), or from the checkpoint "
        "(.../<job>/chk-7) or savepoint (its directory, also after a move) at URI",
    )
    run.add_argument(
        "--as-new-job",
        action="store_true",
        help="with --restore URI: run as a job of its own under a new id (a fork); give it "
        "another output",
    )
    run.add_argument(
        "--keep-output",
        action="store_true",
        help="with --restore: keep output that file sinks committed after that checkpoint. The "
        "job writes those rows again, so they are there twice; by default they are withdrawn",
    )
    run.add_argument(
        "--claim",
        action="store_true",
        help="with --restore URI of a savepoint: the job owns the savepoint from now on and "
        "deletes it once it no longer needs it; pending output of the savepoint's former job is "
        "committed",
    )
    run.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="restore even if the checkpoint holds state of operators that the pipeline lacks; "
        "that state is dropped",
    )
    run.add_argument(
        "--allow-pickled-state",
        action="store_true",
        help="let the pipeline pickle state and records that are no data; reading them runs code "
        "that is in them",
    )
    run.add_argument("--events", metavar="FILE", help="write every event to FILE as JSON lines")
    _add_arguments_of_pipeline(run)


def _add_arguments_of_pipeline(command: ArgumentParser) -> None:
    command.add_argument(
        "--arg",
        type=key_value,
        action="append",
        default=[],
        dest="args",
        metavar="KEY=VALUE",
        help="an argument of the pipeline, read by env.get_job_parameter; may be repeated",
    )
    command.add_argument(
        "--args-file",
        type=Path,
        metavar="FILE",
        help="further arguments of the pipeline, as a JSON object of texts: for values that other "
        "users of this machine must not see, since they can read command lines",
    )


def pipeline_parameters(given: Namespace) -> dict[str, str]:
    """The pipeline's arguments: those of ``--args-file``, and over them those of ``--arg``.

    Raises:
        ConfigError: The file cannot be read, or is no JSON object of texts.
    """
    file: Path | None = vars(given).get("args_file")
    parameters: dict[str, str] = {}
    if file is not None:
        try:
            parameters = json.loads(file.read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"--args-file {file} cannot be read: {error}") from error
        if type(parameters) is not dict or any(type(one) is not str for one in parameters.values()):
            raise ConfigError(
                f"--args-file {file} is no JSON object of texts; write for example "
                '{"rate": "100"}'
            )
    return {**parameters, **dict(given.args)}


def _add_savepoint(commands: Commands) -> None:
    savepoint = _command(
        commands, "savepoint", "take a savepoint of a running job", _SAVEPOINT_EPILOG
    )
    savepoint.add_argument("job", nargs="?", metavar="JOB", help=_JOB_HELP)
    _add_asking(savepoint)
    savepoint.add_argument(
        "--delete",
        metavar="URI",
        help="delete this savepoint instead, after showing it and asking for confirmation",
    )
    savepoint.add_argument("--yes", action="store_true", help="with --delete: do not ask")


def _add_stop(commands: Commands) -> None:
    stop = _command(commands, "stop", "stop a running job with a savepoint", _STOP_EPILOG)
    stop.add_argument("job", metavar="JOB", help=_JOB_HELP)
    stop.add_argument(
        "--drain",
        action="store_true",
        help="end the sources first, so that timers fire and windows close",
    )
    _add_asking(stop)


def _add_asking(command: ArgumentParser) -> None:
    command.add_argument(
        "--name",
        help="the savepoint's name; by default the job's id, the time in UTC and a random suffix",
    )
    command.add_argument(
        "--to",
        metavar="DIR",
        help="write it to DIR/NAME instead of <storage>/savepoints/<job>/NAME; all machines of "
        "the job must reach DIR",
    )
    command.add_argument(
        "--timeout",
        type=duration_ms,
        default=_SAVEPOINT_TIMEOUT,
        metavar="TIME",
        help=f"wait this long for the savepoint (default {_SAVEPOINT_TIMEOUT})",
    )


def _add_preview(commands: Commands) -> None:
    preview = _command(
        commands,
        "preview",
        "show what a restore into a pipeline would do",
        _PREVIEW_EPILOG,
        runs_script=True,
    )
    preview.add_argument(
        "--restore", required=True, metavar="URI", help="the checkpoint or savepoint"
    )
    preview.add_argument(
        "--parallelism", type=positive, metavar="N", help="subtasks per operator, as in weir run"
    )
    preview.add_argument(
        "--allow-non-restored-state",
        action="store_true",
        help="as in weir run: drop state of operators that the pipeline lacks",
    )
    preview.add_argument(
        "--allow-pickled-state",
        action="store_true",
        help="as in weir run: let the pipeline declare pickled state; the preview loads none",
    )
    preview.add_argument(
        "--origin-is-over",
        action="store_true",
        help="assume that the checkpoint's job has ended; by default the job's storage decides",
    )
    _add_arguments_of_pipeline(preview)
    preview.add_argument("--json", action="store_true", help="print one JSON document")


def _add_compare(commands: Commands) -> None:
    compare = _command(commands, "compare", "compare the output of two jobs", _COMPARE_EPILOG)
    for name in ("left", "right"):
        compare.add_argument(
            name, metavar=name.upper(), help="the output directory of a Parquet sink"
        )
    compare.add_argument(
        "--key",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a key column by which rows are matched; may be repeated",
    )
    compare.add_argument(
        "--window",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a window column; the first one is each output's progress; may be repeated",
    )
    compare.add_argument(
        "--limit",
        type=positive,
        default=_STATE_ROWS,
        metavar="N",
        help=f"differences to print (default {_STATE_ROWS})",
    )
    compare.add_argument("--json", action="store_true", help="print one JSON document")


def _add_compare_modes(commands: Commands) -> None:
    modes = _command(
        commands,
        "compare-modes",
        "run a pipeline in every mode of checkpoints and compare",
        _COMPARE_MODES_EPILOG,
        runs_script=True,
    )
    modes.add_argument(
        "--master", help="as in weir run; in-process: without Spark, in this process"
    )
    modes.add_argument("--parallelism", type=positive, metavar="N", help="subtasks per operator")
    modes.add_argument(
        "--modes",
        metavar="A,B,...",
        help="only these modes: none, stop-the-world, aligned, at-least-once, unaligned, timeout",
    )
    modes.add_argument(
        "--seconds",
        type=positive,
        default=_MODE_SECONDS,
        metavar="N",
        help=f"cancel a run after so many seconds (default {_MODE_SECONDS})",
    )
    modes.add_argument(
        "--rounds",
        type=positive,
        default=1,
        metavar="N",
        help="run every mode so many times, in alternating order, since machines are noisy "
        "(default 1)",
    )
    modes.add_argument(
        "--interval",
        type=duration_ms,
        metavar="TIME",
        help="time between checkpoints (default: the pipeline's own, or 1s)",
    )
    modes.add_argument(
        "--timeout",
        type=duration_ms,
        default=_MODE_TIMEOUT,
        metavar="TIME",
        help=f"time-out of the mode timeout (default {_MODE_TIMEOUT})",
    )
    modes.add_argument(
        "--storage",
        metavar="DIR",
        help="make the runs' directories below DIR, which all machines of the job must reach "
        "(default: the temporary directory of this machine)",
    )
    modes.add_argument(
        "--allow-pickled-state",
        action="store_true",
        help="as in weir run: let the pipeline pickle state and records that are no data",
    )
    modes.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts to FILE")
    _add_arguments_of_pipeline(modes)
    modes.add_argument("--json", action="store_true", help="print one JSON document")


def _add_doctor(commands: Commands) -> None:
    doctor = _command(
        commands, "doctor", "check whether jobs can run here, and on a cluster", _DOCTOR_EPILOG
    )
    doctor.add_argument(
        "--master", help="as in weir run; the workers of Spark's master are asked as well"
    )
    doctor.add_argument(
        "--storage",
        metavar="DIR",
        help="check that checkpoints can be written to DIR, here and from the workers",
    )


def _add_checkpoints(commands: Commands) -> None:
    listing = _command(
        commands,
        "checkpoints",
        "list jobs, checkpoints and savepoints of a storage",
        _CHECKPOINTS_EPILOG,
    )
    listing.add_argument(
        "uri", metavar="URI", help="a checkpoint storage, or a job's directory in it"
    )
    _add_reading(listing)


def _add_clean(commands: Commands) -> None:
    clean = _command(commands, "clean", "delete files of jobs that nothing needs", _CLEAN_EPILOG)
    clean.add_argument(
        "uri", metavar="URI", help="a checkpoint storage, or a job's directory in it"
    )
    clean.add_argument("--dry-run", action="store_true", help="show the files, delete nothing")
    clean.add_argument("--yes", action="store_true", help="do not ask")
    clean.add_argument(
        "--driver-is-gone",
        action="store_true",
        help="no driver runs the job, although this machine cannot tell",
    )


def _add_inspect(commands: Commands) -> None:
    look = _command(
        commands, "inspect", "show what a checkpoint or savepoint consists of", _INSPECT_EPILOG
    )
    look.add_argument(
        "uri",
        metavar="URI",
        help="the directory of a checkpoint (.../<job>/chk-7) or of a savepoint",
    )
    look.add_argument(
        "--state",
        metavar="OPERATOR[/NAME]",
        help="print the state of the operator with this uid, or its state NAME alone",
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
        "--no-verify", action="store_true", help="do not read the state files (faster)"
    )
    command.add_argument("--json", action="store_true", help="print one JSON document")


def _command(
    commands: Commands, name: str, does: str, epilog: str, *, runs_script: bool = False
) -> ArgumentParser:
    if runs_script:
        epilog = f"{epilog}\n{_SCRIPT_EPILOG}"
    command = commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog=epilog,
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
        runs_script=runs_script,
    )
    if runs_script:
        command.add_argument("pipeline", help="a script, or the name of an importable module")
    return command
