"""Columns that no consumer reads are not decoded, and nothing else differs."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from weir.common import Duration, Time, WatermarkStrategy
from weir.config import ChannelConfig
from weir.datastream import (
    StreamExecutionEnvironment,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)
from weir.datastream.connectors import ParquetSource
from weir.datastream.execution import capturing
from weir.datastream.stream import DataStream
from weir.errors import GraphError, UserError
from weir.local.cluster import run_in_process
from weir.operators.output_tag import OutputTag
from weir.operators.sinks import CollectSink
from weir.protocol.lifecycle import JobStatus

ALL = ["at", "shop", "item", "amount", "note"]
NO_TIME = WatermarkStrategy.no_watermarks()
BOUNDED = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(1))
AT = BOUNDED.with_timestamp_column("at")
BY_ROW = BOUNDED.with_timestamp_assigner(lambda row, _: int(row["at"].timestamp() * 1e3))
Build = Callable[[DataStream], DataStream]


def orders(rows: int, seed: int = 0) -> pa.Table:
    draw = np.random.default_rng(seed)

    def with_nulls(values: Any) -> pa.Array:
        return pa.array(values, mask=draw.random(rows) < 0.2)

    return pa.table(
        {
            "at": pa.array(np.sort(draw.integers(0, 20_000, rows)), pa.timestamp("ms")),
            "shop": with_nulls(draw.integers(0, 5, rows)),
            "item": with_nulls(np.array(["a", "b", "c"])[draw.integers(0, 3, rows)]),
            "amount": with_nulls(draw.integers(-100, 100, rows)),
            "note": with_nulls(draw.random(rows)),
        }
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    pq.write_table(orders(120), tmp_path / "orders.parquet", row_group_size=30)
    return tmp_path


def pipeline(
    source: ParquetSource, strategy: WatermarkStrategy, *builds: Build
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_source(source, strategy, "orders").uid("orders")
    for i, build in enumerate(builds):
        build(stream).sink_to(CollectSink()).uid(f"sink-{i}")
    return env


def decoded(env: StreamExecutionEnvironment) -> list[str] | None:
    """The columns that the first source decodes; None: all."""
    (source, *_) = env.get_job_graph().operators[0].factory.args
    assert isinstance(source, ParquetSource)
    return source.decoded


class FailedError(Exception):
    """A job failed for good."""


def results(env: StreamExecutionEnvironment) -> list[str]:
    with capturing() as capture:
        env.execute("job")
    (job,) = capture.jobs
    # One row at a time: how many rows a slice has decides how many totals come out.
    config = replace(job.config, channels=ChannelConfig(batch_rows_max=1))
    result = run_in_process(job.graph, config)
    if result.status is not JobStatus.FINISHED:
        raise FailedError(result.cause)
    return sorted(map(repr, result.collected))


def sums(stream: DataStream) -> DataStream:
    return stream.key_by("shop").sum("amount")


def counts(stream: DataStream) -> DataStream:
    return stream.key_by(["item", "shop"]).count()


def hourly(stream: DataStream) -> DataStream:
    windows = TumblingEventTimeWindows.of(Time.seconds(3))
    return stream.key_by("item").window(windows).aggregate_batches(top=("amount", "max"))


def hourly_with_late(stream: DataStream) -> DataStream:
    windows = TumblingEventTimeWindows.of(Time.seconds(3))
    late = stream.key_by("item").window(windows).side_output_late_data(OutputTag("late"))
    return late.aggregate_batches(top=("amount", "max"))


def half(batch: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch({"half": pc.divide(batch["amount"], 2), "item": batch["item"]})


def halves(stream: DataStream) -> DataStream:
    return stream.map_batches(half, columns=["item", "amount"])


def grouped_halves(stream: DataStream) -> DataStream:
    return halves(stream).key_by("item").sum("half")


def notes(stream: DataStream) -> DataStream:
    return stream.key_by("shop").aggregate_batches(known=("note", "count"))


def timed_again(stream: DataStream) -> DataStream:
    return sums(stream.assign_timestamps_and_watermarks(AT))


def rebalanced(stream: DataStream) -> DataStream:
    return sums(stream.rebalance())


def joined(stream: DataStream) -> DataStream:
    return sums(stream.union(stream))


def as_it_is(stream: DataStream) -> DataStream:
    return stream


def positive(stream: DataStream) -> DataStream:
    return sums(stream.filter_batches(lambda batch: pc.greater(batch["note"], 0.5)))


def keyed_halves(stream: DataStream) -> DataStream:
    return halves(stream.key_by("shop"))


def halves_by_function(stream: DataStream) -> DataStream:
    return halves(stream.key_by(lambda row: row["note"]))


def by_function(stream: DataStream) -> DataStream:
    return stream.key_by(lambda row: row["shop"]).count()


PIPELINES: list[tuple[WatermarkStrategy, tuple[Build, ...], list[str] | None]] = [
    (NO_TIME, (sums,), ["shop", "amount"]),
    (NO_TIME, (counts,), ["shop", "item"]),
    (NO_TIME, (halves,), ["item", "amount"]),
    (NO_TIME, (grouped_halves,), ["item", "amount"]),
    (NO_TIME, (rebalanced,), ["shop", "amount"]),
    (NO_TIME, (joined,), ["shop", "amount"]),
    (NO_TIME, (sums, notes), ["shop", "amount", "note"]),
    (NO_TIME, (timed_again,), ["at", "shop", "amount"]),
    (AT, (hourly,), ["at", "item", "amount"]),
    (AT, (hourly, counts), ["at", "shop", "item", "amount"]),
    (AT, (hourly_with_late,), None),
    (BY_ROW, (sums,), None),
    (NO_TIME, (as_it_is,), None),
    (NO_TIME, (sums, as_it_is), None),
    (NO_TIME, (positive,), None),
    (NO_TIME, (by_function,), None),
    (NO_TIME, (keyed_halves,), ["shop", "item", "amount"]),
    (NO_TIME, (halves_by_function,), None),
]  # fmt: skip


@pytest.mark.parametrize(("strategy", "builds", "columns"), PIPELINES)
@pytest.mark.parametrize("split_by", ["row_group", "file"])
def test_what_is_read_is_decoded_and_gives_the_same(
    strategy: WatermarkStrategy,
    builds: tuple[Build, ...],
    columns: list[str] | None,
    split_by: Any,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> tuple[list[str] | None, list[str]]:
        source = ParquetSource(path, split_by=split_by)
        return decoded(pipeline(source, strategy, *builds)), results(
            pipeline(source, strategy, *builds)
        )

    names, narrowed = run()
    assert names == columns
    monkeypatch.setattr(ParquetSource, "narrowed", lambda self, *_: self)
    names, whole = run()
    assert names is None
    assert narrowed == whole
    assert len(whole) >= 10


def test_windows_in_processing_time_read_what_they_name(path: Path) -> None:
    def build(stream: DataStream) -> DataStream:
        windows = TumblingProcessingTimeWindows.of(Time.seconds(3))
        return stream.key_by("item").window(windows).aggregate_batches(n=("amount", "sum"))

    assert decoded(pipeline(ParquetSource(path), NO_TIME, build)) == ["item", "amount"]


def test_columns_that_the_user_names_are_narrowed_further(path: Path) -> None:
    source = ParquetSource(path, columns=["amount", "item", "shop"])
    assert decoded(pipeline(source, NO_TIME, sums)) == ["amount", "shop"]
    assert source.decoded == ["amount", "item", "shop"], "another pipeline may read it as well"


def test_a_function_gets_the_columns_that_it_names_in_their_order(path: Path) -> None:
    def names(batch: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({"names": [str(batch.schema.names)] * batch.num_rows})

    for source in (ParquetSource(path), ParquetSource(path, columns=["shop", "item"])):
        env = pipeline(source, NO_TIME, lambda s: s.map_batches(names, columns=["item", "shop"]))
        assert set(results(env)) == {"""Row(names="['item', 'shop']")"""}


def test_a_column_that_is_not_there_is_named_beside_all_that_are(path: Path) -> None:
    builds: list[Build] = [
        lambda s: s.map_batches(half, columns=["item", "amuont"]),
        lambda s: s.key_by("shop").sum("amuont"),
        lambda s: s.key_by(["shop", "amuont"]).sum("amount"),
    ]
    for build in builds:
        env = pipeline(ParquetSource(path), NO_TIME, build)
        with pytest.raises(FailedError, match=r"amuont.*at, shop, item, amount, note"):
            results(env)


@pytest.mark.parametrize("columns", [[], "item", ["a", "a"], [1], 7])
def test_columns_are_a_list_of_names(columns: Any, path: Path) -> None:
    with pytest.raises(GraphError, match="map_batches"):
        pipeline(ParquetSource(path), NO_TIME, lambda s: s.map_batches(half, columns=columns))


def test_files_of_other_columns_are_refused_although_none_of_these_is_read(path: Path) -> None:
    pq.write_table(orders(10).drop(["note"]), path / "other.parquet")
    with pytest.raises(UserError, match="different columns"):
        pipeline(ParquetSource(path), NO_TIME, sums).get_job_graph()


def test_a_name_with_a_dot_may_be_that_of_a_nested_field(tmp_path: Path) -> None:
    nested = pa.array([{"b": 1}] * 3)
    table = pa.table({"a": nested, "a.b": [1, 2, 3], "k": [1, 2, 1], "other": [0, 0, 0]})
    pq.write_table(table, tmp_path / "nested.parquet")

    def build(stream: DataStream) -> DataStream:
        return stream.key_by("k").aggregate_batches(n=("a.b", "count"))

    assert decoded(pipeline(ParquetSource(tmp_path), NO_TIME, build)) is None


def test_a_source_that_makes_columns_of_its_own_is_left_as_it_is(path: Path) -> None:
    class Named(ParquetSource):
        def open(self, split: dict[str, Any], position: Any) -> Any:
            return super().open(split, position)

    assert decoded(pipeline(Named(path), NO_TIME, sums)) is None


def test_positions_count_the_rows_of_the_file_whatever_is_decoded(path: Path) -> None:
    """A savepoint of either is restored by the other."""
    whole = ParquetSource(path, split_by="file")
    narrow = whole.narrowed(lambda schema: frozenset(["shop"]))
    (split,) = whole.discover(1)
    assert narrow.discover(1) == [split]
    position, read = None, []
    for turn in range(100):
        sources = (whole, narrow) if turn % 2 else (narrow, whole)
        readers = [source.open(split, position) for source in sources]
        batches = [reader.read(17) for reader in readers]
        position = readers[0].position
        assert readers[1].position == position
        for reader in readers:
            reader.close()
        if batches[0] is None or batches[1] is None:
            assert batches == [None, None]
            break
        assert batches[0].columns["shop"].equals(batches[1].columns["shop"])
        read += batches[0].columns["shop"].to_pylist()
    assert read == orders(120)["shop"].to_pylist()


def test_records_that_are_rows_are_narrowed_for_the_function() -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    stream = env.from_collection([{"item": "a", "amount": 4, "more": 1}])
    halves(stream).sink_to(CollectSink())
    assert results(env) == ["Row(half=2, item='a')"]
    env = StreamExecutionEnvironment.get_execution_environment()
    halves(env.from_collection([{"item": "a"}])).sink_to(CollectSink())
    with pytest.raises(FailedError, match=r"names the column amount.*they have item"):
        results(env)
