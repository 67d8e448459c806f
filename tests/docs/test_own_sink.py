"""The sink of one's own in the docs: what waits, what a restore commits, what the end commits."""

from pathlib import Path
from typing import Any

from tests.docs.test_docs import page_of
from tests.unit.operators.connector_harness import Harness
from weir.common.batch import Batch


def line_files(directory: Path) -> Any:
    """The page's ``LineFiles``, which commits to this directory."""
    section = page_of("docs/writing-pipelines.md").section("A sink of one's own")
    (example,) = [block.text for block in section.blocks if block.language == "python"]
    classes, _, _ = example.partition("\nenv = ")
    names: dict[str, Any] = {}
    exec(classes, names)
    return names["LineFiles"](directory)


def committed(directory: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in directory.iterdir()}


def test_output_waits_for_the_next_checkpoint_that_completes(tmp_path: Path) -> None:
    sink = Harness(line_files(tmp_path).create_operator_factory())
    sink.send(Batch.of_rows(["a", "b"]))
    sink.barrier(1)  # Aborted.
    sink.send(Batch.of_rows(["c"]))
    sink.barrier(2)
    sink.send(Batch.of_rows(["d"]))
    assert committed(tmp_path) == {}
    sink.completed(2)
    assert committed(tmp_path) == {"job-0-1.txt": "a\nb\n", "job-0-2.txt": "c\n"}


def test_a_restore_commits_what_its_checkpoint_covers_once(tmp_path: Path) -> None:
    sink = Harness(line_files(tmp_path).create_operator_factory())
    sink.send(Batch.of_rows(["a"]))
    snapshot = sink.barrier(1)
    sink.send(Batch.of_rows(["b"]))
    assert committed(tmp_path) == {}
    for attempt in (2, 3):  # The second one finds the files of the first.
        again = Harness(
            line_files(tmp_path).create_operator_factory(), restored=[snapshot], attempt=attempt
        )
        assert committed(tmp_path) == {"job-0-1.txt": "a\n"}
    again.send(Batch.of_rows(["b"]))
    again.checkpoint(2)
    assert committed(tmp_path) == {"job-0-1.txt": "a\n", "job-0-2.txt": "b\n"}


def test_without_checkpoints_the_end_commits_also_what_a_savepoint_holds(tmp_path: Path) -> None:
    sink = Harness(line_files(tmp_path).create_operator_factory(), checkpointing=False)
    sink.send(Batch.of_rows(["a"]))
    sink.barrier(1)  # Of a savepoint, after which nothing is committed.
    sink.send(Batch.of_rows(["b"]))
    sink.operator.finish()
    assert committed(tmp_path) == {"job-0-1.txt": "a\n", "job-0-end.txt": "b\n"}
