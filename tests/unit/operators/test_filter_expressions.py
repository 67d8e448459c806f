"""Filters that are Arrow expressions: the same rows stay, whichever row groups were passed over."""

import datetime as dt
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cloudpickle
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.seeds import share
from weir.common import Duration, Time, WatermarkStrategy
from weir.config import ChannelConfig
from weir.datastream import StreamExecutionEnvironment, TumblingEventTimeWindows
from weir.datastream.connectors import ParquetSource
from weir.datastream.execution import capturing
from weir.datastream.stream import DataStream
from weir.errors import GraphError
from weir.local.cluster import run_in_process
from weir.operators.expressions import names_in, ruled_out
from weir.operators.sinks import CollectSink
from weir.operators.sources.split_source import Source
from weir.protocol.lifecycle import JobStatus

NO_TIME = WatermarkStrategy.no_watermarks()
SCHEMA = pa.schema(
    {
        "n": pa.int64(),
        "small": pa.int8(),
        "name": pa.string(),
        "day": pa.date32(),
        "flag": pa.bool_(),
        "x": pa.float64(),
    }
)
DAY = dt.date(2024, 2, 1)


def rows_of(values: list[tuple[Any, ...]]) -> pa.Table:
    columns = zip(*values, strict=True) if values else [[] for _ in SCHEMA]
    return pa.Table.from_arrays(
        [pa.array(c, f.type) for c, f in zip(columns, SCHEMA, strict=True)], schema=SCHEMA
    )


def or_null(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return values | st.none()


days = st.integers(0, 6).map(lambda n: DAY + dt.timedelta(n))
rows = st.lists(
    st.tuples(
        or_null(st.integers(-4, 4) | st.sampled_from([-(2**63), 2**63 - 1])),
        or_null(st.integers(-128, 127)),
        or_null(st.sampled_from(["", "a", "ab", "b", "\U0010ffff"])),
        or_null(days),
        or_null(st.booleans()),
        or_null(st.sampled_from([0.0, -0.0, 1.5, float("nan"), float("inf")])),
    ),
    min_size=1,
    max_size=40,
)


def comparisons() -> st.SearchStrategy[pc.Expression]:
    literals = {
        "n": st.integers(-5, 5),
        "small": st.integers(-128, 127),
        "name": st.sampled_from(["", "a", "ab", "z"]),
        "day": days,
        "flag": st.booleans(),
        "x": st.sampled_from([0.0, 1.5, 2.0]),
    }

    def compare(name: str) -> st.SearchStrategy[pc.Expression]:
        operators: list[Callable[[Any, Any], Any]] = [
            lambda a, b: a == b, lambda a, b: a != b, lambda a, b: a < b,
            lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b,
            lambda a, b: a.is_null(), lambda a, b: a.is_valid(), lambda a, b: a.isin([b]),
            lambda a, b: a.isin([b, None]),
        ]  # fmt: skip
        return st.builds(
            lambda apply, value: apply(pc.field(name), value),
            st.sampled_from(operators),
            literals[name],
        )

    by_name = {name: compare(name) for name in SCHEMA.names}
    return st.sampled_from(SCHEMA.names).flatmap(by_name.__getitem__)


expressions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.builds(lambda a, b: a & b, inner, inner),
        st.builds(lambda a, b: a | b, inner, inner),
        st.builds(lambda a: ~a, inner),
        st.builds(lambda a: pc.if_else(a.is_null(), True, a), inner),
    ),
    max_leaves=4,
)


def read_all(source: Source, split: dict[str, Any], position: Any, size: int) -> list[Any]:
    """Each batch that is read, with the position behind it."""
    reader, batches = source.open(split, position), []
    while (batch := reader.read(size)) is not None:
        batches.append((batch.columns, reader.position))
    reader.close()
    return batches


def kept(batches: list[Any], expression: pc.Expression) -> list[dict[str, Any]]:
    table = pa.Table.from_batches([columns for columns, _ in batches], SCHEMA)
    return [{k: repr(v) for k, v in row.items()} for row in table.filter(expression).to_pylist()]


@settings(max_examples=share(120, block=24))
@given(
    values=rows,
    expression=expressions,
    group_rows=st.sampled_from([1, 3, 7]),
    statistics=st.sampled_from([True, True, False, ["n", "name"]]),
    size=st.sampled_from([1, 2, 50]),
    data=st.data(),
)
def test_the_rows_that_stay_are_those_of_the_whole_file(
    values: list[tuple[Any, ...]],
    expression: pc.Expression,
    group_rows: int,
    statistics: Any,
    size: int,
    data: st.DataObject,
) -> None:
    """From the beginning, and from each position that a job without the filter stopped at."""
    with TemporaryDirectory() as directory:
        path = Path(directory, "rows.parquet")
        pq.write_table(
            rows_of(values), path, row_group_size=group_rows, write_statistics=statistics
        )
        whole = ParquetSource(path, split_by="file")
        filtered = whole.narrowed(lambda schema: None, [expression])
        (split,) = whole.discover(1)
        everything = read_all(whole, split, None, size)
        assert kept(read_all(filtered, split, None, size), expression) == kept(
            everything, expression
        )
        at = data.draw(st.integers(0, len(everything) - 1))
        position = everything[at][1]
        left = read_all(whole, split, position, size)
        assert kept(read_all(filtered, split, position, size), expression) == kept(left, expression)
        for _, position in read_all(filtered, split, None, size):
            rest = read_all(whole, split, position, size)
            assert kept(read_all(filtered, split, position, size), expression) == kept(
                rest, expression
            )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Ten row groups of ten rows, in the order of ``n``."""
    table = pa.table(
        {
            "n": range(100),
            "k": [n % 3 for n in range(100)],
            "at": pa.array(range(0, 100_000, 1_000), pa.timestamp("ms")),
            "x": [n / 2 for n in range(100)],
            "late": pa.array([n if n % 10 else None for n in range(100)], pa.int64()),
        }
    )
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=10)
    return tmp_path


def built(
    source: Any, build: Callable[[DataStream], DataStream], strategy: WatermarkStrategy = NO_TIME
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    build(env.from_source(source, strategy, "rows")).sink_to(CollectSink())
    return env


def pushed(env: StreamExecutionEnvironment) -> list[str]:
    (source, *_) = env.get_job_graph().operators[0].factory.args
    return [str(expression) for expression in source.filters]


def run(env: StreamExecutionEnvironment) -> list[Any]:
    with capturing() as capture:
        env.execute("job")
    (job,) = capture.jobs
    graph = pickle.loads(cloudpickle.dumps(job.graph))
    config = replace(job.config, channels=ChannelConfig(batch_rows_max=1))
    result = run_in_process(graph, config)
    assert result.status is JobStatus.FINISHED, result.cause
    return sorted(result.collected, key=repr)


LARGE = pc.field("n") > 74


def test_only_row_groups_that_may_hold_a_row_are_decoded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoded: list[int] = []
    iter_batches = pq.ParquetFile.iter_batches

    def noted(file: pq.ParquetFile, *args: Any, row_groups: list[int], **more: Any) -> Any:
        decoded.extend(row_groups)
        return iter_batches(file, *args, row_groups=row_groups, **more)

    monkeypatch.setattr(pq.ParquetFile, "iter_batches", noted)
    made = run(built(ParquetSource(path), lambda rows: rows.filter(LARGE)))
    assert [row.n for row in made] == list(range(75, 100))
    assert decoded == [7, 8, 9]


def test_each_of_several_filters_in_a_row_rules_out(path: Path) -> None:
    def build(rows: DataStream) -> DataStream:
        return rows.filter(LARGE).filter(pc.field("n") < 85)

    env = built(ParquetSource(path), build)
    assert pushed(env) == ["(n > 74)", "(n < 85)"]
    assert [row.n for row in run(env)] == list(range(75, 85))


def test_a_row_of_which_the_filter_is_null_goes(path: Path) -> None:
    for expression in (pc.field("late") < 12, ~(pc.field("late") >= 12)):
        made = run(built(ParquetSource(path), lambda rows, e=expression: rows.filter(e)))
        assert sorted(row.n for row in made) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11]


def test_a_filter_names_the_columns_that_it_reads(path: Path) -> None:
    def build(rows: DataStream) -> DataStream:
        return rows.filter(LARGE).key_by("k").aggregate_batches(n=("*", "count"))

    env = built(ParquetSource(path), build)
    (source, *_) = env.get_job_graph().operators[0].factory.args
    assert source.decoded == ["n", "k"]
    assert max(row.n for row in run(env)) == 9


def with_second_consumer(rows: DataStream) -> DataStream:
    rows.sink_to(CollectSink())
    return rows.filter(LARGE)


@pytest.mark.parametrize(
    ("build", "strategy"),
    [
        (with_second_consumer, NO_TIME),
        (lambda rows: rows.filter(pc.field("x") > 40.0), NO_TIME),
        (lambda rows: rows.filter(pc.scalar(True)), NO_TIME),
        (lambda rows: rows.map_batches(lambda batch: batch).filter(LARGE), NO_TIME),
        (
            lambda rows: rows.filter(LARGE),
            WatermarkStrategy.for_monotonous_timestamps().with_timestamp_column("at"),
        ),
    ],
    ids=["consumer", "float", "constant", "function", "time"],
)
def test_nothing_is_passed_over(
    build: Callable[[DataStream], DataStream], strategy: WatermarkStrategy, path: Path
) -> None:
    """If another consumer, event time or a NaN may depend on it, or the columns are not known."""
    env = built(ParquetSource(path), build, strategy)
    assert pushed(env) == []
    assert len(run(env)) >= 19


def test_filtered_rows_move_event_time_on(path: Path) -> None:
    """A record is late because of one that the filter drops, so that must be read."""
    late = pa.table(
        {
            "at": pa.array([1_000, 60_000, 2_000], pa.timestamp("ms")),
            "n": [1, 0, 1],
            "k": [1, 1, 1],
        }
    )
    pq.write_table(late, path / "rows.parquet", row_group_size=1)
    windows = TumblingEventTimeWindows.of(Time.seconds(10))
    bounded = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_millis(0))

    def build(rows: DataStream) -> DataStream:
        ones = rows.filter(pc.field("n") == 1).key_by("k").window(windows)
        return ones.aggregate_batches(sum=("n", "sum"))

    source = ParquetSource(path, split_by="file")
    (row,) = run(built(source, build, bounded.with_timestamp_column("at")))
    assert row.sum == 1


def test_an_expression_over_records_that_are_rows() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    rows = env.from_collection([{"n": 70, "k": 1}, {"n": 80, "k": 1}, {"n": None, "k": 1}])
    rows.key_by("k").filter(LARGE).sink_to(CollectSink())
    assert run(env) == [{"n": 80, "k": 1}]


def test_a_column_that_is_not_there_fails_the_job_by_name(path: Path) -> None:
    env = built(ParquetSource(path), lambda rows: rows.filter(pc.field("m") > 1))
    assert pushed(env) == []
    with pytest.raises(
        AssertionError, match=r"'Filter'.*names a column that the records do not have; they have"
    ):
        run(env)


def test_an_expression_has_no_policy_for_bad_records(path: Path) -> None:
    with pytest.raises(GraphError, match="on_error"):
        built(ParquetSource(path), lambda rows: rows.filter(LARGE).on_error("skip"))


def test_a_column_by_position_is_refused(path: Path) -> None:
    with pytest.raises(GraphError, match=r"filter cannot use the expression.*by their names"):
        built(ParquetSource(path), lambda rows: rows.filter(pc.field(0) > 1))


def test_a_field_within_a_column_names_that(tmp_path: Path) -> None:
    table = pa.table({"a": [{"b": n} for n in range(9)], "n": range(9), "k": [1] * 9})
    pq.write_table(table, tmp_path / "nested.parquet", row_group_size=3)

    def build(rows: DataStream) -> DataStream:
        return rows.filter(pc.field("a", "b") > 6).key_by("k").sum("n")

    env = built(ParquetSource(tmp_path), build)
    (source, *_) = env.get_job_graph().operators[0].factory.args
    assert (source.decoded, source.filters) == (["a", "n", "k"], [])
    assert [row.n for row in run(env)] == [15, 7]


def test_names_of_expressions() -> None:
    name = pc.field("name")
    assert names_in((pc.field("n") > 1) & name.isin(["a"]), SCHEMA) == {"n", "name"}
    assert names_in(pc.field("nothing") > 1, SCHEMA) is None
    assert names_in(name > 1, SCHEMA) is None, "it does not fit the column's type"


def test_all_row_groups_may_be_ruled_out(path: Path) -> None:
    file = str(path / "rows.parquet")
    assert ruled_out(file, range(10), pc.field("n") < 0) == frozenset(range(10))
    assert ruled_out(file, [2, 3], pc.field("n") >= 30) == {2}
    assert run(built(ParquetSource(path), lambda rows: rows.filter(pc.field("n") < 0))) == []
