"""Restart strategies: whether a failed job is restarted, and after how long.

``none`` gives up, ``fixed_delay`` restarts a number of times, ``failure_rate`` gives up when
failures come too fast, ``exponential_delay`` never gives up and waits longer each time: the first
restart is immediate, since most failures are one lost machine, and after a time without failures
the next restart is immediate again.

Source: Flink, RestartBackoffTimeStrategy and its implementations.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from weir.config import RestartConfig, RestartStrategyKind


@dataclass(frozen=True, slots=True)
class RestartState:
    """The failure history that one job's restart strategy keeps."""

    config: RestartConfig
    kind: RestartStrategyKind
    restart_count: int = 0  # Exponential delay: since the last reset.
    recent_failures_ms: tuple[int, ...] = ()  # Failure rate: within the interval.
    restarts_at_ms: int | None = None  # When the last restart was due.


def initial(config: RestartConfig, *, has_checkpoints: bool) -> RestartState:
    """The state before the first failure.

    Without checkpoints and without a configured strategy a failed job fails: restarting from the
    beginning has to be configured by its user.
    """
    if config.kind is not None:
        return RestartState(config, config.kind)
    if has_checkpoints:
        return RestartState(config, RestartStrategyKind.EXPONENTIAL_DELAY)
    return RestartState(config, RestartStrategyKind.NONE)


def on_failure(state: RestartState, now_ms: int, jitter: float) -> tuple[RestartState, int | None]:
    """The state after a failure, and the delay before the next restart; None: give up.

    Units: ``jitter`` is a random number in [0, 1), spread evenly; the delay is in milliseconds.
    """
    state, delay_ms = _STRATEGIES[state.kind](state, now_ms, jitter)
    if delay_ms is None:
        return state, None
    return replace(state, restarts_at_ms=now_ms + delay_ms), delay_ms


def _none(state: RestartState, now_ms: int, jitter: float) -> tuple[RestartState, int | None]:
    return state, None


def _fixed_delay(
    state: RestartState, now_ms: int, jitter: float
) -> tuple[RestartState, int | None]:
    if state.restart_count >= state.config.attempts_max:
        return state, None
    return replace(state, restart_count=state.restart_count + 1), state.config.delay_ms


def _failure_rate(
    state: RestartState, now_ms: int, jitter: float
) -> tuple[RestartState, int | None]:
    oldest_ms = now_ms - state.config.failure_interval_ms
    recent = (*(at for at in state.recent_failures_ms if at > oldest_ms), now_ms)
    state = replace(state, recent_failures_ms=recent)
    return state, None if len(recent) > state.config.failures_max else state.config.delay_ms


def _exponential_delay(
    state: RestartState, now_ms: int, jitter: float
) -> tuple[RestartState, int | None]:
    config = state.config
    count = state.restart_count
    if state.restarts_at_ms is not None and now_ms - state.restarts_at_ms >= config.reset_after_ms:
        count = 0
    state = replace(state, restart_count=count + 1)
    if count == 0:
        return state, 0
    backoff_ms = float(config.initial_backoff_ms)
    for _ in range(count - 1):  # A loop that stops at the bound: a power would overflow one day.
        if backoff_ms >= config.max_backoff_ms or config.backoff_multiplier == 1:
            break
        backoff_ms *= config.backoff_multiplier
    spread = 1 + config.jitter * (2 * jitter - 1)
    return state, round(min(min(backoff_ms, config.max_backoff_ms) * spread, config.max_backoff_ms))


_STRATEGIES: Mapping[
    RestartStrategyKind, Callable[[RestartState, int, float], tuple[RestartState, int | None]]
] = {
    RestartStrategyKind.NONE: _none,
    RestartStrategyKind.FIXED_DELAY: _fixed_delay,
    RestartStrategyKind.FAILURE_RATE: _failure_rate,
    RestartStrategyKind.EXPONENTIAL_DELAY: _exponential_delay,
}
