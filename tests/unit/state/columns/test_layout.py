"""Layouts of columns: where values lie, and that it makes no difference to them."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.state.columns.test_table import ALL
from weir.state.backends import mapped
from weir.state.backends.arrays import Arrays, HeapArrays
from weir.state.backends.mapped import MappedArrays
from weir.state.columns.layout import ROWS_MIN, layout_in
from weir.state.columns.table import ColumnarTable

TYPES = ["bool", "int8", "int16", "int32", "int64", "float32", "float64", "M8[ms]", "m8[us]"]
PAGE_BYTES = 4_096


def address(values: npt.NDArray[Any]) -> int:
    return int(values.__array_interface__["data"][0])


def layouts(arrays: Arrays, kinds: list[str], rows: int) -> list[npt.NDArray[Any]]:
    layout = layout_in(arrays, {f"c{at}": np.dtype(kind) for at, kind in enumerate(kinds)})
    layout.grow(rows)
    return [layout.column(f"c{at}") for at in range(len(kinds))]


@pytest.mark.parametrize("rows", [ROWS_MIN, ROWS_MIN + 1, 100_000])
def test_the_values_of_a_row_lie_side_by_side_in_files(tmp_path: Path, rows: int) -> None:
    kinds = ["bool", "int64", "int32", "float64", "int8", "int64"]
    columns = layouts(MappedArrays(tmp_path), kinds, rows)
    addresses = [address(column) for column in columns]
    assert max(addresses) - min(addresses) < 32
    assert {column.strides for column in columns} == {(32,)}, "30 bytes, the next row aligned"
    assert all(column.flags.aligned for column in columns)
    assert len({len(column) for column in columns}) == 1
    assert len(columns[0]) >= rows


def test_the_values_of_a_column_lie_side_by_side_in_memory() -> None:
    columns = layouts(HeapArrays(), ["bool", "int64", "int64"], 100_000)
    assert all(column.flags.c_contiguous for column in columns)


def test_a_row_that_is_not_in_memory_is_one_page(tmp_path: Path) -> None:
    columns = layouts(MappedArrays(tmp_path), ["int64"] * 4, 100_000)
    rows = np.arange(0, 100_000, 1_000)
    pages = {(address(column) + int(row) * 32) // PAGE_BYTES for column in columns for row in rows}
    assert len(pages) == len(rows)


@settings(deadline=None)
@given(data=st.data(), is_small=st.booleans())
def test_columns_in_files_are_as_those_in_memory(data: st.DataObject, is_small: bool) -> None:
    """Of any types, written and added to while the table grows, and with other types after it."""
    kinds = {f"c{at}": kind for at, kind in enumerate(data.draw(st.lists(st.sampled_from(TYPES))))}
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as directory:
        patch.setattr(mapped, "FILE_BYTES_MIN", 200_000 if is_small else 1)
        tables = [
            ColumnarTable("t", pa.int64(), kinds, ALL, len(ALL), arrays=arrays)
            for arrays in (HeapArrays(), MappedArrays(Path(directory)))
        ]
        count = 0
        for _ in range(data.draw(st.integers(0, 4))):
            count += data.draw(st.integers(1, 9_000))
            part = data.draw(st.integers(1, count))
            for made in tables:
                slots = made.slots_of(np.arange(count))
                for at, (name, kind) in enumerate(kinds.items(), 1):
                    made.column(name).scatter(slots[:part], (np.arange(part) * at).astype(kind))
                    if np.dtype(kind).kind in "if":
                        made.column(name).add(slots[-part:], np.arange(part).astype(kind))
        same(tables, count)
        wider = {"int32": "int64", "float32": "float64"}
        other = {name: wider.get(kind, kind) for name, kind in kinds.items()} | {"new": "int8"}
        same([made.evolved(pa.int64(), other) for made in tables], count + 2_000)


def same(tables: list[ColumnarTable], count: int) -> None:
    """Both have the same columns, with the same values of so many keys."""
    first, second = tables
    slots = first.slots_of(np.arange(count))
    assert second.slots_of(np.arange(count)).tolist() == slots.tolist()
    assert [*first.dtypes.items()] == [*second.dtypes.items()]
    for name, column in first.columns.items():
        assert column.gather(slots).tobytes() == second.column(name).gather(slots).tobytes()


def test_columns_whose_type_stays_are_not_copied_where_others_change(tmp_path: Path) -> None:
    made = ColumnarTable(
        "t",
        pa.int64(),
        {"n": np.int64, "x": np.int32},
        ALL,
        len(ALL),
        arrays=MappedArrays(tmp_path),
    )
    slots = made.slots_of(np.arange(50_000))
    made.column("x").scatter(slots, np.arange(50_000))
    other = made.evolved(pa.int64(), {"new": np.int8, "x": np.int64, "n": np.int64})
    assert [*other.columns] == ["new", "x", "n"]
    assert other.column("n") is made.column("n")
    assert other.column("x").gather(slots).tolist() == list(range(50_000))
    assert other.nbytes == 0
