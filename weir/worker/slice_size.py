"""The size of a slice: as many rows as take about ``slice_target_ms`` of work.

The cost of rows is measured with every slice and fitted as a fixed part plus a part per row, twice:

- by the thread's processor time, which is to meet the target. Another process that takes the
  processor away in the middle of a slice makes it last longer, not cost more. By the wall clock it
  looked like cost, and on a busy machine slices shrank to single rows, whose cost is mostly the
  fixed part;
- by elapsed time, which is bounded: a function that sleeps, or waits for an answer, uses no
  processor, and no other subtask gets its turn meanwhile. Since it is averaged over some slices,
  only a machine several times too small makes slices smaller by it, not a moment's interruption.

The target is the part per row alone: where a call costs more than the target for any number of
rows, smaller slices would only make more calls. A slice of at most half the target is safe to
double, since cost never grows faster than rows; so a size that came out too small by chance
recovers within a few slices. The first slice has a handful of rows, since their cost is not known
yet.

The bound holds from slice to slice. A function that was fast and begins to wait in the middle of a
slice holds the loop until the end of that slice.

A brief slice has as many of these rows as take ``BRIEF_NS`` by elapsed time, again by the part per
row alone.
"""

FIRST_ROWS = 8
# The bound on the elapsed time of a slice, waiting included.
WALL_MAX_NS = 20_000_000.0
# The elapsed time of a brief slice, waiting included.
BRIEF_NS = 2_000_000.0
# The weight of the newest slice in the averages, which cover some five slices: 25 ms of work.
WEIGHT = 0.2
# The recent spread of sizes, as a share of their mean, that is needed to tell the two parts of the
# cost apart; with less spread the fixed part fitted before is kept.
SPREAD_MIN = 0.1
# With less spread, a slice of this share of the size tells them apart again.
PROBE = 0.7
# A slice this many times dearer or cheaper than expected begins the fit anew: the function behaves
# differently now, and older measurements would only delay the adjustment.
CHANGED = 4.0
# At least this share of the whole cost counts as the part per row: a chance reading must not let a
# slice grow without bounds.
BY_ROW_MIN = 0.1


class SliceSize:
    """The number of rows of the next slice, adjusted by ``measured`` after each slice.

    One per kind of work: polling and processing input differ in cost from firing timers.
    """

    def __init__(self, rows_max: int, target_ms: float) -> None:
        self.rows = min(FIRST_ROWS, rows_max)
        self._rows_max = rows_max
        self._target_ns = target_ms * 1e6
        self._work = _Cost()
        self._elapsed = _Cost()
        self._was_dear = False  # The slice before.

    @property
    def brief_rows(self) -> int:
        """The number of rows of the next slice, if it is to be brief."""
        return max(1, min(self.rows, int(BRIEF_NS / self._elapsed.row_ns)))

    def is_to_measure(self, rows: int) -> bool:
        """Whether a slice of ``rows`` rows is to be measured: a full one, or one after a dear one.

        Others would change nothing, and reading the processor time takes as long as a small batch.
        """
        return self._was_dear or 2 * rows >= self.rows

    def passed(self, elapsed_ns: int) -> None:
        """A slice was not measured; where it took long, the next one is."""
        self._was_dear = 2 * elapsed_ns > min(self._target_ns, WALL_MAX_NS)

    def measured(self, rows: int, work_ns: int, elapsed_ns: int) -> None:
        """Adjust the size by a slice of ``rows`` rows, at least one.

        Args:
            work_ns: The slice's processor time, by ``Clock.thread_ns``.
            elapsed_ns: The slice's elapsed time, by ``Clock.monotonic_ns``.
        """
        is_full = 2 * rows >= self.rows  # A smaller one does not predict a full one.
        is_cheap = 2 * work_ns <= self._target_ns and 2 * elapsed_ns <= WALL_MAX_NS
        self._was_dear = not is_cheap
        if is_cheap and not is_full:
            return  # As most slices behind a slow source are.
        self._work.add(rows, work_ns)
        self._elapsed.add(rows, elapsed_ns)
        if is_cheap:
            self.rows = min(2 * self.rows, self._rows_max)
            return
        fitting = min(self._target_ns / self._work.row_ns, WALL_MAX_NS / self._elapsed.row_ns)
        if not (self._work.is_told_apart and self._elapsed.is_told_apart):
            fitting *= PROBE
        if fitting < self.rows or is_full:
            self.rows = int(max(1, min(fitting, 2 * self.rows, self._rows_max)))


class _Cost:
    """The cost of a slice: a fixed part and a part per row, fitted to recent slices."""

    def __init__(self) -> None:
        self.row_ns = 1.0
        self._fixed_ns = 0.0
        self._rows: float | None = None  # The mean; None: nothing was measured yet.
        self._cost_ns = 0.0  # The mean.
        self._rows_variance = 0.0
        self._covariance = 0.0

    @property
    def is_told_apart(self) -> bool:
        """Whether sizes have spread enough lately for a fit of both parts."""
        return self._rows_variance > (SPREAD_MIN * (self._rows or 0.0)) ** 2

    def add(self, rows: int, cost_ns: float) -> None:
        """Add the measurement of a slice.

        Source: least squares over exponentially weighted moments (Finch, "Incremental calculation
        of weighted mean and variance", 2009, section 9).
        """
        expected_ns = self._fixed_ns + self.row_ns * rows
        if self._rows is None or not expected_ns / CHANGED <= cost_ns <= CHANGED * expected_ns:
            self._rows, self._cost_ns = float(rows), float(cost_ns)
            self._fixed_ns = self._rows_variance = self._covariance = 0.0
        else:
            further, dearer = rows - self._rows, cost_ns - self._cost_ns
            self._rows += WEIGHT * further
            self._cost_ns += WEIGHT * dearer
            rest = 1 - WEIGHT
            self._rows_variance = rest * (self._rows_variance + WEIGHT * further * further)
            self._covariance = rest * (self._covariance + WEIGHT * further * dearer)
        mean_ns = self._cost_ns / self._rows
        if self.is_told_apart:
            row_ns = self._covariance / self._rows_variance
            self._fixed_ns = max(0.0, self._cost_ns - row_ns * self._rows)
        else:
            row_ns = (self._cost_ns - self._fixed_ns) / self._rows
        self.row_ns = max(1.0, BY_ROW_MIN * mean_ns, min(row_ns, mean_ns))
