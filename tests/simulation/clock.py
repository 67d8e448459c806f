"""Time that stands still until a test moves it on.

Wall clock and monotonic clock advance together, so that a run is the same whenever and however fast
it is computed. What work costs is drawn from a seed: slices get larger and smaller as on a machine.
"""

import random

EPOCH_MS = 1_700_000_000_000  # Some moment: no code may rely on which.
WORK_MAX_NS = 5_000_000  # Between two readings: now much below a slice's target, now about it.


class SimClock:
    """A clock for simulations; moved by the event queue alone."""

    def __init__(self, seed: int = 0) -> None:
        self._ns = 0
        self._worked_ns = 0
        self._costs = random.Random(f"costs-{seed}")

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        return EPOCH_MS + self._ns // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds since the clock was made."""
        return self._ns

    def thread_ns(self) -> int:
        """Processor time: since the last reading some was used, of which the seed decides."""
        self._worked_ns += self._costs.randrange(WORK_MAX_NS)
        return self._worked_ns

    def wait_until(self, monotonic_ns: int) -> None:
        """Be at that moment at once; time never goes back."""
        self._ns = max(self._ns, monotonic_ns)
