"""A database whose clock can be moved, and processes that look at it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from controlplane.base import clock
from controlplane.base.clock import _Watch
from controlplane.base.models import ClockCorrection

HOUR_S = 3_600.0


class MovedClock:
    """The database's clock as it was moved, and this machine's own."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved_s = 0.0
        self.own_moved_s = 0.0
        self._monkeypatch = monkeypatch
        self._own_s, self._raw = clock.own_s, clock._RAW
        monkeypatch.setattr(clock, "own_s", lambda: self._own_s() + self.own_moved_s)
        self.move(0)
        self.restart()

    @property
    def sql(self) -> str:
        """The database's clock as it was moved."""
        return f"({self._raw} + INTERVAL '{self.moved_s} seconds')"

    def move(self, seconds: float) -> None:
        """Set the database's clock: ahead, or back where negative."""
        self.moved_s += seconds
        self._monkeypatch.setattr(clock, "_RAW", self.sql)

    def pass_time(self, seconds: float) -> None:
        """Time passes, for the database and for this machine."""
        self.move(seconds)
        self.own_moved_s += seconds

    def restart(self) -> _Watch:
        """From here on this is another process, which has not looked at the clock yet."""
        watch = _Watch()
        self._monkeypatch.setattr(clock, "_watch", watch)
        return watch

    @contextmanager
    def within(self, process: _Watch) -> Iterator[None]:
        """In another process for a while."""
        before = clock._watch
        self._monkeypatch.setattr(clock, "_watch", process)
        yield
        self._monkeypatch.setattr(clock, "_watch", before)

    @property
    def corrections(self) -> int:
        """The number of times the clock was corrected."""
        row = ClockCorrection.objects.first()
        return 0 if row is None else row.number
