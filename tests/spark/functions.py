"""The functions that the tests' pipelines run in their slots.

Kept apart, because a slot imports the module of every function: this one needs neither Spark nor
pytest, which would take a slot a second to load.
"""

import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from weir import fault_points
from weir.common import Types
from weir.datastream import (
    KeyedProcessFunction,
    MapFunction,
    MapStateDescriptor,
    RuntimeContext,
    ValueStateDescriptor,
)
from weir.fault_points import Fault


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
    fault_points.arm(armed)
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


def position_of(record: tuple[str, int, int]) -> int:
    """A key for the records of each position, of which both sources have one."""
    return record[1]


class Numbering(KeyedProcessFunction):
    """Adds the subtask that wrote a record, and the record's number within its key."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()
        self._number = runtime_context.get_state(ValueStateDescriptor("number", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        number = (self._number.value() or 0) + 1
        self._number.update(number)
        yield (*value, self._subtask, number)


def as_row(value: Any) -> Any:
    """For ``map``, which declares the type."""
    return value


class ReadIn(MapFunction):
    """Notes the process that read a record."""

    def map(self, value: Any) -> Any:
        return *value, os.getpid()


class WrittenIn(KeyedProcessFunction):
    """Notes the process that a record was sent to."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._subtask = runtime_context.get_index_of_this_subtask()

    def process_element(self, value: Any, ctx: Any) -> Iterator[Any]:
        source, index, reader, pid = value
        yield source, index, reader, self._subtask, pid, os.getpid()


class Throwing(MapFunction):
    """Raises at the record ``at``, once over all attempts."""

    def __init__(self, marker: Path, at: int) -> None:
        self._marker = marker
        self._at = at

    def map(self, value: Any) -> Any:
        if value[1] == self._at and not self._marker.exists():
            self._marker.write_text("{}")
            raise ValueError("an unexpected record")
        return value


class Hanging(MapFunction):
    """Hangs at the record ``at``, once over all attempts, in C code that keeps the interpreter."""

    def __init__(self, marker: Path, at: int) -> None:
        self._marker = marker
        self._at = at

    def map(self, value: Any) -> Any:
        if value[1] == self._at and not self._marker.exists():
            self._marker.write_text("{}")
            re.match(r"(a+)+$", "a" * 64 + "b")  # Takes until the end of the world.
        return value


class Dawdling(MapFunction):
    """Holds up one subtask, so that barriers come to the next one at different times."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._is_slow = runtime_context.get_index_of_this_subtask() == 0

    def map(self, value: Any) -> Any:
        if self._is_slow and value[1] % 100 == 0:
            time.sleep(0.05)
        return value


class Stumbling(MapFunction):
    """Raises at every ``step``-th record of the left source, once over all attempts."""

    def __init__(self, markers: Path, step: int) -> None:
        self._markers = markers
        self._step = step

    def map(self, value: Any) -> Any:
        source, index, _ = value
        if source == "left" and index % self._step == 0:
            try:
                os.close(os.open(self._markers / str(index), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                return value
            raise ValueError(f"stumbled at {index}")
        return value


class Failing(MapFunction):
    """Raises at one record, as long as it is not repaired."""

    def __init__(self, at: int | None) -> None:
        self._at = at

    def map(self, value: Any) -> Any:
        if value[1] == self._at:
            raise ValueError("not yet repaired")
        return value


class FailingRow(MapFunction):
    """The same for numbers in a column ``n``."""

    def __init__(self, at: int) -> None:
        self._at = at

    def map(self, value: Any) -> Any:
        if value["n"] == self._at:
            raise ValueError("not yet repaired")
        return value


class Opaque:
    """No key."""


KEYS = 50


def amounts(indexes: np.ndarray) -> pa.RecordBatch:
    """A key and an amount for every index."""
    return pa.record_batch({"key": indexes % KEYS, "amount": indexes % 7 + 1})


def mostly_new(indexes: np.ndarray) -> pa.RecordBatch:
    """One record in ten has one of five keys, each of the others a new one."""
    keys = np.where(indexes % 10 == 0, indexes % 50, indexes)
    return pa.record_batch({"key": keys, "amount": indexes % 7 + 1})


def events(indexes: np.ndarray) -> pa.RecordBatch:
    """Ten milliseconds of event time per index; every fiftieth comes five seconds late."""
    at = indexes * 10 - np.where(indexes % 50 == 49, 5_000, 0)
    return pa.record_batch({"key": indexes % 8, "at_ms": np.maximum(at, 0)})


def window_row(row: Any) -> tuple[str, int, int, int]:
    """A window's result: (what, key, start of the window, records)."""
    return "window", row["key"], row["window_start"], row["n"]


def key_of_event(row: Any) -> int:
    """The key of a record of ``events``."""
    return int(row["key"])


class Reminding(KeyedProcessFunction):
    """Counts a key's records per two seconds of event time, and says it by a timer at their end."""

    def open(self, runtime_context: RuntimeContext) -> None:
        descriptor = MapStateDescriptor("counts", Types.LONG(), Types.LONG())
        self._counts = runtime_context.get_map_state(descriptor)

    def process_element(self, value: Any, ctx: Any) -> None:
        start = value["at_ms"] - value["at_ms"] % 2_000
        self._counts.put(start, (self._counts.get(start) or 0) + 1)
        ctx.timer_service().register_event_time_timer(start + 1_999)

    def on_timer(self, timestamp: int, ctx: Any) -> Iterator[Any]:
        start = timestamp - 1_999
        yield "reminder", ctx.get_current_key(), start, self._counts.get(start)
        self._counts.remove(start)


def late_row(row: Any) -> tuple[str, int, int, int]:
    """A late record in the same form."""
    return "late", row["key"], row["at_ms"] - row["at_ms"] % 1_000, 1


class Slowing(MapFunction):
    """Takes its time for each record."""

    def __init__(self, pause_s: float) -> None:
        self._pause_s = pause_s

    def map(self, value: Any) -> Any:
        time.sleep(self._pause_s)
        return value
