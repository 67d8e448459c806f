"""The time of a machine in place of the real one: it passes when something sleeps or works.

Wall clock and monotonic clock move apart when the wall clock is set. Everything that runs in
this process and reads ``time`` through the runtime's clock sees it, so that hours pass at once.
"""

from typing import Any

import pytest

from weir.common import clock
from weir.local import event_queue

HOUR_MS = 3_600_000
READING_NS = 1_000  # Work takes time: between two readings there is some.
SLEPT_MAX_MS = 600_000  # No test waits this long, unless something stands still.


class MachineTime:
    """The part of the module ``time`` that the runtime's clocks use."""

    def __init__(self) -> None:
        self.passed_ns = 0  # Since the machine was started.
        self.worked_ns = 0
        self.wall_ms = 1_800_000_000_000

    def install(self, monkeypatch: pytest.MonkeyPatch) -> "MachineTime":
        """Have the runtime's clocks read this time."""
        monkeypatch.setattr(clock, "time", self)
        monkeypatch.setattr(event_queue, "time", self)
        return self

    def set_wall_clock(self, by_ms: int) -> None:
        """Set the wall clock: ahead, or back where negative."""
        self.wall_ms += by_ms

    def work(self, ms: float) -> None:
        """The processor is busy."""
        self.worked_ns += round(ms * 1e6)
        self.passed_ns += round(ms * 1e6)

    # The module's functions.

    def time_ns(self) -> int:
        return self.wall_ms * 1_000_000 + self.monotonic_ns()

    def time(self) -> float:
        return self.time_ns() / 1e9

    def monotonic_ns(self) -> int:
        self.passed_ns += READING_NS
        if self.passed_ns > SLEPT_MAX_MS * 1_000_000:
            raise AssertionError(f"{SLEPT_MAX_MS} ms have passed: something stands still")
        return self.passed_ns

    def thread_time_ns(self) -> int:
        return self.worked_ns

    def sleep(self, seconds: float) -> None:
        self.passed_ns += round(seconds * 1e9)

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"time.{name}: the runtime's clock is to be asked")
