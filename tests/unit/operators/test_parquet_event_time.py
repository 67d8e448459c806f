"""Parquet files of partitions that overlap in event time; with statistics, with some, with none."""

import datetime as dt
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.unit.operators.split_harness import Timed, rescaled, started
from weir.common import WatermarkStrategy
from weir.operators.sources.parquet_source import ParquetSource
from weir.operators.sources.parquet_statistics import lowest_time_ms
from weir.operators.sources.split_source import Source
from weir.operators.watermarks import column_timestamps

STRATEGY = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("ts")
ROWS = 30


def partition(path: Path, start: int, *, statistics: Any = True, groups: int = 3) -> None:
    """A file with a record every 10 ms from ``start`` on, in row groups of 30."""
    times = [start + 10 * i for i in range(groups * ROWS)]
    table = pa.table({"ts": times, "name": [path.name] * len(times)})
    pq.write_table(table, path, row_group_size=ROWS, write_statistics=statistics)


@pytest.fixture
def partitions(tmp_path: Path) -> Path:
    """Two partitions of two files each: of one time, and named one after the other."""
    for number in (0, 1):
        partition(tmp_path / f"p{number}-a.parquet", number)
        partition(tmp_path / f"p{number}-b.parquet", 900 + number)
    return tmp_path


def names(source: Source) -> list[tuple[str, list[int]]]:
    splits = source.discover_in_event_time(1, "ts")
    return [(Path(split["path"]).stem, split["row_groups"]) for split in splits]


def late(subtask: Timed) -> list[Any]:
    """The records that came behind a watermark; a row is (ts, name)."""
    passed, late = -(2**63), []
    for event in subtask.output.events:
        if event[0] == "watermark":
            passed = event[1]
        elif event[0] <= passed:
            late.append(event)
    return late


def test_splits_are_read_in_the_order_of_their_lowest_times(partitions: Path) -> None:
    assert names(ParquetSource(partitions)) == [
        (f"p{number}-{part}", [group]) for part in "ab" for group in (0, 1, 2) for number in (0, 1)
    ]
    assert names(ParquetSource(partitions, split_by="file")) == [
        ("p0-a", [0, 1, 2]), ("p1-a", [0, 1, 2]), ("p0-b", [0, 1, 2]), ("p1-b", [0, 1, 2]),
    ]  # fmt: skip


@pytest.mark.parametrize("split_by", ["row_group", "file"])
@pytest.mark.parametrize("parallelism", [1, 2, 3])
def test_of_overlapping_partitions_nothing_is_late(
    partitions: Path, split_by: Any, parallelism: int
) -> None:
    source = ParquetSource(partitions, split_by=split_by)
    running = started(source, STRATEGY, parallelism)
    for subtask in running:
        subtask.read_rest(7)
        assert late(subtask) == []
    assert sum(len(subtask.output.rows) for subtask in running) == 12 * ROWS


@pytest.mark.parametrize("split_by", ["row_group", "file"])
@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (2, 3)])
def test_a_restore_loses_no_lowest_time(
    partitions: Path, split_by: Any, before: int, after: int
) -> None:
    source = ParquetSource(partitions, split_by=split_by)
    running = started(source, STRATEGY, before)
    for index, subtask in enumerate(running):
        for _ in range(2 + 3 * index):
            subtask.read(7)
    snapshots = [subtask.barrier(1) for subtask in running]
    again = rescaled(source, STRATEGY, after, snapshots)
    rows = [row for subtask in running for row in subtask.output.rows]
    for subtask in again:
        subtask.read_rest(7)
        assert late(subtask) == []
        rows += subtask.output.rows
    assert len(rows) == len({tuple(row) for row in rows}) == 12 * ROWS


def test_event_time_goes_on_while_fresh_splits_hold_it_back(partitions: Path) -> None:
    (subtask,) = started(ParquetSource(partitions), STRATEGY)
    seen = []
    while not subtask.has_ended:
        subtask.read(ROWS)
        seen.append(subtask.output.watermark_ms)
    assert [seen[3], seen[7]] == [299, 599]  # Each pair of row groups closes its 300 ms.


@pytest.mark.parametrize("statistics", [False, ["name"]])
def test_without_statistics_files_are_read_in_the_order_of_names(
    tmp_path: Path, statistics: Any
) -> None:
    partition(tmp_path / "a.parquet", 5_000, statistics=statistics, groups=1)
    partition(tmp_path / "b.parquet", 0, statistics=statistics, groups=1)
    source = ParquetSource(tmp_path)
    assert names(source) == [("a", [0]), ("b", [0])]
    assert source.discover_in_event_time(1, "ts") == source.discover(1)
    (subtask,) = started(source, STRATEGY)
    subtask.read_rest()
    assert len(late(subtask)) == ROWS


def test_where_only_some_have_statistics_these_hold_event_time_back(tmp_path: Path) -> None:
    partition(tmp_path / "a.parquet", 5_000, groups=1)
    partition(tmp_path / "b.parquet", 9_000, statistics=False, groups=1)
    partition(tmp_path / "c.parquet", 2_000, groups=1)
    source = ParquetSource(tmp_path)
    assert names(source) == [("a", [0]), ("b", [0]), ("c", [0])]
    (subtask,) = started(source, STRATEGY)
    subtask.read_rest()
    assert late(subtask) == []
    assert subtask.output.events[ROWS] == ("watermark", 1_999)


def test_a_file_with_one_unknown_row_group_is_unknown(tmp_path: Path) -> None:
    schema = pa.schema([("ts", pa.int64())])
    with pq.ParquetWriter(tmp_path / "a.parquet", schema) as writer:
        writer.write_table(pa.table({"ts": pa.array([5], pa.int64())}))
        writer.write_table(pa.table({"ts": pa.array([None], pa.int64())}))
    (split,) = ParquetSource(tmp_path, split_by="file").discover_in_event_time(1, "ts")
    assert "lowest" not in split


def test_times_of_a_function_say_nothing_about_columns(partitions: Path) -> None:
    source = ParquetSource(partitions)
    strategy = STRATEGY.with_timestamp_assigner(lambda row, before: row["ts"])
    factory: Any = source.create_timed_operator_factory(1, strategy)
    assert factory.args[1] == source.discover(1)


def test_the_lowest_time_of_another_column_does_not_count(partitions: Path) -> None:
    source = ParquetSource(partitions)
    split = source.discover_in_event_time(1, "ts")[0]
    assert source.lowest_ms(split, "ts") == 0
    assert source.lowest_ms(split, "name") is None


NEW_YORK = pa.timestamp("us", "America/New_York")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([2_500, 1_500], pa.timestamp("s")),
        pa.array([2_500, 1_500], pa.timestamp("ms")),
        pa.array([2_500_999, 1_500_999], pa.timestamp("us")),
        pa.array([2_500_000_001, 1_500_999_999], pa.timestamp("ns")),
        pa.array([2_500_000_001, -1_500_999_999], pa.timestamp("ns", "UTC")),
        pa.array([2_500_999, -1_500_999], NEW_YORK),
        pa.array([2**62, 2**61], pa.timestamp("us")),  # Beyond what Python's dates can say.
        pa.array([dt.date(1970, 1, 3), dt.date(1969, 12, 30)], pa.date32()),
        pa.array([dt.date(1970, 1, 3), dt.date(1969, 12, 30)], pa.date64()),
        pa.array([2_500, -1_500], pa.int64()),
        pa.array([7, -5], pa.int8()),
        pa.array([200, 150], pa.uint8()),
        pa.array([4_000_000_000, 3_000_000_000], pa.uint32()),
        pa.array([2**62 + 1, 2**62], pa.uint64()),
        pa.array([7, -5]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_statistics_are_read_as_the_column_is(column: pa.Array, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"x": ["a", "b"], "ts": column}), path)
    with pq.ParquetFile(path) as file:
        (read,) = file.iter_batches()
        lowest = lowest_time_ms(file, 0, "ts")
    assert lowest == column_timestamps(read, "ts").min()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1.5, 2.5]),
        pa.array(["a", "b"]),
        pa.array([None, None], pa.int64()),
        pa.array([2**63 + 1, 2**63], pa.uint64()),
        pa.array([dt.time(1), dt.time(2)]),
        pa.array([{"ts": 1}, {"ts": 2}]),
    ],
    ids=lambda column: str(column.type),
)
def test_of_what_is_no_time_the_lowest_is_not_known(column: pa.Array, tmp_path: Path) -> None:
    pq.write_table(pa.table({"ts": column, "x": ["a", "b"]}), tmp_path / "a.parquet")
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        assert [lowest_time_ms(file, 0, name) for name in ("ts", "ts.ts", "gone")] == [None] * 3


def test_of_timestamps_without_statistics_of_their_kind_the_lowest_is_not_known(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"ts": pa.array([2_500, 1_500], pa.timestamp("ms"))})
    pq.write_table(table, path, use_deprecated_int96_timestamps=True)
    with pq.ParquetFile(path) as file:
        assert lowest_time_ms(file, 0, "ts") is None
