"""Checkpoints of a job that a slow sink holds back: aligned, unaligned, aligned with a time-out."""

from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.benchmarks.jobs import SOURCE, RateMeter, durations_ms, run_job, spark
from tests.benchmarks.pieces import KeyedRows, SlowSink, TimedSource
from tests.benchmarks.report import Row, limit_row, speed_row
from weir.common import WatermarkStrategy
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import BlackHoleSink
from weir.protocol.events import CheckpointSettled, JobEvent
from weir.protocol.messages import Acknowledged

KEYS = 100_000
ROW_S = 20e-6
INTERVAL_MS = 1_000
SLICE_MS = 20.0  # The bound of a slice that waits, not works.
UNALIGNED_MAX_MS = 150.0 + SLICE_MS
SHORTER_AT_LEAST = 20.0
TIMEOUT_MS, LATE_MAX_MS = 600, 30.0


@dataclass(slots=True)
class InFlightMeter:
    """Hears a job and adds up the records under way in its completed checkpoints, in bytes."""

    stored: int = 0
    completed: int = 0

    def __call__(self, event: JobEvent) -> None:
        match event:
            case Acknowledged(operators=operators):
                self.stored += sum(one.metrics.bytes_persisted_in_flight for one in operators)
            case CheckpointSettled(failure=None):
                self.completed += 1

    def mean_bytes(self) -> float:
        """Bytes per checkpoint."""
        return self.stored / max(1, self.completed)


def back_pressure(quick: bool) -> list[Row]:
    """Durations of checkpoints under full back pressure, and the cost where nothing is queued."""
    seconds, rounds = (8.0, 1) if quick else (20.0, 3)
    aligned, unaligned, switched = InFlightMeter(), InFlightMeter(), InFlightMeter()
    took: dict[int | None, list[float]] = {None: [], 0: [], TIMEOUT_MS: []}
    meters = {None: aligned, 0: unaligned, TIMEOUT_MS: switched}
    pairs = []
    with spark():
        for _ in range(rounds):
            for timeout_ms, meter in meters.items():
                took[timeout_ms] += _held_back(seconds, timeout_ms, meter)
            pairs.append((_rate(seconds, 0), _rate(seconds, None)))
    slow, quicker, late = (median(took[timeout_ms]) for timeout_ms in meters)
    return [
        limit_row(
            "a checkpoint under full back pressure, unaligned: median", "ms", quicker,
            at_most=min(UNALIGNED_MAX_MS, slow / SHORTER_AT_LEAST),
            baseline=slow, against="aligned",
            note=f"{slow / quicker:.0f} times shorter; {unaligned.mean_bytes() / 1e6:.1f} MB of "
            "records under way in each",
        ),
        limit_row(
            f"the same, aligned with a time-out of {TIMEOUT_MS} ms: median", "ms", late,
            at_most=TIMEOUT_MS + LATE_MAX_MS, baseline=slow, against="aligned",
            note=f"{switched.mean_bytes() / 1e6:.1f} MB of records under way in each",
        ),
        speed_row(
            "unaligned checkpoints every 1 s where little is queued, per CPU-second", "rows/s",
            pairs, against="aligned", at_least=0.97, target="costs ≤ 3 %",
        ),
    ]  # fmt: skip


def _held_back(seconds: float, timeout_ms: int | None, meter: InFlightMeter) -> list[float]:
    def build(env: StreamExecutionEnvironment) -> None:
        source = TimedSource(KeyedRows(KEYS), seconds=seconds)
        rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
        sums = rows.key_by("key").aggregate_batches(total=("value", "sum"))
        sums.sink_to(SlowSink(ROW_S))

    with TemporaryDirectory(prefix="weir-bench-") as name:
        history = run_job(
            build,
            meter,
            storage=Path(name),
            interval_ms=INTERVAL_MS,
            alignment_timeout_ms=timeout_ms,
        )
    return durations_ms(history)


def _rate(seconds: float, timeout_ms: int | None) -> float:
    meter = RateMeter(seconds / 4)

    def build(env: StreamExecutionEnvironment) -> None:
        source = TimedSource(KeyedRows(KEYS), seconds=seconds)
        rows = env.from_source(source, WatermarkStrategy.no_watermarks(), SOURCE).uid(SOURCE)
        rows.key_by("key").aggregate_batches(total=("value", "sum")).sink_to(BlackHoleSink())

    with TemporaryDirectory(prefix="weir-bench-") as name:
        run_job(
            build,
            meter,
            storage=Path(name),
            interval_ms=INTERVAL_MS,
            alignment_timeout_ms=timeout_ms,
        )
    return meter.rate().per_cpu_second
