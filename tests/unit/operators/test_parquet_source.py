"""Parquet files as a source: the same rows from any position, and no others."""

import os
import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operators.connector_harness import Harness, Snapshot
from weir.errors import ConfigError, SourceChangedError, UserError
from weir.operators.base import Poll
from weir.operators.sources import parquet_source
from weir.operators.sources.parquet_source import ParquetSource

ROWS = 100
GROUP_ROWS = 30  # Row groups of 30, 30, 30 and 10.


def write(path: Path, start: int = 0, rows: int = ROWS) -> Path:
    numbers = list(range(start, start + rows))
    table = pa.table(
        {"id": numbers, "text": [f"t{n}" for n in numbers], "half": [n / 2 for n in numbers]}
    )
    pq.write_table(table, path, row_group_size=GROUP_ROWS)
    return path


def subtasks(
    source: ParquetSource, parallelism: int = 1, restored: list[Snapshot] | None = None
) -> list[Harness]:
    factory = pickle.loads(pickle.dumps(source.create_operator_factory(parallelism)))
    return [
        Harness(factory, index=i, parallelism=parallelism, restored=restored)
        for i in range(parallelism)
    ]


def ids(rows: list[Any]) -> list[int]:
    return [row["id"] for row in rows]


@pytest.fixture(scope="module")
def numbers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("parquet") / "numbers.parquet")


def test_rows_come_as_columns_in_file_order(numbers: Path) -> None:
    (subtask,) = subtasks(ParquetSource(numbers))
    assert ids(subtask.drain(7)) == list(range(ROWS))
    assert all(batch.is_columnar for batch in subtask.output.batches)


def test_subtasks_share_one_file_by_row_groups(numbers: Path) -> None:
    first, second = subtasks(ParquetSource(numbers), 2)
    assert ids(first.drain()) == [*range(30), *range(60, 90)]
    assert ids(second.drain()) == [*range(30, 60), *range(90, 100)]


def test_split_by_file_keeps_a_file_in_one_subtask_in_order(numbers: Path) -> None:
    first, second = subtasks(ParquetSource(numbers, split_by="file"), 2)
    assert ids(first.drain(11)) == list(range(ROWS))
    assert second.drain() == []


@given(st.lists(st.integers(1, 40), max_size=6), st.sampled_from(["file", "row_group"]))
@settings(max_examples=40)
def test_a_restored_source_goes_on_with_the_next_row(
    numbers: Path, before: list[int], split_by: Any
) -> None:
    source = ParquetSource(numbers, split_by=split_by)
    (running,) = subtasks(source)
    for records_max in before:
        if running.poll(records_max) is Poll.END:
            break
    snapshot = running.barrier(1)
    seen = list(running.output.rows)
    running.drain()
    (restored,) = subtasks(source, restored=[snapshot])
    assert ids(seen + restored.drain()) == list(range(ROWS))


def test_a_position_beyond_one_decoded_chunk_is_found_again(
    numbers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet_source, "DECODE_ROWS", 8)
    (running,) = subtasks(ParquetSource(numbers))
    for _ in range(3):
        running.poll(8)
    (restored,) = subtasks(ParquetSource(numbers), restored=[running.barrier(1)])
    assert ids(restored.drain()) == list(range(24, ROWS))


def test_only_the_asked_columns_are_read_in_the_asked_order(numbers: Path) -> None:
    (subtask,) = subtasks(ParquetSource(numbers, columns=["half", "id"]))
    subtask.drain()
    assert subtask.output.batches[0].columns.schema.names == ["half", "id"]


def test_directories_are_read_in_name_order_without_hidden_files(tmp_path: Path) -> None:
    (tmp_path / "_pending").mkdir()
    (tmp_path / "year=2013").mkdir()
    write(tmp_path / "_pending" / "x.parquet", 1_000)
    write(tmp_path / ".hidden.parquet", 2_000)
    write(tmp_path / "b.parquet", 10, 10)
    write(tmp_path / "a.parquet", 0, 10)
    write(tmp_path / "year=2013" / "c.parquet", 20, 10)
    (tmp_path / "readme.txt").write_text("not data")
    (subtask,) = subtasks(ParquetSource(tmp_path))
    assert ids(subtask.drain()) == list(range(30))


def test_a_glob_names_files(tmp_path: Path) -> None:
    write(tmp_path / "part-1.parquet", 0, 10)
    write(tmp_path / "other.parquet", 50, 10)
    (subtask,) = subtasks(ParquetSource(tmp_path / "part-*.parquet"))
    assert ids(subtask.drain()) == list(range(10))


def test_a_file_that_appears_after_the_first_start_is_not_read_on_restore(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", 0, 10)
    (running,) = subtasks(ParquetSource(tmp_path))
    running.poll(4)
    snapshot = running.barrier(1)
    write(tmp_path / "b.parquet", 50, 10)
    (restored,) = subtasks(ParquetSource(tmp_path), restored=[snapshot])
    assert ids(restored.drain()) == list(range(4, 10))


def test_an_empty_file_ends_at_once(tmp_path: Path) -> None:
    (subtask,) = subtasks(ParquetSource(write(tmp_path / "a.parquet", rows=0)))
    assert subtask.poll() is Poll.END


class TestChangedFile:
    def test_is_refused_by_name_after_a_restore(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.parquet")
        (running,) = subtasks(ParquetSource(path))
        running.poll(5)
        snapshot = running.barrier(1)
        write(path, 1)
        (restored,) = subtasks(ParquetSource(path), restored=[snapshot])
        with pytest.raises(SourceChangedError, match=r"a\.parquet changed"):
            restored.poll()

    def test_is_refused_when_first_opened(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.parquet")
        (subtask,) = subtasks(ParquetSource(path))
        stat = path.stat()
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))
        with pytest.raises(SourceChangedError):
            subtask.poll()

    def test_is_refused_even_when_it_is_no_parquet_any_more(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.parquet")
        (subtask,) = subtasks(ParquetSource(path))
        path.write_bytes(b"nothing")
        with pytest.raises(SourceChangedError):
            subtask.poll()

    def test_that_is_gone_says_so(self, tmp_path: Path) -> None:
        path = write(tmp_path / "a.parquet")
        (subtask,) = subtasks(ParquetSource(path))
        path.unlink()
        with pytest.raises(SourceChangedError, match="is gone"):
            subtask.poll()

    def test_that_was_replaced_between_looking_and_opening_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The first look finds the old file, the new one is opened; the second look must see it."""
        path = write(tmp_path / "a.parquet")
        (subtask,) = subtasks(ParquetSource(path))
        open_file = pq.ParquetFile

        def replace_then_open(name: str) -> Any:
            write(path, 1)
            return open_file(name)

        monkeypatch.setattr(parquet_source.pq, "ParquetFile", replace_then_open)
        with pytest.raises(SourceChangedError):
            subtask.poll()


class TestRefusedWhenTheGraphIsBuilt:
    def test_a_path_to_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match=r"absent\.parquet does not exist"):
            ParquetSource(tmp_path / "absent.parquet").discover(1)

    def test_a_directory_without_parquet_files(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="has no Parquet files"):
            ParquetSource(tmp_path).discover(1)

    def test_a_file_that_is_not_parquet(self, tmp_path: Path) -> None:
        (tmp_path / "a.parquet").write_text("id,text")
        with pytest.raises(UserError, match="not a Parquet file"):
            ParquetSource(tmp_path).discover(1)

    def test_a_column_that_is_not_there(self, numbers: Path) -> None:
        with pytest.raises(UserError, match="no column txet; it has id, text, half"):
            ParquetSource(numbers, columns=["id", "txet"]).discover(1)

    def test_files_with_different_columns(self, tmp_path: Path) -> None:
        write(tmp_path / "a.parquet")
        pq.write_table(pa.table({"id": ["x"]}), tmp_path / "b.parquet")
        with pytest.raises(UserError, match="different columns"):
            ParquetSource(tmp_path).discover(1)

    def test_an_unknown_way_to_split(self, numbers: Path) -> None:
        with pytest.raises(ConfigError, match="split_by"):
            ParquetSource(numbers, split_by="row")  # type: ignore[arg-type]
