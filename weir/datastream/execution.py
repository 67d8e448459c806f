"""How ``env.execute()`` finds the one that runs its graph.

A script only says ``env.execute()``. What starts the script (a plain ``python``, ``weir run``, a
test) may lay *options* over what the script set, or ask for the graph instead of a run. Both are
context variables, so nothing has to be passed through the user's code.
"""

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from weir.config import CheckpointingMode, JobConfig
from weir.errors import UserError
from weir.graph.logical import JobGraph
from weir.ids import JobId

_RUNNER = "weir.spark.submit"  # Found by name: this floor lies below it.


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutionOptions:
    """What the one who starts a script decides; None leaves it to the script."""

    master: str | None = None  # Spark's: local[2], spark://host:7077, yarn …
    parallelism: int | None = None
    interval_ms: int | None = None
    mode: CheckpointingMode | None = None
    storage: str | None = None
    restore: str | None = None  # The URI of a checkpoint or savepoint, or "latest".
    as_new_job: bool = False  # Restoring begins another job: a fork, whose origin goes on.
    # Whether the job that goes back takes back what its file sinks committed since.
    rewinds_output: bool = True
    claims: bool = False  # The restored savepoint is the job's own from now on, to delete.
    origin_is_over: bool = False  # It is known that the job which took it does not run any more.
    parameters: Mapping[str, str] = field(default_factory=dict)
    allow_non_restored_state: bool | None = None
    allow_pickled_state: bool | None = None
    # The job may be ended once a collecting sink delivered this many records; None: never.
    collect_limit: int | None = None

    def over(self, config: JobConfig) -> JobConfig:
        """The script's settings with these laid over them.

        Raises:
            ConfigError: The two together contradict each other.
        """
        given: dict[str, Any] = {
            "interval_ms": self.interval_ms,
            "mode": self.mode,
            "storage": self.storage,
        }
        checkpoints = replace(
            config.checkpoints, **{k: v for k, v in given.items() if v is not None}
        )
        job: dict[str, Any] = {
            "parallelism": self.parallelism,
            "allow_non_restored_state": self.allow_non_restored_state,
            "allow_pickled_state": self.allow_pickled_state,
        }
        return replace(
            config,
            checkpoints=checkpoints,
            parameters={**config.parameters, **self.parameters},
            **{k: v for k, v in job.items() if v is not None},
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobExecutionResult:
    """What a finished job leaves.

    Units: ``net_runtime_ms`` from deployment to the end.
    """

    job_id: JobId
    name: str
    net_runtime_ms: int
    collected: tuple[Any, ...] = ()  # What execute_and_collect's sink delivered, in order.
    history: Any = None  # weir.jobmaster.history.JobHistory: checkpoints, recoveries, notices.

    def get_job_id(self) -> JobId:
        """The job's id."""
        return self.job_id

    def get_net_runtime(self) -> int:
        """How long the job ran, in milliseconds."""
        return self.net_runtime_ms


@dataclass(frozen=True, slots=True)
class CapturedJob:
    """What would have run."""

    graph: JobGraph
    config: JobConfig


@dataclass(slots=True)
class Capture:
    """The jobs of a script that ran under ``capturing``."""

    jobs: list[CapturedJob] = field(default_factory=list)


_options: ContextVar[ExecutionOptions] = ContextVar("weir_options", default=ExecutionOptions())  # noqa: B039 - frozen
_capture: ContextVar[Capture | None] = ContextVar("weir_capture", default=None)


@contextmanager
def overriding(options: ExecutionOptions) -> Iterator[None]:
    """Within it, ``env.execute()`` lays ``options`` over what the script set."""
    token = _options.set(options)
    try:
        yield
    finally:
        _options.reset(token)


@contextmanager
def capturing() -> Iterator[Capture]:
    """Within it, ``env.execute()`` keeps graph and settings instead of running them."""
    capture = Capture()
    token = _capture.set(capture)
    try:
        yield capture
    finally:
        _capture.reset(token)


def current_options() -> ExecutionOptions:
    """What lies over the script's settings now."""
    return _options.get()


def execute(graph: JobGraph, config: JobConfig, options: ExecutionOptions) -> JobExecutionResult:
    """Run a graph until it ends, or keep it where that was asked for."""
    capture = _capture.get()
    if capture is not None:
        capture.jobs.append(CapturedJob(graph, config))
        return JobExecutionResult(job_id=JobId("captured"), name=config.name, net_runtime_ms=0)
    try:
        runner: Callable[..., JobExecutionResult] = importlib.import_module(_RUNNER).execute
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("pyspark", "py4j"):
            raise
        raise UserError(
            "running a job needs pyspark, which this Python does not have: pip install pyspark"
        ) from error
    return runner(graph, config, options)
