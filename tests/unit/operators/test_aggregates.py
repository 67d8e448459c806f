import datetime as dt
import random
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.operators.operator_harness import MAX_PARALLELISM, Harness
from weir.common import WatermarkStrategy
from weir.common.batch import Batch
from weir.config import CheckpointConfig, RestartConfig, RestartStrategyKind
from weir.datastream import StreamExecutionEnvironment
from weir.datastream.connectors import DataGeneratorSource
from weir.datastream.execution import capturing
from weir.errors import GraphError, RestoreError, SchemaError, UserError
from weir.graph.key_groups import key_group, key_group_range
from weir.ids import KeyGroupRange
from weir.local.cluster import run_in_process
from weir.operators.aggregates import (
    CombineFactory,
    CombineOperator,
    RunningAggregateFactory,
    SumBound,
    parse_aggregates,
)
from weir.operators.keys import ColumnKeySelector
from weir.operators.partition import key_groups_of
from weir.operators.row_groups import SCRATCH_SLOTS_MAX, SlotGrouper, group_rows
from weir.operators.sinks import CollectSink
from weir.protocol.events import AttemptStarted, CheckpointSettled, JobEvent
from weir.protocol.lifecycle import JobStatus
from weir.state.columns.table import ColumnarTable

pytestmark = pytest.mark.usefixtures("simulated_time")

KEY = ColumnKeySelector(("k",))
EVERYTHING = parse_aggregates(
    {
        "total": ("x", "sum"),
        "n": ("*", "count"),
        "known": ("x", "count"),
        "lo": ("x", "min"),
        "hi": ("x", "max"),
        "avg": ("x", "mean"),
    }
)


class Pipeline:
    """A combiner and the final operator behind it, without a wire between them."""

    def __init__(
        self,
        aggregates: dict[str, tuple[str, str]],
        keys: tuple[str, ...] = ("k",),
        **final: Any,
    ) -> None:
        selector, specs = ColumnKeySelector(keys), parse_aggregates(aggregates)
        self.combiner = Harness(CombineFactory(selector, specs), keyed=False)
        self.final = Harness(RunningAggregateFactory(selector, specs), **final)

    def run(self, **columns: Any) -> list[tuple[Any, ...]]:
        """Process one slice; the rows it gave."""
        return self.run_batch(pa.RecordBatch.from_pydict(columns))

    def run_batch(self, columns: pa.RecordBatch) -> list[tuple[Any, ...]]:
        sent, made = len(self.combiner.output.batches), len(self.final.output.batches)
        self.combiner.operator.on_batch(Batch.of_columns(columns), 0)
        for batch in self.combiner.output.batches[sent:]:
            self.final.operator.on_batch(batch, 0)
        return [tuple(row) for batch in self.final.output.batches[made:] for row in batch.rows]


def test_a_slice_gives_one_row_per_key_with_the_aggregates_so_far() -> None:
    sums = Pipeline({"x": ("x", "sum")})
    assert sums.run(k=["a", "b", "a"], x=[1, 2, 3]) == [("a", 4), ("b", 2)]
    assert sums.run(k=["b", "c"], x=[10, 20]) == [("b", 12), ("c", 20)]
    assert sums.final.output.batches[0].columns.schema.names == ["k", "x"]


def test_all_aggregates_at_once() -> None:
    pipeline = Pipeline({s.name: (s.column, s.function) for s in EVERYTHING})
    pipeline.run(k=[1, 1], x=[5.0, -1.0])
    assert pipeline.run(k=[1], x=[2.0]) == [(1, 6.0, 3, 3, -1.0, 5.0, 2.0)]


def test_nulls_do_not_count_and_the_sum_of_nothing_is_null() -> None:
    pipeline = Pipeline({s.name: (s.column, s.function) for s in EVERYTHING})
    nothing = pa.array([None], pa.int64())
    assert pipeline.run(k=[1], x=nothing) == [(1, None, 1, 0, None, None, None)]
    assert pipeline.run(k=[1, 1], x=[None, 7]) == [(1, 7, 3, 1, 7, 7, 7.0)]


def test_a_sum_alone_is_null_until_a_value_comes() -> None:
    pipeline = Pipeline({"total": ("x", "sum")})
    assert pipeline.run(k=[1, 2, 2, 1], x=pa.array([None, 3, None, None], pa.int64())) == [
        (1, None),
        (2, 3),
    ]
    assert pipeline.run(k=[1, 2], x=[4, 5]) == [(1, 4), (2, 8)]


def test_the_smallest_of_large_numbers_is_not_the_zero_of_a_new_row() -> None:
    pipeline = Pipeline({"lo": ("x", "min"), "hi": ("x", "max")})
    assert pipeline.run(k=[1, 2], x=[5, -5]) == [(1, 5, 5), (2, -5, -5)]


def test_a_null_key_is_a_key() -> None:
    pipeline = Pipeline({"n": ("*", "count")})
    assert pipeline.run(k=[None, "a", None]) == [(None, 2), ("a", 1)]


def test_several_key_columns_are_one_key() -> None:
    pipeline = Pipeline({"x": ("x", "sum")}, keys=("a", "b"))
    assert pipeline.run(a=["u", "u", "v", "u"], b=[1, 2, 1, 1], x=[1, 2, 3, 4]) == [
        ("u", 1, 5),
        ("u", 2, 2),
        ("v", 1, 3),
    ]
    assert pipeline.run(a=["v", None], b=[1, None], x=[1, 9]) == [("v", 1, 4), (None, None, 9)]


HALF = 2**62


@pytest.mark.parametrize("function", ["sum", "mean"])
@pytest.mark.parametrize(
    "slices",
    [
        [[HALF, HALF, HALF, HALF]],  # To 0, if it wrapped around.
        [[HALF, HALF]],
        [[-HALF, -HALF, -1]],
        [[HALF], [HALF]],
        [[HALF, 1, -1], [HALF - 1, 1]],
        [[-HALF, -HALF], [-1]],
        [[HALF] * 2**10] * 2,
    ],
)
def test_a_sum_beyond_64_bits_is_refused_by_name(function: str, slices: list[list[int]]) -> None:
    pipeline = Pipeline({"x": ("x", function)})

    def run() -> None:
        for values in slices:
            pipeline.run(k=["a", *["b"] * len(values)], x=[1, *values])

    with pytest.raises(UserError, match=r"'op': the sum of the integer column 'x' for the key 'b'"):
        run()


@given(
    slices=st.lists(
        st.lists(
            st.tuples(
                st.integers(0, 2),
                st.sampled_from([1, -1, 0, HALF, -HALF, HALF - 1, 2 * HALF - 1, -2 * HALF]),
            ),
            min_size=1, max_size=8,
        ),
        min_size=1, max_size=6,
    )
)  # fmt: skip
def test_sums_are_exact_or_refused(slices: list[list[tuple[int, int]]]) -> None:
    """Refused exactly where the sum after a slice leaves 64 bits, combined or not."""
    pipeline = Pipeline({"x": ("x", "sum")})
    sums: defaultdict[int, int] = defaultdict(int)
    for rows in slices:
        for key, value in rows:
            sums[key] += value
        keys, values = map(list, zip(*rows, strict=True))
        if all(-(2**63) <= total < 2**63 for total in sums.values()):
            assert dict(pipeline.run(k=keys, x=values)) == {key: sums[key] for key in keys}
            continue
        with pytest.raises(UserError, match="leaves 64 bits"):
            pipeline.run(k=keys, x=values)
        return


def test_a_sum_too_large_for_its_slice_alone_may_fit_the_whole() -> None:
    pipeline = Pipeline({"x": ("x", "sum")})
    pipeline.run(k=[1, 1], x=[-HALF, -HALF])
    assert pipeline.run(k=[1] * 4, x=[HALF, HALF, HALF, 0]) == [(1, HALF)]
    assert len(pipeline.combiner.output.batches[-1]) == 4, "the combiner could not hold it"


def test_sums_of_a_restored_table_are_refused_as_well() -> None:
    pipeline = Pipeline({"x": ("x", "sum")})
    pipeline.run(k=[1], x=[2 * HALF - 1])
    restored = Pipeline({"x": ("x", "sum")}, restored=pipeline.final.snapshot())
    assert restored.run(k=[1], x=[0]) == [(1, 2 * HALF - 1)]
    with pytest.raises(UserError, match="leaves 64 bits"):
        restored.run(k=[1], x=[1])


def test_a_bound_of_sums_is_taken_anew_once_it_is_too_high() -> None:
    """It counts the rows of a slice as if all were of one key, and so rises faster than any sum."""
    table = ColumnarTable("t", pa.int64(), {"sum": np.int64}, KeyGroupRange(0, 0), 1)
    column = table.column("sum")
    bound = SumBound(column, table)
    slots, values = table.slots_of(np.arange(1_000)), np.full(1_000, 1 << 50)
    for total in range(1 << 50, 1 << 60, 1 << 50):
        assert bound.admits(values)
        column.add(slots, values)
        assert column.magnitude(table.rows) == total
    assert not bound.admits(np.full(9, -HALF)), "nine of them are more than 64 bits hold"
    column.scatter(slots[:1], 2 * HALF - 1)
    again = SumBound(column, table)
    assert again.admits(np.array([0]))
    assert not again.admits(np.array([-1]))


@pytest.mark.parametrize("function", ["sum", "min", "max", "mean"])
@pytest.mark.parametrize("null", [None, 0])
def test_unsigned_values_beyond_64_signed_bits_are_refused(function: str, null: int | None) -> None:
    pipeline = Pipeline({"x": ("x", function)})
    with pytest.raises(SchemaError, match=r"'op' aggregates the column 'x', which is uint64"):
        pipeline.run(k=[1, 1], x=pa.array([2**63, null], pa.uint64()))
    fits = pa.array([2**63 - 1, 0], pa.uint64())
    ((_, value),) = Pipeline({"x": ("x", function)}).run(k=[1, 1], x=fits)
    assert value == {"sum": 2**63 - 1, "max": 2**63 - 1, "min": 0, "mean": 2**62}[function]


def test_floats_and_counts_have_no_such_bound() -> None:
    pipeline = Pipeline({"x": ("x", "sum"), "n": ("x", "count"), "hi": ("y", "max")})
    large = {"x": [1e300, 1e300], "y": [2 * HALF - 1] * 2}
    assert pipeline.run(k=[1, 1], **large) == [(1, 2e300, 2, 2 * HALF - 1)]


@pytest.mark.parametrize(
    ("column", "low", "high"),
    [
        (pa.array([3, 1, 2], pa.int16()), 1, 3),
        (pa.array([3, 1, 2], pa.uint32()), 1, 3),
        (pa.array([0.5, -0.5, 0.0], pa.float32()), -0.5, 0.5),
        (pa.array([3, 1, 2], pa.timestamp("ms", "UTC")), None, None),
        (pa.array([3, 1, 2], pa.date32()), dt.date(1970, 1, 2), dt.date(1970, 1, 4)),
        (pa.array([True, False, True]), False, True),
    ],
)
def test_smallest_and_largest_keep_the_type_of_their_column(
    column: pa.Array, low: Any, high: Any
) -> None:
    pipeline = Pipeline({"lo": ("x", "min"), "hi": ("x", "max")})
    ((_, lo, hi),) = pipeline.run(k=[1, 1, 1], x=column)
    schema = pipeline.final.output.batches[0].columns.schema
    assert [schema.field(name).type for name in ("lo", "hi")] == [column.type] * 2
    if low is not None:
        assert (lo, hi) == (low, high)


def test_integer_sums_are_exact_beyond_what_floats_hold() -> None:
    pipeline = Pipeline({"x": ("x", "sum")})
    pipeline.run(k=[1], x=[2**60])
    assert pipeline.run(k=[1, 1, 1, 1], x=[1, 1, 1, 0]) == [(1, 2**60 + 3)]


def test_a_combiner_merges_the_rows_of_a_key() -> None:
    combiner = Harness(CombineFactory(KEY, EVERYTHING), keyed=False)
    combiner.columns(k=[1, 1, 2, 1], x=[1, 2, 3, 4])
    assert [len(batch) for batch in combiner.output.batches] == [2]


def test_a_combiner_that_saves_little_passes_rows_on_and_stops_trying_for_a_while() -> None:
    pipeline = Pipeline({"x": ("x", "sum")})
    distinct = {"k": [1, 2, 3], "x": [1, 1, 1]}
    assert pipeline.run(**distinct) == [(1, 1), (2, 1), (3, 1)]
    repeated = {"k": [1] * 9, "x": [1] * 9}
    for _ in range(CombineOperator.SLICES_SKIPPED):
        pipeline.run(**repeated)
        assert len(pipeline.combiner.output.batches[-1]) == 9
    assert pipeline.run(**repeated) == [(1, 1 + 9 * (CombineOperator.SLICES_SKIPPED + 1))]
    assert len(pipeline.combiner.output.batches[-1]) == 1


def test_a_combiner_tries_ever_less_often_while_it_saves_little() -> None:
    combiner = Harness(CombineFactory(KEY, EVERYTHING), keyed=False)
    distinct, repeated = {"k": [1, 2, 3], "x": [1, 1, 1]}, {"k": [1] * 9, "x": [1] * 9}
    tries = []
    for _ in range(2):
        skipped = CombineOperator.SLICES_SKIPPED
        while skipped < CombineOperator.SLICES_SKIPPED_MAX:
            combiner.columns(**distinct)
            for _ in range(skipped):
                combiner.columns(**repeated)
                assert len(combiner.output.batches[-1]) == 9
            tries.append(skipped)
            skipped *= 2
        combiner.columns(**repeated)
        assert len(combiner.output.batches[-1]) == 1, "it tries again after all"
    assert tries == [16, 32, 64, 128] * 2, "what was reduced makes it try as often as at first"


@pytest.mark.parametrize("keys", [("k",), ("k", "j")])
def test_aggregates_equal_a_plain_computation_after_a_restore_in_the_middle(
    keys: tuple[str, ...],
) -> None:
    rng = random.Random(7)
    columns = ({"x": ("x", "sum"), "n": ("*", "count")}, keys)
    pipeline = Pipeline(*columns)
    expected: dict[Any, list[int]] = defaultdict(lambda: [0, 0])
    shown: dict[Any, tuple[int, int]] = {}
    for round_number in range(20):
        rows = [
            (f"k{rng.randrange(30)}", rng.randrange(4), rng.randrange(100))
            for _ in range(rng.choice([1, 20, 200]))
        ]
        k, j, x = zip(*rows, strict=True)
        for row in pipeline.run(k=k, j=j, x=x):
            shown[row[:-2]] = row[-2:]
        for a, b, value in rows:
            slot = expected[(a, b)[: len(keys)]]
            slot[0] += value
            slot[1] += 1
        if round_number == 10:
            pipeline = Pipeline(*columns, restored=pipeline.final.snapshot())
    assert shown == {key: tuple(value) for key, value in expected.items()}


def test_aggregates_move_with_their_key_groups_on_rescale() -> None:
    aggregates = {"n": ("*", "count")}
    keys = list(range(100))
    before = Pipeline(aggregates)
    before.run(k=keys)
    handles = before.final.snapshot()
    for index in range(3):
        owned = key_group_range(MAX_PARALLELISM, 3, index)
        mine = [k for k in keys if key_group(k, MAX_PARALLELISM) in owned]
        part = Pipeline(aggregates, parallelism=3, index=index, restored=handles)
        assert part.run(k=mine) == [(key, 2) for key in mine]


def test_other_aggregates_than_in_the_checkpoint_are_refused() -> None:
    before = Pipeline({"n": ("*", "count")})
    before.run(k=[1])
    after = Pipeline({"x": ("x", "sum")}, restored=before.final.snapshot())
    with pytest.raises(RestoreError, match=r"columns count\(\*\) int64, but the program declares"):
        after.run(k=[1], x=[1])


def test_a_column_that_changes_its_type_is_refused() -> None:
    pipeline = Pipeline({"x": ("x", "sum")})
    pipeline.run(k=[1], x=[1])
    with pytest.raises(SchemaError, match="was int64 and is double now"):
        pipeline.run(k=[1], x=[1.5])


def test_what_cannot_be_aggregated_is_refused_with_advice() -> None:
    with pytest.raises(SchemaError, match="cast it to float64 or int64"):
        Pipeline({"x": ("x", "sum")}).run(k=[1], x=["a"])
    with pytest.raises(SchemaError, match="cannot be summed"):
        Pipeline({"x": ("x", "sum")}).run(k=[1], x=pa.array([1], pa.timestamp("s")))
    with pytest.raises(SchemaError, match="names the column 'x', which the records do not have"):
        Pipeline({"x": ("x", "sum")}).run(k=[1], y=[1])
    with pytest.raises(UserError, match="key_by names the column k"):
        Pipeline({"x": ("x", "sum")}).run(x=[1])


@pytest.mark.parametrize(
    "aggregates",
    [{}, {"n": "x"}, {"n": ("x", "median")}, {"n": ("*", "sum")}, {"n": ("x", "sum", 1)}],
)
def test_aggregates_are_checked_where_they_are_written(aggregates: dict[str, Any]) -> None:
    with pytest.raises(GraphError):
        parse_aggregates(aggregates)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 1, 2])), min_size=1))
def test_grouping_finds_equal_rows_and_the_first_of_each(rows: list[tuple[str, Any]]) -> None:
    letters, numbers = zip(*rows, strict=True)
    groups = group_rows([pa.array(letters), pa.array(numbers, pa.int64())])
    assert [rows[groups.first_rows[code]] for code in groups.codes] == rows
    assert [rows.index(rows[i]) for i in groups.first_rows] == groups.first_rows.tolist()
    assert len(groups.first_rows) == len(set(rows))


@given(
    st.lists(st.lists(st.integers(0, 50), min_size=1), min_size=1),
    st.sampled_from([51, SCRATCH_SLOTS_MAX, SCRATCH_SLOTS_MAX + 1]),
)
def test_slots_are_grouped_in_the_order_they_first_appear(
    slices: list[list[int]], slot_count: int
) -> None:
    """Of tables of any length, which may grow beyond what a scratch array is made for."""
    grouper = SlotGrouper()
    for n, slots in enumerate(slices):
        count = slot_count if n else 51
        groups = grouper.group(np.array(slots), count)
        assert grouper.first_rows(np.array(slots), count).tolist() == groups.first_rows.tolist()
        assert [slots[groups.first_rows[code]] for code in groups.codes] == slots
        assert [slots[i] for i in groups.first_rows] == list(dict.fromkeys(slots))


class TestKeysOfADictionary:
    """A key column whose dictionary has values of other subtasks, of no row, twice, and null."""

    NAMES = tuple(f"k{i}" for i in range(20))

    def keys(self, *rows: int | None) -> pa.DictionaryArray:
        names = [*self.NAMES, None, self.NAMES[0]]
        return pa.DictionaryArray.from_arrays(pa.array(rows, pa.int32()), pa.array(names))

    def test_values_that_no_row_has_are_no_keys(self) -> None:
        pipeline = Pipeline({"n": ("*", "count")})
        assert pipeline.run(k=self.keys(3, 5, 3)) == [("k3", 2), ("k5", 1)]
        assert pipeline.run(k=self.keys(0, 21, 20, None)) == [("k0", 2), (None, 2)]
        assert pipeline.run(k=self.keys(5)) == [("k5", 2)]
        table = pipeline.final.state._tables["aggregates"]
        assert sorted(map(str, table.keys_of(np.arange(table.rows)).to_pylist())) == [
            "None", "k0", "k3", "k5",
        ]  # fmt: skip

    def test_subtasks_take_keys_of_their_own_alone(self) -> None:
        column = self.keys(*range(20))
        groups = key_groups_of([column], MAX_PARALLELISM)
        seen: list[Any] = []
        for index in range(3):
            owned = key_group_range(MAX_PARALLELISM, 3, index)
            rows = np.flatnonzero((groups >= owned.first) & (groups <= owned.last))
            assert len(rows)
            pipeline = Pipeline({"n": ("*", "count")}, parallelism=3, index=index)
            seen += pipeline.run(k=column.take(pa.array(rows)))
        assert sorted(seen) == sorted((name, 1) for name in self.NAMES)

    def test_a_value_that_no_row_has_may_be_no_key_at_all(self) -> None:
        values = pa.array([1.5, float("nan")])
        column = pa.DictionaryArray.from_arrays(pa.array([0, 0], pa.int8()), values)
        assert key_groups_of([column], 128).tolist() == [key_group(1.5, 128)] * 2

    @pytest.mark.parametrize("parallelism", [1, 2])
    @pytest.mark.parametrize("keys", [("key",), ("key", "other")])
    def test_a_job_goes_on_from_a_checkpoint_of_them(
        self, keys: tuple[str, ...], parallelism: int, tmp_path: Path
    ) -> None:
        failed: list[int] = []
        settled: list[int] = []

        def rows(index: npt.NDArray[np.int64]) -> pa.RecordBatch:
            column = pa.DictionaryArray.from_arrays(
                pa.array(index % 20, pa.int32()), pa.array(self.NAMES)
            )
            return pa.record_batch({"key": column, "other": column, "value": index})

        def dies_once(batch: pa.RecordBatch) -> pa.RecordBatch:
            if settled and not failed:
                failed.append(settled[-1])
                raise RuntimeError("dies once")
            return batch

        env = StreamExecutionEnvironment.get_execution_environment()
        env.set_parallelism(parallelism)
        source = DataGeneratorSource(rows, 1_000, 2_000, vectorised=True)
        stream = env.from_source(source, WatermarkStrategy.no_watermarks(), "rows").uid("rows")
        sums = (
            stream.map_batches(dies_once)
            .key_by(list(keys))
            .aggregate_batches(total=("value", "sum"))
        )
        sums.sink_to(CollectSink()).uid("sink")
        with capturing() as capture:
            env.execute("job")
        (job,) = capture.jobs
        checkpoints = CheckpointConfig(interval_ms=20, storage=str(tmp_path))
        restart = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=2, delay_ms=0)
        config = replace(job.config, checkpoints=checkpoints, restart=restart)

        def note(event: JobEvent) -> None:
            if isinstance(event, CheckpointSettled) and event.failure is None:
                settled.append(event.checkpoint_id)

        result = run_in_process(job.graph, config, emit=note)
        assert (result.status, result.cause) == (JobStatus.FINISHED, "")
        started = [e.restored_checkpoint for e in result.events if isinstance(e, AttemptStarted)]
        assert len(failed) == 1
        assert len(started) == 2
        assert started[1] is not None
        last = {row[0]: row[-1] for row in result.collected}
        expected = {self.NAMES[k]: sum(range(k, 1_000, 20)) for k in range(20)}
        assert last == expected
