"""Time that stands still until somebody moves it on.

Wall clock and monotonic clock advance together, so that a run is the same whenever and however fast
it is computed.
"""

EPOCH_MS = 1_700_000_000_000  # Some moment: no code may rely on which.


class SimClock:
    """A clock for simulations; moved by the event queue alone."""

    def __init__(self) -> None:
        self._ns = 0

    def now_ms(self) -> int:
        """Wall clock, milliseconds since the epoch."""
        return EPOCH_MS + self._ns // 1_000_000

    def monotonic_ns(self) -> int:
        """Nanoseconds since the clock was made."""
        return self._ns

    def wait_until(self, monotonic_ns: int) -> None:
        """Be at that moment at once; time never goes back."""
        self._ns = max(self._ns, monotonic_ns)
