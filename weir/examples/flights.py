"""A year of flights replayed: departures and delays per carrier and hour, totals per aircraft.

The flights come in the order in which they left, but their event time is their scheduled departure.
The watermark follows two hours behind the latest schedule seen; a flight whose hour is closed by
then is late and goes to a side output instead of being lost; 5,546 are. Three Parquet outputs, each
record in them exactly once:

- ``hourly``: per carrier and hour the flights scheduled, those that departed, their delay in
  minutes, sum and mean;
- ``late``: the late flights themselves;
- ``totals``: per aircraft the flights and miles so far, a row whenever they grew.

Run it: ``weir run weir/examples/flights.py --parallelism 2 --arg output=/tmp/flights``. Arguments:
``output`` (directory), ``input`` (the Parquet file, written if it does not exist),
``rows_per_second`` (20000; 0 for no limit) and ``rounds`` (1: the year once; 2: and once more, a
year later; 0: for ever). ``weir.examples.flights_check`` checks the result of one round.
"""

import os

import pyarrow as pa
import pyarrow.compute as pc

from weir.common import Duration, Time, WatermarkStrategy
from weir.datastream import OutputTag, StreamExecutionEnvironment
from weir.datastream.connectors import ParquetSink
from weir.datastream.window import TumblingEventTimeWindows
from weir.examples.flights_data import HOURLY, LATE_FLIGHTS, TOTALS, write_flights
from weir.examples.flights_replay import ReplayedFlights

LATE = OutputTag("late")


def with_mean_delay(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The hourly figures with the mean delay of the flights that departed."""
    departures = pc.if_else(pc.greater(batch["departures"], 0), batch["departures"], None)
    mean = pc.divide(batch["delay_min"].cast(pa.float64()), departures.cast(pa.float64()))
    return batch.append_column("mean_delay_min", mean)


def build(
    env: StreamExecutionEnvironment,
    flights_path: str,
    output: str,
    rows_per_second: float | None,
    rounds: int = 1,
) -> None:
    """Add the pipeline to ``env``."""
    scheduled = (
        WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_hours(2))
        .with_timestamp_column("scheduled_ms")
        .with_resolution(Duration.of_hours(1))
    )
    source = ReplayedFlights(flights_path, rounds, rows_per_second)
    flights = env.from_source(source, scheduled, "flights").uid("flights")

    hourly = (
        flights.key_by("carrier")
        .window(TumblingEventTimeWindows.of(Time.hours(1)))
        .side_output_late_data(LATE)
        .aggregate_batches(
            flights=("*", "count"),
            departures=("departed", "sum"),
            delay_min=("delay_min", "sum"),
        )
        .uid("hourly")
    )
    hourly.map_batches(with_mean_delay).uid("mean-delay").sink_to(
        ParquetSink(os.path.join(output, HOURLY))
    ).uid("hourly-sink")
    hourly.get_side_output(LATE).sink_to(ParquetSink(os.path.join(output, LATE_FLIGHTS))).uid(
        "late-sink"
    )

    totals = flights.key_by("tailnum").aggregate_batches(
        flights=("*", "count"), miles=("distance_miles", "sum")
    )
    totals.uid("totals").sink_to(ParquetSink(os.path.join(output, TOTALS))).uid("totals-sink")


def main() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.enable_checkpointing(1_000)
    output = env.get_job_parameter("output", "flights-output")
    flights_path = env.get_job_parameter("input", os.path.join(output, "flights.parquet"))
    write_flights(flights_path)
    rows_per_second = float(env.get_job_parameter("rows_per_second", "20000"))
    rounds = int(env.get_job_parameter("rounds", "1"))
    build(env, flights_path, output, rows_per_second or None, rounds)
    env.execute("flights")


if __name__ == "__main__":
    main()
