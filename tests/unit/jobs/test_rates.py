"""Rates from counters: the window moves, widens over a long step, and begins anew."""

from collections.abc import Iterable
from typing import Any

import pytest

from jobs.events import rates

NAMES = {
    "window_ms",
    "records_in_per_s",
    "records_out_per_s",
    "bytes_in_per_s",
    "bytes_out_per_s",
    "busy",
    "idle",
    "back_pressured",
    "cpu_wait",
    "cpu_pressure",
}


def counters(
    busy: float = 0,
    idle: float = 0,
    held: float = 0,
    waited: float = 0,
    pressed: float = 0,
    **counted: int,
) -> dict[str, Any]:
    """Times in milliseconds; further counters are 0 unless given."""
    reported = {
        "records_in": 0, "records_out": 0, "bytes_in": 0, "bytes_out": 0, "late_records": 0,
        "watermark_ms": None, "busy_ms": busy, "idle_ms": idle, "back_pressured_ms": held,
        "cpu_wait_ms": waited, "cpu_pressure_ms": pressed,
    }  # fmt: skip
    return rates.sample(reported | counted)


def window(samples: Iterable[Any]) -> list[Any]:
    kept: list[Any] = []
    for newest in samples:
        kept = rates.slid(kept, newest)
    return kept


def test_a_single_measurement_makes_no_rate() -> None:
    assert rates.over([]) == {}
    assert rates.over(window([counters(busy=500, records_in=10)])) == {}


def test_two_make_counts_per_second_and_shares_of_the_time() -> None:
    first = counters(busy=100, idle=300, held=100, records_in=1_000, bytes_out=7)
    last = counters(
        busy=350, idle=450, held=200,
        records_in=2_000, records_out=500, bytes_in=40_000, bytes_out=57,
    )  # fmt: skip
    assert rates.over(window([first, last])) == {
        "window_ms": 500,
        "records_in_per_s": 2_000,
        "records_out_per_s": 1_000,
        "bytes_in_per_s": 80_000,
        "bytes_out_per_s": 100,
        "busy": 0.5,
        "idle": 0.3,
        "back_pressured": 0.2,
        "cpu_wait": 0.0,
        "cpu_pressure": 0.0,
    }


def test_the_wait_for_a_processor_is_a_share_of_the_time_and_no_part_beside_the_others() -> None:
    first = counters(busy=100, waited=40, pressed=60)
    told = rates.over(window([first, counters(busy=600, waited=340, pressed=460)]))
    assert (told["window_ms"], told["busy"]) == (500, 1.0)
    assert (told["cpu_wait"], told["cpu_pressure"]) == (0.6, 0.8)


def test_a_wait_that_an_earlier_version_did_not_count_begins_with_the_first_that_is() -> None:
    """Else all that was counted since the attempt began would be the share of two seconds."""
    samples = window(counters(idle=500 * i) for i in range(1, 5))
    for sample in samples:
        del sample["cpu_wait_ms"], sample["cpu_pressure_ms"]
    samples = rates.slid(samples, counters(idle=2_500, waited=90_000))
    assert rates.over(samples)["cpu_wait"] == 0.0
    for i in range(6, 10):
        samples = rates.slid(samples, counters(idle=500 * i, waited=90_000 + 100 * (i - 5)))
    assert rates.over(samples)["cpu_wait"] == 0.2


def test_the_window_is_two_seconds_that_move_on() -> None:
    """Idle for ten seconds, then busy: two seconds later nothing is left of the idleness."""
    idle = [counters(idle=500 * i) for i in range(1, 21)]
    busy = [counters(idle=10_000, busy=500 * i, records_in=50 * i) for i in range(1, 5)]
    samples = window(idle)
    shares = []
    for newest in busy:
        samples = rates.slid(samples, newest)
        shares.append(rates.over(samples))
    assert [share["busy"] for share in shares] == [0.25, 0.5, 0.75, 1.0]
    assert {share["window_ms"] for share in shares} == {2_000}
    assert shares[-1]["records_in_per_s"] == 100
    assert len(samples) == 5


def test_a_step_longer_than_the_window_is_told_whole_when_it_ends() -> None:
    """A map slept for five seconds, in which nothing could be reported."""
    before = [counters(idle=500 * i) for i in range(1, 10)]
    after = counters(idle=4_500, busy=5_000, records_in=1)
    told = rates.over(window([*before, after]))
    assert told["window_ms"] == 5_000
    assert (told["busy"], told["idle"]) == (1.0, 0.0)


def test_samples_that_came_too_often_are_bounded() -> None:
    samples = window(counters(idle=10 * i) for i in range(1, 500))
    assert len(samples) == rates.SAMPLES_MAX
    assert rates.over(samples)["window_ms"] == 10 * (rates.SAMPLES_MAX - 1)


@pytest.mark.parametrize(
    "newest", [counters(idle=400, records_in=50), counters(idle=3_000, records_in=9)]
)
def test_counters_that_went_down_are_those_of_another_attempt(newest: dict[str, Any]) -> None:
    samples = window(counters(idle=500 * i, records_in=10 * i) for i in range(1, 6))
    samples = rates.slid(samples, newest)
    assert samples == [newest]
    assert rates.over(samples) == {}


def test_the_same_measurement_again_divides_by_no_time() -> None:
    same = counters(idle=500, records_in=10)
    assert rates.over(window([same, same])) == {}


def test_shares_stay_within_their_bounds_for_any_report() -> None:
    """Three clocks are read one after the other; what is left for idle may come out negative."""
    told = rates.over(window([counters(idle=100, busy=100), counters(idle=99, busy=201)]))
    assert told.keys() == NAMES
    assert (told["busy"], told["idle"]) == (1.0, 0.0)
