"""Lines of text files as a source: the same lines from any position."""

import os
from pathlib import Path

import pytest

from tests.unit.operators.connector_harness import Harness, Snapshot
from weir.errors import ConfigError, SchemaError, SourceChangedError, UserError
from weir.operators.base import Poll
from weir.operators.sources.file_source import FileSource, StreamFormat

LINES = StreamFormat.text_line_format()


def reading(source: FileSource, restored: list[Snapshot] | None = None) -> Harness:
    return Harness(source.create_operator_factory(1), restored=restored)


def test_lines_come_without_their_breaks(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes("eins\r\nzwei  \n\nü\u2028ber".encode())
    source = FileSource.for_record_stream_format(LINES, tmp_path / "a.txt").build()
    assert reading(source).drain(2) == ["eins", "zwei  ", "", "ü\u2028ber"]


def test_a_directory_is_read_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b.csv", "a", "_SUCCESS", "_pending/c.txt", "sub/d.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"{name}\n")
    source = FileSource(LINES, tmp_path, tmp_path / "a").process_static_file_set()
    assert reading(source).drain() == ["a", "b.csv", "sub/d.txt"]


@pytest.mark.parametrize("before", range(6))
def test_a_restored_source_goes_on_with_the_next_line(tmp_path: Path, before: int) -> None:
    lines = ["é", "", "three", "4", "fünf"]
    (tmp_path / "a").write_text("\n".join(lines))
    source = FileSource(LINES, tmp_path / "a")
    first = reading(source)
    for _ in range(before):
        assert first.poll(1) in (Poll.MORE, Poll.END)
    snapshot = first.barrier(1)
    assert first.output.rows == lines[:before]
    assert reading(source, [snapshot]).drain() == lines[before:]
    first.operator.close()


def test_a_file_that_changed_is_refused_after_a_restore(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1\n2\n3\n")
    source = FileSource(LINES, tmp_path / "a")
    first = reading(source)
    first.poll(1)
    snapshot = first.barrier(1)
    first.operator.close()
    os.utime(tmp_path / "a", ns=(1, 1))
    with pytest.raises(SourceChangedError, match="changed since the job first read it"):
        reading(source, [snapshot]).drain()


def test_bytes_that_are_no_text_are_named_by_their_place(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"fine\n\xff\n")
    source = reading(FileSource(LINES, tmp_path / "a"))
    source.poll(1)
    with pytest.raises(SchemaError, match="at byte 5; give its charset"):
        source.poll(1)
    source.operator.close()
    latin = FileSource(StreamFormat.text_line_format("latin-1"), tmp_path / "a")
    assert reading(latin).drain() == ["fine", "ÿ"]


def test_what_it_cannot_do_says_what_can(tmp_path: Path) -> None:
    source = FileSource(LINES, tmp_path)
    with pytest.raises(UserError, match="has no text files"):
        source.discover(1)
    with pytest.raises(ConfigError, match="leave monitor_continuously out"):
        source.monitor_continuously(1)
    with pytest.raises(ConfigError, match=r"ParquetSource\(path\)"):
        FileSource.for_bulk_file_format(None, "in")
    with pytest.raises(ConfigError, match="convert them to UTF-8"):
        StreamFormat.text_line_format("utf-16")
    with pytest.raises(ConfigError, match="needs the path"):
        FileSource(LINES)
    with pytest.raises(ConfigError, match="Parquet files are read by ParquetSource"):
        FileSource("lines", tmp_path)  # type: ignore[arg-type]
