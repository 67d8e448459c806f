"""Partitioners: each record to its channel, order kept, nothing lost."""

from collections import Counter
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.builders import edge
from weir.common.batch import Batch
from weir.errors import KeyTypeError, UserError
from weir.graph.key_groups import key_group, operator_index
from weir.graph.logical import Partitioning
from weir.operators.keys import ColumnKeySelector, FunctionKeySelector
from weir.worker.partitioners import ByKey, Custom, Partitioner, make_partitioner


def shares(partitioner: Partitioner, rows: list[Any]) -> dict[int, list[Any]]:
    """The rows of one batch that each channel gets."""
    given: dict[int, list[Any]] = {}
    for index, batch in partitioner.split(Batch.of_rows(rows)):
        assert index not in given
        given[index] = batch.rows
    return given


def partitioner(partitioning: Partitioning, channels: int, seed: int = 0) -> Partitioner:
    selector = FunctionKeySelector(lambda row: row)
    return make_partitioner(edge("a", "b", partitioning, selector=selector), channels, 128, seed)


@given(st.lists(st.integers(), min_size=1, max_size=50), st.integers(1, 5))
def test_every_record_reaches_one_channel_in_order(rows: list[int], channels: int) -> None:
    numbered = list(enumerate(rows))
    for partitioning in set(Partitioning) - {Partitioning.BROADCAST, Partitioning.CUSTOM}:
        if partitioning is Partitioning.FORWARD and channels > 1:
            continue
        given = shares(partitioner(partitioning, channels), numbered)
        assert sorted(row for share in given.values() for row in share) == numbered
        assert all(share and share == sorted(share) for share in given.values())
        assert all(0 <= channel < channels for channel in given)


def test_broadcast_gives_everything_to_everybody() -> None:
    given = shares(partitioner(Partitioning.BROADCAST, 3), [1, 2])
    assert given == {0: [1, 2], 1: [1, 2], 2: [1, 2]}


def test_global_gives_everything_to_the_first() -> None:
    assert shares(partitioner(Partitioning.GLOBAL, 3), [1, 2]) == {0: [1, 2]}


def test_round_robin_goes_on_where_the_last_batch_ended() -> None:
    turns = partitioner(Partitioning.REBALANCE, 3, seed=1)
    assert shares(turns, ["a", "b"]) == {1: ["a"], 2: ["b"]}
    assert shares(turns, ["c", "d", "e", "f"]) == {0: ["c", "f"], 1: ["d"], 2: ["e"]}
    assert shares(turns, ["g"]) == {1: ["g"]}


def test_shuffle_spreads_and_repeats_itself_from_the_same_seed() -> None:
    rows = list(range(3_000))
    first = shares(partitioner(Partitioning.SHUFFLE, 3, seed=7), rows)
    assert first == shares(partitioner(Partitioning.SHUFFLE, 3, seed=7), rows)
    assert all(800 < len(share) < 1_200 for share in first.values())


def test_a_key_goes_to_the_subtask_that_owns_its_key_group() -> None:
    keys = ["x", 1, True, 1.0, b"x", None, ("x", 1)]
    given = shares(ByKey(FunctionKeySelector(lambda row: row), 128, 4), keys)
    for channel, share in given.items():
        for key in share:
            assert operator_index(key_group(key, 128), 128, 4) == channel


def test_equal_numbers_of_other_types_are_other_keys() -> None:
    """1, 1.0 and True are one key to a dict, and three to the hash."""
    by_key = ByKey(FunctionKeySelector(lambda row: row), 128, 128)
    separate = [
        shares(ByKey(FunctionKeySelector(lambda row: row), 128, 128), [k]) for k in (1, 1.0, True)
    ]
    together = [shares(by_key, [key]) for key in (1, 1.0, True)]
    assert [list(given) for given in together] == [list(given) for given in separate]


def test_columns_and_rows_of_the_same_keys_go_the_same_way() -> None:
    names = [f"k{i}" for i in range(200)]
    columns = Batch.of_columns(pa.RecordBatch.from_pydict({"k": names}))
    by_column = {
        index: [row[0] for row in part.rows]
        for index, part in ByKey(ColumnKeySelector(("k",)), 128, 4).split(columns)
    }
    assert by_column == shares(ByKey(FunctionKeySelector(lambda row: row), 128, 4), names)


def test_a_key_without_an_encoding_is_refused_also_by_a_single_subtask() -> None:
    with pytest.raises(KeyTypeError):
        shares(ByKey(FunctionKeySelector(lambda row: object()), 128, 1), [1])


class Modulo:
    """A user's partitioner."""

    label = "partition_custom (pipeline.py:3)"

    def partition(self, row: int, channels: int) -> int:
        return row


def test_a_custom_partitioner_chooses_the_channel() -> None:
    assert shares(Custom(Modulo(), 3), [0, 2, 0, 1]) == {0: [0, 0], 1: [1], 2: [2]}


@pytest.mark.parametrize("wrong", [-1, 3])
def test_a_custom_partitioner_that_names_no_channel_is_told_the_bounds(wrong: int) -> None:
    with pytest.raises(UserError, match=rf"record {wrong} to the subtask {wrong}; .* from 0 to 2"):
        shares(Custom(Modulo(), 3), [0, wrong])


def test_event_times_travel_with_their_records() -> None:
    batch = Batch.of_rows([5, 6, 7], None, np.array([50, 60, 70]))
    times: Counter[int] = Counter()
    for _, part in partitioner(Partitioning.REBALANCE, 2).split(batch):
        assert part.timestamps is not None
        times.update(dict(zip(part.rows, part.timestamps.tolist(), strict=True)))
    assert times == {5: 50, 6: 60, 7: 70}
