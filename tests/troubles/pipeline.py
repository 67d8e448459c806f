"""A pipeline of chains of several operators that gets into trouble when it is told to.

Parameters: ``switches``, a directory: a file in it turns one trouble on, its removal off; and
``output``, the directory of its file sink.

::

    numbers, parse, key ── hash ──> work, enrich, out     out writes Parquet files
                        └─ rebalance ──> audit
"""

import os
import re
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.trouble import Switch
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
from weir.operators.sources import DataGeneratorSource

INTERVAL_MS = 500
TIMEOUT_MS = 20_000
RATE = 800.0  # Of all sources together.
SLOW_S = 0.005  # A record; half of RATE comes to each subtask, so 2.5 ms would be just too much.
SKEWED_S = 0.002  # A record of the one that gets all.
BLOCKED_S = 5.0
SYNC_S = 1.5  # Of one file.
WRITING_S = 1.2  # A subtask's snapshot.
PAIR = Types.TUPLE([Types.LONG(), Types.LONG()])


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
            burn(SLOW_S)
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

    def close(self) -> None:
        self._listening.__exit__(None, None, None)

    def _reach(self, point: str, where: Mapping[str, Any]) -> None:
        if point != "snapshot.write" or threading.current_thread() is threading.main_thread():
            return  # Nothing is written of a snapshot without state, and the loop does that itself.
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
                time.sleep(BLOCKED_S)
            if self._take("socket"):
                await_answer()
            if self._take("compute"):
                burn(BLOCKED_S)
            if self._take("lock"):
                hold_the_interpreter()
            while self._is_on("hang"):
                time.sleep(0.5)
        yield value[1]


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


def burn(seconds: float) -> int:
    """A computation in Python that takes so long."""
    until, rounds = time.monotonic() + seconds, 0
    while time.monotonic() < until:
        rounds += 1
    return rounds


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
    env.get_checkpoint_config().set_checkpoint_timeout(TIMEOUT_MS)
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
    audited.uid("audit").name("Audit").sink_to(BlackHoleSink()).uid("audited").name("Audited")
    env.execute("troubles")


if __name__ == "__main__":
    main()
