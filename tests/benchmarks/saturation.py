"""The duration of checkpoints when a job has all the work it can do."""

from dataclasses import replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from tests.benchmarks.jobs import durations_ms, run_job, spark
from tests.benchmarks.report import Row
from weir.config import ChannelConfig
from weir.datastream import StreamExecutionEnvironment
from weir.examples import flights
from weir.examples.flights_data import write_flights

INTERVAL_MS = 1_000
BY_BYTES_ALONE = replace(ChannelConfig(), batch_credit_bytes=0)


def saturation(quick: bool) -> list[Row]:
    """Checkpoints of a job that keeps both cores full: the flights, as fast as they go."""
    rounds = 1 if quick else 3
    bounded, by_bytes = [], []
    with TemporaryDirectory(prefix="weir-bench-") as name, spark():
        table = Path(name, "flights.parquet")
        write_flights(str(table))
        for _ in range(rounds):
            bounded.append(_run(table, ChannelConfig()))
            by_bytes.append(_run(table, BY_BYTES_ALONE))
    took, took_by_bytes = (median(ms for ms, _ in runs) for runs in (bounded, by_bytes))
    seconds, seconds_by_bytes = (median(s for _, s in runs) for runs in (bounded, by_bytes))
    return [
        Row(
            what="a checkpoint of a job that has more work than it can do: median",
            unit="ms",
            weir=took,
            baseline=took_by_bytes,
            ratio=took / took_by_bytes,
            against="what is under way is bounded by its bytes alone",
            target="",
            met=None,
            note=f"a year of flights in {seconds:.0f} s, by bytes alone {seconds_by_bytes:.0f} s",
        )
    ]


def _run(table: Path, channels: ChannelConfig) -> tuple[float, float]:
    """Median duration of the checkpoints in milliseconds, and seconds of the whole run."""
    with TemporaryDirectory(prefix="weir-bench-") as name:
        directory = Path(name)

        def build(env: StreamExecutionEnvironment) -> None:
            flights.build(env, str(table), str(directory / "output"), None)

        history = run_job(
            build, storage=directory / "chk", interval_ms=INTERVAL_MS, channels=channels
        )
    settled = [record for record in history.checkpoints.values() if record.is_completed]
    first, last = settled[0].triggered, settled[-1].triggered
    return median(durations_ms(history)), (last.at_ms - first.at_ms) / 1_000
