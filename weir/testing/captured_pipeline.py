"""A pipeline of the user's with its sources fed and its sinks captured.

A script runs as it would by ``weir run``, up to ``env.execute()``, whose graph is taken instead.
"""

import warnings
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from weir.config import JobConfig, RestartConfig, RestartStrategyKind
from weir.datastream.environment import StreamExecutionEnvironment
from weir.datastream.execution import CapturedJob, ExecutionOptions, capturing, overriding
from weir.errors import ConfigError
from weir.graph.logical import JobGraph, Operator
from weir.testing.captured_sink import CapturedSinkOperator
from weir.testing.fed_source import FedSourceOperator, Feed, split_source
from weir.tools.pipeline_scripts import find_script, run_pipeline

Pipeline: TypeAlias = Callable[[StreamExecutionEnvironment], Any] | str | Path

# Longer than any test lets pass: checkpoints are taken by hand, and nothing falls silent.
NEVER_MS = 10_000 * 365 * 86_400_000
SLICE_ROWS = 256  # So that the number of actions tells the work.


@dataclass(slots=True)
class CapturedPipeline:
    """A job whose inputs and outputs are a test's."""

    graph: JobGraph
    config: JobConfig
    feeds: dict[str, Feed] = field(default_factory=dict)  # By the source's uid.
    kept: dict[str, list[Any]] = field(default_factory=dict)  # All that reached a sink, by its uid.

    def operator(self, named: str, among: Collection[str] | None = None) -> Operator:
        """The operator of a uid or name.

        Raises:
            ConfigError: None of ``among`` (None: all) is called so, or several are.
        """
        able = [op for op in self.graph.operators if among is None or op.uid in among]
        matching = [op for op in able if op.uid == named] or [op for op in able if op.name == named]
        if len(matching) != 1:
            several = "several operators are" if matching else "no operator is"
            ids = ", ".join(op.uid for op in able)
            raise ConfigError(f"{several} called {named!r}; give one of the ids {ids}")
        return matching[0]


def capture_pipeline(
    pipeline: Pipeline,
    *,
    job: str | None,
    parallelism: int | None,
    parameters: Mapping[str, str],
    own_sources: Collection[str],
    own_sinks: Collection[str],
) -> CapturedPipeline:
    """Run a builder or script up to its job, and take its sources and sinks over.

    Raises:
        ConfigError: It has no job, or several of which none is chosen, or an operator of
            ``own_sources`` or ``own_sinks`` is none, or never ends.
        WeirError: As from building the pipeline.
    """
    taken = _job(pipeline, job, ExecutionOptions(parallelism=parallelism, parameters=parameters))
    made = CapturedPipeline(taken.graph, _stepped(taken.config))
    sources = {op.uid for op in taken.graph.operators if op.is_source}
    sinks = {op.uid for op in taken.graph.operators if op.is_sink}
    left_alone = {made.operator(name, sources).uid for name in own_sources}
    left_alone |= {made.operator(name, sinks).uid for name in own_sinks}
    for op in taken.graph.operators:
        source = split_source(op.factory) if op.uid in left_alone else None
        if source is not None and not source.bounded:
            raise ConfigError(
                f"{op.name!r} ({op.location}) never ends, so it cannot be one of own_sources; "
                "feed it"
            )
    made.graph = replace(
        taken.graph,
        operators=tuple(
            op if op.uid in left_alone else _taken_over(op, made) for op in taken.graph.operators
        ),
    )
    return made


def _job(pipeline: Pipeline, name: str | None, options: ExecutionOptions) -> CapturedJob:
    with overriding(options), capturing() as capture:
        if callable(pipeline):
            env = StreamExecutionEnvironment.get_execution_environment()
            pipeline(env)
            if not capture.jobs:
                env.execute()
        else:
            script = find_script(str(pipeline))
            with warnings.catch_warnings():
                # The test may have imported the module too, for a function or a constant of it.
                warnings.filterwarnings("ignore", ".*found in sys.modules", RuntimeWarning)
                run_pipeline(str(pipeline), script)
    jobs = [job for job in capture.jobs if name is None or job.graph.name == name]
    if len(jobs) != 1:
        names = ", ".join(repr(job.graph.name) for job in capture.jobs) or "none"
        raise ConfigError(
            f"a harness runs one job, and the pipeline executes {names}; choose one with job=..."
            if capture.jobs
            else "the pipeline executes no job; call env.execute() when it runs as a script"
        )
    return jobs[0]


def _taken_over(op: Operator, made: CapturedPipeline) -> Operator:
    if op.is_source:
        feed = made.feeds[op.uid] = Feed(op.factory)
        return replace(op, factory=partial(FedSourceOperator, feed))
    if op.is_sink:
        kept: list[Any] = []
        made.kept[op.uid] = kept
        return replace(op, factory=partial(CapturedSinkOperator, kept), files=None)
    return op


def _stepped(config: JobConfig) -> JobConfig:
    """The settings of a job in which nothing happens by itself."""
    return replace(
        config,
        checkpoints=replace(config.checkpoints, interval_ms=NEVER_MS, min_pause_ms=0, storage=None),
        restart=RestartConfig(
            kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1 << 30, delay_ms=0
        ),
        heartbeat_interval_ms=NEVER_MS,
        heartbeat_timeout_ms=NEVER_MS,
        spare_slots=0,
        channels=replace(config.channels, batch_rows_max=SLICE_ROWS),
    )
