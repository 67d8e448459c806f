"""Rows as data: they come back the same, and reading them runs no code."""

import datetime as dt
import json
import pickle
import struct
from collections import namedtuple
from decimal import Decimal
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.common.row import Row
from weir.common.row_codec import Form, decode_rows, encode_rows
from weir.errors import SchemaError

Pair = namedtuple("Pair", "a b")

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec=None))
    | st.binary()
    | st.decimals(allow_nan=False)
    | st.dates()
    | st.datetimes()
    | st.datetimes(timezones=st.just(dt.UTC))
    | st.timedeltas()
    | st.uuids()
    | st.complex_numbers(allow_nan=False)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner, max_size=3)
        | st.builds(lambda a, b: Row(a=a, b=b), inner, inner)
        | st.builds(Row, inner)
    ),
    max_leaves=6,
)


def kinds(value: Any) -> Any:
    """The classes within a value, at any depth, since True equals 1 and a tuple its Row."""
    if isinstance(value, Row):
        return type(value), value.field_names, list(map(kinds, value))
    if isinstance(value, list | tuple):
        return type(value), list(map(kinds, value))
    if isinstance(value, dict):
        return dict, [(kinds(key), kinds(item)) for key, item in value.items()]
    return type(value)


@given(st.lists(VALUES, max_size=4))
def test_any_rows_come_back_the_same(rows: list[Any]) -> None:
    received = decode_rows(encode_rows(rows))
    assert received == rows
    assert kinds(received) == kinds(rows)


@pytest.mark.parametrize(
    ("rows", "form"),
    [
        ([1, None, "a", 1.5, True, b"x"], Form.PLAIN),
        ([{"id": 1, "tags": ["a", {"b": None}]}], Form.PLAIN),
        ([("a", 1), ("b", None)], Form.TUPLES),
        ([(("a", 1), 2.5)], Form.TUPLES),
        ([Row(id=1, name="a")], Form.TUPLES),
        ([Row(1, "a")], Form.TUPLES),
        ([(1, dt.datetime(2026, 1, 1), Decimal("1.50"), UUID(int=7))], Form.TUPLES),
        ([(1,), (1, 2)], Form.TAGGED),
        (["a", ("b", 1)], Form.TAGGED),
        ([2**64], Form.TAGGED),
        (["\ud800"], Form.TAGGED),
        ([{1: 2}, {1, 2}, frozenset([3]), bytearray(b"x")], Form.TAGGED),
        ([np.int64(3), np.float32(0.1), np.bool_(True)], Form.TAGGED),
        ([dt.datetime(2026, 10, 25, 2, fold=1)], Form.TAGGED),
    ],
)
def test_usual_rows_take_the_fast_forms(rows: list[Any], form: Form) -> None:
    data = encode_rows(rows)
    assert data[0] == form
    assert decode_rows(data) == rows
    assert kinds(decode_rows(data)) == kinds(rows)


def test_arrays_of_numbers_are_data() -> None:
    rows = [(np.arange(6, dtype=np.float32).reshape(2, 3), 1)]
    ((array, one),) = decode_rows(encode_rows(rows))
    assert one == 1
    assert array.dtype == np.float32
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    array[0, 0] = 7  # The receiver's own.


@pytest.mark.parametrize(
    "row", [Pair(1, 2), object(), [Pair(1, 2)], {"a": test_arrays_of_numbers_are_data}]
)
def test_an_object_is_refused_with_advice_and_passes_where_pickles_are_allowed(row: Any) -> None:
    with pytest.raises(SchemaError, match=r"output_type.*--allow-pickled-state"):
        encode_rows([row])
    if type(row) is object:
        return
    data = encode_rows([row], pickles=True)
    assert data[0] == Form.PICKLED
    assert decode_rows(data, pickles=True) == [row]
    with pytest.raises(SchemaError, match="came as pickles"):
        decode_rows(data)


class Attack:
    """A pickle that runs code where it is read."""

    ran = False

    def __reduce__(self) -> Any:
        return setattr, (Attack, "ran", True)


def test_a_forged_pickle_is_not_read() -> None:
    body = pickle.dumps([Attack()])
    with pytest.raises(SchemaError, match="came as pickles"):
        decode_rows(struct.pack("!BI", Form.PICKLED, 0) + body)
    assert not Attack.ran
    for form in (Form.PLAIN, Form.TUPLES, Form.TAGGED):
        with pytest.raises(ValueError, match="damaged rows"):
            decode_rows(struct.pack("!BI", form, 0) + body)
    assert not Attack.ran
    pickle.loads(body)  # The occasion arose: read as a pickle, it runs.
    assert Attack.ran


@given(st.binary(max_size=60), st.sampled_from(list(Form)), st.integers(0, 20))
def test_damaged_bytes_are_refused(body: bytes, form: Form, shape_bytes: int) -> None:
    for data in (body, struct.pack("!BI", form, shape_bytes) + body):
        try:
            rows = decode_rows(data)
        except (ValueError, SchemaError):
            continue
        assert isinstance(rows, list)


@pytest.mark.parametrize(
    "described",
    [
        [[None] * 3, False, None],
        [["os.system"], False, None],
        [{"a": 1}, False, None],
        [["date"], True, 7],
        ["x" * 100],
        [[[[[[[[[[None]]]]]]]]], False, None],
    ],
)
def test_a_foreign_shape_is_refused(described: Any) -> None:
    shape = json.dumps(described).encode()
    with pytest.raises(ValueError, match="damaged rows"):
        decode_rows(struct.pack("!BI", Form.TUPLES, len(shape)) + shape + b"\x91\x91\x01")
