"""Jobs on real Spark whose output can be counted, faults armed in their workers, and killers.

Every input record is ``(source, index, subtask that read it)``, every output row has behind that
the subtask that wrote it. An exactly-once run gives each input once, in order between each two
subtasks; ``Count`` reports lost, duplicated and out of order apart.
"""

import json
import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pyarrow.parquet as pq

from tests.processes import cut
from tests.spark.functions import Numbering, Reading, Tagging, as_row, key_of
from tests.spark.hurried import HurriedSource
from tests.waiting import wait_until
from weir.common import Configuration, Types, WatermarkStrategy
from weir.datastream import (
    JobExecutionResult,
    StreamExecutionEnvironment,
)
from weir.datastream.connectors import CollectSink, DataGeneratorSource, ParquetSink
from weir.fault_points import Fault
from weir.operators.sinks.parquet_sink import committed_files
from weir.protocol.events import (
    CheckpointSettled,
    JobEvent,
    Recovered,
    SlotChanged,
    WorkerStarted,
)
from weir.protocol.messages import Acknowledged
from weir.protocol.restore import CHANGES
from weir.spark import submit

SOURCES = ("left", "right")


@dataclass(frozen=True, slots=True)
class Count:
    """The records of the input that were lost, duplicated or out of order, counted."""

    lost: int
    duplicated: int
    out_of_order: int


def count(rows: Iterable[Sequence[Any]], per_source: int | Mapping[str, int]) -> Count:
    """Compare output rows with each source's indexes from 0 to ``per_source`` - 1.

    ``per_source``: the records of each of both sources, or of every source by its name. The third
    and fourth items of a row stand for the way that the record took: order is held within a way.
    """
    rows = list(rows)
    seen = Counter((row[0], row[1]) for row in rows)
    sizes = per_source if isinstance(per_source, Mapping) else dict.fromkeys(SOURCES, per_source)
    expected = {(source, index) for source, size in sizes.items() for index in range(size)}
    last: dict[tuple[Any, ...], int] = defaultdict(lambda: -1)
    out_of_order = 0
    for source, index, reader, writer, *_ in rows:
        channel = source, reader, writer
        out_of_order += index < last[channel]
        last[channel] = max(last[channel], index)
    return Count(
        lost=len(expected - seen.keys()),
        duplicated=sum(n - 1 for n in seen.values()),
        out_of_order=out_of_order,
    )


def once(point: str, action: str, marker: Path, after: int = 1, **match: Any) -> Fault:
    """A fault that fires once over all processes and attempts, and leaves ``marker``."""
    return Fault(point, action, match, after, str(marker))  # type: ignore[arg-type]


def fired(marker: Path) -> dict[str, Any]:
    """The text that a fault wrote when it fired; fails the test if it did not."""
    assert marker.exists(), "the fault did not fire"
    told: dict[str, Any] = json.loads(marker.read_text())
    return told


def assert_missed(cause: str, slot: str = "slot ") -> None:
    """A recovery began as a slot was silent, or its worker: with both stopped, either may be first.

    Their last heartbeats came at moments of their own.
    """
    assert slot in cause, cause
    assert "was silent for" in cause or "made no progress for" in cause, cause


@dataclass(slots=True)
class Recorder:
    """Keeps every event of the jobs it hears."""

    events: list[JobEvent] = field(default_factory=list)

    def __call__(self, event: JobEvent) -> None:
        self.events.append(event)

    def events_of(self, kind: type) -> list[Any]:
        """The events of one kind, in order."""
        return [event for event in self.events if isinstance(event, kind)]


@dataclass(slots=True)
class Killer:
    """Sends a signal to a process of the job, once a number of checkpoints completed.

    ``target`` is "worker", "slot", "template" (of workers) or "executor" (of a worker): the one
    with index ``index``.
    """

    target: str
    signal: int = signal.SIGKILL
    after_checkpoints: int = 2
    index: int = 0
    pids: dict[int, int] = field(default_factory=dict)
    completed: int = 0
    killed: int | None = None

    def __call__(self, event: JobEvent) -> None:
        match event:
            case SlotChanged(_, slot_index, _, pid, True) if self.target in ("slot", "template"):
                self.pids[slot_index] = pid
            case WorkerStarted(_, _, slot_index, pid) if self.target in ("worker", "executor"):
                self.pids[slot_index] = pid
            case CheckpointSettled(failure=None):
                self.completed += 1
                if self.completed == self.after_checkpoints and self.killed is None:
                    self.killed = self.pids[self.index]
                    if self.target == "template":
                        (template,) = psutil.Process(self.killed).children()
                        self.killed = template.pid
                    elif self.target == "executor":
                        self.killed = executor_of(self.killed).pid
                    self.strike(self.killed)

    def strike(self, pid: int) -> None:
        """Send the signal."""
        os.kill(pid, self.signal)


@dataclass(slots=True)
class Cutter(Killer):
    """Cuts the connection between the driver, which is this process, and a slot or a worker."""

    def strike(self, pid: int) -> None:
        """Cut it."""
        assert cut(psutil.Process(), psutil.Process(pid)) == 1


def executor_of(pid: int) -> psutil.Process:
    """The JVM in whose Spark task a slot or a worker runs."""
    parents: list[psutil.Process] = psutil.Process(pid).parents()
    return next(process for process in parents if process.name() == "java")


@dataclass(slots=True)
class Freezer:
    """Stops the processes around worker 0 for as long as no successor runs, then lets them go on.

    ``whole_executor``: the JVM too, as when a machine freezes; else only supervisor, template and
    worker.
    """

    whole_executor: bool = False
    after_checkpoints: int = 2
    frozen: list[psutil.Process] = field(default_factory=list)
    survivors: list[psutil.Process] = field(default_factory=list)  # That lived to go on.
    lasting: set[int] = field(default_factory=set)  # The JVM and its daemon, who belong to Spark.
    worker_pid: int = 0
    completed: int = 0

    def __call__(self, event: JobEvent) -> None:
        match event:
            case WorkerStarted(_, _, 0, pid) if not self.frozen:
                self.worker_pid = pid
            case CheckpointSettled(failure=None) if not self.frozen:
                self.completed += 1
                if self.completed == self.after_checkpoints:
                    self.freeze()
            case Recovered() if self.frozen:
                self.thaw()

    def freeze(self) -> None:
        """Stop them, parents first."""
        _, slot, *_ = psutil.Process(self.worker_pid).parents()  # The template lies between.
        top = executor_of(slot.pid) if self.whole_executor else slot
        self.frozen = [top, *top.children(recursive=True)]
        self.lasting = {process.pid for process in slot.parents()}
        for process in self.frozen:
            process.suspend()

    def thaw(self) -> None:
        """Let those go on that were not killed."""
        for process in self.frozen:
            try:
                process.resume()
                self.survivors.append(process)
            except psutil.NoSuchProcess:
                continue


class Listening:
    """Has listeners hear the jobs of a ``with`` block."""

    def __init__(self, *listeners: Callable[[JobEvent], None]) -> None:
        self._listeners = listeners

    def __enter__(self) -> None:
        for listener in self._listeners:
            submit.listen(listener)

    def __exit__(self, *raised: object) -> None:
        for listener in self._listeners:
            submit.unlisten(listener)


@contextmanager
def killing_after_changes(state: str) -> Iterator[Killer]:
    """Kill a worker when a checkpoint has completed whose files of a state hold changes."""
    killer = Killer("worker", after_checkpoints=1_000_000)

    def hear(event: Any) -> None:
        if isinstance(event, Acknowledged) and killer.after_checkpoints > 1_000:
            handles = [handle for part in event.operators for handle in part.handles]
            if any(handle.mode == CHANGES and handle.name == state for handle in handles):
                killer.after_checkpoints = killer.completed + 1

    with Listening(hear, killer):
        yield killer
    assert killer.killed is not None, "no checkpoint held changes"


def environment(
    storage: Path | None,
    interval_ms: int = 150,
    parallelism: int = 2,
    settings: Mapping[str, str] | None = None,
) -> StreamExecutionEnvironment:
    """An environment with frequent checkpoints; ``settings`` are by Flink's keys."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.configure(Configuration(dict(settings or {})))
    env.set_parallelism(parallelism)
    env.enable_checkpointing(interval_ms)
    if storage is not None:
        env.get_checkpoint_config().set_checkpoint_storage(str(storage))
    return env


def tagged_union(
    env: StreamExecutionEnvironment,
    per_source: int,
    rate: float,
    armed: Sequence[Fault] = (),
    hurry: Path | None = None,
) -> Any:
    """Both sources in one stream, with faults armed in the slots.

    Once the file ``hurry`` is there, they keep to no rate any more.
    """
    streams = [
        env.from_source(
            DataGeneratorSource(Tagging(source), per_source, rate)
            if hurry is None
            else HurriedSource(Tagging(source), per_source, rate, hurry),
            WatermarkStrategy.no_watermarks(),
            source,
        ).map(Reading(armed))
        for source in SOURCES
    ]
    return streams[0].union(*streams[1:])


def change(env: StreamExecutionEnvironment, **fields: Any) -> None:
    """Set fields of the job's config that no key of Flink's stands for."""
    env._job = replace(env._job, **fields)


def numbered(stream: Any) -> Any:
    """The stream keyed, every record numbered within its key by state."""
    return stream.key_by(key_of).process(Numbering()).uid("numbering")


def collect(stream: Any, name: str) -> JobExecutionResult:
    """Run the job of a stream; the result has its rows and its history."""
    stream.sink_to(CollectSink()).uid("collect")
    result: JobExecutionResult = stream.get_execution_environment().execute(name)
    return result


ROW_NAMES = ["source", "position", "reader", "writer", "number"]
ROW = Types.ROW_NAMED(
    ROW_NAMES, [Types.STRING(), Types.LONG(), Types.INT(), Types.INT(), Types.LONG()]
)


def to_files(stream: Any, output: Path, name: str = "") -> None:
    """End a numbered stream in Parquet files; ``name`` tells several such ends apart."""
    rows = stream.map(as_row, ROW).uid(f"{name} rows".strip())
    rows.sink_to(ParquetSink(output)).uid(f"{name} files".strip())


def rows_of(output: Path) -> list[tuple[Any, ...]]:
    """The rows of the committed files, those of one subtask in their order."""
    tables = [pq.read_table(path).to_pylist() for path in committed_files(output)]
    return [tuple(row[name] for name in ROW_NAMES) for rows in tables for row in rows]


def wrong_numbers(rows: Iterable[Sequence[Any]]) -> dict[int, list[int]]:
    """Keys whose records are not numbered 1, 2, 3 and so on, as exactly-once state numbers them."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for source, index, reader, _, number in rows:
        numbers[key_of((source, index, reader))].append(number)
    return {
        key: received
        for key, received in numbers.items()
        if received != list(range(1, len(received) + 1))
    }


def numbers_by_position(rows: Iterable[Sequence[Any]]) -> dict[int, list[int]]:
    """The numbers of the records of each position, in the order in which they came."""
    numbers: dict[int, list[int]] = defaultdict(list)
    for _, position, _, _, number in rows:
        numbers[position].append(number)
    return numbers


# What a test leaves behind ----------------------------------------------------------------------

SESSION = "WEIR_TEST_SESSION"  # In the environment of everything that a test starts.


def processes_of(session: str) -> list[psutil.Process]:
    """The processes whose environment has this session, or one within it."""
    processes = []
    for process in psutil.process_iter():
        try:
            is_ours = f"{process.environ().get(SESSION)}/".startswith(f"{session}/")
            if is_ours and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
        except psutil.Error:  # Gone, or another user's.
            continue
    return processes


def described(process: psutil.Process) -> str:
    """A process for a message."""
    try:
        return f"{process.pid} {process.status()} {' '.join(process.cmdline())[:200]}"
    except psutil.Error:
        return f"{process.pid}, gone"


def wait_until_gone(processes: Callable[[], list[psutil.Process]]) -> None:
    """Wait until there are no such processes; those that stay are killed, and fail the test."""
    left: list[psutil.Process] = []

    def are_gone() -> bool:
        left[:] = processes()
        return not left

    try:
        wait_until(are_gone, lambda: f"none is left of {[described(one) for one in left]}")
    finally:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()


def threads_of_weir() -> list[str]:
    """Names of the driver's threads that a job should not leave behind."""
    return [t.name for t in threading.enumerate() if t.name.startswith("weir-")]
