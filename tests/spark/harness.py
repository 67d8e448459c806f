"""Jobs on real Spark whose output can be counted, faults armed in their workers, and killers.

Every input record is ``(source, index, subtask that read it)``, and every output row has the subtask
that wrote it behind that. An exactly-once run gives each input once, and in order between each two
subtasks; ``Count`` reports lost, duplicated and out of order apart.
"""

import os
import signal
import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weir.common import WatermarkStrategy
from weir.datastream import MapFunction, RuntimeContext, StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource
from weir.protocol.events import CheckpointSettled, JobEvent, SlotChanged, WorkerStarted
from weir.spark import submit
from weir.testing import faults
from weir.testing.faults import Fault

SOURCES = ("left", "right")


@dataclass(frozen=True, slots=True)
class Count:
    """What became of the input."""

    lost: int
    duplicated: int
    out_of_order: int


def count(rows: Iterable[Sequence[Any]], per_source: int) -> Count:
    """Compare output rows with each source's indexes from 0 to ``per_source`` - 1."""
    rows = list(rows)
    seen = Counter((row[0], row[1]) for row in rows)
    expected = {(source, index) for source in SOURCES for index in range(per_source)}
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


@dataclass(slots=True)
class Killer:
    """Sends a signal to a process of the job, once a number of checkpoints completed.

    ``target`` is "worker" or "slot": the one with index ``index``.
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
            case SlotChanged(_, slot_index, _, pid, True) if self.target == "slot":
                self.pids[slot_index] = pid
            case WorkerStarted(_, _, slot_index, pid) if self.target == "worker":
                self.pids[slot_index] = pid
            case CheckpointSettled(failure=None):
                self.completed += 1
                if self.completed == self.after_checkpoints and self.killed is None:
                    self.killed = self.pids[self.index]
                    os.kill(self.killed, self.signal)


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


class Reading(MapFunction):
    """Notes which subtask read a record; arms faults where it is unpickled: in the slots."""

    def __init__(self, armed: Sequence[Fault] = ()) -> None:
        self._armed = tuple(armed)

    def __reduce__(self) -> tuple[Any, ...]:
        return _armed_reading, ([asdict(fault) for fault in self._armed],)

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: tuple[str, int]) -> tuple[str, int, int]:
        return *value, self._subtask


def _armed_reading(specs: list[dict[str, Any]]) -> Reading:
    armed = [Fault(**spec) for spec in specs]
    faults.arm(armed)
    return Reading(armed)


class Tagging:
    """``(source, index)`` of a generated index; picklable by name."""

    def __init__(self, source: str) -> None:
        self.source = source

    def __call__(self, index: int) -> tuple[str, int]:
        return self.source, index


def key_of(record: tuple[str, int, int]) -> int:
    """Spreads the records of both sources over 64 keys."""
    return record[1] % 64


def environment(storage: Path | None, interval_ms: int = 200) -> StreamExecutionEnvironment:
    """An environment at parallelism 2 with frequent checkpoints."""
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(interval_ms)
    if storage is not None:
        env.get_checkpoint_config().set_checkpoint_storage(str(storage))
    return env


def tagged_union(
    env: StreamExecutionEnvironment,
    per_source: int,
    rate: float,
    armed: Sequence[Fault] = (),
) -> Any:
    """Both sources in one stream, with faults armed in the slots."""
    streams = [
        env.from_source(
            DataGeneratorSource(Tagging(source), per_source, rate),
            WatermarkStrategy.no_watermarks(),
            source,
        ).map(Reading(armed))
        for source in SOURCES
    ]
    return streams[0].union(*streams[1:])


def threads_of_weir() -> list[str]:
    """Names of the driver's threads that a job should not leave behind."""
    return [t.name for t in threading.enumerate() if t.name.startswith("weir-")]
