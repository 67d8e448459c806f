"""From a fault to the successor's first output: how long nothing comes out."""

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import psutil

from tests.benchmarks.jobs import PARALLELISM, SOURCE, run_job, spark
from tests.benchmarks.pieces import FirstOutputSink, KeyedRows, Thrower, TimedSource
from tests.benchmarks.report import Row, limit_row
from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    JobEvent,
    SlotChanged,
    WorkerStarted,
)

KEYS = 100_000
ROWS_PER_SECOND = 100_000.0
INTERVAL_MS = 500
CHECKPOINTS_BETWEEN = 3  # Faults: so long the job runs undisturbed.


@dataclass(slots=True)
class Saboteur:
    """Hears a job, makes ``count`` faults with checkpoints in between, then lets the job end."""

    fault: Callable[["Saboteur"], None]
    directory: Path
    count: int
    workers: dict[int, int] = field(default_factory=dict)  # Process ids by slot.
    slots: dict[int, int] = field(default_factory=dict)
    made: list[tuple[int, int]] = field(default_factory=list)  # Attempt, wall clock in ns.
    attempt: int = 0
    _completed: int = 0

    def __call__(self, event: JobEvent) -> None:
        match event:
            case AttemptStarted(attempt=attempt):
                self.attempt, self._completed = attempt, 0
            case SlotChanged(slot_index=slot, pid=pid, registered=True):
                self.slots[slot] = pid
            case WorkerStarted(slot_index=slot, pid=pid):
                self.workers[slot] = pid
            case CheckpointSettled(failure=None):
                self._completed += 1
                if self._completed == CHECKPOINTS_BETWEEN:
                    self._next()

    def _next(self) -> None:
        if len(self.made) == self.count:
            (self.directory / "stop").touch()
        else:
            self.made.append((self.attempt, time.time_ns()))
            self.fault(self)


def throw(saboteur: Saboteur) -> None:
    """Have a map function raise; it notes itself when it does."""
    (saboteur.directory / "order").touch()


def kill_worker(saboteur: Saboteur) -> None:
    """SIGKILL to the worker process of one slot."""
    os.kill(saboteur.workers[1], signal.SIGKILL)


def kill_slot(saboteur: Saboteur) -> None:
    """SIGKILL to the Python worker in which Spark runs one slot's task."""
    os.kill(saboteur.slots[1], signal.SIGKILL)


def kill_executor(saboteur: Saboteur) -> None:
    """SIGKILL to the executor's JVM above one worker process."""
    parents = psutil.Process(saboteur.workers[1]).parents()
    next(p for p in parents if p.name() == "java").kill()


def recovery(quick: bool) -> list[Row]:
    """First output after a fault, 100 k keys, restarts without delay."""
    rows = []
    with spark():
        for what, fault, at_most_ms in (
            ("a function throws", throw, 150.0),
            ("a worker process is killed", kill_worker, 150.0),
            ("Spark's Python worker is killed", kill_slot, 2_000.0),
        ):
            rows.append(_row(what, fault, at_most_ms, 2 if quick else 7, spare_slots=0))
    # One core each, so that every slot has an executor of its own.
    with spark(f"local-cluster[{PARALLELISM + 1},1,1024]"):
        what = "an executor is killed, with a spare"
        rows.append(_row(what, kill_executor, 5_000.0, 1 if quick else 3, spare_slots=1))
    return rows


def _row(
    what: str,
    fault: Callable[[Saboteur], None],
    at_most_ms: float,
    count: int,
    *,
    spare_slots: int,
) -> Row:
    with TemporaryDirectory(prefix="weir-bench-") as name:
        directory = Path(name)
        saboteur = Saboteur(fault, directory, count)

        def build(env: StreamExecutionEnvironment) -> None:
            source = TimedSource(
                KeyedRows(KEYS), stop=str(directory / "stop"), rows_per_second=ROWS_PER_SECOND
            )
            rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
            sums = rows.map_batches(Thrower(directory)).key_by("key")
            sums.aggregate_batches(total=("value", "sum")).sink_to(FirstOutputSink(directory))

        started_ns = time.time_ns()
        run_job(
            build,
            saboteur,
            storage=directory / "chk",
            interval_ms=INTERVAL_MS,
            spare_slots=spare_slots,
        )
        first_ns: dict[int, int] = {}
        for path in directory.glob("first-*"):
            attempt, _, at_ns = map(int, path.name.split("-")[1:])
            first_ns[attempt] = min(at_ns, first_ns.get(attempt, at_ns))
        thrown = sorted(int(path.name.split("-")[1]) for path in directory.glob("thrown-*"))
    faults = saboteur.made
    if thrown:
        faults = [(attempt, at) for (attempt, _), at in zip(faults, thrown, strict=True)]
    silent_ms = [
        (min(at for a, at in first_ns.items() if a > attempt) - fault_ns) / 1e6
        for attempt, fault_ns in faults
    ]
    return limit_row(
        f"{what} → first output",
        "ms",
        median(silent_ms),
        at_most=at_most_ms,
        baseline=(first_ns[1] - started_ns) / 1e6,
        against="first start of the same job, Spark running",
        note=f"{len(silent_ms)} times: " + ", ".join(f"{ms:,.0f}" for ms in silent_ms) + " ms",
    )
