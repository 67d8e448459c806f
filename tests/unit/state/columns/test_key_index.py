"""The index of the keys of a column: null is 0, and each type of key has its form."""

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from weir.errors import KeyTypeError
from weir.state.codec import slot_key
from weir.state.columns.key_index import KeyIndex

DAY = dt.datetime(2026, 11, 27, 6)
KEYS: dict[str, tuple[pa.DataType | None, list[Any]]] = {
    "int64": (pa.int64(), [5, -(1 << 63), (1 << 63) - 1]),
    "int8": (pa.int8(), [5, -128, 127]),
    "uint64": (pa.uint64(), [5, 0, (1 << 64) - 1]),
    "string": (pa.string(), ["a", "", "é" * 300]),
    "large_string": (pa.large_string(), ["a", "", "b"]),
    "string_view": (pa.string_view(), ["a", "", "b" * 50]),
    "binary": (pa.binary(), [b"a", b"", b"\0"]),
    "double": (pa.float64(), [0.5, -1.0, 1e300]),
    "bool": (pa.bool_(), [True, False]),
    "decimal": (pa.decimal128(9, 2), [Decimal("1.00"), Decimal("2.50"), Decimal("-7.00")]),
    "date": (pa.date32(), [DAY.date(), dt.date(1969, 1, 1)]),
    "timestamp": (pa.timestamp("us"), [DAY, dt.datetime(1969, 1, 1)]),
    "zoned": (pa.timestamp("us", "UTC"), [DAY.replace(tzinfo=dt.UTC)]),
    "uuid": (pa.uuid(), [uuid.UUID(int=5), uuid.UUID(int=6)]),
    "python": (None, [("a", 1), ("a", True), ("a", 1.0), 1, 1.0, True, "1", b"1", (None, "")]),
}


@pytest.mark.parametrize("name", KEYS)
def test_keys_come_back_and_null_is_no_key(name: str) -> None:
    kind, keys = KEYS[name]
    index = KeyIndex(kind)
    rows = [None, *keys, None, *keys[::-1]]
    given = rows if kind is None else pa.array(rows, kind)
    wanted = [0, *range(1, len(keys) + 1), 0, *range(len(keys), 0, -1)]
    for _ in range(2):
        assert index.add(given).tolist() == wanted
    assert len(index) == len(keys)
    taken = index.take(np.array(wanted[1 : len(keys) + 1]))
    listed = taken.to_pylist() if isinstance(taken, pa.Array) else taken
    assert [(type(k), k) for k in listed] == [(type(k), k) for k in keys]
    for number, key in enumerate(keys, 1):
        assert index.find(slot_key(key)) == number
    assert index.find(None) == 0
    for other in (77, "other", b"other", 0.125, (77,), 1 << 70):
        assert index.find(slot_key(other)) is None


@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.decimal128(5, 0)], ids=str)
def test_only_values_that_rows_have_become_keys(kind: pa.DataType) -> None:
    values = pa.array(["9", "8", None, "7", "9"]).cast(pa.string())
    dictionary = values.cast(kind)
    codes = pa.array([4, None, 2, 1, 0, 1], pa.int32())
    index = KeyIndex(kind)
    assert index.add(pa.DictionaryArray.from_arrays(codes, dictionary)).tolist() in (
        [1, 0, 0, 2, 1, 2],
        [2, 0, 0, 1, 2, 1],
    )
    assert len(index) == 2


def test_arrays_of_every_form_are_looked_up_alike() -> None:
    texts = ["x", None, "y", "x"]
    index = KeyIndex(pa.string())
    wanted = index.add(texts).tolist()
    chunked = pa.chunked_array([texts[:1], texts[1:]])
    views = pa.array(texts, pa.string_view())
    for form in (pa.array(texts), pa.array(texts, pa.large_string()), chunked, views):
        assert index.add(form).tolist() == wanted
    assert index.add(np.array(["y", "x"])).tolist() == [wanted[2], wanted[0]]


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (None, [["a"]]),
        (pa.float64(), pa.array([1.0, float("nan")])),
        (pa.list_(pa.int64()), pa.array([[1], [2]])),
    ],
    ids=["list", "not a number", "nested"],
)
def test_a_key_without_a_canonical_form_is_refused(kind: pa.DataType | None, keys: Any) -> None:
    with pytest.raises(KeyTypeError):
        KeyIndex(kind).add(keys)
