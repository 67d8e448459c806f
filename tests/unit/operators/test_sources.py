"""Sources found again exactly: positions, splits over subtasks, rate limits."""

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operators.connector_harness import Harness
from tests.unit.operators.split_harness import ListedSource
from weir.common.typeinfo import Types
from weir.errors import ConfigError, SourceChangedError
from weir.operators.base import Poll
from weir.operators.sources import (
    CollectionSource,
    DataGeneratorSource,
    NumberSequenceSource,
    Source,
)
from weir.operators.sources.split_source import EMPTY_WAIT_MS


def subtasks(source: Source, parallelism: int, **kwargs: Any) -> list[Harness]:
    factory = pickle.loads(pickle.dumps(source.create_operator_factory(parallelism)))
    return [
        Harness(factory, index=i, parallelism=parallelism, **kwargs) for i in range(parallelism)
    ]


def negated(index: int) -> int:
    return -index


def squares(indices: Any) -> pa.RecordBatch:
    return pa.record_batch({"square": indices * indices})


def short(indices: Any) -> pa.RecordBatch:
    return pa.record_batch({"square": indices[:-1]})


SOURCES: list[Callable[[], Source]] = [
    lambda: CollectionSource([str(i) for i in range(50)]),
    lambda: NumberSequenceSource(-7, 42),
    lambda: DataGeneratorSource(negated, 50),
    lambda: DataGeneratorSource(squares, 50, vectorised=True),
]


def test_a_source_tells_the_stretch_that_it_reads() -> None:
    told: list[str] = []

    def make(index: int) -> int:
        told.append(str(harness.operator.ctx.position))
        return index

    harness = Harness(DataGeneratorSource(make, 9).create_operator_factory(1))
    split = "in the split {'count': 9, 'first': 0, 'stride': 1}"
    for read in (f"from the start up to 4 {split}", f"from position 4 up to 8 {split}"):
        harness.poll(4)
        assert str(harness.operator.ctx.position) == read
    assert told == [f"from the start on {split}"] * 4 + [f"from position 4 on {split}"] * 4


@pytest.mark.parametrize("make", SOURCES)
@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_record_comes_once(make: Callable[[], Source], parallelism: int) -> None:
    rows = [row for subtask in subtasks(make(), parallelism) for row in subtask.drain(7)]
    assert len(rows) == len(set(rows)) == 50


@given(
    make=st.sampled_from(SOURCES),
    parallelism=st.integers(1, 4),
    before=st.lists(st.integers(1, 9), max_size=6),
)
def test_a_restored_source_goes_on_where_the_snapshot_was(
    make: Callable[[], Source], parallelism: int, before: list[int]
) -> None:
    undisturbed = [subtask.drain() for subtask in subtasks(make(), parallelism)]

    running = subtasks(make(), parallelism)
    for subtask in running:
        for records_max in before:
            if subtask.poll(records_max) is Poll.END:
                break
    snapshots = [subtask.barrier(1) for subtask in running]
    seen = [list(subtask.output.rows) for subtask in running]
    for subtask in running:
        subtask.drain()  # What came after the snapshot comes again.
    restored = subtasks(make(), parallelism, restored=snapshots, attempt=2)
    assert [s + r.drain() for s, r in zip(seen, restored, strict=True)] == undisturbed


def test_a_collection_keeps_its_order_at_any_parallelism() -> None:
    first, second = subtasks(CollectionSource([3, 1, 2]), 2)
    assert first.drain() == [3, 1, 2]
    assert second.drain() == []


def test_a_changed_collection_is_refused_on_restore() -> None:
    (running,) = subtasks(CollectionSource([1, 2, 3]), 1)
    running.poll(1)
    snapshot = running.barrier(1)
    (restored,) = subtasks(CollectionSource([1, 2, 3, 4]), 1, restored=[snapshot])
    with pytest.raises(SourceChangedError, match="had 3 records"):
        restored.poll()


def test_a_source_that_was_done_stays_done_after_a_restore() -> None:
    (running,) = subtasks(NumberSequenceSource(1, 5), 1)
    running.drain()
    (restored,) = subtasks(NumberSequenceSource(1, 5), 1, restored=[running.barrier(1)])
    assert restored.poll() is Poll.END
    assert restored.output.rows == []


def test_numbers_are_columns_and_python_ints() -> None:
    (subtask,) = subtasks(NumberSequenceSource(1, 3), 1)
    assert subtask.drain() == [1, 2, 3]
    assert subtask.output.batches[0].columns["value"].to_pylist() == [1, 2, 3]


def test_an_endless_generator_never_ends_and_starves_no_split() -> None:
    source = DataGeneratorSource(negated, type_info=Types.LONG())
    (subtask,) = [Harness(source.create_operator_factory(2), index=0, parallelism=1)]
    assert not source.bounded
    for _ in range(4):
        assert subtask.poll(2) is Poll.MORE
    assert sorted(subtask.output.rows, reverse=True) == [0, -1, -2, -3, -4, -5, -6, -7]


def test_a_reader_without_records_is_asked_again_at_once_only_where_its_position_went_on() -> None:
    source = ListedSource([7, None, 8], bounded=False)  # None: a record that the reader leaves out.
    (subtask,) = subtasks(source, 1)
    assert [subtask.poll() for _ in range(4)] == [Poll.MORE, Poll.MORE, Poll.MORE, Poll.WAIT]
    assert subtask.output.rows == [(0, 0, 7), (0, 2, 8)]
    assert subtask.operator.next_timer_ms() == subtask.clock.ms + EMPTY_WAIT_MS


def test_a_vectorised_generator_must_return_a_row_per_index() -> None:
    (subtask,) = subtasks(DataGeneratorSource(short, 10, vectorised=True), 1)
    with pytest.raises(ConfigError, match="10 were given, it returned 9"):
        subtask.poll()


@pytest.mark.parametrize(
    "make",
    [
        lambda: NumberSequenceSource(2, 1),
        lambda: DataGeneratorSource(negated, -1),
        lambda: CollectionSource([], rows_per_second=0),
    ],
)
def test_settings_out_of_range_are_refused(make: Callable[[], Source]) -> None:
    with pytest.raises(ConfigError):
        make()


class TestRateLimit:
    """Time is a manual clock that moves to wherever the operator asks to be polled again."""

    @staticmethod
    def replay(harnesses: list[Harness], until_ms: int) -> None:
        for harness in harnesses:
            start = harness.clock.ms
            while harness.clock.ms - start < until_ms:
                if harness.poll() is Poll.WAIT:
                    due = harness.operator.next_timer_ms()
                    assert due is not None
                    assert due > harness.clock.ms
                    harness.clock.ms = due

    @pytest.mark.parametrize("rate", [1, 50, 20_000])
    @pytest.mark.parametrize("parallelism", [1, 2])
    def test_holds_over_all_subtasks_together(self, rate: int, parallelism: int) -> None:
        source = DataGeneratorSource(negated, rows_per_second=rate)
        running = subtasks(source, parallelism)
        self.replay(running, 10_000)
        rows = sum(len(subtask.output.rows) for subtask in running)
        assert rows == pytest.approx(10 * rate, rel=0.05, abs=2)

    def test_subtasks_without_splits_take_no_share(self) -> None:
        running = subtasks(CollectionSource(range(10_000), rows_per_second=100), 4)
        self.replay(running[:1], 10_000)
        assert len(running[0].output.rows) == pytest.approx(1_000, rel=0.05)

    def test_flows_in_small_portions(self) -> None:
        (subtask,) = subtasks(DataGeneratorSource(negated, rows_per_second=20_000), 1)
        self.replay([subtask], 1_000)
        sizes = [len(batch) for batch in subtask.output.batches]
        assert 50 <= len(sizes) <= 100
        assert max(sizes) <= 400

    @pytest.mark.parametrize(("rate", "portion"), [(1_000, 50), (3_000, 100), (40, 2)])
    def test_flows_in_portions_of_some_rows_where_the_rate_is_low(
        self, rate: int, portion: int
    ) -> None:
        (subtask,) = subtasks(DataGeneratorSource(negated, rows_per_second=rate), 1)
        self.replay([subtask], 1_000)
        sizes = [len(batch) for batch in subtask.output.batches]
        assert portion <= min(sizes)
        assert max(sizes) <= portion + rate / 1_000 + 1, "the rows of a millisecond more, at most"

    def test_a_long_pause_is_not_made_up_in_one_burst(self) -> None:
        (subtask,) = subtasks(DataGeneratorSource(negated, rows_per_second=20_000), 1)
        subtask.clock.ms += 60_000
        while subtask.poll(100_000) is Poll.MORE:
            pass
        assert len(subtask.output.rows) == 4_000

    def test_does_not_hold_up_a_source_without_records(self) -> None:
        (subtask,) = subtasks(CollectionSource([], rows_per_second=1), 1)
        assert subtask.poll() is Poll.END
        assert subtask.operator.next_timer_ms() is None

    def test_an_unlimited_source_never_waits(self) -> None:
        (subtask,) = subtasks(NumberSequenceSource(1, 100), 1)
        assert subtask.poll(10) is Poll.MORE
        assert subtask.operator.next_timer_ms() is None


def test_numpy_generators_get_int64_indices_in_their_stride() -> None:
    seen: list[Any] = []

    def note(indices: Any) -> pa.RecordBatch:
        seen.append(indices)
        return pa.record_batch({"i": indices})

    source = DataGeneratorSource(note, 10, vectorised=True)
    second = Harness(source.create_operator_factory(3), index=1, parallelism=3)
    second.drain()
    assert seen[0].dtype == np.int64
    assert seen[0].tolist() == [1, 4, 7]
