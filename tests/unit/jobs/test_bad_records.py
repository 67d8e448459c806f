"""The times of bad records that rows keep: every record once, minutes apart, for an hour."""

from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from controlplane.alerts.kinds.jobs import BAD_RECORDS_KEPT_S
from jobs.events.bad_records import KEPT_MS, marked

MINUTE_MS = 60_000


@given(st.lists(st.tuples(st.integers(0, 400_000), st.integers(0, 5)), max_size=40))
def test_marks_add_up_to_the_records_of_the_last_hour(steps: list[tuple[int, int]]) -> None:
    times = list(accumulate(after for after, _ in steps))
    totals = list(accumulate(new for _, new in steps))
    marks: list[list[int]] = []
    for at, before, total in zip(times, [0, *totals], totals, strict=False):
        marks = marked(marks, at, before, total)
        assert len(marks) <= KEPT_MS // MINUTE_MS + 1
    last = times[-1] if times else 0
    counted = sum(count for _, count in marks)

    def within(ms: int) -> int:
        return sum(new for at, (_, new) in zip(times, steps, strict=True) if last - at < ms)

    assert within(KEPT_MS) <= counted <= within(KEPT_MS + MINUTE_MS)
    assert all(count for _, count in marks)


def test_the_records_of_one_minute_are_one_mark_at_the_last_of_its_reports() -> None:
    marks = marked([], 1_000, 0, 2)
    marks = marked(marks, 59_000, 2, 5)
    marks = marked(marks, 59_500, 5, 5)
    marks = marked(marks, 61_000, 5, 6)
    assert marks == [[59_000, 5], [61_000, 1]]


def test_another_attempt_counts_from_nothing() -> None:
    assert marked([[1_000, 7]], 61_000, 7, 2) == [[1_000, 7], [61_000, 2]]


def test_a_rules_window_is_no_longer_than_marks_are_kept() -> None:
    assert BAD_RECORDS_KEPT_S * 1_000 == KEPT_MS
