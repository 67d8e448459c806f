"""The durations of everything in a simulated cluster, drawn from a seed.

A line delivers in order for any delays; what belongs to different lines overtakes freely.
Now and then something takes ten times as long, because it is the straggler that finds the bugs.
"""

import random
from collections.abc import Mapping

from weir.local.event_queue import Latencies

DELAYS_US: Mapping[str, tuple[int, int]] = {
    "loop": (20, 500),
    "channel": (20, 1_500),
    "report": (50, 2_000),
    "command": (50, 2_000),
    "io": (100, 3_000),
    "snapshot": (100, 5_000),
    "start": (500, 4_000),
}
STRAGGLER_SHARE = 0.02
STRAGGLER_FACTOR = 10


class SeededConditions(Latencies):
    """Delays from a random generator; a worker sees some of what waits for it at a time."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def delay_ns(self, what: str) -> int:
        """A delay between the bounds for this, or ten times that."""
        low, high = DELAYS_US[what]
        factor = STRAGGLER_FACTOR if self._random() < STRAGGLER_SHARE else 1
        return int((low + (high - low) * self._random()) * 1_000) * factor

    def take(self, waiting: int) -> int:
        """At least one of the items that wait."""
        return waiting if waiting < 2 else 1 + int(self._random() * waiting)
