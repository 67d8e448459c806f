"""The flights example: its data, and a check that finds what is missing or too much."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from weir.common import Row
from weir.examples.flights import build
from weir.examples.flights_check import HOUR_MS, Comparison, compare, late_record_by_record
from weir.examples.flights_data import flights, write_flights
from weir.testing import KillPoint, Run, assert_same_output, run


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights()


def test_all_flights_are_there_in_the_order_they_left(table: pa.Table) -> None:
    assert table.num_rows == 336_776
    assert len(pc.unique(table["id"])) == 336_776
    assert pc.sum(table["departed"]).as_py() == 336_776 - 8_255  # Cancelled.
    left = pc.coalesce(table["departed_ms"], table["scheduled_ms"]).to_numpy()
    assert (left[1:] >= left[:-1]).all()


def test_event_time_is_the_local_schedule_in_utc(table: pa.Table) -> None:
    first = table.filter(pc.equal(table["id"], 0)).to_pylist()[0]
    assert (first["carrier"], first["flight"], first["tailnum"]) == ("UA", 1545, "N14228")
    assert first["scheduled_ms"] == 1_357_035_300_000  # 2013-01-01 05:15 in New York.
    assert first["departed_ms"] - first["scheduled_ms"] == 2 * 60_000


def test_a_bound_of_two_hours_leaves_5546_flights_late(table: pa.Table) -> None:
    assert late_record_by_record(table) == 5_546


def test_the_file_is_written_once_in_several_row_groups(tmp_path: Path, table: pa.Table) -> None:
    path = write_flights(tmp_path / "data" / "flights.parquet")
    written = path.stat().st_mtime_ns
    assert write_flights(path).stat().st_mtime_ns == written
    assert pq.read_metadata(path).num_row_groups == 17
    assert pq.read_table(path).equals(table)


Change = Callable[[pa.Table], pa.Table]


def unchanged(table: pa.Table) -> pa.Table:
    return table


def without_first(table: pa.Table) -> pa.Table:
    return table.slice(1)


def with_first_twice(table: pa.Table) -> pa.Table:
    return pa.concat_tables([table, table.slice(0, 1)])


def with_more(name: str) -> Change:
    def change(table: pa.Table) -> pa.Table:
        index = table.schema.get_field_index(name)
        values = [table[name][0].as_py() + 1, *table[name].to_pylist()[1:]]
        return table.set_column(index, name, pa.chunked_array([values]))

    return change


def compared(
    tmp_path: Path,
    table: pa.Table,
    *,
    hourly: Change = unchanged,
    late: Change = unchanged,
    totals: Change = unchanged,
) -> Comparison:
    """The right output for ``table``, each part changed a little, against the table."""
    is_late = pc.equal(pc.bit_wise_and(table["id"], 7), 0)
    on_time = table.filter(pc.invert(is_late))
    hour = pc.multiply(pc.divide(on_time["scheduled_ms"], HOUR_MS), HOUR_MS)
    windows = (
        on_time.append_column("window_start", hour)
        .group_by(["carrier", "window_start"])
        .aggregate([("id", "count"), ("departed", "sum"), ("delay_min", "sum")])
        .rename_columns(["carrier", "window_start", "flights", "departures", "delay_min"])
    )
    running: dict[str | None, tuple[int, int]] = {}
    grown = []
    for tailnum, miles in zip(
        table["tailnum"].to_pylist(), table["distance_miles"].to_pylist(), strict=True
    ):
        count, sum_miles = running.get(tailnum, (0, 0))
        running[tailnum] = count + 1, sum_miles + miles
        grown.append({"tailnum": tailnum, "flights": count + 1, "miles": sum_miles + miles})
    parts = {
        "hourly": hourly(windows),
        "late": late(table.filter(is_late)),
        "totals": totals(pa.Table.from_pylist(grown)),
    }
    for name, part in parts.items():
        directory = tmp_path / name
        directory.mkdir()
        # Checkpoint 9 comes before 10, though not by the letters.
        half = part.num_rows // 2
        pq.write_table(part.slice(0, half), directory / "part-sink-0-9-0.parquet")
        pq.write_table(part.slice(half), directory / "part-sink-0-10-0.parquet")
    return compare(table, tmp_path)


class TestCheck:
    @pytest.fixture
    def some(self, table: pa.Table) -> pa.Table:
        return table.slice(0, 500)

    def test_a_right_output_passes(self, tmp_path: Path, some: pa.Table) -> None:
        comparison = compared(tmp_path, some)
        assert comparison.ok
        assert (comparison.lost, comparison.duplicated) == (0, 0)
        assert comparison.late > 0

    def test_a_lost_late_flight_is_lost(self, tmp_path: Path, some: pa.Table) -> None:
        comparison = compared(tmp_path, some, late=without_first)
        assert (comparison.lost, comparison.duplicated, comparison.ok) == (1, 0, False)

    def test_a_repeated_late_flight_is_duplicated(self, tmp_path: Path, some: pa.Table) -> None:
        comparison = compared(tmp_path, some, late=with_first_twice)
        assert (comparison.lost, comparison.duplicated, comparison.repeated_late) == (0, 1, 1)

    def test_a_lost_window_is_lost(self, tmp_path: Path, some: pa.Table) -> None:
        assert compared(tmp_path, some, hourly=without_first).lost > 0

    def test_a_window_that_fired_twice_is_found(self, tmp_path: Path, some: pa.Table) -> None:
        comparison = compared(tmp_path, some, hourly=with_first_twice)
        assert comparison.duplicated > 0
        assert comparison.repeated_windows == 1

    def test_a_wrong_sum_is_found(self, tmp_path: Path, some: pa.Table) -> None:
        comparison = compared(tmp_path, some, hourly=with_more("delay_min"))
        assert (comparison.wrong_hours, comparison.lost, comparison.duplicated) == (1, 0, 0)
        assert not comparison.ok

    def test_a_total_that_stands_still_is_found(self, tmp_path: Path, some: pa.Table) -> None:
        comparison = compared(tmp_path, some, totals=with_first_twice)
        assert comparison.shrunken_totals == 1
        assert not comparison.ok

    def test_a_total_that_misses_flights_is_lost(self, tmp_path: Path, some: pa.Table) -> None:
        last = some.num_rows - 1
        comparison = compared(tmp_path, some, totals=lambda totals: totals.slice(0, last))
        assert comparison.lost_totals == 1


def fed(tmp_path: Path, table: pa.Table, **kill: Any) -> Run:
    """The pipeline's run over the first flights."""
    path = tmp_path / "flights.parquet"
    pq.write_table(table.slice(0, 1), path)  # Looked at when the pipeline is built.
    pipeline = partial(build, flights_path=str(path), output=str(tmp_path), rows_per_second=None)
    flights_of_a_day = [Row(**row) for row in table.slice(0, 900).to_pylist()]
    return run(pipeline, flights_of_a_day, checkpoint_every=200, parallelism=2, **kill)


def test_each_flight_is_in_its_hour_or_late_and_a_kill_changes_nothing(
    tmp_path: Path, table: pa.Table
) -> None:
    undisturbed = fed(tmp_path, table)
    hourly, late = undisturbed.outputs["hourly-sink"], undisturbed.outputs["late-sink"]
    assert sum(row.flights for row in hourly) + len(late) == 900
    killed = fed(tmp_path, table, kill=KillPoint.WRITE, kill_at=3)
    assert killed.restarts == 1
    assert_same_output(hourly, killed.outputs["hourly-sink"], key=lambda row: row.carrier)
