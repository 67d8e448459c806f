"""The size of a slice: as many rows as are about ``slice_target_ms`` of work.

What rows cost is measured with every slice and fitted as a fixed part plus a part per row, twice:

- by the thread's processor time, which is aimed at. Another process that takes the processor away
  in the middle of a slice makes it last longer, not cost more. By the wall clock it looked like
  cost, and on a busy machine slices shrank to single rows, whose fixed part is then most of it;
- by elapsed time, which is bounded: a function that sleeps, or waits for an answer, uses no
  processor, and nothing else gets its turn meanwhile. Being averaged over some slices it takes a
  machine several times too small, and not a moment's interruption, to make slices smaller by it.

The target is the part per row alone: where a call costs more than the target whatever it is given,
smaller slices would only make more calls. A slice of at most half the target is safe to double, for
cost never grows faster than rows; so a size that came out too small by chance is made up for within
a few slices. It starts with a handful: the first slice is the one of which nothing is known.

The bound holds from slice to slice. A function that was fast and begins to wait in the middle of a
slice holds the loop until the end of that one.
"""

FIRST_ROWS = 8
# A slice is not meant to last longer than this, whatever it does meanwhile.
WALL_MAX_NS = 20_000_000.0
# Of the newest slice in the averages. Some five slices make them: 25 ms of work.
WEIGHT = 0.2
# How far sizes must have spread lately, as a share of their mean, to tell the two parts of the cost
# apart; where they are all alike the fixed part known before stands.
SPREAD_MIN = 0.1
# Where they are, a slice that is smaller by this tells them apart again.
PROBE = 0.7
# A slice this many times dearer or cheaper than expected begins the fit anew: the function does
# something else now, and what was before would only delay the answer to it.
CHANGED = 4.0
# Of the whole cost is by rows at least this share: a chance reading must not let a slice grow
# without bounds.
BY_ROW_MIN = 0.1


class SliceSize:
    """How many rows the next slice is to have; ``measured`` after each slice keeps it right.

    One per kind of work: polling and processing input differ in cost from firing timers.
    """

    def __init__(self, rows_max: int, target_ms: float) -> None:
        self.rows = min(FIRST_ROWS, rows_max)
        self._rows_max = rows_max
        self._target_ns = target_ms * 1e6
        self._work = _Cost()
        self._elapsed = _Cost()

    def measured(self, rows: int, work_ns: int, elapsed_ns: int) -> None:
        """Learn from a slice of ``rows`` rows, one at least.

        Args:
            work_ns: Processor time of this thread, ``Clock.thread_ns``.
            elapsed_ns: How long it took, ``Clock.monotonic_ns``.
        """
        is_full = 2 * rows >= self.rows  # A smaller one says nothing of a full one.
        is_cheap = 2 * work_ns <= self._target_ns and 2 * elapsed_ns <= WALL_MAX_NS
        if is_cheap and not is_full:
            return  # So are most of those behind a slow source.
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
    """A fixed part and a part per row, fitted to the slices of late."""

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
        """Take in a slice.

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
