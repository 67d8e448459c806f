"""Partitioning of whole columns, held against the scalar form."""

import datetime as dt
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import KeyTypeError
from weir.graph.key_groups import key_group, operator_index, weir_hash
from weir.operators.partition import hash_column, key_groups_of, partition_indices


def _ints(bits: int, signed: bool) -> st.SearchStrategy[int]:
    return (
        st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
        if signed
        else st.integers(0, (1 << bits) - 1)
    )


_zoned = st.datetimes(
    min_value=dt.datetime(1700, 1, 1), max_value=dt.datetime(2200, 1, 1), timezones=st.just(dt.UTC)
)
COLUMNS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): _ints(8, True),
    pa.int16(): _ints(16, True),
    pa.int32(): _ints(32, True),
    pa.int64(): _ints(64, True),
    pa.uint8(): _ints(8, False),
    pa.uint32(): _ints(32, False),
    pa.uint64(): _ints(64, False),
    pa.float32(): st.floats(allow_nan=False, width=32),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=30),
    pa.large_string(): st.text(max_size=30),
    pa.string_view(): st.text(max_size=30),
    pa.binary(): st.binary(max_size=30),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.date32(): st.dates(),
    pa.time64("us"): st.times(),
    pa.timestamp("us"): st.datetimes(),
    pa.timestamp("us", "UTC"): _zoned,
    pa.timestamp("us", "Europe/Berlin"): _zoned,
    pa.decimal128(20, 4): st.decimals(-10_000, 10_000, places=4),
    pa.uuid(): st.uuids(),
    pa.null(): st.none(),
    pa.dictionary(pa.int32(), pa.string()): st.text(max_size=12),
}


@st.composite
def columns(draw: st.DrawFn, length: int | None = None) -> pa.Array:
    kind = draw(st.sampled_from(list(COLUMNS)))
    size = {"max_size": 12} if length is None else {"min_size": length, "max_size": length}
    values = draw(st.lists(st.none() | COLUMNS[kind], **size))
    if kind == pa.uuid():
        values = [value and value.bytes for value in values]
    # A slice in front, so that offsets into buffers are exercised.
    padding = [None, *values[:1]]
    return pa.array([*padding, *values], kind).slice(len(padding))


def _python(array: pa.Array) -> list[Any]:
    return list(array.to_pylist())


@given(columns())
def test_a_column_hashes_as_its_values_do(array: pa.Array) -> None:
    assert hash_column(array).tolist() == [weir_hash(value) for value in _python(array)]


@given(st.data(), st.integers(0, 8), st.integers(2, 3), st.sampled_from([1, 10, 128, 32768]))
def test_several_columns_are_a_tuple_key(
    data: st.DataObject, length: int, count: int, max_parallelism: int
) -> None:
    arrays = [data.draw(columns(length)) for _ in range(count)]
    rows = list(zip(*map(_python, arrays), strict=True))
    expected = [key_group(row, max_parallelism) for row in rows]
    assert key_groups_of(arrays, max_parallelism).tolist() == expected


@given(st.lists(st.text(st.characters(codec="utf-8"), max_size=600), max_size=5))
def test_long_strings_hash_as_the_scalar_form_does(values: list[str]) -> None:
    values = [*values, "x" * 511, "x" * 512, "x" * 513, "y" * 5000]
    assert hash_column(pa.array(values)).tolist() == [weir_hash(value) for value in values]


def test_the_zone_and_the_sub_type_of_a_column_do_not_change_its_keys() -> None:
    utc = pa.array([0, 1_500_000], pa.timestamp("us", "UTC"))
    berlin = utc.cast(pa.timestamp("us", "Europe/Berlin"))
    assert hash_column(utc).tolist() == hash_column(berlin).tolist()
    small, wide = pa.array([-3, 7], pa.int8()), pa.array([-3, 7], pa.int64())
    assert hash_column(small).tolist() == hash_column(wide).tolist()
    seconds = pa.array([0, 90], pa.timestamp("s"))
    assert hash_column(seconds).tolist() == [weir_hash(v) for v in seconds.to_pylist()]


def test_a_chunked_column_is_one_column() -> None:
    chunked = pa.chunked_array([["a"], ["b", None]])
    assert hash_column(chunked).tolist() == [weir_hash(v) for v in ("a", "b", None)]


def test_a_column_of_uuids_hashes_as_uuids_do() -> None:
    values = [uuid.UUID(int=7), uuid.UUID(int=2**127)]
    array = pa.array([value.bytes for value in values], pa.uuid())
    assert hash_column(array).tolist() == [weir_hash(value) for value in values]


def test_nan_in_a_column_is_refused_but_a_null_over_nan_is_none() -> None:
    with pytest.raises(KeyTypeError, match="NaN"):
        hash_column(pa.array([1.0, float("nan")]))
    masked = pa.array(np.array([1.0, np.nan]), mask=np.array([False, True]))
    assert hash_column(masked).tolist() == [weir_hash(1.0), weir_hash(None)]


def test_values_finer_than_a_key_can_hold_are_refused() -> None:
    with pytest.raises(KeyTypeError, match="microsecond"):
        hash_column(pa.array([1], pa.timestamp("ns")))


def test_a_column_of_lists_is_refused() -> None:
    with pytest.raises(KeyTypeError, match="key_type"):
        hash_column(pa.array([[1], [2]]))


def test_no_key_columns_are_refused() -> None:
    with pytest.raises(KeyTypeError, match="at least one"):
        key_groups_of([], 128)


@given(st.lists(st.integers(0, 127)), st.sampled_from([1, 2, 3, 5, 128]))
def test_rows_go_to_the_owner_of_their_group_in_the_order_they_came(
    groups: list[int], parallelism: int
) -> None:
    parts = partition_indices(np.array(groups, np.uint16), 128, parallelism)
    owners = [operator_index(group, 128, parallelism) for group in groups]
    assert [part.tolist() for part in parts] == [
        [row for row, owner in enumerate(owners) if owner == target]
        for target in range(parallelism)
    ]
