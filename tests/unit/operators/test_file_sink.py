"""The text sink: the two phases of all file sinks, with job and attempt in the names of files."""

import pickle
from pathlib import Path
from typing import Any

import pytest

from tests.unit.operators.connector_harness import Harness
from weir.common.batch import Batch
from weir.common.serialization import Encoder
from weir.errors import ConfigError, GraphError, SchemaError, UserError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.operators.sinks.file_sink import (
    BUFFER_BYTES,
    BucketAssigner,
    FileSink,
    OutputFileConfig,
    RollingPolicy,
)
from weir.output.output_files import CommittedName, mark_of
from weir.protocol.lineage import Lineage, Span

LINES = Encoder.simple_string_encoder()
MARK = mark_of(JobId("job"))


class Semicolons(Encoder):
    def encode(self, value: Any) -> bytes:
        return f"{value};".encode()


def sink(path: Path, made: FileSink | None = None, **kwargs: Any) -> Harness:
    factory = (made or FileSink.for_row_format(path, LINES).build()).create_operator_factory()
    return Harness(pickle.loads(pickle.dumps(factory)), **kwargs)


def send(harness: Harness, *records: Any) -> None:
    harness.send(Batch.of_rows(list(records)))


def committed(path: Path) -> list[str]:
    """All lines, by checkpoint, subtask and counter."""
    named = [
        (name.checkpoint_id, name.subtask, name.counter, file)
        for file in path.iterdir()
        if (name := CommittedName.parse(file.name)) is not None
    ]
    return [line for *_, file in sorted(named) for line in file.read_text().splitlines()]


def hidden(path: Path, directory: str) -> list[str]:
    return sorted(p.name for p in (path / directory).rglob("*") if p.is_file())


def after(attempt: int, last: int) -> Lineage:
    return Lineage((Span(AttemptNumber(attempt), CheckpointId(1), CheckpointId(last)),))


def test_lines_show_once_their_checkpoint_completed(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    send(writing, ("a", 1), "b")
    writing.barrier(1)
    send(writing, "c")
    assert committed(tmp_path) == []
    assert hidden(tmp_path, "_pending") == ["op-0-1.text", f"part-op-0-1-0.1.{MARK}"]
    writing.completed(1)
    assert committed(tmp_path) == ["('a', 1)", "b"]
    writing.operator.close()


def test_a_restore_commits_what_a_crash_left_and_drops_what_comes_again(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    send(writing, 1, 2)
    snapshot = writing.barrier(1)
    send(writing, 3)
    again = sink(tmp_path, restored=[snapshot], attempt=2)
    assert committed(tmp_path) == ["1", "2"]
    assert hidden(tmp_path, "_pending") == []
    writing.operator.close()  # The process of the former attempt ends late.
    send(again, 3)
    again.checkpoint(2)
    assert committed(tmp_path) == ["1", "2", "3"]


def test_going_back_withdraws_lines_and_going_on_brings_them_back(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    snapshots = []
    for checkpoint in (1, 2):
        send(writing, checkpoint)
        snapshots.append(writing.checkpoint(checkpoint))
    back = sink(tmp_path, restored=[snapshots[0]], attempt=2, lineage=after(1, 1))
    assert committed(tmp_path) == ["1"]
    assert hidden(tmp_path, "_withdrawn") == [f"part-op-0-2-0.1.{MARK}"]
    send(back, "two again")
    back.checkpoint(3)
    sink(tmp_path, restored=[snapshots[1]], attempt=3, lineage=after(1, 2))
    assert committed(tmp_path) == ["1", "2"]
    assert hidden(tmp_path, "_withdrawn") == [f"part-op-0-3-0.2.{MARK}"]


def test_a_rewind_leaves_the_lines_of_another_job(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    send(writing, "own")
    snapshot = writing.checkpoint(1)
    send(writing, "comes again")
    writing.checkpoint(2)
    other = sink(tmp_path, job="other", restored=[snapshot])
    send(other, "another's")
    other.checkpoint(2)
    sink(tmp_path, restored=[snapshot], attempt=2, lineage=after(1, 1))
    assert committed(tmp_path) == ["own", "another's"]


def test_a_new_job_refuses_a_directory_with_output(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    send(writing, 1)
    writing.checkpoint(1)
    with pytest.raises(UserError, match="already holds output"):
        sink(tmp_path, job="other")


def test_a_file_is_closed_at_its_size(tmp_path: Path) -> None:
    made = FileSink.for_row_format(tmp_path, LINES).with_rolling_policy(
        RollingPolicy.default_rolling_policy(part_size=4)
    )
    writing = sink(tmp_path, made)
    send(writing, 1, 2, 3, 4, 5)
    writing.checkpoint(1)
    assert sorted(file.read_text() for file in tmp_path.glob("part-*")) == [
        "1\n2\n",
        "3\n4\n",
        "5\n",
    ]
    assert committed(tmp_path) == ["1", "2", "3", "4", "5"]


def test_more_than_a_buffer_of_lines_is_whole(tmp_path: Path) -> None:
    lines = [str(number) * 1_000 for number in range(1_000)]
    assert sum(map(len, lines)) > 2 * BUFFER_BYTES
    writing = sink(tmp_path)
    send(writing, *lines)
    writing.checkpoint(1)
    assert committed(tmp_path) == lines


def test_without_checkpoints_the_end_commits(tmp_path: Path) -> None:
    writing = sink(tmp_path, checkpointing=False)
    send(writing, 1)
    assert committed(tmp_path) == []
    writing.operator.finish()
    writing.operator.close()
    assert committed(tmp_path) == ["1"]
    assert not (tmp_path / "_pending").exists()


def test_a_failed_attempt_leaves_no_file_that_saw_no_barrier(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    send(writing, 1)
    assert hidden(tmp_path, "_pending") == ["op-0-0.text"]
    writing.operator.close()
    assert hidden(tmp_path, "_pending") == []


def test_an_encoder_of_ones_own_and_a_suffix(tmp_path: Path) -> None:
    files = OutputFileConfig.builder().with_part_suffix(".csv").build()
    made = (
        FileSink.for_row_format(tmp_path, Semicolons())
        .with_output_file_config(files)
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .build()
    )
    writing = sink(tmp_path, made)
    send(writing, 1, 2)
    writing.checkpoint(1)
    (file,) = tmp_path.glob("*.csv")
    assert file.read_bytes() == b"1;2;"


def test_a_record_that_cannot_be_encoded_is_named(tmp_path: Path) -> None:
    writing = sink(tmp_path, FileSink(tmp_path, Encoder.simple_string_encoder("ascii")))
    with pytest.raises(SchemaError, match=r"'op' cannot encode 'é' with SimpleStringEncoder"):
        send(writing, "é")


def test_a_long_record_that_cannot_be_encoded_is_cut(tmp_path: Path) -> None:
    writing = sink(tmp_path, FileSink(tmp_path, Encoder.simple_string_encoder("ascii")))
    with pytest.raises(SchemaError, match="cannot encode 'éé") as raised:
        send(writing, "é" * 100_000)
    assert len(str(raised.value)) < 1_000


def test_an_encoder_that_returns_text_is_named(tmp_path: Path) -> None:
    class Text(Encoder):
        def encode(self, value: Any) -> Any:
            return str(value)

    writing = Harness(FileSink(tmp_path, Text()).create_operator_factory())
    with pytest.raises(SchemaError, match=r"Text\.encode\(\) returned '1' for 1; it must return"):
        send(writing, 1)


@pytest.mark.parametrize(
    ("wrong", "error", "told"),
    [
        (lambda: FileSink("out", str), ConfigError, "takes an Encoder such as"),
        (lambda: FileSink("out", Encoder()), GraphError, "derive from it and define encode"),
        (lambda: Encoder.simple_string_encoder("utf-99"), ConfigError, "is no charset"),
        (lambda: FileSink.for_bulk_format("out", None), ConfigError, r"ParquetSink\('out'\)"),
        (lambda: OutputFileConfig(part_prefix="out"), ConfigError, "Leave with_part_prefix out"),
        (lambda: OutputFileConfig(part_suffix="/x"), ConfigError, r"such as \.txt"),
        (lambda: RollingPolicy(0), ConfigError, "at least 1 byte"),
        (BucketAssigner.date_time_bucket_assigner, ConfigError, "leave with_bucket_assigner out"),
    ],
)
def test_what_it_cannot_do_says_what_can(wrong: Any, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        wrong()
