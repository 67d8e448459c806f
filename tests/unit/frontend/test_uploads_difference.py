"""The difference of two texts."""

from hypothesis import given
from hypothesis import strategies as st

from frontend.uploads.difference import LINES_MAX, Difference, Row, compare

LINES = st.lists(st.sampled_from(["a", "b", "c", "d"]), max_size=30)


def test_equal_texts_have_no_rows() -> None:
    assert compare([], []) == compare(["a"] * 9, ["a"] * 9) == Difference()


def test_a_change_has_the_lines_around_it_and_gaps_beyond() -> None:
    old = [f"line {n}" for n in range(1, 101)]
    new = [*old[:49], "changed", "added", *old[50:]]
    changed = compare(old, new)
    assert (changed.added, changed.removed, changed.is_too_large) == (2, 1, False)
    assert changed.rows == (
        Row("gap"),
        *(Row("same", n, n, f"line {n}") for n in (47, 48, 49)),
        Row("old", 50, None, "line 50"),
        Row("new", None, 50, "changed"),
        Row("new", None, 51, "added"),
        *(Row("same", n, n + 1, f"line {n}") for n in (51, 52, 53)),
        Row("gap"),
    )


def test_a_text_that_is_longer_at_one_end_only() -> None:
    assert [row.kind for row in compare(["a"], ["a", "a"]).rows] == ["same", "new"]
    assert compare(["a"] * 10, ["a"] * 11).added == compare(["a"] * 11, ["a"] * 10).removed == 1
    assert [row.kind for row in compare(["b", "a"], ["a"]).rows] == ["old", "same"]


@given(LINES, LINES)
def test_the_rows_lead_from_one_text_to_the_other(old: list[str], new: list[str]) -> None:
    rows = compare(old, new).rows
    assert bool(rows) == (old != new)
    for side, text, other in (("old", old, "new"), ("new", new, "old")):
        told = [(getattr(row, side), row.text) for row in rows if row.kind not in (other, "gap")]
        assert all(text[number - 1] == line for number, line in told)
        assert [number for number, _ in told] == sorted({number for number, _ in told})
    # What is not told is the same in both: taking out the changes leaves one text.
    removed = {row.old for row in rows if row.kind == "old"}
    added = {row.new for row in rows if row.kind == "new"}
    kept = [line for number, line in enumerate(old, 1) if number not in removed]
    assert kept == [line for number, line in enumerate(new, 1) if number not in added]


def test_too_many_lines_are_not_compared_unless_they_are_the_same_ones() -> None:
    same = ["same"] * 3 * LINES_MAX
    assert compare([*same, "a", *same], [*same, "b", *same]).removed == 1
    large = [str(n) for n in range(LINES_MAX + 1)]
    assert compare(large, large[::-1]).is_too_large
    assert not compare(large[1:], large[:0:-1]).is_too_large
