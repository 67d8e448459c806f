"""The clock of a test, which stands still until it is moved."""


class ManualClock:
    """Wall clock and monotonic clock in one; work costs nothing by it."""

    def __init__(self, start_ms: int) -> None:
        self._ns = start_ms * 1_000_000

    def now_ms(self) -> int:
        """Milliseconds since the epoch: the processing time."""
        return self._ns // 1_000_000

    def monotonic_ns(self) -> int:
        """The same in nanoseconds."""
        return self._ns

    def thread_ns(self) -> int:
        """Always 0, so that slices do not depend on the machine."""
        return 0

    def wait_until(self, monotonic_ns: int) -> None:
        """Be at that time at once; time never goes back."""
        self._ns = max(self._ns, monotonic_ns)
