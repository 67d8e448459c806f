"""The flights that go round: every id once, event time onwards, any position found again."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from weir.datastream.connectors import SplitReader
from weir.errors import ConfigError
from weir.examples.flights_data import flights
from weir.examples.flights_replay import FLIGHTS, YEAR_MS, ReplayedFlights, later

ROWS = 100


@pytest.fixture(scope="module")
def table() -> pa.Table:
    return flights()


@pytest.fixture
def path(tmp_path: Path, table: pa.Table) -> Path:
    target = tmp_path / "flights.parquet"
    pq.write_table(table.slice(0, ROWS), target, row_group_size=40)
    return target


def batches(reader: SplitReader, rows_max: int = 30) -> Iterator[pa.RecordBatch]:
    while (batch := reader.read(rows_max)) is not None:
        yield batch.columns


def replayed(source: ReplayedFlights, position: Any = None) -> pa.Table:
    (split,) = source.discover(2)
    reader = source.open(split, position)
    try:
        return pa.Table.from_batches(batches(reader))
    finally:
        reader.close()


def test_one_round_is_the_file_as_it_is(path: Path, table: pa.Table) -> None:
    assert replayed(ReplayedFlights(path)).equals(table.slice(0, ROWS))


def test_a_later_round_is_the_same_a_year_later_under_new_ids(path: Path, table: pa.Table) -> None:
    three = replayed(ReplayedFlights(path, rounds=3))
    assert three.num_rows == 3 * ROWS
    assert len(pc.unique(three["id"])) == 3 * ROWS
    last, first = three.slice(2 * ROWS), table.slice(0, ROWS)
    assert pc.subtract(last["scheduled_ms"], first["scheduled_ms"]).unique().to_pylist() == [
        2 * YEAR_MS
    ]
    assert last["departed_ms"].null_count == first["departed_ms"].null_count
    unchanged = ["carrier", "tailnum", "delay_min", "departed"]
    assert last.select(unchanged).equals(first.select(unchanged))


def test_a_year_of_ids_and_event_times_ends_before_the_next_begins(table: pa.Table) -> None:
    assert table.num_rows == FLIGHTS
    (second,) = later_table(table).to_batches()
    assert pc.min(second["id"]).as_py() > pc.max(table["id"]).as_py()
    # Scheduled, not left: a flight of New Year's Eve may well have left in the new year.
    assert pc.min(second["scheduled_ms"]).as_py() > pc.max(table["scheduled_ms"]).as_py()


def later_table(table: pa.Table) -> pa.Table:
    return pa.Table.from_batches([later(table.combine_chunks().to_batches()[0], 1)])


@pytest.mark.parametrize("taken", [1, 3, 4, 5, 8])
def test_any_position_goes_on_with_the_next_record(path: Path, taken: int) -> None:
    source = ReplayedFlights(path, rounds=3)
    whole = replayed(source)
    (split,) = source.discover(2)
    reader = source.open(split, None)
    seen = sum(batch.num_rows for batch in islice(batches(reader), taken))
    position = reader.position
    reader.close()
    assert replayed(source, position).equals(whole.slice(seen))


def test_without_end_it_goes_on_after_many_rounds(path: Path) -> None:
    source = ReplayedFlights(path, rounds=0)
    assert not source.bounded
    (split,) = source.discover(2)
    reader = source.open(split, None)
    ids: set[int] = set()
    for batch in islice(batches(reader), 60):
        ids.update(batch["id"].to_pylist())
    reader.close()
    assert len(ids) > 10 * ROWS


def test_a_negative_number_of_rounds_is_refused(path: Path) -> None:
    with pytest.raises(ConfigError, match="0 never ends"):
        ReplayedFlights(path, rounds=-1)
