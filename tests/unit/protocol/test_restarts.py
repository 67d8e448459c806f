"""Whether and when a failed job is restarted."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.config import RestartConfig, RestartStrategyKind
from weir.protocol.restarts import RestartState, initial, on_failure

MIDDLE = 0.5  # The jitter that changes nothing.


def delays(
    state: RestartState, failures_at_ms: list[int], jitter: float = MIDDLE
) -> list[int | None]:
    """The delay that each failure leads to."""
    delays_ms: list[int | None] = []
    for at_ms in failures_at_ms:
        state, delay_ms = on_failure(state, at_ms, jitter)
        delays_ms.append(delay_ms)
    return delays_ms


def strategy(kind: RestartStrategyKind, **settings: Any) -> RestartState:
    return initial(RestartConfig(kind=kind, **settings), has_checkpoints=True)


def test_the_default_depends_on_whether_there_are_checkpoints() -> None:
    config = RestartConfig()
    assert initial(config, has_checkpoints=True).kind is RestartStrategyKind.EXPONENTIAL_DELAY
    assert initial(config, has_checkpoints=False).kind is RestartStrategyKind.NONE
    chosen = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY)
    assert initial(chosen, has_checkpoints=False).kind is RestartStrategyKind.FIXED_DELAY


def test_none_gives_up_at_once() -> None:
    assert delays(strategy(RestartStrategyKind.NONE), [0]) == [None]


def test_fixed_delay_gives_up_after_its_attempts_however_far_apart() -> None:
    fixed = strategy(RestartStrategyKind.FIXED_DELAY, attempts_max=2, delay_ms=70)
    assert delays(fixed, [0, 10**6, 10**9]) == [70, 70, None]


def test_failure_rate_gives_up_when_failures_come_too_fast() -> None:
    rate = strategy(
        RestartStrategyKind.FAILURE_RATE, failures_max=2, failure_interval_ms=100, delay_ms=7
    )
    assert delays(rate, [0, 50, 99]) == [7, 7, None]
    assert delays(rate, [0, 50, 100, 150, 200]) == [7] * 5


def test_exponential_delay_restarts_at_once_then_backs_off_up_to_its_bound() -> None:
    backoff = strategy(
        RestartStrategyKind.EXPONENTIAL_DELAY,
        initial_backoff_ms=1_000,
        max_backoff_ms=3_000,
        backoff_multiplier=1.5,
    )
    assert delays(backoff, [0, 1, 2, 3, 4, 5]) == [0, 1_000, 1_500, 2_250, 3_000, 3_000]


def test_quiet_time_since_the_last_restart_makes_the_next_one_immediate_again() -> None:
    backoff = strategy(RestartStrategyKind.EXPONENTIAL_DELAY, reset_after_ms=10_000)
    # The second restart is due at 1,000: the quiet time counts from there.
    assert delays(backoff, [0, 0, 10_999]) == [0, 1_000, 1_500]
    assert delays(backoff, [0, 0, 11_000]) == [0, 1_000, 0]


def test_jitter_spreads_a_delay_by_its_share_to_both_sides() -> None:
    backoff = strategy(RestartStrategyKind.EXPONENTIAL_DELAY, jitter=0.1)
    assert delays(backoff, [0, 0], jitter=0.0) == [0, 900]
    assert delays(backoff, [0, 0], jitter=0.75) == [0, 1_050]


@given(
    st.lists(st.integers(0, 10**7), max_size=40),
    st.floats(0, 1, exclude_max=True),
    st.floats(1, 10),
)
def test_exponential_delay_never_gives_up_and_stays_within_its_bound(
    gaps_ms: list[int], jitter: float, multiplier: float
) -> None:
    backoff = strategy(RestartStrategyKind.EXPONENTIAL_DELAY, backoff_multiplier=multiplier)
    at_ms = [sum(gaps_ms[: n + 1]) for n in range(len(gaps_ms))]
    for delay_ms in delays(backoff, at_ms, jitter):
        assert delay_ms is not None
        assert delay_ms == 0 or 900 <= delay_ms <= 60_000


@pytest.mark.parametrize("multiplier", [1.0, 10.0])
def test_very_many_failures_are_answered_quickly_and_without_overflow(multiplier: float) -> None:
    state = RestartState(
        RestartConfig(backoff_multiplier=multiplier),
        RestartStrategyKind.EXPONENTIAL_DELAY,
        restart_count=10**9,
    )
    assert on_failure(state, 0, MIDDLE)[1] == (1_000 if multiplier == 1 else 60_000)
