"""A file sink goes back and on again: its output is always that of the line behind the restore."""

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from tests.unit.operators.connector_harness import Harness, Snapshot
from tests.unit.operators.test_parquet_sink import batch, committed, names, pending, sink
from weir.errors import CorruptStateError, StorageError, UserError
from weir.fault_points import Fault, arm
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.operators.sinks.parquet_sink import ParquetSinkOperator
from weir.output import output_files
from weir.protocol.lineage import AttemptBase, Lineage, Span, lineage_of


def line(*spans: tuple[int, int, int]) -> Lineage:
    """Spans of (attempt, first, last)."""
    return Lineage(
        tuple(Span(AttemptNumber(a), CheckpointId(f), CheckpointId(t)) for a, f, t in spans)
    )


def withdrawn(path: Path) -> list[str]:
    files = (path / "_withdrawn").rglob("*.parquet")
    return sorted(str(file.relative_to(path / "_withdrawn")) for file in files)


def write(path: Path, *checkpoints: int, **kwargs: Any) -> list[Snapshot]:
    """Run a sink that writes the number of each checkpoint as a row, and commits it."""
    writing = sink(path, **kwargs)
    snapshots = []
    for checkpoint_id in checkpoints:
        writing.send(batch(checkpoint_id))
        snapshots.append(writing.checkpoint(checkpoint_id))
    return snapshots


def back_to(path: Path, snapshot: Snapshot, lineage: Lineage, **kwargs: Any) -> Harness:
    return sink(path, restored=[snapshot], lineage=lineage, **{"attempt": 2, **kwargs})


class TestBack:
    def test_what_was_committed_beside_the_line_is_withdrawn(self, tmp_path: Path) -> None:
        first, *_ = write(tmp_path, 1, 2, 3)
        back_to(tmp_path, first, line((1, 1, 1)))
        assert committed(tmp_path) == [1]
        assert withdrawn(tmp_path) == ["job/1/part-op-0-2-0.parquet", "job/1/part-op-0-3-0.parquet"]

    def test_and_on_again_it_comes_back(self, tmp_path: Path) -> None:
        first, _, third = write(tmp_path, 1, 2, 3)
        second_branch = back_to(tmp_path, first, line((1, 1, 1)))
        second_branch.send(batch(4))
        second_branch.checkpoint(4)
        assert committed(tmp_path) == [1, 4]
        back_to(tmp_path, third, line((1, 1, 3)), attempt=3)
        assert committed(tmp_path) == [1, 2, 3]
        assert withdrawn(tmp_path) == ["job/2/part-op-0-4-0.parquet"]

    def test_the_branch_between_does_not_come_back_with_a_later_number(
        self, tmp_path: Path
    ) -> None:
        """Both have lower numbers than the checkpoint; only one of them is behind it."""
        first, *_ = write(tmp_path, 1, 2, 3)
        branch = back_to(tmp_path, first, line((1, 1, 1)))
        branch.send(batch(4))
        fourth = branch.checkpoint(4)
        back_to(tmp_path, fourth, line((2, 4, 4), (1, 1, 1)), attempt=3)
        assert committed(tmp_path) == [1, 4]

    def test_output_without_checkpoints_never_moves(self, tmp_path: Path) -> None:
        without = sink(tmp_path, checkpointing=False)
        without.send(batch(0))
        without.operator.finish()
        snapshot = {"commits": [{"job": "job", "subtask": 0, "checkpoint": 1, "commits": []}]}
        back_to(tmp_path, snapshot, line((1, 1, 1)))
        assert committed(tmp_path) == [0]

    def test_a_sink_that_the_checkpoint_does_not_know_takes_its_output_back(
        self, tmp_path: Path
    ) -> None:
        """It was added with the restore, and the job goes back to that very checkpoint."""
        write(tmp_path, 6, 7, attempt=2, lineage=line((1, 1, 5)))
        sink(tmp_path, attempt=3, lineage=line((1, 1, 5)))
        assert committed(tmp_path) == []

    def test_at_another_parallelism_all_of_it_moves_once(self, tmp_path: Path) -> None:
        snapshots = [write(tmp_path, 1, 2, index=i, parallelism=3) for i in range(3)]
        firsts, lasts = [s[0] for s in snapshots], [s[1] for s in snapshots]
        for index in range(2):
            sink(
                tmp_path, index=index, parallelism=2, restored=firsts, attempt=2,
                lineage=line((1, 1, 1)),
            )  # fmt: skip
        assert committed(tmp_path) == [1, 1, 1]
        for index in range(5):
            sink(
                tmp_path, index=index, parallelism=5, restored=lasts, attempt=3,
                lineage=line((1, 1, 2)),
            )  # fmt: skip
        assert committed(tmp_path) == [1, 1, 1, 2, 2, 2]
        assert withdrawn(tmp_path) == []

    def test_what_an_older_process_commits_meanwhile_does_not_stay(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It was told that checkpoint 2 completed, hangs before its rename, and goes on when the
        next attempt, which goes back behind 2, has looked at what is output.
        """
        old = sink(tmp_path)
        old.send(batch(1))
        first = old.checkpoint(1)
        old.send(batch(2))
        old.barrier(2)
        looked = ParquetSinkOperator._committed

        def look(self: ParquetSinkOperator) -> Any:
            files = list(looked(self))
            with suppress(CorruptStateError):
                old.completed(2)
            return iter(files)

        monkeypatch.setattr(ParquetSinkOperator, "_committed", look)
        back_to(tmp_path, first, line((1, 1, 1)))
        assert committed(tmp_path) == [1]
        assert withdrawn(tmp_path) == ["job/1/part-op-0-2-0.parquet"]

    def test_nothing_else_is_left_behind(self, tmp_path: Path) -> None:
        first, second = write(tmp_path, 1, 2)
        back_to(tmp_path, first, line((1, 1, 1)))
        back_to(tmp_path, second, line((1, 1, 2)), attempt=3)
        assert not (tmp_path / "_withdrawn").exists()


class TestWhatStays:
    def test_asked_for_it_nothing_moves(self, tmp_path: Path) -> None:
        first, *_ = write(tmp_path, 1, 2, 3)
        branch = back_to(tmp_path, first, line((1, 1, 1)), rewinds_output=False)
        assert committed(tmp_path) == [1, 2, 3]
        branch.send(batch(2))
        branch.checkpoint(4)
        assert committed(tmp_path) == [1, 2, 3, 2]

    def test_a_failure_afterwards_does_not_take_it_back(self, tmp_path: Path) -> None:
        first, *_ = write(tmp_path, 1, 2, 3)
        branch = back_to(tmp_path, first, line((1, 1, 1)), rewinds_output=False)
        branch.send(batch(2))
        fourth = branch.checkpoint(4)
        branch.send(batch(3))
        branch.checkpoint(5)
        back_to(tmp_path, fourth, line((2, 4, 4), (1, 1, 1)), attempt=3)
        assert committed(tmp_path) == [1, 2, 3, 2]

    def test_what_the_checkpoint_covers_comes_back_even_so(self, tmp_path: Path) -> None:
        """It had been withdrawn before; without it the restore would find its rows lost."""
        writing = sink(tmp_path)
        first = writing.checkpoint(1)
        writing.send(batch(2))
        second = writing.checkpoint(2)
        back_to(tmp_path, first, line((1, 1, 1)))
        assert committed(tmp_path) == []
        back_to(tmp_path, second, line((1, 1, 2)), attempt=3, rewinds_output=False)
        assert committed(tmp_path) == [2]


class TestOthers:
    def test_files_of_another_job_stay_where_they_are(self, tmp_path: Path) -> None:
        """Restored from that job's savepoint 2 into the same directory, it then fails over."""
        _, snapshot, _ = write(tmp_path, 1, 2, 3, job="origin")
        here = line((0, 1, 2))
        branch = back_to(tmp_path, snapshot, here, job="fork", attempt=1)
        branch.send(batch(30))
        seventh = branch.checkpoint(7)
        branch.send(batch(31))
        branch.checkpoint(8)
        back_to(tmp_path, seventh, line((1, 7, 7), (0, 1, 2)), job="fork", attempt=2)
        assert committed(tmp_path) == [1, 2, 3, 30]
        back_to(tmp_path, snapshot, here, job="fork", attempt=3)
        assert committed(tmp_path) == [1, 2, 3]
        assert all(name.startswith("fork/") for name in withdrawn(tmp_path))

    def test_what_another_job_withdrew_is_not_this_ones_to_bring_back(self, tmp_path: Path) -> None:
        first, second = write(tmp_path, 1, 2, job="origin")
        back_to(tmp_path, first, line((1, 1, 1)), job="origin")
        back_to(tmp_path, second, line((0, 1, 2)), job="fork", attempt=1)
        assert committed(tmp_path) == [1]

    def test_other_operators_and_subtasks_are_left_alone(self, tmp_path: Path) -> None:
        first, _ = write(tmp_path, 1, 2)
        write(tmp_path, 1, 2, uid="op-0")
        write(tmp_path, 1, 2, index=1, parallelism=2)
        back_to(tmp_path, first, line((1, 1, 1)), parallelism=2)
        assert names(tmp_path) == [
            "part-op-0-1-0.parquet", "part-op-0-0-1-0.parquet", "part-op-1-1-0.parquet",
            "part-op-0-0-2-0.parquet", "part-op-1-2-0.parquet",
        ] or committed(tmp_path) == [1, 1, 1, 2, 2]  # fmt: skip
        assert withdrawn(tmp_path) == ["job/1/part-op-0-2-0.parquet"]

    def test_a_file_in_the_way_is_named_and_nothing_is_lost(self, tmp_path: Path) -> None:
        first, second = write(tmp_path, 1, 2)
        back_to(tmp_path, first, line((1, 1, 1)))
        (tmp_path / "part-op-0-2-0.parquet").write_text("someone else's")
        with pytest.raises(UserError, match=r"part-op-0-2-0\.parquet: that file exists already"):
            back_to(tmp_path, second, line((1, 1, 2)), attempt=3)
        assert (tmp_path / "part-op-0-2-0.parquet").read_text() == "someone else's"
        assert withdrawn(tmp_path) == ["job/1/part-op-0-2-0.parquet"]


class TestSavepoints:
    def test_its_files_outlive_an_attempt_that_did_not_go_on_from_it(self, tmp_path: Path) -> None:
        """No sink is told of a savepoint, so its files wait; then the job comes back before it."""
        writing = sink(tmp_path)
        writing.send(batch(1))
        first = writing.checkpoint(1)
        writing.send(batch(2))
        saved = writing.barrier(2)
        again = back_to(tmp_path, first, line((1, 1, 1)))
        assert (committed(tmp_path), pending(tmp_path)) == ([1], [])
        again.send(batch(2))
        again.checkpoint(3)
        assert committed(tmp_path) == [1, 2]
        back_to(tmp_path, saved, line((1, 1, 2)), attempt=3)
        assert names(tmp_path) == ["part-op-0-1-0.parquet", "part-op-0-2-0.parquet"]

    def test_also_before_anything_was_committed(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        writing.send(batch(1))
        saved = writing.barrier(1)
        sink(tmp_path, attempt=2)  # From the beginning.
        assert committed(tmp_path) == []
        back_to(tmp_path, saved, line((1, 1, 1)), attempt=3)
        assert committed(tmp_path) == [1]

    def test_the_same_number_of_a_later_attempt_is_not_mistaken_for_it(
        self, tmp_path: Path
    ) -> None:
        """A driver dies before anything says that it used a number, and the next one uses it."""
        writing = sink(tmp_path)
        first = writing.checkpoint(1)
        writing.send(batch(2))
        writing.barrier(2)
        again = back_to(tmp_path, first, line((1, 1, 1)))
        again.send(batch(2))
        second = again.checkpoint(2)
        back_to(tmp_path, second, line((2, 2, 2), (1, 1, 1)), attempt=3)
        assert committed(tmp_path) == [2]

    def test_what_was_never_whole_is_deleted(self, tmp_path: Path) -> None:
        writing = sink(tmp_path)
        first = writing.checkpoint(1)
        writing.send(batch(2))
        writing.barrier(2, write=False)
        writing.send(batch(3))
        back_to(tmp_path, first, line((1, 1, 1)))
        assert (pending(tmp_path), withdrawn(tmp_path)) == ([], [])

    def test_without_checkpointing_the_end_commits_what_waits_since_a_savepoint(
        self, tmp_path: Path
    ) -> None:
        writing = sink(tmp_path, checkpointing=False)
        writing.send(batch(1))
        saved = writing.barrier(1)
        writing.send(batch(2))
        writing.operator.finish()
        assert committed(tmp_path) == [1, 2]
        assert writing.barrier(2)["commits"][0]["commits"] == []
        again = back_to(tmp_path, saved, line((1, 1, 1)), checkpointing=False)
        assert committed(tmp_path) == [1]
        again.send(batch(2))
        again.operator.finish()
        assert committed(tmp_path) == [1, 2]

    def test_drained_without_checkpointing_the_savepoint_commits(self, tmp_path: Path) -> None:
        writing = sink(tmp_path, checkpointing=False)
        writing.send(batch(1))
        writing.operator.ctx.checkpointing = True  # As the subtask says before the end.
        writing.operator.finish()
        snapshot = writing.barrier(1)
        assert committed(tmp_path) == []
        back_to(tmp_path, snapshot, line((1, 1, 1)), checkpointing=False)
        assert committed(tmp_path) == [1]


def test_deletion_goes_through_no_link(tmp_path: Path) -> None:
    """User code writes the directory; the control plane deletes in it with more rights."""
    root, outside = tmp_path / "output", tmp_path / "outside"
    first, *_ = write(root, 1, 2)
    back_to(root, first, line((1, 1, 1)))
    (root / "_withdrawn" / "job" / "1").rename(outside)
    (root / "_withdrawn" / "job" / "1").symlink_to(outside)
    (file,) = outside.iterdir()
    with pytest.raises(OSError, match="symbolic link"):
        output_files._delete(root, JobId("job"), output_files.withdrawn_files(root, JobId("job")))
    assert file.exists()


def test_a_file_that_vanishes_meanwhile_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = write(tmp_path, 1, 2)

    def vanish(path: Path, to: Path) -> Path:
        path.unlink()
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "rename", vanish)
    with pytest.raises(StorageError, match="part-op-0-2-0"):
        back_to(tmp_path, first, line((1, 1, 1)))


def test_every_file_says_who_wrote_it(tmp_path: Path) -> None:
    write(tmp_path, 3, job="a/job", attempt=7)
    metadata = pq.read_metadata(tmp_path / "part-op-0-3-0.parquet").metadata
    assert (metadata[b"weir.job"], metadata[b"weir.attempt"]) == (b"a/job", b"7")


class Model:
    """A job of a replaying source and the sink's subtasks, and the tree of its attempts."""

    TOTAL = 60

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.random = random.Random(seed)
        self.attempt = 0
        self.next_id = 1
        self.bases: dict[AttemptNumber, AttemptBase] = {}
        # What may be restored: by number, its snapshots, next row, attempt and whether it commits.
        self.saved: dict[int, tuple[list[Snapshot], int, int, bool]] = {}
        self.subtasks: list[Harness] = []
        self.restore(None)

    def restore(self, checkpoint_id: int | None) -> None:
        """Go on from a checkpoint; the first tries may die in the middle."""
        while True:
            self.attempt += 1
            base = AttemptBase(AttemptNumber(self.attempt), CheckpointId(self.next_id))
            lineage, snapshots, self.next_row = Lineage(), None, 0
            if checkpoint_id is not None:
                snapshots, self.next_row, by, _ = self.saved[checkpoint_id]
                lineage = lineage_of(AttemptNumber(by), CheckpointId(checkpoint_id), self.bases)
                base = AttemptBase(
                    base.attempt, base.next_id, CheckpointId(checkpoint_id), AttemptNumber(by)
                )
            self.bases[base.attempt] = base
            points = ["sink.before_withdraw", "sink.before_return", "sink.after_rename"]
            if self.random.random() < 0.4:
                point = self.random.choice(points)
                arm([Fault(point, "raise", after=self.random.randint(1, 3))])
            count = self.random.randint(1, 3)
            try:
                self.subtasks = [
                    sink(
                        self.path, rows_per_file=2, index=index, parallelism=count,
                        attempt=self.attempt, restored=snapshots, lineage=lineage,
                    )
                    for index in self.random.sample(range(count), count)
                ]  # fmt: skip
            except RuntimeError:
                continue  # The fault; the next attempt finds what this one left.
            finally:
                arm([])
            self.subtasks.sort(key=lambda s: s.operator.ctx.subtask.index)
            assert sorted(committed(self.path)) == list(range(self.next_row))
            assert pending(self.path) == []
            return

    def rows(self, count: int) -> None:
        for row in range(self.next_row, min(self.next_row + count, self.TOTAL)):
            self.subtasks[row % len(self.subtasks)].send(batch(row))
            self.next_row = row + 1

    def take(self, *, told: int, is_savepoint: bool = False) -> None:
        """A checkpoint that completes; ``told`` many subtasks hear of it."""
        snapshots = [s.barrier(self.next_id) for s in self.subtasks]
        self.saved[self.next_id] = snapshots, self.next_row, self.attempt, not is_savepoint
        for subtask in self.subtasks[:told]:
            subtask.completed(self.next_id)
        self.next_id += 1

    def newest(self) -> int | None:
        """The checkpoint restored after a failure: the line's newest, or the one asked for."""
        here = lineage_of(AttemptNumber(self.attempt), CheckpointId(self.next_id), self.bases)
        asked = self.bases[AttemptNumber(self.attempt)].restored_id
        on_it = [
            number
            for number, (_, _, by, is_checkpoint) in self.saved.items()
            if here.holds(AttemptNumber(by), CheckpointId(number))
            and (is_checkpoint or number == asked)
        ]
        return max(on_it, default=None)


@pytest.mark.parametrize("seed", range(40))
def test_wherever_it_goes_the_output_is_that_of_its_line(tmp_path: Path, seed: int) -> None:
    """Back and on between checkpoints and savepoints of all branches, dying anywhere."""
    model = Model(tmp_path, seed)
    steps = ["rows", "rows", "checkpoint", "checkpoint", "savepoint", "abort", "fail", "untold"]
    for _ in range(40):
        match model.random.choice([*steps, "go", "go"]):
            case "rows":
                model.rows(model.random.randint(1, 5))
            case "checkpoint":
                model.take(told=len(model.subtasks))
            case "savepoint":
                model.take(told=0, is_savepoint=True)
            case "abort":
                for subtask in model.subtasks:
                    subtask.barrier(model.next_id, write=model.random.random() < 0.5)
                model.next_id += 1
            case "fail":
                model.restore(model.newest())
            case "untold":  # The driver dies before everybody knows that it completed.
                model.take(told=model.random.randrange(len(model.subtasks)))
                model.restore(model.newest())
            case "go" if model.saved:
                model.restore(model.random.choice(sorted(model.saved)))
    model.rows(model.TOTAL)
    model.take(told=len(model.subtasks))
    assert sorted(committed(model.path)) == list(range(model.TOTAL))
