"""The cost of the stack samples that verdicts and flame graphs are made of."""

from typing import Any

from tests.benchmarks.jobs import spark
from tests.benchmarks.pieces import TimedSource
from tests.benchmarks.report import Row, speed_row
from tests.benchmarks.throughput import INTERVAL_MS, weir_rate
from weir.operators.sources import SplitReader
from weir.worker.inspection.stack_samples import StackSamples

KEYS = 1_000


class UnsampledSource(TimedSource):
    """A source in whose worker process no stack is sampled."""

    def open(self, split: dict[str, Any], position: Any) -> SplitReader:
        StackSamples.look = lambda samples, loop, loop_thread: None
        return super().open(split, position)


def samples(quick: bool) -> list[Row]:
    """Keyed running sums with stack samples and without, per CPU-second, in turns."""
    seconds, settle_s, rounds = (5.0, 2.0, 1) if quick else (12.0, 4.0, 5)
    pairs = []
    with spark():
        for _ in range(rounds):
            sampled = weir_rate(KEYS, seconds, settle_s, INTERVAL_MS)
            unsampled = weir_rate(KEYS, seconds, settle_s, INTERVAL_MS, UnsampledSource)
            pairs.append((sampled.per_cpu_second, unsampled.per_cpu_second))
    return [
        speed_row(
            "running sum with stack samples, per CPU-second",
            "rows/s",
            pairs,
            against="without",
            at_least=0.99,
        )
    ]
