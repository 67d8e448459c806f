"""A wall clock that is wrong by as much as a file says, in the processes of a job.

The clock of a machine belongs to all that runs on it, so a jump is made in the processes alone.
They read their wall clock once, when they begin: a jump is seen by those that start after it.
Apart from the rest, because slots import it.
"""

import time
from pathlib import Path
from typing import Any

from weir.datastream import MapFunction

_time_ns = time.time_ns  # The machine's own.


def install(offset: Path) -> None:
    """Shift this process's wall clock by the milliseconds in a file; no file is no shift."""
    try:
        shift_ns = int(offset.read_text()) * 1_000_000
    except FileNotFoundError:
        return
    time.time_ns = lambda: _time_ns() + shift_ns
    time.time = lambda: (_time_ns() + shift_ns) / 1e9


class Shifted(MapFunction):
    """Passes records on; where it is unpickled, in a slot, the clock is shifted."""

    def __init__(self, offset: str) -> None:
        self._offset = offset

    def __reduce__(self) -> tuple[Any, ...]:
        return _shifted, (self._offset,)

    def map(self, value: Any) -> Any:
        return value


def _shifted(offset: str) -> Shifted:
    install(Path(offset))
    return Shifted(offset)
