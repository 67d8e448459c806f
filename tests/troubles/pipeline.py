"""A pipeline of chains of several operators that gets into trouble when it is told to.

Parameters: ``switches``, a directory: a file in it turns one trouble on, its removal off; beside it
lies the output of the file sink. ``timeout_ms``, of a checkpoint.

::

    numbers, parse, key ── hash ──> work, enrich, out     out writes Parquet files
                        └─ rebalance ──> audit
"""

import errno
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from weir import fault_points
from weir.common import Types, WatermarkStrategy
from weir.datastream import (
    KeyedProcessFunction,
    MapFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from weir.datastream.connectors import BlackHoleSink, ParquetSink
from weir.ids import CheckpointId
from weir.operators.base import Operator
from weir.operators.sinks.black_hole import BlackHoleOperator
from weir.operators.sources import DataGeneratorSource

INTERVAL_MS = 500
TIMEOUT_MS = 20_000
RATE = 800.0  # Of all sources together.
SLOW_S = 0.005  # A record; half of RATE comes to each subtask, so 2.5 ms would be just too much.
SKEWED_S = 0.002  # A record of the one that gets all.
PARSED_S = 0.02  # Sources take up a barrier between two slices of up to a hundred records.
BLOCKED_S = 5.0
THREADS = 24  # That compute beside the loop of one slot.
HELD_S = 0.5  # Between two looks at whether it hangs still.
SYNC_S = 1.5  # Of one file.
FLUSH_S = 1.5
WRITING_S = 1.2  # A subtask's snapshot.
LOOKED_AT_S = 0.05  # A switch.
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


class Switch:
    """A file that is made and taken away from outside; looked at now and then."""

    def __init__(self, directory: Path, name: str) -> None:
        self._path = directory / name
        self._is_on = False
        self._due = 0.0

    @property
    def is_on(self) -> bool:
        now = time.monotonic()
        if now >= self._due:
            self._is_on, self._due = self._path.exists(), now + LOOKED_AT_S
        return self._is_on

    def take(self) -> bool:
        """Turn it off; whether it was this process that did."""
        try:
            os.remove(self._path)
        except FileNotFoundError:
            return False
        return True


class Troubled:
    """The switches of one subtask's function."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._switches: dict[str, Switch] = {}

    def _begin(self, context: RuntimeContext) -> None:
        self._index = context.get_index_of_this_subtask()

    def _is_on(self, name: str) -> bool:
        if name not in self._switches:
            self._switches[name] = Switch(self._directory, name)
        return self._switches[name].is_on

    def _take(self, name: str) -> bool:
        return self._is_on(name) and self._switches[name].take()


class Parse(Troubled, MapFunction):
    """The second operator of the sources' chain."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._begin(runtime_context)

    def map(self, value: int) -> int:
        if self._is_on("parse_busy"):
            burn(PARSED_S)
        return value


class Key(Troubled, MapFunction):
    """One of 64 keys, or the same as all others while they are skewed."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._begin(runtime_context)

    def map(self, value: int) -> tuple[int, int]:
        return 0 if self._is_on("skewed") else value % 64, value


class Work(Troubled, KeyedProcessFunction):
    """Counts, with most of the troubles."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._begin(runtime_context)
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._listening = fault_points.listening(self._reach)  # Held: it ends with its object.
        self._listening.__enter__()
        self._slow_files()
        self._threads: list[threading.Thread] = []

    def close(self) -> None:
        self._listening.__exit__(None, None, None)

    def _reach(self, point: str, where: Mapping[str, Any]) -> None:
        if point != "snapshot.write" or threading.current_thread() is threading.main_thread():
            return  # Nothing is written of a snapshot without state, and the loop does that itself.
        if self._is_on("full"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._is_on("storage") or (self._is_on("one_storage") and self._index == 1):
            time.sleep(WRITING_S)

    def _slow_files(self) -> None:
        """Have the system's sync of a sink's file take long while that is switched on."""
        sync = os.fsync
        output = str(self._directory.parent / "output")

        def slow(file: int) -> None:
            if self._is_on("sink") and os.readlink(f"/proc/self/fd/{file}").startswith(output):
                time.sleep(SYNC_S)
            sync(file)

        os.fsync = slow

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self._count.update((self._count.value() or 0) + 1)
        if self._index == 1 and (self._is_on("slow") or self._is_on("both")):
            time.sleep(SLOW_S)
        if self._is_on("skewed"):
            time.sleep(SKEWED_S)
        if self._index == 1:
            if self._take("sleep"):
                look_up_rates()
            if self._take("socket"):
                await_answer()
            if self._take("compute"):
                burn(BLOCKED_S)
            if self._take("lock"):
                hold_the_interpreter()
            if self._is_on("threads") and not self._threads:
                self._threads = [threading.Thread(target=self._compute) for _ in range(THREADS)]
                for thread in self._threads:
                    thread.start()
            while self._is_on("hang"):
                await_lock()
        yield value[1]

    def _compute(self) -> None:
        while self._is_on("threads"):
            burn(LOOKED_AT_S)
        self._threads = []


class Enrich(Troubled, MapFunction):
    """The second operator of the workers' chain."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._begin(runtime_context)

    def map(self, value: int) -> int:
        if self._index == 1 and self._is_on("enrich_busy"):
            burn(SLOW_S)
        return value


class Audit(Troubled, MapFunction):
    """A branch of its own."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._begin(runtime_context)

    def map(self, value: tuple[int, int]) -> int:
        if self._index == 0 and self._is_on("both"):
            time.sleep(SLOW_S)
        return value[1]


class FlushedSink(BlackHoleSink):
    """A sink that tells another system all it has at each barrier."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def create_operator_factory(self) -> Callable[[], Operator]:
        return partial(FlushedOperator, self._directory)


class FlushedOperator(BlackHoleOperator):
    """Flushes for long in one subtask, while that is switched on."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._switch = Switch(directory, "flush")

    def prepare_snapshot(self, checkpoint_id: CheckpointId) -> None:
        if self.ctx.subtask.index == 0 and self._switch.is_on:
            flush()


def flush() -> None:
    """A request that takes long."""
    time.sleep(FLUSH_S)


def burn(seconds: float) -> int:
    """A computation in Python that takes so long."""
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        rounds += 1
    return rounds


def look_up_rates() -> None:
    """A call that sleeps."""
    time.sleep(BLOCKED_S)


def await_lock() -> None:
    """A part of a wait for a lock that is held for long."""
    time.sleep(HELD_S)


def await_answer() -> None:
    """A question to another system, which does not answer for long."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(BLOCKED_S)
        try:
            ours.recv(1)
        except TimeoutError:
            return


def hold_the_interpreter() -> None:
    """One call into C that keeps Python's interpreter lock for some seconds."""
    until = time.monotonic() + BLOCKED_S
    count = 23
    while time.monotonic() < until:
        re.match(r"(a+)+$", "a" * count + "b")
        count += 1


def identity(value: int) -> int:
    """The record of an index."""
    return value


def key_of(record: tuple[int, int]) -> int:
    """The key that it was given."""
    return record[0]


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(INTERVAL_MS)
    env.get_checkpoint_config().set_checkpoint_timeout(
        int(env.get_job_parameter("timeout_ms", str(TIMEOUT_MS)))
    )
    directory = Path(env.get_job_parameter("switches", "switches"))
    source = DataGeneratorSource(identity, rows_per_second=RATE, type_info=Types.LONG())
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").uid("numbers")
    parsed = numbers.map(Parse(directory), output_type=Types.LONG()).uid("parse").name("Parse")
    keyed = parsed.map(Key(directory), output_type=PAIR).uid("key").name("Key")
    worked = keyed.key_by(key_of, key_type=Types.LONG()).process(
        Work(directory), output_type=Types.LONG()
    )
    enriched = worked.uid("work").name("Work").map(Enrich(directory), output_type=Types.LONG())
    output = directory.parent / "output"
    enriched.uid("enrich").name("Enrich").sink_to(ParquetSink(output)).uid("out").name("Orders")
    audited = keyed.rebalance().map(Audit(directory), output_type=Types.LONG())
    audited.uid("audit").name("Audit").sink_to(FlushedSink(directory)).uid("audited").name(
        "Audited"
    )
    env.execute("troubles")


if __name__ == "__main__":
    main()
