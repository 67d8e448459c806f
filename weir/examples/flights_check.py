"""A check of the output of ``flights.py`` against a direct computation over the table.

The batches of the replay decide which flights are late, so on-time and late flights are compared
together, per carrier and hour. The totals per aircraft must end where the table ends and
grow with every row: a total that does not grow, or shrinks, shows flights that counted twice.

Run it: ``python -m weir.examples.flights_check flights.parquet OUTPUT``; exits with 0 or 1.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from weir.examples.flights_data import HOURLY, LATE_FLIGHTS, TOTALS
from weir.operators.sinks.parquet_sink import committed_files

HOUR_MS = 3_600_000
BOUND_MS = 2 * HOUR_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The errors of the output: lost, duplicated and wrong, counted in flights unless said."""

    lost_hourly: int
    duplicated_hourly: int
    wrong_hours: int  # Carrier and hour: the number of flights is right, the figures are not.
    repeated_windows: (
        int  # Carrier and hour: further rows of windows, each of which should fire once.
    )
    repeated_late: int  # The same flight late more than once.
    lost_totals: int
    duplicated_totals: int
    wrong_totals: int  # Aircraft: the number of flights is right, the miles are not.
    shrunken_totals: int  # Rows of totals that did not grow.
    late: int  # For information.

    @property
    def lost(self) -> int:
        """Flights that are missing."""
        return self.lost_hourly + self.lost_totals

    @property
    def duplicated(self) -> int:
        """Flights that count more than once."""
        return self.duplicated_hourly + self.duplicated_totals

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not any(getattr(self, f.name) for f in fields(self) if f.name != "late")

    def __str__(self) -> str:
        figures = {f.name: getattr(self, f.name) for f in fields(self)}
        lines = [f"  {name.replace('_', ' '):<18} {value:>8,}" for name, value in figures.items()]
        return "\n".join([f"lost {self.lost}, duplicated {self.duplicated}", *lines])


def compare(flights: pa.Table, output: str | Path) -> Comparison:
    """Compare the three outputs with those expected for this table."""
    hourly = _read(Path(output, HOURLY))
    late = _read(Path(output, LATE_FLIGHTS))
    totals = _read(Path(output, TOTALS))

    figures = ("flights", "departures", "delay_min")
    expected = _per_hour(flights)
    got = pa.concat_tables(
        [
            _columns(hourly, {"carrier": "carrier", "hour_ms": "window_start"}, figures),
            _per_hour(late),
        ],
    ).group_by(["carrier", "hour_ms"])
    hours = _side_by_side(
        expected, _summed(got, figures), keys=["carrier", "hour_ms"], figures=figures
    )
    aircraft, shrunken = _last_totals(totals)
    tails = _side_by_side(
        _per_aircraft(flights), aircraft, keys=["tailnum"], figures=("flights", "miles")
    )
    windows = hourly.group_by(["carrier", "window_start"]).aggregate([]).num_rows
    return Comparison(
        lost_hourly=hours["lost"],
        duplicated_hourly=hours["duplicated"],
        wrong_hours=hours["wrong"],
        repeated_windows=hourly.num_rows - windows,
        repeated_late=late.num_rows - len(pc.unique(late["id"])),
        lost_totals=tails["lost"],
        duplicated_totals=tails["duplicated"],
        wrong_totals=tails["wrong"],
        shrunken_totals=shrunken,
        late=late.num_rows,
    )


def late_record_by_record(flights: pa.Table) -> int:
    """The number of late flights when the watermark advances with every single record.

    A flight is late whose hour has closed: the last millisecond of its window is not after the
    watermark, which is the latest schedule seen before it, less the bound, less one. A stream whose
    watermark advances once per batch has as many late flights, or fewer.
    """
    scheduled = flights["scheduled_ms"].to_numpy()
    watermark = np.maximum.accumulate(scheduled)[:-1] - BOUND_MS - 1
    window_last = scheduled[1:] // HOUR_MS * HOUR_MS + HOUR_MS - 1
    return int(np.count_nonzero(window_last <= watermark))


def _per_hour(flights: pa.Table) -> pa.Table:
    ms = flights["scheduled_ms"]
    table = pa.table(
        {
            "carrier": flights["carrier"],
            "hour_ms": pc.multiply(pc.divide(ms, HOUR_MS), HOUR_MS),
            "flights": pa.array(np.ones(flights.num_rows, np.int64)),
            "departures": flights["departed"],
            "delay_min": flights["delay_min"],
        }
    )
    return _summed(table.group_by(["carrier", "hour_ms"]), ("flights", "departures", "delay_min"))


def _per_aircraft(flights: pa.Table) -> pa.Table:
    ones = pa.array(np.ones(flights.num_rows, np.int64))
    table = pa.table(
        {"tailnum": flights["tailnum"], "flights": ones, "miles": flights["distance_miles"]}
    )
    return _summed(table.group_by(["tailnum"]), ("flights", "miles"))


def _last_totals(totals: pa.Table) -> tuple[pa.Table, int]:
    """The last row of each aircraft in the order written, and the number of rows without growth."""
    columns = _columns(totals, {"tailnum": "tailnum"}, ("flights", "miles"))
    code = pc.fill_null(pc.dictionary_encode(columns["tailnum"]).combine_chunks().indices, -1)
    order = np.argsort(code.to_numpy(zero_copy_only=False), kind="stable")
    sorted_code = code.to_numpy(zero_copy_only=False)[order]
    same = sorted_code[1:] == sorted_code[:-1]
    grown = np.diff(columns["flights"].to_numpy()[order]) > 0
    is_last = np.append(~same, True) if len(order) else np.zeros(0, bool)
    return columns.take(pa.array(order[is_last])), int(np.count_nonzero(same & ~grown))


def _side_by_side(
    expected: pa.Table, got: pa.Table, *, keys: list[str], figures: tuple[str, ...]
) -> Mapping[str, int]:
    """Differences in the first figure, a number of flights; ``wrong`` where only others differ."""

    def by_key(table: pa.Table) -> dict[tuple[Any, ...], tuple[int, ...]]:
        names = zip(*(table[name].to_pylist() for name in keys), strict=True)
        values = zip(*(table[name].to_pylist() for name in figures), strict=True)
        return dict(zip(names, values, strict=True))

    wanted, given = by_key(expected), by_key(got)
    nothing = (0,) * len(figures)
    pairs = [(wanted.get(k, nothing), given.get(k, nothing)) for k in wanted.keys() | given.keys()]
    return {
        "lost": sum(max(0, one[0] - other[0]) for one, other in pairs),
        "duplicated": sum(max(0, other[0] - one[0]) for one, other in pairs),
        "wrong": sum(one[0] == other[0] and one != other for one, other in pairs),
    }


def _summed(groups: Any, names: tuple[str, ...]) -> pa.Table:
    table = groups.aggregate([(name, "sum") for name in names])
    return table.rename_columns([name.removesuffix("_sum") for name in table.column_names])


def _columns(table: pa.Table, keys: Mapping[str, str], figures: tuple[str, ...]) -> pa.Table:
    """Key columns by their new names, figures as int64."""
    named = {new: table[old] for new, old in keys.items()}
    if "hour_ms" in named:
        named["hour_ms"] = named["hour_ms"].cast(pa.int64())
    return pa.table(named | {name: table[name].cast(pa.int64()) for name in figures})


def _read(directory: Path) -> pa.Table:
    """All committed rows, in the order of commit within each key."""
    return pa.concat_tables([pq.read_table(file) for file in committed_files(directory)])


def main() -> int:
    flights_path, output = sys.argv[1:]
    flights = pq.read_table(flights_path)
    comparison = compare(flights, output)
    print(comparison)
    print(
        f"({late_record_by_record(flights):,} would be late if the watermark advanced with every "
        "record)"
    )
    return 0 if comparison.ok else 1


if __name__ == "__main__":
    sys.exit(main())
