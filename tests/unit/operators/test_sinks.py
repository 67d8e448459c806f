"""Output that waits for a checkpoint, and the sinks that hand rows to the driver."""

import base64
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operators.connector_harness import Harness
from weir.common import WatermarkStrategy
from weir.common.batch import Batch
from weir.common.row_codec import decode_rows, encode_rows
from weir.datastream import StreamExecutionEnvironment
from weir.errors import CorruptStateError, ProtocolError, RestoreError, SchemaError
from weir.ids import CheckpointId
from weir.operators.sinks import BlackHoleSink, CollectSink, ParquetSink, PrintSink
from weir.operators.sinks.pending_commits import PendingCommits, Sink
from weir.operators.sources import NumberSequenceSource


def sink(of: Sink, **kwargs: Any) -> Harness:
    return Harness(pickle.loads(pickle.dumps(of.create_operator_factory())), **kwargs)


class Attack:
    """A pickle that runs code where it is read."""

    ran = False

    def __reduce__(self) -> tuple[Any, ...]:
        return setattr, (Attack, "ran", True)


def rows(*values: Any) -> Batch:
    return Batch.of_rows(list(values))


class TestIntervals:
    def test_a_checkpoint_completes_all_intervals_before_it(self) -> None:
        intervals: PendingCommits[str] = PendingCommits()
        for n in (1, 2, 4):
            intervals.close(CheckpointId(n), f"i{n}")
        assert intervals.complete(CheckpointId(3)) == [(1, "i1"), (2, "i2")]
        assert intervals.waiting() == [(4, "i4")]

    def test_completing_again_gives_nothing(self) -> None:
        intervals: PendingCommits[str] = PendingCommits()
        intervals.close(CheckpointId(1), "i1")
        intervals.complete(CheckpointId(1))
        assert intervals.complete(CheckpointId(1)) == []

    def test_barriers_that_go_back_are_a_bug(self) -> None:
        intervals: PendingCommits[str] = PendingCommits()
        intervals.close(CheckpointId(2), "i2")
        with pytest.raises(ProtocolError):
            intervals.close(CheckpointId(2), "again")

    @given(st.lists(st.sampled_from(["close", "complete"]), max_size=30), st.data())
    def test_every_interval_leaves_once_and_in_order(self, steps: list[str], data: Any) -> None:
        intervals: PendingCommits[int] = PendingCommits()
        closed, left = 0, []
        for step in steps:
            if step == "close":
                closed += 1
                intervals.close(CheckpointId(closed), closed)
            else:
                covered = CheckpointId(data.draw(st.integers(0, closed + 1)))
                left += [output for _, output in intervals.complete(covered)]
        left += [output for _, output in intervals.waiting()]
        assert left == list(range(1, closed + 1))


class TestCollect:
    def test_rows_wait_for_their_checkpoint(self) -> None:
        collect = sink(CollectSink())
        collect.send(rows(1, 2))
        collect.send(rows(3))
        collect.barrier(1)
        collect.send(rows(4))
        assert collect.delivered == []
        collect.completed(1)
        assert collect.delivered == [(1, [1, 2, 3])]

    def test_without_checkpoints_rows_leave_at_once(self) -> None:
        collect = sink(CollectSink(), checkpointing=False)
        collect.send(rows("a"))
        assert collect.delivered == [(0, ["a"])]

    def test_rows_of_an_aborted_checkpoint_come_with_the_next(self) -> None:
        collect = sink(CollectSink())
        collect.send(rows("a"))
        collect.barrier(1)
        collect.operator.on_checkpoint_aborted(CheckpointId(1))
        collect.send(rows("b"))
        collect.checkpoint(2)
        assert collect.delivered == [(1, ["a"]), (2, ["b"])]

    def test_a_restore_delivers_the_same_rows_under_the_same_ids(self) -> None:
        """The process may die after completion and before delivery, or after both."""
        collect = sink(CollectSink())
        collect.send(rows("a"))
        collect.barrier(1)
        collect.send(rows(("b", 2)))
        snapshot = collect.barrier(2)
        collect.send(rows("not covered"))
        collect.completed(2)
        restored = sink(CollectSink(), restored=[snapshot], attempt=2)
        assert restored.delivered == collect.delivered == [(1, ["a"]), (2, [("b", 2)])]
        restored.checkpoint(3)
        assert len(restored.delivered) == 2

    def test_rows_wait_in_snapshots_as_data(self) -> None:
        collect = sink(CollectSink())
        collect.send(rows(("a", 1), ("b", None)))
        (item,) = collect.barrier(1)["undelivered"]
        assert decode_rows(base64.b64decode(item["rows"]["encoded"])) == [("a", 1), ("b", None)]

    @pytest.mark.parametrize("of_this_version", [True, False])
    def test_pickles_in_a_snapshot_run_only_where_the_job_allows_them(
        self, of_this_version: bool
    ) -> None:
        """Anyone who could write to the storage could run code in a job that collected."""
        Attack.ran = False
        collect = sink(CollectSink())
        collect.send(rows("a"))
        snapshot = collect.barrier(1)
        item = snapshot["undelivered"][0]
        if of_this_version:
            forged = encode_rows([Attack()], pickles=True)
            item["rows"] = {"encoded": base64.b64encode(forged).decode()}
        else:
            item["rows"] = base64.b64encode(pickle.dumps([Attack()])).decode()
        with pytest.raises((RestoreError, SchemaError), match="--allow-pickled-state"):
            sink(CollectSink(), restored=[snapshot], attempt=2)
        assert not Attack.ran
        sink(CollectSink(), restored=[snapshot], attempt=2, allows_pickles=True)
        assert Attack.ran  # The occasion arose.

    def test_damaged_rows_in_a_snapshot_are_told_as_that(self) -> None:
        collect = sink(CollectSink())
        collect.send(rows("a"))
        snapshot = collect.barrier(1)
        for damaged in ({"encoded": "AAAA"}, {"encoded": "no base64"}, {}, 7):
            snapshot["undelivered"][0]["rows"] = damaged
            with pytest.raises(CorruptStateError, match="waiting rows"):
                sink(CollectSink(), restored=[snapshot], attempt=2)

    def test_a_record_that_is_no_data_fails_at_once_and_not_a_checkpoint(self) -> None:
        with pytest.raises(SchemaError, match="emit plain values"):
            sink(CollectSink()).send(rows(object()))

    def test_a_fork_does_not_deliver_rows_of_the_original(self) -> None:
        collect = sink(CollectSink())
        collect.send(rows("a"))
        assert sink(CollectSink(), restored=[collect.barrier(1)], job="fork").delivered == []

    def test_what_was_delivered_is_no_longer_in_snapshots(self) -> None:
        collect = sink(CollectSink())
        collect.send(rows("a"))
        collect.checkpoint(1)
        assert collect.barrier(2) == {"undelivered": []}


class TestPrint:
    @pytest.mark.parametrize(
        ("prefix", "parallelism", "line"),
        [
            ("", 1, "('a', 1)"),
            (None, 2, "2> ('a', 1)"),
            ("out", 1, "out> ('a', 1)"),
            ("out", 2, "out:2> ('a', 1)"),
        ],
    )
    def test_lines_say_where_they_come_from(
        self, prefix: str | None, parallelism: int, line: str
    ) -> None:
        printing = sink(
            PrintSink(prefix), parallelism=parallelism, index=parallelism - 1, checkpointing=False
        )
        printing.send(rows(("a", 1)))
        assert printing.delivered == [(0, [line])]

    def test_snapshots_hold_text_and_no_pickles(self) -> None:
        printing = sink(PrintSink())
        printing.send(rows(("a", 1)))
        snapshot = printing.barrier(1)
        (item,) = snapshot["undelivered"]
        assert item == {"job": "job", "checkpoint": 1, "rows": ["('a', 1)"], "count": 1}
        assert sink(PrintSink(), restored=[snapshot]).delivered == [(1, ["('a', 1)"])]


@pytest.mark.parametrize(
    ("make", "state"),
    [
        (CollectSink().create_operator_factory(), ("undelivered", "split")),
        (PrintSink().create_operator_factory(), ("undelivered", "split")),
        (ParquetSink("/does/not/exist").create_operator_factory(), ("commits", "union")),
        (NumberSequenceSource(1, 9).create_operator_factory(2), ("splits", "split")),
    ],
    ids=["collect", "print", "parquet", "source"],
)
def test_states_can_be_asked_for_without_opening(make: Any, state: tuple[str, str]) -> None:
    """A preview of a restore must neither deliver nor touch a directory."""
    declared: list[tuple[str, str]] = []

    class Store:
        def list_state(self, name: str, mode: str) -> None:
            declared.append((name, mode))

    make().declare(Store())
    assert declared == [state]


def test_a_file_sink_says_in_the_graph_where_its_files_are(tmp_path: Path) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    numbers = env.from_source(
        NumberSequenceSource(1, 9), WatermarkStrategy.no_watermarks(), "numbers"
    )
    numbers.sink_to(ParquetSink(tmp_path)).uid("files")
    numbers.sink_to(BlackHoleSink()).uid("none")
    files = {op.uid: op.files for op in env.get_job_graph().operators if op.is_sink}
    assert files == {"files": str(tmp_path), "none": None}


def test_a_black_hole_counts() -> None:
    hole = sink(BlackHoleSink())
    hole.send(rows(1, 2))
    hole.send(rows(3))
    assert hole.operator.count == 3  # type: ignore[attr-defined]
