"""Functions of pipelines with several exchanges: each notes the subtask that a record passed.

A slot imports this module, so it needs neither Spark nor pytest.
"""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from weir.common import Row, Types
from weir.datastream import (
    KeyedProcessFunction,
    MapFunction,
    ReduceFunction,
    RuntimeContext,
    ValueStateDescriptor,
)


class Passing(MapFunction):
    """Adds the subtask that a record passes."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def map(self, value: Any) -> Any:
        return *value, self._subtask


class ClosingOnce(MapFunction):
    """Raises when it is closed after the last record of a source, once over all attempts."""

    def __init__(self, marker: Path, last: int) -> None:
        self._marker = marker
        self._last = last
        self._is_near_the_end = False

    def map(self, value: Any) -> Any:
        self._is_near_the_end |= value[1] == self._last
        return value

    def close(self) -> None:
        if self._is_near_the_end and raises_once(self._marker):
            raise ValueError("it does not close")


def raises_once(marker: Path) -> bool:
    """Whether this call is the first over all attempts."""
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def shifted(subtask: int, count: int) -> int:
    """The subtask next to this one."""
    return (subtask + 1) % count


def keyed_subtask(record: tuple[Any, ...]) -> int:
    """The subtask that ``Numbering`` noted."""
    return int(record[3])


def number_key(record: tuple[Any, ...]) -> int:
    """Another spread over keys than the first one."""
    return int(record[1]) * 7 % 61


def events_in_order(indexes: np.ndarray) -> pa.RecordBatch:
    """Five milliseconds of event time per index, in order, over seven keys."""
    return pa.record_batch({"key": indexes % 7, "at_ms": indexes * 5})


class FailingEvents:
    """The same as a generator's function, which raises once at an index or behind it."""

    def __init__(self, marker: Path, at: int) -> None:
        self._marker = marker
        self._at = at

    def __call__(self, indexes: np.ndarray) -> pa.RecordBatch:
        if indexes[-1] >= self._at and raises_once(self._marker):
            raise ValueError("a source that fails once")
        return events_in_order(indexes)


def counting_one(row: Any) -> tuple[str, int, int, int]:
    """A record of ``events_in_order`` as one in the count of its key and second."""
    return "window", row["key"], row["at_ms"] - row["at_ms"] % 1_000, 1


class FallingBehind(ReduceFunction):
    """Adds counts up; the first subtask takes its time for it, so that others are ahead."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def open(self, runtime_context: RuntimeContext) -> None:
        self._is_slow = runtime_context.get_index_of_this_subtask() == 0

    def reduce(self, value1: Any, value2: Any) -> Any:
        if self._is_slow:
            time.sleep(self._pause_s)
        n = value1["n"] + value2["n"]
        return Row(kind="window", key=value1["key"], start=value1["start"], n=n)


class Summing(KeyedProcessFunction):
    """The count and the sum of a key's records; raises once, at a record of a late time."""

    def __init__(self, marker: Path, at_ms: int) -> None:
        self._marker = marker
        self._at_ms = at_ms

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))
        self._sum = runtime_context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        if value["at_ms"] >= self._at_ms and raises_once(self._marker):
            raise ValueError("a sum that fails once")
        count, total = (self._count.value() or 0) + 1, (self._sum.value() or 0) + value["at_ms"]
        self._count.update(count)
        self._sum.update(total)
        yield "sum", ctx.get_current_key(), total, count


def unnumbered(record: tuple[Any, ...]) -> tuple[Any, ...]:
    """A record that no keyed operator numbered, in the form of those that one did."""
    return *record, 0
