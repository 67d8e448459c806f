"""The link between ``env.execute()`` and the runner of its graph.

A script only says ``env.execute()``. The program that starts the script (a plain ``python``, ``weir
run``, a test) may override the script's settings with *options*, or capture the graph instead of
running it. Both are context variables, so nothing has to be passed through the user's code.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from weir.common.notebook import running_cell
from weir.config import CheckpointingMode, JobConfig
from weir.datastream.closeable_iterator import CloseableIterator
from weir.datastream.html import result_html
from weir.errors import UserError
from weir.graph.logical import JobGraph
from weir.ids import JobId
from weir.jobmaster.collected_output import RowStream

_RUNNER = "weir.spark.submit"  # Imported by name: this package lies below it.


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """The options that a script is started with; None leaves the setting to the script."""

    master: str | None = None  # Spark's: local[2], spark://host:7077, yarn …
    parallelism: int | None = None
    interval_ms: int | None = None
    mode: CheckpointingMode | None = None
    timeout_ms: int | None = None
    min_pause_ms: int | None = None
    retained_max: int | None = None
    restart: Mapping[str, Any] = field(default_factory=dict)  # Settings by RestartConfig's names.
    storage: str | None = None
    restore: str | None = None  # The URI of a checkpoint or savepoint, or "latest".
    as_new_job: bool = False  # The restore begins another job: a fork, whose origin goes on.
    # Whether the restored job withdraws output that its file sinks committed after the checkpoint.
    rewinds_output: bool = True
    claims: bool = False  # The job owns the restored savepoint from now on, and deletes it.
    origin_is_over: bool = False  # The job that took the checkpoint is known to have ended.
    parameters: Mapping[str, str] = field(default_factory=dict)
    allow_non_restored_state: bool | None = None
    allow_pickled_state: bool | None = None
    # The job may be ended once a collecting sink delivered this many records; None: never.
    collect_limit: int | None = None
    # Receives collected records while the job runs; None: the result has them.
    rows: RowStream | None = field(default=None, repr=False)
    # File sinks write to directories of their own below this one, not to where the script says.
    output: str | None = None
    # Asked between two steps of the job; once it says so, the job is cancelled.
    is_enough: Callable[[], bool] = field(default=_never, repr=False)

    def over(self, config: JobConfig) -> JobConfig:
        """The script's settings, overridden by these options.

        Raises:
            ConfigError: Settings and options contradict each other.
        """
        checkpoints = self._given(
            "interval_ms", "mode", "timeout_ms", "min_pause_ms", "retained_max", "storage"
        )
        return replace(
            config,
            checkpoints=replace(config.checkpoints, **checkpoints),
            restart=replace(config.restart, **self.restart),
            parameters={**config.parameters, **self.parameters},
            **self._given("parallelism", "allow_non_restored_state", "allow_pickled_state"),
        )

    def _given(self, *names: str) -> dict[str, Any]:
        """Those of these options that are not left to the script."""
        return {name: value for name in names if (value := getattr(self, name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExecutionResult:
    """The result of a job that has finished.

    Units: ``net_runtime_ms`` from deployment to the end.
    """

    job_id: JobId
    name: str
    net_runtime_ms: int
    collected: tuple[Any, ...] = ()  # What execute_and_collect's sink delivered, in order.
    # weir.jobmaster.history.JobHistory: checkpoints, recoveries, notices. Too long to print.
    history: Any = field(default=None, repr=False)
    # The notebook's cell whose display of the running job became this result.
    cell: int | None = field(default=None, repr=False)

    def _repr_html_(self) -> str:
        return result_html(self)

    def _ipython_display_(self) -> None:
        """Show nothing where the job's display shows this result already.

        Raises:
            NotImplementedError: By which IPython shows ``_repr_html_``.
        """
        if self.cell is None or self.cell != running_cell():
            raise NotImplementedError

    def get_job_id(self) -> JobId:
        """The job's id."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """The time from deployment to the end, in milliseconds."""
        return self.net_runtime_ms


@dataclass(frozen=True, slots=True)
class CapturedJob:
    """A job that ``env.execute()`` captured instead of running it."""

    graph: JobGraph
    config: JobConfig


@dataclass(slots=True)
class Capture:
    """The jobs of a script that ran under ``capturing``, in order."""

    jobs: list[CapturedJob] = field(default_factory=list)


_options: ContextVar[ExecutionOptions] = ContextVar("weir_options", default=ExecutionOptions())  # noqa: B039 - frozen
_capture: ContextVar[Capture | None] = ContextVar("weir_capture", default=None)


@contextmanager
def overriding(options: ExecutionOptions) -> Iterator[None]:
    """Within it, ``env.execute()`` overrides the script's settings with ``options``."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


@contextmanager
def capturing() -> Iterator[Capture]:
    """Within it, ``env.execute()`` captures graph and settings instead of running them."""
    capture = Capture()
    token = _capture.set(capture)
    try:
        yield capture
    finally:
        _capture.reset(token)


def is_capturing() -> bool:
    """Whether ``env.execute()`` captures jobs now instead of running them."""
    return _capture.get() is not None


def current_options() -> ExecutionOptions:
    """The options that override the script's settings now."""
    return _options.get()


def execute(graph: JobGraph, config: JobConfig, options: ExecutionOptions) -> JobExecutionResult:
    """Run a graph until its job ends; under ``capturing`` only capture it.

    Raises:
        UserError: pyspark is not installed, or the job cannot be started as it is.
        JobFailedError: The job failed for good; the message is the cause.
    """
    capture = _capture.get()
    if capture is not None:
        capture.jobs.append(CapturedJob(graph, config))
        return JobExecutionResult(job_id=JobId("captured"), name=config.name, net_runtime_ms=0)
    return _runner()(graph, config, options)


def start(graph: JobGraph, config: JobConfig, options: ExecutionOptions) -> CloseableIterator:
    """Start a graph's job in a thread of its own and return the records that it collects.

    Under ``capturing`` the graph is only captured, and there are no records.

    Raises:
        UserError: pyspark is not installed. All else is raised to the reader of the records.
    """
    rows = RowStream()
    if _capture.get() is not None:
        execute(graph, config, options)
        rows.end()
        return CloseableIterator(rows)
    runner = _runner()
    chosen = replace(options, rows=rows, is_enough=lambda: rows.is_enough or options.is_enough())
    return CloseableIterator(rows, lambda: runner(graph, config, chosen))


def _runner() -> Callable[[JobGraph, JobConfig, ExecutionOptions], JobExecutionResult]:
    try:
        runner: Callable[..., JobExecutionResult] = importlib.import_module(_RUNNER).execute
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise UserError(
            "running a job needs pyspark, which this Python does not have: pip install pyspark"
        ) from error
    return runner
