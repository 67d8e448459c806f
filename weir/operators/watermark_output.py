"""Output of watermarks from the operator that makes them: after its records, never decreasing.

Watermarks within a slice go with its records, which are not cut for them (``Watermarks``): an hour
of event time may have a few records only, and cost less than a batch.
"""

import numpy as np

from weir.common.batch import Batch, Indices, Timestamps
from weir.common.watermarks import Watermarks
from weir.operators.base import Output
from weir.protocol.elements import MIN_WATERMARK_MS


class WatermarkOutput:
    """Emits records, followed by the watermark that follows from them if it is a higher one.

    ``resolution_ms``: the watermark is also emitted within a slice, right after the record with
    which it passes a multiple of this.
    """

    def __init__(
        self, output: Output, resolution_ms: int | None, emitted_ms: int = MIN_WATERMARK_MS
    ) -> None:
        self.emitted_ms = emitted_ms
        self.is_idle = False
        self._output = output
        self._resolution_ms = resolution_ms

    def emit(self, batch: Batch, watermark_ms: int) -> None:
        """Emit a slice, then the watermark if it is higher; after idleness at least the old one."""
        self._output.emit(batch)
        if watermark_ms > self.emitted_ms:
            self.emitted_ms = watermark_ms
            self._output.emit_watermark(watermark_ms)
        elif self.is_idle and self.emitted_ms > MIN_WATERMARK_MS:
            self._output.emit_watermark(self.emitted_ms)
        self.is_idle = False

    def emit_timed(
        self, batch: Batch, timestamps: Timestamps, bound_ms: int, *, least_ms: int, most_ms: int
    ) -> int:
        """Emit a slice and the watermarks that follow from its timestamps.

        These lie ``bound_ms`` and one millisecond below the highest timestamp, but not below
        ``least_ms``; the last one is returned. No emitted watermark lies above ``most_ms``.
        """
        resolution_ms = self._resolution_ms
        if resolution_ms is None:
            last_ms = max(least_ms, int(timestamps.max()) - bound_ms - 1)
            self.emit(batch, min(most_ms, last_ms))
            return last_ms
        # The watermark plus one after each record: a window that starts and ends at multiples of
        # the resolution closes where this passes one.
        reached = np.maximum.accumulate(timestamps) - bound_ms
        last_ms = max(least_ms, int(reached[-1]) - 1)
        if int(reached[0]) <= least_ms:
            reached = np.maximum(reached, least_ms + 1)
        if last_ms > most_ms:
            reached = np.minimum(reached, most_ms + 1)
        before = (self.emitted_ms + 1) // resolution_ms
        passed = np.maximum(reached // resolution_ms, before)
        rows = np.flatnonzero(np.diff(passed, prepend=before))
        if len(rows) and rows[0] < len(batch) - 1:
            self._emit_within(batch, rows, reached)
        else:
            self.emit(batch, int(reached[-1]) - 1)
        return last_ms

    def _emit_within(self, batch: Batch, rows: Indices, reached: Timestamps) -> None:
        """Emit a slice with watermarks one millisecond below ``reached``, behind these rows.

        The last record has one behind it too, if that is higher.
        """
        last = len(batch) - 1
        if rows[-1] < last and reached[rows[-1]] < reached[last]:
            rows = np.append(rows, last)
        times_ms = reached[rows] - 1
        self.emitted_ms = int(times_ms[-1])
        self.is_idle = False
        self._output.emit(batch.marked(Watermarks(rows + 1, times_ms)))

    def advance(self, watermark_ms: int) -> None:
        """Emit the watermark if it is a higher one."""
        if watermark_ms > self.emitted_ms:
            self.emitted_ms = watermark_ms
            self.is_idle = False
            self._output.emit_watermark(watermark_ms)

    def become_idle(self) -> None:
        """Emit idleness once; the next slice ends it."""
        if not self.is_idle:
            self.is_idle = True
            self._output.emit_idle()
