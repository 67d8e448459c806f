"""The Parquet sink: no matter what dies when, every row is in exactly one committed file."""

import os
import pickle
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.operators.connector_harness import Harness, Snapshot
from weir.common.batch import Batch
from weir.errors import ConfigError, CorruptStateError, SchemaError, StorageError, UserError
from weir.fault_points import Fault, arm
from weir.ids import CheckpointId
from weir.operators.sinks.parquet_sink import ParquetSink, committed_files


def sink(path: Path, rows_per_file: int = 1_000, **kwargs: Any) -> Harness:
    factory = ParquetSink(path, rows_per_file).create_operator_factory()
    return Harness(pickle.loads(pickle.dumps(factory)), **kwargs)


def batch(*ids: int) -> Batch:
    return Batch.of_columns(pa.record_batch({"id": pa.array(ids, pa.int64())}))


def names(path: Path) -> list[str]:
    return [file.name for file in committed_files(path)]


def committed(path: Path) -> list[int]:
    return [i for file in committed_files(path) for i in pq.read_table(file)["id"].to_pylist()]


def pending(path: Path) -> list[str]:
    files = (path / "_pending").rglob("*.parquet")
    return sorted(str(file.relative_to(path / "_pending")) for file in files)


def open_below(path: Path) -> list[str]:
    files = psutil.Process().open_files()
    return [file.path for file in files if Path(file.path).is_relative_to(path)]


def test_rows_can_be_seen_only_after_their_checkpoint_completed(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    writing.send(batch(1, 2))
    writing.barrier(1)
    writing.send(batch(3))
    assert committed(tmp_path) == []
    assert pending(tmp_path) == ["job/1/op-0-1.parquet", "job/1/part-op-0-1-0.parquet"]
    writing.completed(1)
    assert committed(tmp_path) == [1, 2]
    writing.checkpoint(2)
    assert committed(tmp_path) == [1, 2, 3]
    assert names(tmp_path) == ["part-op-0-1-0.parquet", "part-op-0-2-0.parquet"]


def test_an_empty_interval_makes_no_file(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    writing.checkpoint(1)
    writing.send(batch())
    writing.checkpoint(2)
    assert not list(tmp_path.rglob("*.parquet"))


def test_files_roll_at_exactly_rows_per_file(tmp_path: Path) -> None:
    writing = sink(tmp_path, rows_per_file=4)
    writing.send(batch(*range(10)))
    writing.checkpoint(3)
    sizes = [pq.read_metadata(file).num_rows for file in committed_files(tmp_path)]
    assert sizes == [4, 4, 2]
    assert names(tmp_path) == [f"part-op-0-3-{i}.parquet" for i in range(3)]
    assert committed(tmp_path) == list(range(10))


def test_small_batches_share_a_row_group(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    for i in range(50):
        writing.send(batch(i))
    writing.checkpoint(1)
    (file,) = committed_files(tmp_path)
    assert pq.read_metadata(file).num_row_groups == 1


def test_completing_twice_changes_nothing(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    writing.send(batch(1))
    writing.checkpoint(1)
    writing.completed(1)
    assert committed(tmp_path) == [1]


def test_an_aborted_checkpoints_files_commit_with_the_next(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    writing.send(batch(1))
    writing.barrier(1, write=False)  # Aborted so early that nothing of it was written.
    writing.operator.on_checkpoint_aborted(CheckpointId(1))
    writing.send(batch(2))
    snapshot = writing.barrier(2)
    assert committed(tmp_path) == []
    writing.completed(2)
    assert committed(tmp_path) == [1, 2]
    sink(tmp_path, restored=[snapshot], attempt=2)
    assert committed(tmp_path) == [1, 2]


def test_two_checkpoints_under_way_commit_in_order(tmp_path: Path) -> None:
    writing = sink(tmp_path)
    writing.send(batch(1))
    writing.barrier(1)
    writing.send(batch(2))
    writing.barrier(2)
    writing.completed(1)
    assert committed(tmp_path) == [1]
    writing.completed(2)
    assert committed(tmp_path) == [1, 2]


class TestRestore:
    def test_commits_what_a_crash_left_after_completion(self, tmp_path: Path) -> None:
        """Killed between the close of the file and its rename: the checkpoint did complete."""
        writing = sink(tmp_path)
        writing.send(batch(1, 2))
        snapshot = writing.barrier(1)
        writing.send(batch(3))  # After the barrier: will come again.
        sink(tmp_path, restored=[snapshot], attempt=2)
        assert committed(tmp_path) == [1, 2]
        assert pending(tmp_path) == []

    def test_finds_what_was_renamed_before_the_crash(self, tmp_path: Path) -> None:
        writing = sink(tmp_path, rows_per_file=1)
        writing.send(batch(1, 2))
        snapshot = writing.barrier(1)
        first = tmp_path / "_pending" / "job" / "1" / "part-op-0-1-0.parquet"
        first.rename(tmp_path / "part-op-0-1-0.parquet")  # Killed between the two renames.
        sink(tmp_path, restored=[snapshot], attempt=2)
        assert committed(tmp_path) == [1, 2]

    def test_commits_the_files_of_an_aborted_checkpoint_before_it(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        writing.barrier(1, write=False)
        writing.send(batch(2))
        snapshot = writing.barrier(2)  # Completes, but the process dies before it learns of it.
        sink(tmp_path, restored=[snapshot], attempt=2)
        assert committed(tmp_path) == [1, 2]

    def test_may_be_repeated(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        snapshot = writing.checkpoint(1)
        for attempt in (2, 3):
            sink(tmp_path, restored=[snapshot], attempt=attempt)
        assert committed(tmp_path) == [1]

    def test_drops_what_no_checkpoint_covers(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        snapshot = writing.checkpoint(1)
        writing.send(batch(1))
        writing.barrier(2)  # Acknowledged, but the checkpoint did not complete.
        restored = sink(tmp_path, restored=[snapshot], attempt=2)
        assert pending(tmp_path) == []
        restored.send(batch(1))
        restored.checkpoint(3)
        assert committed(tmp_path) == [1]

    def test_reports_rows_that_are_lost(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        snapshot = writing.barrier(1)
        (tmp_path / "_pending" / "job" / "1" / "part-op-0-1-0.parquet").unlink()
        with pytest.raises(CorruptStateError, match=r"part-op-0-1-0\.parquet"):
            sink(tmp_path, restored=[snapshot], attempt=2)

    def test_in_a_fork_drops_the_originals_files_and_leaves_them_alone(
        self, tmp_path: Path
    ) -> None:
        original = sink(tmp_path)
        original.send(batch(1))
        snapshot = original.barrier(1)
        fork = sink(tmp_path, restored=[snapshot], job="fork")
        fork.send(batch(2))
        fork.checkpoint(5)
        assert committed(tmp_path) == [2]
        original.completed(1)
        assert committed(tmp_path) == [1, 2]

    def test_adopted_files_are_committed_once_by_their_job_or_the_fork(
        self, tmp_path: Path
    ) -> None:
        original = sink(tmp_path, rows_per_file=1)
        original.send(batch(1, 2))
        snapshot = original.barrier(1)
        for attempt in (1, 2):
            fork = sink(tmp_path, restored=[snapshot], job="fork", attempt=attempt, adopts="job")
            assert names(tmp_path) == ["part-op-0-1-0.parquet", "part-op-0-1-1.parquet"]
        original.completed(1)
        fork.send(batch(3))
        fork.checkpoint(5)
        assert committed(tmp_path) == [1, 2, 3]
        assert pending(tmp_path) == []

    def test_adopted_files_become_output_where_their_job_wrote_them(self, tmp_path: Path) -> None:
        original = sink(tmp_path / "out")
        original.send(batch(1))
        fork = sink(tmp_path / "more", restored=[original.barrier(1)], job="fork", adopts="job")
        assert committed(tmp_path / "out") == [1]
        assert fork.barrier(2)["commits"][0]["commits"] == []

    def test_a_crash_amid_adopting_is_made_good_by_the_next_attempt(self, tmp_path: Path) -> None:
        snapshots = []
        for index in range(3):
            writing = sink(tmp_path, rows_per_file=1, index=index, parallelism=3)
            writing.send(batch(index, 10 + index))
            snapshots.append(writing.barrier(1))
        arm([Fault("sink.before_adopt", "raise", after=2)])
        try:
            with pytest.raises(RuntimeError):
                sink(tmp_path, restored=snapshots, job="fork", adopts="job")
        finally:
            arm([])
        assert len(committed(tmp_path)) == 1
        for index in range(2):
            sink(
                tmp_path, restored=snapshots, job="fork", adopts="job",
                attempt=2, index=index, parallelism=2,
            )  # fmt: skip
        assert sorted(committed(tmp_path)) == [0, 1, 2, 10, 11, 12]
        assert pending(tmp_path) == []

    def test_what_its_job_took_back_is_not_adopted(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        """That job went on from before: the same records came again, and are output already."""
        original = sink(tmp_path)
        before = original.checkpoint(1)
        original.send(batch(1))
        savepoint = original.barrier(2)
        again = sink(tmp_path, restored=[before], attempt=2)
        again.send(batch(1))
        again.checkpoint(3)
        sink(tmp_path, restored=[savepoint], job="fork", adopts="job")
        assert committed(tmp_path) == [1]
        assert "pending output of job job is not committed" in caplog.text
        assert "part-op-0-2-0.parquet" in caplog.text

    def test_at_lower_parallelism_commits_for_the_subtasks_that_are_gone(
        self, tmp_path: Path
    ) -> None:
        """Subtask 0 must not clean away what subtask 1 commits, nor leave what none does."""
        snapshots: list[Snapshot] = []
        for index in range(3):
            writing = sink(tmp_path, index=index, parallelism=3)
            writing.send(batch(index))
            snapshots.append(writing.barrier(1))
            writing.send(batch(99))
        for index in range(2):
            sink(tmp_path, index=index, parallelism=2, restored=snapshots, attempt=2)
        assert sorted(committed(tmp_path)) == [0, 1, 2]
        assert pending(tmp_path) == []

    def test_from_an_older_checkpoint_withdraws_what_newer_ones_committed(
        self, tmp_path: Path
    ) -> None:
        """The newest checkpoint turned out damaged; its records come again."""
        writing = sink(tmp_path)
        writing.send(batch(1))
        older = writing.checkpoint(1)
        writing.send(batch(2))
        writing.checkpoint(2)
        assert committed(tmp_path) == [1, 2]
        restored = sink(tmp_path, restored=[older], attempt=2)
        assert committed(tmp_path) == [1]
        restored.send(batch(2))
        restored.checkpoint(3)
        assert committed(tmp_path) == [1, 2]
        withdrawn = tmp_path / "_withdrawn" / "job" / "1" / "part-op-0-2-0.parquet"
        assert pq.read_table(withdrawn)["id"].to_pylist() == [2]

    def test_leaves_other_operators_and_newer_attempts_alone(self, tmp_path: Path) -> None:
        for name in ("job/1/other-0-0", "job/1/op-1-0", "job/3/op-0-0", "else/1/op-0-0"):
            file = tmp_path / "_pending" / f"{name}.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
        snapshot = {"commits": [{"job": "job", "subtask": 0, "checkpoint": 4, "commits": []}]}
        sink(tmp_path, restored=[snapshot], attempt=2, parallelism=2)
        assert len(pending(tmp_path)) == 4


class TestOtherOutput:
    def test_a_fresh_job_refuses_a_directory_that_has_output_of_its_operator(
        self, tmp_path: Path
    ) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        writing.checkpoint(1)
        with pytest.raises(UserError, match="another run"):
            sink(tmp_path, job="second")

    def test_a_file_of_another_job_is_never_overwritten(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        writing.barrier(1)
        (tmp_path / "part-op-0-1-0.parquet").write_text("someone else's")
        with pytest.raises(UserError, match="another job writes to the same directory"):
            writing.completed(1)
        assert (tmp_path / "part-op-0-1-0.parquet").read_text() == "someone else's"

    def test_two_operators_share_a_directory(self, tmp_path: Path) -> None:
        for uid in ("op", "op-0"):
            writing = sink(tmp_path, uid=uid)
            writing.send(batch(1))
            writing.checkpoint(1)
        assert committed(tmp_path) == [1, 1]

    def test_uids_with_slashes_stay_within_the_directory(self, tmp_path: Path) -> None:
        writing = sink(tmp_path / "out", uid="../up", job="../../job")
        writing.send(batch(1))
        writing.checkpoint(1)
        assert os.listdir(tmp_path) == ["out"]
        assert committed(tmp_path / "out") == [1]


class TestEnd:
    def test_without_checkpoints_the_end_commits(self, tmp_path: Path) -> None:
        writing = sink(tmp_path, rows_per_file=2, checkpointing=False)
        writing.send(batch(1, 2, 3))
        assert committed(tmp_path) == []
        writing.operator.finish()
        assert committed(tmp_path) == [1, 2, 3]

    def test_with_checkpoints_the_last_one_commits(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        writing.operator.finish()
        assert committed(tmp_path) == []
        writing.checkpoint(1)
        assert committed(tmp_path) == [1]

    def test_a_complete_output_has_nothing_but_files(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        writing.checkpoint(1)
        writing.operator.close()
        assert os.listdir(tmp_path) == ["part-op-0-1-0.parquet"]

    def test_a_directory_removed_by_a_neighbour_is_made_again(self, tmp_path: Path) -> None:
        first, second = (sink(tmp_path, index=i, parallelism=2) for i in range(2))
        first.send(batch(1))
        first.checkpoint(1)
        first.operator.close()
        second.send(batch(2))
        second.checkpoint(2)
        assert committed(tmp_path) == [1, 2]

    def test_a_failed_attempt_leaves_no_open_file(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        assert open_below(tmp_path)
        writing.operator.close()
        assert not open_below(tmp_path)


class TestSchema:
    def test_is_that_of_the_first_batch(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        writing.send(Batch.of_columns(pa.record_batch({"id": pa.array([2], pa.int32())})))
        writing.checkpoint(1)
        assert committed(tmp_path) == [1, 2]

    @pytest.mark.parametrize("schema", [None, pa.schema([("id", pa.int64())])])
    @pytest.mark.parametrize("more", [["name"], ["name", "extra"]])
    def test_columns_that_the_files_have_no_place_for_are_refused_by_name(
        self, schema: pa.Schema | None, more: list[str], tmp_path: Path
    ) -> None:
        factory = ParquetSink(tmp_path, schema=schema).create_operator_factory()
        writing = Harness(factory)
        writing.send(batch(1))
        wider = pa.record_batch({"id": pa.array([2], pa.int64()), **{name: ["x"] for name in more}})
        with pytest.raises(
            SchemaError, match=rf"(?s)no column for {', '.join(more)}\..*output_type"
        ):
            writing.send(Batch.of_columns(wider))
        twice = pa.RecordBatch.from_arrays([pa.array([2]), pa.array([3])], names=["id", "id"])
        with pytest.raises(SchemaError, match="no column for id"):
            writing.send(Batch.of_columns(twice))

    def test_fewer_columns_or_another_type_are_refused(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(Batch.of_columns(pa.record_batch({"id": [1], "name": ["x"]})))
        for other in ({"id": [2]}, {"id": ["two"], "name": ["x"]}):
            with pytest.raises(SchemaError, match="do not fit its schema"):
                writing.send(Batch.of_columns(pa.record_batch(other)))

    def test_the_order_of_columns_is_that_of_the_first_batch(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(Batch.of_columns(pa.record_batch({"id": [1], "name": ["x"]})))
        writing.send(Batch.of_columns(pa.record_batch({"name": ["y"], "id": [2]})))
        writing.checkpoint(1)
        (file,) = committed_files(tmp_path)
        assert pq.read_table(file).to_pydict() == {"id": [1, 2], "name": ["x", "y"]}

    def test_other_records_are_refused_with_both_schemas(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        with pytest.raises(SchemaError, match="do not fit its schema"):
            writing.send(Batch.of_columns(pa.record_batch({"name": ["x"]})))

    def test_rows_that_know_their_fields_become_columns(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(Batch.of_rows([{"id": 1}, {"id": 2}]))
        writing.checkpoint(1)
        assert committed(tmp_path) == [1, 2]

    def test_rows_that_do_not_are_refused_with_advice(self, tmp_path: Path) -> None:
        with pytest.raises(SchemaError, match="output_type"):
            sink(tmp_path).send(Batch.of_rows([(1, 2)]))


def test_a_sink_that_closes_leaves_what_a_barrier_has_passed(tmp_path: Path) -> None:
    """A checkpoint may name that; no checkpoint names the rest, which nothing would delete."""
    writing = sink(tmp_path, rows_per_file=2)
    writing.send(batch(1))
    writing.barrier(1)
    writing.send(batch(2, 3, 4))
    assert len(pending(tmp_path)) == 3, "one waits, one is full, one is being written"
    writing.operator.close()
    assert [Path(name).name for name in pending(tmp_path)] == ["part-op-0-1-0.parquet"]


def test_a_file_that_could_not_be_written_fails_every_later_checkpoint(tmp_path: Path) -> None:
    """A second close of a broken file may look like success; its rows would be gone."""
    writing = sink(tmp_path)
    writing.send(batch(1))
    arm([Fault("sink.before_close", "raise")])
    try:
        with pytest.raises(StorageError, match="could not be written"):
            writing.barrier(1)
        with pytest.raises(StorageError, match="could not be written"):
            writing.barrier(2)
    finally:
        arm([])


def test_rows_per_file_must_be_positive(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        ParquetSink(tmp_path, rows_per_file=0)


@given(data=st.data())
@settings(max_examples=100)
def test_any_sequence_of_crashes_leaves_every_row_once(
    tmp_path_factory: pytest.TempPathFactory, data: Any
) -> None:
    """A source that replays from the checkpoint restored, a sink that dies anywhere.

    The crash may come between freeze and completion, at a rename, after it, or between
    checkpoints; the restore takes the newest completed checkpoint, or now and then an older one.
    """
    path = tmp_path_factory.mktemp("sink")
    total = 12
    completed: list[tuple[Snapshot, int]] = []
    attempt = 1
    running, next_row, next_id = sink(path, rows_per_file=2), 0, 1
    for _ in range(data.draw(st.integers(1, 12))):
        match data.draw(st.sampled_from(["rows", "checkpoint", "abort", "crash", "lost_commit"])):
            case "rows":
                count = min(data.draw(st.integers(1, 5)), total - next_row)
                running.send(batch(*range(next_row, next_row + count)))
                next_row += count
                continue
            case "abort":
                running.barrier(next_id, write=data.draw(st.booleans()))
                next_id += 1
                continue
            case "checkpoint":
                completed.append((running.checkpoint(next_id), next_row))
                next_id += 1
                continue
            case "lost_commit":
                completed.append((running.barrier(next_id), next_row))
                next_id += 1
                arm([Fault("sink.after_rename", "raise")])
                try:
                    if data.draw(st.booleans()):
                        running.completed(next_id - 1)
                except RuntimeError:
                    pass
                finally:
                    arm([])
            case "crash":
                pass
        attempt += 1
        if not completed:
            running, next_row = sink(path, rows_per_file=2, attempt=attempt), 0
            continue
        if len(completed) > 1 and data.draw(st.booleans()):
            completed.pop()  # Damaged: fall back.
        snapshot, next_row = completed[-1]
        running = sink(path, rows_per_file=2, restored=[snapshot], attempt=attempt)
    running.send(batch(*range(next_row, total)))
    running.checkpoint(next_id)
    assert committed(path) == list(range(total))
    assert pending(path) == []
