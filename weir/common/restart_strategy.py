"""``RestartStrategies``: restart strategies under PyFlink's names (those before Flink 2)."""

from weir.config import RestartConfig, RestartStrategyKind


class RestartStrategies:
    """Makers of what ``env.set_restart_strategy`` takes; delays are milliseconds."""

    @staticmethod
    def no_restart() -> RestartConfig:
        """The first failure ends the job."""
        return RestartConfig(kind=RestartStrategyKind.NONE)

    @staticmethod
    def fixed_delay_restart(restart_attempts: int, delay_between_attempts: int) -> RestartConfig:
        """So many restarts, each after the delay."""
        return RestartConfig(
            kind=RestartStrategyKind.FIXED_DELAY,
            attempts_max=restart_attempts,
            delay_ms=delay_between_attempts,
        )

    @staticmethod
    def failure_rate_restart(
        max_failure_rate: int, failure_interval: int, delay_interval: int
    ) -> RestartConfig:
        """Restarts, until an interval has more failures than the rate."""
        return RestartConfig(
            kind=RestartStrategyKind.FAILURE_RATE,
            failures_max=max_failure_rate,
            failure_interval_ms=failure_interval,
            delay_ms=delay_interval,
        )

    @staticmethod
    def fall_back_restart() -> RestartConfig:
        """The default: exponential delay with checkpoints, else none."""
        return RestartConfig()
