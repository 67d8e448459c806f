"""The index of texts and byte strings: numbers in order, also of values with one hash."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.state.backends import mapped
from weir.state.backends.arrays import Arrays, HeapArrays
from weir.state.backends.mapped import MappedArrays
from weir.state.columns import bytes_index
from weir.state.columns.bytes_index import BytesIndex

TEXT, BINARY = pa.large_string(), pa.large_binary()
VALUES = {
    TEXT: st.text(st.sampled_from("ab\0é𝄞"), max_size=9) | st.text(max_size=40),
    BINARY: st.binary(max_size=3) | st.binary(max_size=40),
}
HASHES = {
    "distinct": lambda hashes: hashes,
    "few": lambda hashes: hashes % np.uint64(7),
    "equal": lambda hashes: hashes * np.uint64(0) - np.uint64(1),  # The next ones wrap around.
    "middle": lambda hashes: hashes % np.uint64(3) + np.uint64((1 << 63) - 3),
}


@pytest.fixture(params=list(HASHES))
def hashes(request: pytest.FixtureRequest) -> Iterator[str]:
    """Hashes as they are, or shared by many values."""
    real = bytes_index.hash_64_column
    with pytest.MonkeyPatch.context() as patch:
        reduced = HASHES[request.param]
        patch.setattr(bytes_index, "hash_64_column", lambda values: reduced(real(values)).copy())
        yield request.param


def numbered(index: BytesIndex, known: dict[Any, int], values: pa.Array) -> None:
    """Add values, and hold their numbers and the stored values against a dictionary."""
    numbers = index.add(values)
    # Of values with one hash a later one gets its number after all others of its array.
    for value, number in zip(values.to_pylist(), numbers.tolist(), strict=True):
        assert known.setdefault(value, number) == number
    assert sorted(known.values()) == list(range(len(known)))
    assert len(index) == len(known)
    assert index.stored().to_pylist() == sorted(known, key=lambda value: known[value])
    assert index.take(numbers).to_pylist() == values.to_pylist()


def run(arrays: Arrays, kind: pa.DataType, slices: list[list[Any]], unknown: list[Any]) -> None:
    index, known = BytesIndex(kind, arrays), dict[Any, int]()
    for values in slices:
        # Not from the start of its buffers.
        numbered(index, known, pa.array(["lead", *values] if kind is TEXT else [b"", *values])[1:])
    for value in [*known, *unknown]:
        assert index.find(value) == known.get(value)


@pytest.mark.parametrize("kind", [TEXT, BINARY], ids=str)
def test_values_are_numbered_in_the_order_of_their_first_occurrence(kind: pa.DataType) -> None:
    @given(st.lists(st.lists(VALUES[kind], max_size=60), max_size=6))
    def check(slices: list[list[Any]]) -> None:
        index, known = BytesIndex(kind), dict[Any, int]()
        for values in slices:
            wanted = [known.setdefault(value, len(known)) for value in values]
            assert index.add(pa.array(values, kind)).tolist() == wanted

    check()


@pytest.mark.parametrize("kind", [TEXT, BINARY], ids=str)
def test_values_with_one_hash_are_told_apart(hashes: str, kind: pa.DataType) -> None:
    values = VALUES[kind]

    @given(st.lists(st.lists(values, max_size=30), max_size=6), st.lists(values, max_size=9))
    def check(slices: list[list[Any]], unknown: list[Any]) -> None:
        run(HeapArrays(), kind, slices, unknown)

    check()


@given(st.lists(st.lists(VALUES[TEXT], max_size=60), max_size=6))
def test_an_index_in_files_numbers_values_as_one_in_memory(slices: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        patch.setattr(mapped, "FILE_BYTES_MIN", 1)
        arrays = MappedArrays(Path(directory))
        run(arrays, TEXT, slices, ["not there"])
        assert BytesIndex(TEXT, arrays).nbytes == 0


def test_the_hash_of_a_value_that_another_has_as_its_stand_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    by_value = {"a": 5, "b": 5, "c": 6, "d": 7, "e": 6}
    monkeypatch.setattr(
        bytes_index,
        "hash_64_column",
        lambda values: np.array([by_value[value] for value in values.to_pylist()], np.uint64),
    )
    index = BytesIndex(TEXT)
    for _ in range(2):
        for number, value in enumerate("abcde"):  # b is at 6 instead of 5, c at 7, d at 8, e at 9.
            assert index.add(pa.array([value])).tolist() == [number]
            assert index.find(value) == number
    assert index.add(pa.array(["e", "b", "e", "a"])).tolist() == [4, 1, 4, 0]


def test_the_stored_values_of_a_view_never_change() -> None:
    index, views = BytesIndex(TEXT), []
    for i in range(12):
        index.add(pa.array([f"value {i} {j}" * (j % 3) for j in range(400)]))
        stored = index.stored()
        views.append((stored, stored.to_pylist()))
    assert len({stored.buffers()[2].address for stored, _ in views}) > 2, "it must have grown"
    for stored, before in views:
        stored.validate(full=True)
        assert stored.to_pylist() == before


def test_values_that_come_one_by_one() -> None:
    index, known = BytesIndex(TEXT), dict[Any, int]()
    for i in range(600):
        numbered(index, known, pa.array([f"value {i}"]))


def test_an_index_takes_less_than_a_hundred_bytes_beside_its_values() -> None:
    index, count = BytesIndex(TEXT), 100_000
    index.add(pa.array([f"{i:020d}" for i in range(count)]))
    assert 20 * count + 24 * count < index.nbytes < 120 * count


def test_no_values_at_all() -> None:
    index = BytesIndex(BINARY)
    assert index.add(pa.array([], BINARY)).tolist() == []
    assert index.stored().to_pylist() == []
    assert index.find(b"") is None
    assert index.add(pa.array([b""])).tolist() == [0]
    assert index.find(b"") == 0
