"""Slices are a few milliseconds of work, at any cost of the rows and load of the machine."""

import random
from collections.abc import Callable

import pytest

from weir.worker.slice_size import FIRST_ROWS, WALL_MAX_NS, SliceSize

MS = 1_000_000
TARGET_MS = 5.0
ROWS_MAX = 32_768


class Work:
    """Full slices of one function: what they cost, and how long they take."""

    def __init__(self, fixed_us: float, row_us: float, *, sleeps_ms: float = 0.0) -> None:
        self.size = SliceSize(ROWS_MAX, TARGET_MS)
        self.fixed_us, self.row_us, self.sleeps_ms = fixed_us, row_us, sleeps_ms
        self.elapsed_ms: list[float] = []

    def run(self, slices: int, delay_ms: Callable[[float], float] = lambda work_ms: 0.0) -> None:
        """``delay_ms`` says how long the processor was somewhere else in a slice of that work."""
        for _ in range(slices):
            rows = self.size.rows
            work_ms = (self.fixed_us + self.row_us * rows) / 1_000
            elapsed_ms = work_ms + delay_ms(work_ms) + self.sleeps_ms * rows
            self.elapsed_ms.append(elapsed_ms)
            self.size.measured(rows, round(work_ms * MS), round(elapsed_ms * MS))


@pytest.mark.parametrize("row_us", [1.0, 10.0, 100.0, 1_000.0])
def test_a_full_slice_is_the_target_of_work(row_us: float) -> None:
    work = Work(200, row_us)
    work.run(60)
    made_ms = work.elapsed_ms[30:]
    assert 0.7 * TARGET_MS <= sum(made_ms) / len(made_ms) <= 1.3 * TARGET_MS
    assert max(made_ms) < 2 * TARGET_MS


def test_cheap_rows_fill_the_largest_slice() -> None:
    work = Work(500, 0.02)
    work.run(20)
    assert work.size.rows == ROWS_MAX


def test_a_slice_far_from_full_is_measured_only_behind_one_that_took_long() -> None:
    size = SliceSize(ROWS_MAX, TARGET_MS)
    assert size.is_to_measure(size.rows)
    assert size.is_to_measure(size.rows // 2)
    assert not size.is_to_measure(size.rows // 2 - 1)
    size.passed(1 * MS)
    assert not size.is_to_measure(1)
    size.passed(3 * MS)
    assert size.is_to_measure(1)
    size.measured(1, 3 * MS, 3 * MS)
    assert size.rows < FIRST_ROWS
    assert size.is_to_measure(1)
    size.measured(1, 1 * MS, 1 * MS)
    assert not size.is_to_measure(1) or size.rows <= 2


def test_the_first_slice_is_small() -> None:
    assert SliceSize(ROWS_MAX, TARGET_MS).rows == FIRST_ROWS
    assert SliceSize(2, TARGET_MS).rows == 2


def test_a_fixed_cost_above_the_target_does_not_make_slices_tiny() -> None:
    """Smaller slices would only pay it more often."""
    work = Work(8_000, 1.0)
    work.run(100)
    assert work.size.rows >= 1_000


@pytest.mark.parametrize("taken_ms", [4.0, 24.0, 100.0])
def test_slices_stay_large_on_a_busy_machine(taken_ms: float) -> None:
    """Now and then the processor is somewhere else, the more often the longer a slice."""
    rng = random.Random(7)
    interruptions = 0

    def interrupted(work_ms: float) -> float:
        nonlocal interruptions
        if rng.random() >= work_ms / taken_ms:
            return 0.0  # On average this process has half of the processor.
        interruptions += 1
        return taken_ms

    work = Work(300, 0.5)
    work.run(2_000, interrupted)
    assert interruptions > 50
    sizes = []
    for _ in range(500):
        work.run(1, interrupted)
        sizes.append(work.size.rows)
    assert sum(sizes) / len(sizes) > 0.5 * TARGET_MS * 1_000 / work.row_us


def test_a_function_that_sleeps_gets_few_rows() -> None:
    work = Work(50, 1.0, sleeps_ms=12)
    work.run(20)
    assert max(work.elapsed_ms) <= 8 * 12 + 1  # That is the first one.
    assert work.size.rows == 1


def test_a_function_that_begins_to_sleep_gets_fewer_rows_at_once() -> None:
    work = Work(50, 1.0)
    work.run(30)
    large = work.size.rows
    work.sleeps_ms = 1.0
    work.run(8)
    assert work.elapsed_ms[-1] * MS < 3 * WALL_MAX_NS
    work.sleeps_ms = 0.0
    work.run(40)
    assert work.size.rows > large / 2


def test_a_call_that_always_waits_as_long_keeps_its_rows() -> None:
    """A vectorised function that asks another service once a slice."""
    work = Work(50, 1.0)
    work.run(1)
    work.run(100, lambda work_ms: 30.0)
    assert work.size.rows > 1_000
    assert work.elapsed_ms[-1] * MS > WALL_MAX_NS


def test_a_small_slice_says_nothing_of_a_full_one() -> None:
    size = SliceSize(ROWS_MAX, TARGET_MS)
    for _ in range(100):
        size.measured(1, 1_000, 1_000)
    assert size.rows == FIRST_ROWS


def test_a_clock_that_does_not_move_does_no_harm() -> None:
    size = SliceSize(ROWS_MAX, TARGET_MS)
    for _ in range(30):
        size.measured(size.rows, 0, 0)
    assert size.rows == ROWS_MAX


def test_a_brief_slice_is_as_long_whatever_a_row_takes() -> None:
    work = Work(0, 0.0, sleeps_ms=0.1)
    work.run(60)
    assert work.size.rows == pytest.approx(200, rel=0.3)
    assert work.size.brief_rows == pytest.approx(20, rel=0.3)


def test_a_brief_slice_has_a_row_however_long_it_takes() -> None:
    work = Work(0, 0.0, sleeps_ms=500.0)
    work.run(20)
    assert work.size.brief_rows == 1


def test_a_brief_slice_goes_by_the_part_per_row_alone() -> None:
    """By the whole cost, of which most is fixed, it would have a row."""
    work = Work(8_000, 1.0)
    work.run(100)
    assert work.size.brief_rows == pytest.approx(2_000, rel=0.3)


def test_before_anything_was_measured_a_brief_slice_is_the_first() -> None:
    assert SliceSize(ROWS_MAX, TARGET_MS).brief_rows == FIRST_ROWS
