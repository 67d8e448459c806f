"""Window assigners: the window that a record belongs to.

A tumbling window covers ``[start, end)`` on a fixed grid; ``offset`` shifts the grid. Watermarks
are compared with its last moment, ``end - 1``.

Source: Flink, TimeWindow and TumblingEventTimeWindows.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from weir.common.time import milliseconds_of
from weir.common.watermark import Length
from weir.errors import GraphError, RestoreError

# Start and end of a window, under which state holds it: both, since a restored window keeps its
# bounds even if the program's windows have another size now.
Bounds: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True, order=True)
class TimeWindow:
    """A window from ``start`` (included) to ``end`` (excluded), milliseconds since the epoch."""

    start: int
    end: int

    def max_timestamp(self) -> int:
        """The last millisecond that belongs to the window."""
        return self.end - 1


@dataclass(frozen=True, slots=True)
class TumblingWindows:
    """The assigner of windows of one size, one after the other without a gap."""

    size_ms: int
    offset_ms: int
    is_event_time: bool

    def start_of(self, timestamp: int) -> int:
        """The start of the window around ``timestamp``."""
        return timestamp - (timestamp - self.offset_ms) % self.size_ms

    def starts_of(self, timestamps: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The starts of the windows around ``timestamps``."""
        return timestamps - (timestamps - self.offset_ms) % self.size_ms


class TumblingEventTimeWindows:
    """Tumbling windows by the records' event time."""

    @staticmethod
    def of(size: Length, offset: Length = 0) -> TumblingWindows:
        """Windows of ``size``, shifted by ``offset``; an int is milliseconds.

        Raises:
            GraphError: The size is not positive, or the offset not smaller than the size.
            ConfigError: ``size`` or ``offset`` is no length of time.
        """
        return _tumbling(size, offset, is_event_time=True)


class TumblingProcessingTimeWindows:
    """Tumbling windows by the job's clock, as read in the subtask that gets the record."""

    @staticmethod
    def of(size: Length, offset: Length = 0) -> TumblingWindows:
        """Windows of ``size``, shifted by ``offset``; an int is milliseconds.

        Raises:
            GraphError: The size is not positive, or the offset not smaller than the size.
            ConfigError: ``size`` or ``offset`` is no length of time.
        """
        return _tumbling(size, offset, is_event_time=False)


def _tumbling(size: Length, offset: Length, *, is_event_time: bool) -> TumblingWindows:
    size_ms, offset_ms = milliseconds_of(size), milliseconds_of(offset)
    if size_ms < 1:
        raise GraphError(f"a window of {size_ms} ms: its size must be positive")
    if abs(offset_ms) >= size_ms:
        raise GraphError(
            f"a window of {size_ms} ms with an offset of {offset_ms} ms: the offset must be "
            "smaller than the size"
        )
    return TumblingWindows(size_ms, offset_ms, is_event_time)


def old_layout(operator: str) -> RestoreError:
    """The error for open windows that were stored by their start alone.

    They cannot be restored: the checkpoint does not have their size, and the program's may differ.
    """
    return RestoreError(
        f"operator {operator!r}: the checkpoint holds open windows of an older version of Weir, "
        "which stored their starts without their ends, so their ends are not known. "
        "Restore with the version that wrote the checkpoint and stop the job with drain, which "
        "leaves no window open; or give the operator another uid and set "
        "allow_non_restored_state (--allow-non-restored-state) to lose those windows"
    )
