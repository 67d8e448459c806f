"""Pieces of frozen state: all entries once and in order, and never more in one than is allowed."""

from hypothesis import given
from hypothesis import strategies as st

from weir.state.pieces import PieceSize, rows_of
from weir.state.shared import SharedTables


def tables_of(groups: list[list[list[int]]]) -> SharedTables[int]:
    tables: SharedTables[int] = SharedTables(len(groups))
    key = 0
    for table, values in zip(tables.tables, groups, strict=True):
        for value in values:
            table[key] = value
            key += 1
    return tables


groups = st.lists(st.lists(st.lists(st.just(7), min_size=1, max_size=5), max_size=40), max_size=6)


@given(groups=groups, objects=st.integers(1, 64), sized=st.booleans())
def test_each_entry_is_in_one_piece_and_no_piece_is_too_large(
    groups: list[list[list[int]]], objects: int, sized: bool
) -> None:
    size = PieceSize(objects)
    numbers: list[int] = []
    keys: list[int] = []
    values: list[list[int]] = []
    for part, some, some_values in rows_of(
        tables_of(groups).freeze(), 3, size, sized=sized, last=True
    ):
        assert len(part) == len(some) == len(some_values) > 0
        if sized:  # The size of a value is known once it is taken; an eighth is taken at a time.
            assert size.weight <= objects - objects // 8 + 5 * max(1, objects // 8)
        assert len(some) <= objects
        numbers += part.to_pylist()
        keys += some
        values += some_values
    assert keys == list(range(sum(map(len, groups))))
    assert values == [value for of_group in groups for value in of_group]
    assert numbers == [n + 3 for n, own in enumerate(groups) for _ in own]


def test_the_size_that_was_measured_counts_for_the_next_piece_of_the_same_group() -> None:
    size = PieceSize(1)
    lengths = []
    rows = rows_of(tables_of([[[7]] * 1_000]).freeze(), 0, size, last=True)
    for _, keys, _ in rows:
        lengths.append(len(keys))
        size.measured(18 * len(keys))
    assert lengths == [1, 16, 256, 727]
