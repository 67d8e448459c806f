"""The loop's cost of a checkpoint of large state: the sync part, and stalls during the rest."""

import json
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.benchmarks.jobs import PARALLELISM, SOURCE, run_job, spark
from tests.benchmarks.pieces import CyclingKeys, Ticker, TimedSource
from tests.benchmarks.report import Row, limit_row
from weir.common import Row as Record
from weir.common import Types, WatermarkStrategy
from weir.datastream import (
    DataStream,
    KeyedProcessFunction,
    RuntimeContext,
    StreamExecutionEnvironment,
    ValueStateDescriptor,
)
from weir.operators.sinks import BlackHoleSink
from weir.protocol.events import JobEvent
from weir.protocol.messages import Acknowledged

STATE = "state"  # The uid of the operator whose state is large.
SYNC_MAX_MS = 5.0
STALL_MAX_MS = 10.0
INTERVAL_MS = 1_000


class Count(KeyedProcessFunction):
    """Records of each key so far."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Record, ctx: Any) -> list[tuple[int, int]]:
        count = (self._count.value() or 0) + 1
        self._count.update(count)
        return [(value[0], count)]


def columnar(rows: DataStream) -> DataStream:
    """Running sums in columns."""
    return rows.key_by("key").aggregate_batches(total=("value", "sum"))


def objects(rows: DataStream) -> DataStream:
    """Running counts as Python objects."""
    return rows.key_by("key").process(Count())


def pause(quick: bool) -> list[Row]:
    """Sync part and longest stall with 1 M keys per subtask, columnar and objects."""
    keys = 100_000 if quick else 1_000_000
    with spark():
        return [
            *_measured("columnar", columnar, keys, 400_000.0, quick),
            *_measured("object", objects, keys, 50_000.0, quick),
        ]


def _measured(
    kind: str,
    stateful: Callable[[DataStream], DataStream],
    keys: int,
    rows_per_second: float,
    quick: bool,
) -> list[Row]:
    settle_s, measured_s = (6.0, 5.0) if quick else (25.0, 30.0)
    sync_ms: list[float] = []
    state_bytes: list[int] = []

    def listen(event: JobEvent) -> None:
        if isinstance(event, Acknowledged) and event.chain.operator == STATE:
            head = event.operators[0]
            sync_ms.append(head.metrics.sync_ms)
            state_bytes.append(head.metrics.state_size)

    with TemporaryDirectory(prefix="weir-bench-") as name:
        directory = Path(name)

        def build(env: StreamExecutionEnvironment) -> None:
            source = TimedSource(
                CyclingKeys(PARALLELISM * keys),
                seconds=settle_s + measured_s,
                fill_rows=PARALLELISM * keys,
                paced_rows_per_second=rows_per_second,
            )
            unmarked = WatermarkStrategy.no_watermarks()
            rows = env.from_source(source, unmarked, SOURCE).uid(SOURCE)
            stateful(rows).uid(STATE).sink_to(BlackHoleSink())
            ticker = Ticker(directory, settle_s + measured_s, settle_s)
            env.from_source(ticker, unmarked, "ticker").uid("ticker").sink_to(BlackHoleSink())

        run_job(build, listen, storage=directory / "chk", interval_ms=INTERVAL_MS)
        ticks = [json.loads(path.read_text()) for path in directory.glob("ticks-*")]
    full = [s for s, b in zip(sync_ms, state_bytes, strict=True) if b > 0.9 * max(state_bytes)]
    inside = [longest for tick in ticks for longest in tick["inside"]]
    outside = [longest for tick in ticks for longest in tick["outside"]]
    p99 = float(np.percentile(full, 99))
    what = f"{kind} state, {keys:,} keys per subtask"
    return [
        limit_row(
            f"sync part, {what}: p99",
            "ms",
            p99,
            at_most=SYNC_MAX_MS,
            baseline=_COPIES[kind](keys),
            against="copying the state at once",
            note=f"acknowledged, {len(full)} snapshots, median {median(full):.2g} ms",
        ),
        limit_row(
            f"longest round of the loop, barrier to completion, {what}",
            "ms",
            max(inside),
            at_most=STALL_MAX_MS,
            baseline=max(outside),
            against="longest between checkpoints",
            note=(
                f"a source that never waits times the rounds at {rows_per_second:,.0f} rows/s; "
                f"median of {len(inside)} checkpoints {median(inside):.2g} ms, without "
                f"{median(outside):.2g} ms"
            ),
        ),
    ]


def _copy_columns(keys: int) -> float:
    columns: list[npt.NDArray[Any]] = [
        np.ones(keys, np.int64),
        np.ones(keys, np.int64),
        np.ones(keys, np.uint8),
    ]
    return _milliseconds(lambda: [column.copy() for column in columns])


def _copy_objects(keys: int) -> float:
    table = {key: key + 1 for key in range(keys)}
    return _milliseconds(lambda: table.copy())


_COPIES: Mapping[str, Callable[[int], float]] = {"columnar": _copy_columns, "object": _copy_objects}


def _milliseconds(work: Callable[[], object]) -> float:
    taken = []
    for _ in range(5):
        started = time.perf_counter()
        work()
        taken.append((time.perf_counter() - started) * 1e3)
    return median(taken)
