"""Per-record functions: what a record costs in Weir, against the same calls in a bare loop."""

import gc
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.benchmarks.jobs import SOURCE, RateMeter, run_job, spark
from tests.benchmarks.pieces import TimedSource
from tests.benchmarks.report import Row, speed_row
from weir.common import Row as StateRow
from weir.common import Types, WatermarkStrategy
from weir.datastream import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from weir.operators.sinks import BlackHoleSink

KEYS = 10_000
MANY_KEYS = 1_000_000
INTERVAL_MS = 1_000
CHUNK = 10_000  # Rounds of a bare loop between two looks at the clock.
Record = tuple[int, int]


def make(index: int) -> Record:
    """A record of its index."""
    return index % KEYS, index


def scattered(index: int) -> Record:
    """A record of its index: many keys, in no order."""
    return index * 2_654_435_761 % MANY_KEYS, index


def change(record: Record) -> Record:
    """A small map function."""
    return record[0], record[1] + 1


def key_of(record: Record) -> int:
    """The key."""
    return record[0]


class Total(KeyedProcessFunction):
    """A running total per key in value state."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.total: Any = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: Record, ctx: Any) -> Any:
        total = (self.total.value() or 0) + value[1]
        self.total.update(total)
        yield value[0], total


class LastRow(KeyedProcessFunction):
    """A row per key in value state; on demand beside Python's own collections of garbage."""

    def __init__(self, own_collections: bool) -> None:
        self.own_collections = own_collections

    def open(self, runtime_context: RuntimeContext) -> None:
        row = Types.ROW_NAMED(["count", "last"], [Types.LONG(), Types.LONG()])
        self.row: Any = runtime_context.get_state(ValueStateDescriptor("row", row))
        if self.own_collections:
            gc.callbacks.clear()
            gc.set_threshold(700, 10, 10)

    def process_element(self, value: Record, ctx: Any) -> Any:
        before = self.row.value()
        count = 1 if before is None else before[0] + 1
        self.row.update(StateRow(count=count, last=value[1]))
        yield value


class PlainValue:
    """The least that value state can be: a dictionary and the key at hand."""

    def __init__(self) -> None:
        self.key: Any = None
        self._values: dict[Any, Any] = {}

    def value(self) -> Any:
        """The value of the key at hand."""
        return self._values.get(self.key)

    def update(self, value: Any) -> None:
        """Set it."""
        self._values[self.key] = value


def mapped(rows: DataStream) -> DataStream:
    """The stream through a map."""
    return rows.map(change)


def processed(rows: DataStream) -> DataStream:
    """The stream through a keyed process function."""
    return rows.key_by(key_of).process(Total())


def map_loop(indexes: range) -> None:
    """The functions that ``mapped`` calls, called in a plain loop."""
    for index in indexes:
        change(make(index))


def process_loop() -> Callable[[range], None]:
    """A plain loop that calls the functions that ``processed`` calls."""
    function = Total()
    function.total = state = PlainValue()

    def loop(indexes: range) -> None:
        for index in indexes:
            record = make(index)
            state.key = key_of(record)
            for _ in function.process_element(record, None):
                pass

    return loop


def records(quick: bool) -> list[Row]:
    """Per-record map, and keyed process with value state, per CPU-second."""
    seconds, settle_s, rounds = (5.0, 2.0, 1) if quick else (10.0, 3.0, 3)
    rows = []
    with spark():
        for what, build, loop in (
            ("map", mapped, map_loop),
            ("key_by and process, value state, exchanged", processed, process_loop()),
        ):
            pairs = []
            for _ in range(rounds):
                weir = _weir_rate(make, build, seconds, settle_s)
                pairs.append((weir, _loop_rate(loop, seconds / 4)))
            rows.append(
                speed_row(
                    f"{what}, records per CPU-second",
                    "rows/s",
                    pairs,
                    against="the same calls in a bare loop",
                    at_least=None,
                )
            )
        rows.append(_of_rows_in_state(seconds * 2, rounds))
    return rows


def _of_rows_in_state(seconds: float, rounds: int) -> Row:
    """The rate with a row for each key, once there is one for most of them."""
    pairs = []
    for _ in range(rounds):
        weir, own = (
            _weir_rate(
                scattered,
                lambda rows, own=own: rows.key_by(key_of).process(LastRow(own)),
                seconds,
                seconds / 2,
            )
            for own in (False, True)
        )
        pairs.append((weir, own))
    return speed_row(
        "key_by and process, a row of state for each of a million keys, records per CPU-second",
        "rows/s",
        pairs,
        against="Python's own collections of garbage",
        at_least=1.0,
    )


def _weir_rate(
    make: Callable[[int], Record],
    stage: Callable[[DataStream], DataStream],
    seconds: float,
    settle_s: float,
) -> float:
    meter = RateMeter(settle_s)

    def build(env: StreamExecutionEnvironment) -> None:
        source = TimedSource(make, seconds=seconds, vectorised=False)
        rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
        stage(rows).sink_to(BlackHoleSink())

    with TemporaryDirectory(prefix="weir-bench-") as directory:
        run_job(build, meter, storage=Path(directory), interval_ms=INTERVAL_MS)
    return meter.rate().per_cpu_second


def _loop_rate(loop: Callable[[range], None], seconds: float) -> float:
    begun = time.thread_time()
    for start in count(0, CHUNK):
        loop(range(start, start + CHUNK))
        if (taken := time.thread_time() - begun) >= seconds:
            return (start + CHUNK) / taken
    raise AssertionError("count() has no end")
