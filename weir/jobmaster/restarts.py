"""The restarts of a job: whether one can help, its restart strategy, and when the next begins."""

import math
import random

from weir.config import RestartConfig
from weir.protocol.repeated_errors import RepeatedError, failed_at
from weir.protocol.restarts import initial, on_failure


class Restarts:
    """The restart strategy's state, with the random numbers of this driver."""

    def __init__(self, config: RestartConfig, *, has_checkpoints: bool, seed: int | None) -> None:
        self._random = random.Random(seed)
        self._state = initial(config, has_checkpoints=has_checkpoints)
        self._ends_on_repeated_error = config.ends_on_repeated_error
        self._repeated: RepeatedError | None = None
        self.due_ms: int | None = None  # When the next attempt begins.

    def jitter(self) -> float:
        """A number in [0, 1) that spreads jobs which began together."""
        return self._random.random()

    def delay(self, now_ms: int) -> float | None:
        """The delay after a failure, in milliseconds; None: the strategy gives up."""
        self._state, delay_ms = on_failure(self._state, now_ms, self._random.random())
        return delay_ms

    def hopeless(
        self,
        place: str | None,
        position: str,
        completed_count: int,
        now_ms: int,
        remedy: str = "repair the function, or see .on_error() for bad records",
    ) -> str | None:
        """The reason why no restart helps after a failure of the program at a place, if so.

        ``position`` is that of the input, for people: slices may be cut elsewhere the next time.
        """
        if place is None or not self._ends_on_repeated_error:
            return None
        self._repeated = repeated = failed_at(self._repeated, place, completed_count, now_ms)
        if not repeated.is_hopeless(now_ms):
            return None
        lasted_s = (now_ms - repeated.since_ms) // 1_000
        where = f"{place}, {position}" if position else place
        return (
            f"{where}: {repeated.count} times in {lasted_s} s, without a completed checkpoint "
            f"between. No restart helps; {remedy}"
        )

    def schedule(self, now_ms: int, delay_ms: float) -> None:
        """Begin the next attempt after the delay."""
        self.due_ms = now_ms + math.ceil(delay_ms)
