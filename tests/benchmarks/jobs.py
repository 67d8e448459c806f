"""Runs jobs on local Spark and takes the time and CPU of their worker processes."""

import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
from pyspark.find_spark_home import _find_spark_home

from weir.config import (
    ChannelConfig,
    CheckpointConfig,
    JobConfig,
    RestartConfig,
    RestartStrategyKind,
    StateConfig,
)
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.execution import ExecutionOptions
from weir.jobmaster.history import JobHistory
from weir.protocol.events import JobEvent, WorkerStarted
from weir.protocol.messages import SubtaskMetrics
from weir.spark import submit

PARALLELISM = 2
SOURCE = "rows"  # The uid of every benchmark's source.
Build = Callable[[StreamExecutionEnvironment], Any]
Listener = Callable[[JobEvent], None]


@contextmanager
def spark(master: str = f"local[{PARALLELISM}]", slots: int = PARALLELISM) -> Iterator[None]:
    """A Spark context that the jobs within share."""
    context, owned = submit.open_session(master, slots, "weir-benchmarks")
    try:
        yield
    finally:
        if owned:
            application = context.applicationId
            context.stop()
            # The JVM hands its first context's settings on, and a local-cluster has no secret.
            context._jvm.java.lang.System.clearProperty("spark.authenticate")
            # A local-cluster's executors leave their logs beside Spark.
            left = Path(_find_spark_home(), "work", application)
            shutil.rmtree(left, ignore_errors=True)


def run_job(
    build: Build,
    *listeners: Listener,
    storage: Path | None = None,
    interval_ms: int | None = None,
    alignment_timeout_ms: int | None = None,
    spare_slots: int = 0,
    channels: ChannelConfig | None = None,
    state: StateConfig | None = None,
    parallelism: int = PARALLELISM,
) -> JobHistory:
    """Run what ``build`` adds to an environment to its end; it restarts without delay."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(parallelism)
    build(env)
    config = JobConfig(
        name="benchmark",
        parallelism=parallelism,
        checkpoints=CheckpointConfig(
            interval_ms=interval_ms,
            storage=None if storage is None else str(storage),
            alignment_timeout_ms=alignment_timeout_ms,
        ),
        restart=RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1_000, delay_ms=0),
        spare_slots=spare_slots,
        channels=channels or ChannelConfig(),
        state=state or StateConfig(),
    )
    for listener in listeners:
        submit.listen(listener)
    try:
        result = submit.execute(env.get_job_graph("benchmark"), config, ExecutionOptions())
    finally:
        for listener in listeners:
            submit.unlisten(listener)
    history: JobHistory = result.history
    return history


def durations_ms(history: JobHistory) -> list[float]:
    """The durations of the completed checkpoints, in order."""
    completed = (r.settled for r in history.checkpoints.values() if r.is_completed)
    return [settled.duration_ms for settled in completed if settled is not None]


@dataclass(frozen=True, slots=True)
class Rate:
    """The rate of rows, per second of CPU and per second."""

    per_cpu_second: float
    per_second: float  # Of all cores together.

    @property
    def core_percents(self) -> float:
        """The processor time that the rows took, in percents of a core."""
        return 100 * self.per_second / self.per_cpu_second


@dataclass(frozen=True, slots=True)
class _Sample:
    at_s: float
    cpu_s: float
    records: int


@dataclass(slots=True)
class RateMeter:
    """Hears a job and samples each worker's CPU whenever its source reports how far it is."""

    settle_s: float  # What comes before is warm-up: imports, growing tables, slice sizes.
    _workers: dict[int, psutil.Process] = field(default_factory=dict)
    _samples: dict[int, list[_Sample]] = field(default_factory=lambda: defaultdict(list))

    def __call__(self, event: JobEvent) -> None:
        match event:
            case WorkerStarted(slot_index=slot, pid=pid):
                self._workers[slot] = psutil.Process(pid)
            case SubtaskMetrics(chain=chain, records_in=records) if chain.operator == SOURCE:
                cpu = self._workers[chain.index].cpu_times()
                sample = _Sample(time.monotonic(), cpu.user + cpu.system, records)
                self._samples[chain.index].append(sample)

    def rate(self) -> Rate:
        """From the first sample after the warm-up to the last one before the end."""
        rows = cpu_s = per_second = 0.0
        for samples in self._samples.values():
            begun = samples[0].at_s + self.settle_s
            window = [s for s in samples if s.at_s >= begun]
            moving = [s for s, t in pairwise(window) if t.records > s.records]
            if len(moving) < 2:
                raise RuntimeError("the job was too short to be measured; give it more seconds")
            first, last = moving[0], moving[-1]
            rows += last.records - first.records
            cpu_s += last.cpu_s - first.cpu_s
            per_second += (last.records - first.records) / (last.at_s - first.at_s)
        return Rate(rows / cpu_s, per_second)
