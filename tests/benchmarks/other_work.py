"""The other work of the machine, looked at before and after a benchmark, when that does nothing."""

from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import psutil

LOOK_S = 2.0
QUIET_MAX = 0.2
_PRESSURE = Path("/proc/pressure/cpu")


@dataclass(frozen=True, slots=True)
class OtherWork:
    """Shares of a look: of all processors' time that was in use, and of time in which tasks waited.

    Source: Linux, pressure stall information; 0 where the system has none.
    """

    busy: float
    pressure: float

    @property
    def is_little(self) -> bool:
        """Whether figures taken beside it count for the machine alone."""
        return max(self.busy, self.pressure) <= QUIET_MAX

    def or_more(self, other: "OtherWork") -> "OtherWork":
        """The larger shares of two looks."""
        return OtherWork(max(self.busy, other.busy), max(self.pressure, other.pressure))

    def __str__(self) -> str:
        return f"processors {self.busy:.0%} busy, pressure {self.pressure:.0%}"


def look() -> OtherWork:
    """The work of all others, in two seconds."""
    waited, began = _waited_s(), monotonic()
    busy = psutil.cpu_percent(interval=LOOK_S) / 100
    return OtherWork(round(busy, 3), round((_waited_s() - waited) / (monotonic() - began), 3))


def _waited_s() -> float:
    if not _PRESSURE.exists():
        return 0.0
    some = _PRESSURE.read_text().splitlines()[0]
    return int(some.partition("total=")[2]) / 1e6
