"""``weir compare-modes``: one pipeline run in every mode of checkpoints, side by side.

Each run executes the script anew, which only builds the pipeline, and then runs its job as a new
one with checkpoints and file output in a directory of its own. Standard output belongs to the
comparison alone.
"""

import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from rich.console import Console

from weir.cli import formats
from weir.cli.arguments import pipeline_parameters
from weir.cli.mode_page import plotly_bundle, write_page
from weir.cli.output import console, print_json, table
from weir.cli.preview import own_output
from weir.cli.uri import absolute
from weir.common.tracebacks import without_own_frames
from weir.datastream.execution import CapturedJob, ExecutionOptions
from weir.errors import ConfigError, UserError, WeirError
from weir.graph.physical import ExecutionGraph
from weir.protocol.lifecycle import JobStatus
from weir.spark_master import MasterKind, SparkMaster
from weir.tools.checkpoint_modes import MODES, Mode, modes_named
from weir.tools.mode_figures import ModeFigures, Percentiles, RunFigures, RunMeter, Spread, combine
from weir.tools.pipeline_scripts import as_python_would, explained, find_script
from weir.tools.restore_preview import capture_pipeline

COMPARED, RUN_FAILED, WRONG_USE, INTERRUPTED = 0, 1, 2, 130
INTERVAL_MS = 1_000  # Of a pipeline that takes no checkpoints by itself.
CHECKPOINTS_MIN = 2  # Intervals that a run must have room for.


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The setting of all runs, and the figures of each mode."""

    pipeline: str
    job: str
    master: str
    parallelism: int
    seconds_max: int
    rounds: int
    interval_ms: int
    timeout_ms: int
    modes: tuple[ModeFigures, ...]


class _InterruptedError(Exception):
    """Ctrl-C has cancelled a run."""


def run(arguments: Namespace) -> int:
    """Run the pipeline in every mode, print the comparison and return the exit code.

    Raises:
        UserError: The arguments or the pipeline are wrong; nothing ran.
    """
    modes = (
        MODES
        if arguments.modes is None
        else modes_named([name.strip() for name in arguments.modes.split(",")])
    )
    storage = _storage(arguments.storage, arguments.master)
    bundle = None if arguments.html is None else plotly_bundle()
    if arguments.html is not None and not arguments.html.absolute().parent.is_dir():
        raise ConfigError(f"--html: there is no directory {arguments.html.absolute().parent}")
    trial = _Trial(arguments, find_script(arguments.pipeline))
    with own_output() as out:
        try:
            comparison = trial.compare(modes, storage)
        except _InterruptedError:
            return INTERRUPTED
        except WeirError:
            raise
        except Exception as error:  # The user's script may raise anything.
            _say(explained(error).rstrip())
            _say("weir: the pipeline raised this before its job started")
            return WRONG_USE
        if bundle is not None:
            write_page(arguments.html, bundle, document(comparison), rows(comparison))
        if arguments.json:
            print_json(document(comparison), out)
        else:
            _print(console(out), comparison)
        out.flush()
    return RUN_FAILED if any(mode.failures for mode in comparison.modes) else COMPARED


def document(comparison: Comparison) -> dict[str, Any]:
    """The comparison as a JSON document; see ``mode_figures`` for meaning and units."""
    return asdict(comparison)


def _storage(given: str | None, master: str | None) -> str | None:
    if given is None:
        known = SparkMaster.parse(master or "local")
        if not known.is_on_this_machine and known.kind is not MasterKind.OTHER:
            raise ConfigError(
                f"--master {master} has other machines: give --storage with a directory that all "
                "of them reach, below which the runs keep checkpoints and output"
            )
        return None
    directory = absolute(given)
    if not os.path.isdir(directory):
        raise ConfigError(f"--storage: there is no directory {directory}")
    return directory


class _Trial:
    """The runs of one pipeline."""

    def __init__(self, arguments: Namespace, script: Path | None) -> None:
        self._given = arguments
        self._script = script
        self._submit = _runner()

    def compare(self, modes: tuple[Mode, ...], storage: str | None) -> Comparison:
        """Run every mode in every round; the order of modes alternates.

        Raises:
            UserError: The script runs no job, or several; or the settings contradict each other.
            Exception: Raised by the script before its job.
        """
        given = self._given
        with TemporaryDirectory(prefix="weir-compare-modes-", dir=storage) as root:
            first = self._capture(Path(root, "first"), _explain_rest)
            interval_ms = given.interval or first.config.checkpoints.interval_ms or INTERVAL_MS
            self._check(first, modes, interval_ms)
            measured: dict[str, list[RunFigures]] = {mode.name: [] for mode in modes}
            with self._session(first):
                for number in range(given.rounds):
                    for mode in modes if number % 2 == 0 else reversed(modes):
                        _say(
                            f"weir: round {number + 1} of {given.rounds}: {mode.title}, "
                            f"{given.seconds} s at most"
                        )
                        with TemporaryDirectory(dir=root) as name:
                            figures = self._run(mode, Path(name), interval_ms)
                        if figures.failure:
                            _say(f"weir: {figures.failure}")
                        measured[mode.name].append(figures)
        return Comparison(
            pipeline=given.pipeline,
            job=first.config.name,
            master=given.master or "local",
            parallelism=first.config.parallelism,
            seconds_max=given.seconds,
            rounds=given.rounds,
            interval_ms=interval_ms,
            timeout_ms=given.timeout,
            modes=tuple(combine(m.name, m.title, measured[m.name]) for m in modes),
        )

    def _capture(
        self, directory: Path, explain: Callable[[Exception], None] = lambda error: None
    ) -> CapturedJob:
        """The pipeline's only job, with its files below ``directory``.

        ``explain`` gets an exception that the script raised after its job.
        """
        options = ExecutionOptions(
            parallelism=self._given.parallelism,
            parameters=pipeline_parameters(self._given),
            allow_pickled_state=self._given.allow_pickled_state or None,
            storage=str(directory / "checkpoints"),
            output=str(directory / "output"),
        )
        jobs = capture_pipeline(
            self._given.pipeline,
            self._script,
            options,
            explain=explain,
            arguments=self._given.script_arguments,
        )
        if len(jobs) > 1:
            names = ", ".join(repr(job.config.name) for job in jobs)
            raise UserError(f"the script runs several jobs, {names}; only one can be compared")
        return jobs[0]

    def _check(self, job: CapturedJob, modes: tuple[Mode, ...], interval_ms: int) -> None:
        """Refuse settings that would make a run fail or measure nothing."""
        for mode in modes:
            mode.over(
                job.config.checkpoints, interval_ms=interval_ms, timeout_ms=self._given.timeout
            )
        seconds = self._given.seconds
        if interval_ms * CHECKPOINTS_MIN > seconds * 1_000:
            raise ConfigError(
                f"in {seconds} s there are not {CHECKPOINTS_MIN} checkpoints at an interval of "
                f"{formats.duration(interval_ms)}; give a shorter --interval or more --seconds"
            )

    @contextmanager
    def _session(self, job: CapturedJob) -> Iterator[None]:
        """The Spark session that all runs share, so that none has to wait for its start."""
        master = self._given.master
        if master == self._submit.IN_PROCESS:
            yield
            return
        slots = ExecutionGraph(job.graph).slot_count + job.config.spare_slots
        spark, owned = self._submit.open_session(master, slots, job.graph.name)
        try:
            yield
        finally:
            if owned:
                spark.stop()

    def _run(self, mode: Mode, directory: Path, interval_ms: int) -> RunFigures:
        """One run in one mode."""
        job = self._capture(directory)
        checkpoints = mode.over(
            job.config.checkpoints, interval_ms=interval_ms, timeout_ms=self._given.timeout
        )
        config = replace(job.config, checkpoints=checkpoints)
        meter = RunMeter(job.graph, time.monotonic, self._given.seconds)
        options = ExecutionOptions(master=self._given.master, is_enough=meter.is_enough)
        self._submit.listen(meter.on_event)
        failure = ""
        try:
            with (
                _without_prints(),
                as_python_would(self._script, self._given.script_arguments),
            ):
                result = self._submit.execute(job.graph, config, options)
            if result.history.status is JobStatus.CANCELED and not meter.is_enough():
                raise _InterruptedError
        except WeirError as error:  # The other modes may do better.
            failure = without_own_frames(str(error))
        finally:
            self._submit.unlisten(meter.on_event)
        return meter.figures(failure)


def _runner() -> ModuleType:
    try:
        from weir.spark import submit
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise UserError(
            "running a pipeline needs pyspark, which this Python does not have: pip install pyspark"
        ) from error
    return submit


@contextmanager
def _without_prints() -> Iterator[None]:
    with open(os.devnull, "w") as nothing, redirect_stdout(nothing):
        yield


def _explain_rest(error: Exception) -> None:
    """Tell once that only the job is compared, not what the script does with its result."""
    _say(explained(error).rstrip())
    _say("weir: the script raised this after its job, whose result it does not get here; go on")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


# As text.

Cell = Callable[[ModeFigures], str]


def _rate(spread: Spread | None) -> str:
    return "-" if spread is None else formats.rate(spread.median)


def _range(spread: Spread | None) -> str:
    if spread is None:
        return "-"
    return f"{formats.rate(spread.least)} / {formats.rate(spread.most)}"


def _three(values: Percentiles | None, last: float | None = None) -> str:
    if values is None:
        return "-"
    most = values.most if last is None else last
    return " / ".join(formats.duration(ms) for ms in (values.median, values.p95, most))


def _sizes(values: Percentiles | None) -> str:
    if values is None:
        return "-"
    return f"{formats.size(int(values.median))} / {formats.size(int(values.most))}"


def _cut_off(mode: ModeFigures) -> str:
    if mode.cut_off_longest_ms is None:
        return "0"
    return f"{mode.cut_off:,} (after {formats.duration(mode.cut_off_longest_ms)})"


def _barriers(mode: ModeFigures) -> str:
    values = mode.barrier_to_sinks_ms
    return "-" if values is None else _three(values, values.p99)


def _counted(count: Callable[[ModeFigures], int]) -> Cell:
    return lambda mode: "-" if mode.mode == "none" else f"{count(mode):,}"


ROWS: tuple[tuple[str, Cell], ...] = (
    ("records/s out of sources", lambda m: _rate(m.source_records_per_s)),
    ("records/s into the chains of sinks", lambda m: _rate(m.sink_records_per_s)),
    ("… least / most of the rounds", lambda m: _range(m.sink_records_per_s)),
    ("checkpoints completed", _counted(lambda m: m.completed)),
    ("… of them unaligned", _counted(lambda m: m.unaligned)),
    ("checkpoints failed", _counted(lambda m: m.failed)),
    ("cut off by the end of a run", lambda m: "-" if m.mode == "none" else _cut_off(m)),
    ("duration, median / p95 / max", lambda m: _three(m.duration_ms)),
    ("longest alignment, median / p95 / max", lambda m: _three(m.alignment_ms)),
    ("barrier to sinks, p50 / p95 / p99", _barriers),
    ("state, median / max", lambda m: _sizes(m.state_bytes)),
    ("in flight, median / max", lambda m: _sizes(m.in_flight_bytes)),
    ("recoveries", lambda m: f"{m.recoveries:,}"),
    ("runs failed", lambda m: f"{len(m.failures):,} of {m.runs:,}"),
)


def rows(comparison: Comparison) -> list[list[str]]:
    """The table as texts: a row of titles, then a row per figure."""
    titles = ["", *(_title(mode, comparison.timeout_ms) for mode in comparison.modes)]
    return [titles, *([name, *(cell(m) for m in comparison.modes)] for name, cell in ROWS)]


def _title(mode: ModeFigures, timeout_ms: int) -> str:
    return f"aligned for {formats.duration(timeout_ms)}" if mode.mode == "timeout" else mode.title


def _print(screen: Console, comparison: Comparison) -> None:
    head, *body = rows(comparison)
    screen.print(
        f"{comparison.job}, parallelism {comparison.parallelism}, a checkpoint every "
        f"{formats.duration(comparison.interval_ms)}, "
        f"{formats.counted(comparison.rounds, 'round')} of {comparison.seconds_max} s at most",
        soft_wrap=True,
    )
    grid = table(*head, right=head[1:])
    for row in body:
        grid.add_row(*row)
    screen.print(grid)
