"""The restarts of a job: its restart strategy, and when the next attempt begins."""

import math
import random

from weir.config import RestartConfig
from weir.protocol.restarts import initial, on_failure


class Restarts:
    """The restart strategy's state, with the random numbers of this driver."""

    def __init__(self, config: RestartConfig, *, has_checkpoints: bool, seed: int | None) -> None:
        self._random = random.Random(seed)
        self._state = initial(config, has_checkpoints=has_checkpoints)
        self.due_ms: int | None = None  # When the next attempt begins.

    def jitter(self) -> float:
        """A number in [0, 1) that spreads jobs which began together."""
        return self._random.random()

    def delay(self, now_ms: int) -> float | None:
        """The delay after a failure, in milliseconds; None: the strategy gives up."""
        self._state, delay_ms = on_failure(self._state, now_ms, self._random.random())
        return delay_ms

    def schedule(self, now_ms: int, delay_ms: float) -> None:
        """Begin the next attempt after the delay."""
        self.due_ms = now_ms + math.ceil(delay_ms)
