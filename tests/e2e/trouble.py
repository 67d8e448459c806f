"""A pipeline that gets into trouble when it is told to, and out of it again.

Parameters: ``switches``, a directory: a file in it turns one trouble on, its removal off. ``slow``:
one subtask takes long for every record. ``both``: one of another operator in the other slot does,
too. ``skewed``: all records have one key. ``block``: one call blocks once, and takes its file away.
``hang``: one does not return. ``storage``: every snapshot takes long to write.
"""

import os
import time
from collections.abc import Iterator, Mapping
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
from weir.operators.sources import DataGeneratorSource

INTERVAL_MS = 500
RATE = 800.0  # Of all sources together.
SLOW_S = 0.005  # A record; half of RATE comes to each subtask, so 2.5 ms would be just too much.
SKEWED_S = 0.002  # A record of the one that gets all.
BLOCKED_S = 4.0
TIMEOUT_MS = 15_000  # Of a checkpoint; what hangs makes it expire, and nothing else does.
HELD_S = 0.5  # Between two looks at whether it hangs still.
WRITING_S = 1.2  # A subtask's snapshot.
LOOKED_AT_S = 0.05  # A switch.


class Switch:
    """A file that the test makes and takes away; looked at now and then."""

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


class Keyed(MapFunction):
    """Gives a record one of 64 keys, or the same as all others while they are skewed."""

    def __init__(self, directory: Path) -> None:
        self._switch = Switch(directory, "skewed")

    def map(self, value: int) -> tuple[int, int]:
        return 0 if self._switch.is_on else value % 64, value


def key_of(record: tuple[int, int]) -> int:
    """The key that it was given."""
    return record[0]


class Work(KeyedProcessFunction):
    """Counts, with the trouble that is switched on."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, runtime_context: RuntimeContext) -> None:
        self._index = runtime_context.get_index_of_this_subtask()
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        names = ("slow", "both", "skewed", "block", "hang")
        switches = (Switch(self._directory, name) for name in names)
        self._slow, self._both, self._skewed, self._block, self._hang = switches
        storage = Switch(self._directory, "storage")

        def listener(point: str, where: Mapping[str, Any]) -> None:
            if point == "snapshot.write" and storage.is_on:
                time.sleep(WRITING_S)

        self._listening = fault_points.listening(listener)  # Held, for it ends with its object.
        self._listening.__enter__()

    def close(self) -> None:
        self._listening.__exit__(None, None, None)

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        self._count.update((self._count.value() or 0) + 1)
        if self._index == 1 and (self._slow.is_on or self._both.is_on):
            time.sleep(SLOW_S)
        if self._skewed.is_on:
            time.sleep(SKEWED_S)
        if self._index == 1 and self._block.is_on and self._block.take():
            look_up_rates()
        while self._index == 1 and self._hang.is_on:
            await_lock()
        yield from ()


class Audit(MapFunction):
    """A branch of its own."""

    def __init__(self, directory: Path) -> None:
        self._both = Switch(directory, "both")

    def open(self, runtime_context: RuntimeContext) -> None:
        self._index = runtime_context.get_index_of_this_subtask()

    def map(self, value: tuple[int, int]) -> int:
        if self._index == 0 and self._both.is_on:
            time.sleep(SLOW_S)
        return value[1]


def look_up_rates() -> None:
    """A call that waits for another system."""
    time.sleep(BLOCKED_S)


def await_lock() -> None:
    """A wait for a lock that is held for long."""
    time.sleep(HELD_S)


def identity(value: int) -> int:
    """The record of an index."""
    return value


def is_none(_: int) -> bool:
    """False for every record: the audited records are not output."""
    return False


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(INTERVAL_MS)
    env.get_checkpoint_config().set_checkpoint_timeout(TIMEOUT_MS)
    directory = Path(env.get_job_parameter("switches", "switches"))
    source = DataGeneratorSource(identity, rows_per_second=RATE, type_info=Types.LONG())
    numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "Numbers").uid("numbers")
    pair = Types.TUPLE([Types.LONG(), Types.LONG()])
    keyed = numbers.map(Keyed(directory), output_type=pair).uid("keyed")
    worked = keyed.key_by(key_of, key_type=Types.LONG()).process(
        Work(directory), output_type=Types.LONG()
    )
    worked.uid("work").name("Work").print().uid("out")
    audited = keyed.rebalance().map(Audit(directory), output_type=Types.LONG())
    audited.uid("audit").name("Audit").filter(is_none).uid("none").print().uid("audited")
    env.execute("trouble")


if __name__ == "__main__":
    main()
