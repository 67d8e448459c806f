"""Rows that changed in one interval or several, listed and flagged, against a set."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.state.columns import changed_rows
from weir.state.columns.changed_rows import ChangedRows, Slots, changed_in, count_changed

ROWS = 100  # So there are flags behind a list of more than twelve rows.

# The number of rows that are appended; or rows that are marked, as shares of those that are there.
Changes = Sequence[int | list[float]]
shares = st.lists(st.floats(0, 1, exclude_max=True), max_size=9)
changes = st.lists(st.integers(1, 30) | shares, max_size=6)


def slots_of(*slots: int) -> Slots:
    return np.array(slots, np.int64)


def interval_of(changes: Changes, rows: int) -> tuple[ChangedRows, set[int], int]:
    """An interval, what changed in it, and the rows at its end."""
    made, expected = ChangedRows(rows), set[int]()
    for change in changes:
        if isinstance(change, int):
            made.append(rows, rows + change)
            expected |= set(range(rows, rows + change))
            rows += change
        else:
            slots = [int(share * rows) for share in change]
            made.mark(slots_of(*slots))
            expected |= set(slots)
    return made, expected, rows


@given(
    st.lists(changes, min_size=1, max_size=3), st.integers(0, 2 * ROWS), st.integers(1, 2 * ROWS)
)
def test_changed_rows_are_those_that_were_marked_or_appended(
    all_changes: Sequence[Changes], start: int, length: int
) -> None:
    intervals, expected, rows = [], set[int](), ROWS
    for changes in all_changes:
        interval, own, rows = interval_of(changes, rows)
        intervals.append(interval)
        expected |= own
    wanted = sorted(row for row in expected if start <= row < start + length)
    assert changed_in(intervals, start, start + length).tolist() == wanted
    assert count_changed(intervals, rows) == len(expected)
    assert count_changed(intervals, ROWS) == len([row for row in expected if row < ROWS])


def test_a_list_that_takes_more_than_flags_is_not_gone_on_with() -> None:
    noted = ChangedRows(ROWS)
    assert noted.size == 0, "an interval costs nothing before something changes"
    noted.mark(slots_of(*range(12)))
    assert noted.size == 12 * 8
    noted.append(ROWS, ROWS + 5)
    assert noted.size == 12 * 8, "new rows are not listed"
    noted.mark(slots_of(50))
    assert noted.size == 13 * 8
    noted.mark(slots_of(60))
    assert noted.size == 14 * 8 + ROWS + 5
    noted.mark(slots_of(*range(20)))
    assert noted.size == 14 * 8 + ROWS + 5
    noted.append(ROWS + 5, ROWS + 500)
    assert noted.between(0, 2 * ROWS).tolist() == [*range(20), 50, 60, *range(ROWS, 2 * ROWS)]
    assert noted.count(ROWS + 500) == 22 + 500


def test_a_long_list_is_not_gone_on_with_however_large_the_table_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(changed_rows, "LISTED_BYTES_MAX", 80)
    noted = ChangedRows(10_000)
    noted.mark(slots_of(*range(10)))
    assert noted.size == 80
    noted.mark(slots_of(9_998))
    noted.mark(slots_of(9_999))
    assert noted.size == 88 + 10_000
    assert noted.between(0, 10_000).tolist() == [*range(10), 9_998, 9_999]


def test_rows_of_one_slice_are_listed_once_for_all_its_columns() -> None:
    noted = ChangedRows(ROWS)
    slots = slots_of(3, 1)
    noted.mark(slots)
    noted.mark(slots)
    assert noted.size == 2 * 8
    slots[:] = 7  # The caller's array may change.
    noted.mark(slots)
    assert noted.between(0, ROWS).tolist() == [1, 3, 7]


@pytest.mark.parametrize("is_flagged", [False, True])
def test_the_null_keys_row_is_new_whenever_it_comes(is_flagged: bool) -> None:
    noted = ChangedRows(ROWS)
    if is_flagged:
        noted.mark(np.arange(50))
    noted.append(0, 1)
    assert noted.between(0, 1).tolist() == [0]
    assert noted.count(1) == 1
