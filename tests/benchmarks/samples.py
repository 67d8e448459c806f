"""The cost of looking inside: stack samples for verdicts and flame graphs, and taps."""

import time
from typing import Any

from tests.benchmarks.jobs import SOURCE, spark
from tests.benchmarks.pieces import TimedSource
from tests.benchmarks.report import Row, speed_row
from tests.benchmarks.throughput import INTERVAL_MS, weir_rate
from weir.ids import OperatorId
from weir.operators.sources import SplitReader
from weir.protocol.inspection import InspectionKind, InspectSubtask
from weir.worker.inspection.stack_samples import StackSamples
from weir.worker.worker import Worker

KEYS = 1_000
TAPPED_EVERY_S = 1.0


class UnsampledSource(TimedSource):
    """A source in whose worker process no stack is sampled."""

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        StackSamples.look = lambda samples, loop, loop_thread: None
        return super().open(split, position)


class TappedSource(TimedSource):
    """A source in whose worker process its own records are looked at once a second."""

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        look, due_s = Worker._look, time.monotonic()

        def tap(worker: Worker, now_ns: int) -> None:
            nonlocal due_s
            look(worker, now_ns)
            if time.monotonic() >= due_s:
                due_s = time.monotonic() + TAPPED_EVERY_S
                index = worker.subtasks[0].chain.index
                kind, operator = InspectionKind.RECORDS, OperatorId(SOURCE)
                command = InspectSubtask(worker._attempt, f"{due_s}", kind, operator, index)
                worker._taps.open(command, worker.subtasks, is_allowed=True)

        if look.__qualname__ == "Worker._look":  # Of the process's first split.
            Worker._look = tap  # type: ignore[method-assign]
        return super().open(split, position)


def samples(quick: bool) -> list[Row]:
    """Keyed running sums with stack samples or taps and without, per CPU-second, in turns."""
    seconds, settle_s, rounds = (5.0, 2.0, 1) if quick else (12.0, 4.0, 5)
    sampled, tapped = [], []
    with spark():
        for _ in range(rounds):
            usual, unsampled, looked_at = (
                weir_rate(KEYS, seconds, settle_s, INTERVAL_MS, source).per_cpu_second
                for source in (TimedSource, UnsampledSource, TappedSource)
            )
            sampled.append((usual, unsampled))
            tapped.append((looked_at, usual))
    return [
        speed_row(
            f"running sum with {looks}, per CPU-second",
            "rows/s",
            pairs,
            against="without",
            at_least=0.99,
        )
        for looks, pairs in (("stack samples", sampled), ("a tap every second", tapped))
    ]
