"""Reports of counters: those that change at every interval, those that rest now and then.

A job has many subtasks and most of them rest most of the time. After its last change a subtask is
reported for ``SETTLING_NS`` more, so that a reader's window of rates sees the end of it; then as
often as a reader needs to know that it is there.

A slot of more than ``INTERVAL_NS / INTERVAL_OF_EACH_NS`` subtasks has a longer interval: a report
costs worker and driver as much as the passage of a batch, and hundreds of them come at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from weir.ids import SubtaskId
from weir.protocol.messages import SampledCall, SubtaskMetrics, ThreadsBeside
from weir.worker.ports import Reporter

INTERVAL_NS = 500_000_000
INTERVAL_OF_EACH_NS = 5_000_000
SETTLING_NS = 2_500_000_000
RESTING_INTERVAL_NS = 5_000_000_000


def interval_ns(subtask_count: int) -> int:
    """The time between two reports of a slot with so many subtasks.

    At most half of ``SETTLING_NS``: two reports, in which nothing changes, follow the last change.
    """
    return min(max(INTERVAL_NS, subtask_count * INTERVAL_OF_EACH_NS), SETTLING_NS // 2)


@dataclass(frozen=True, slots=True)
class SlotFigures:
    """Figures that the subtasks of a slot have in common, since the attempt began or of now."""

    cpu_wait_ns: int = 0  # Of the loop's thread.
    cpu_pressure_ns: int = 0  # Of the host.
    memory_bytes: int = 0  # Of the worker process, now.
    calls: Mapping[SubtaskId, tuple[SampledCall, ...]] = field(default_factory=dict)  # Of late.
    beside: ThreadsBeside | None = None  # Of late.


class HeldTime:
    """The time in which back pressure holds one subtask: its output waits for credit."""

    def __init__(self) -> None:
        self._ended_ns = 0  # Of the times that are over.
        self._since_ns: int | None = None

    @property
    def is_on(self) -> bool:
        """Whether back pressure holds it now."""
        return self._since_ns is not None

    def begin(self, now_ns: int) -> None:
        """Back pressure holds the subtask from now on, unless it does already."""
        if self._since_ns is None:
            self._since_ns = now_ns

    def end(self, now_ns: int) -> None:
        """Back pressure does not hold the subtask (any more)."""
        if self._since_ns is not None:
            self._ended_ns += now_ns - self._since_ns
            self._since_ns = None

    def total_ns(self, now_ns: int) -> int:
        """The time up to now; one that lasts is no idle time meanwhile."""
        return self._ended_ns + (0 if self._since_ns is None else now_ns - self._since_ns)


@dataclass(slots=True)
class _Reported:
    """The reports of one subtask so far."""

    work: tuple[object, ...]  # As last seen.
    changed_ns: int
    at_ns: int

    def is_due(self, now_ns: int) -> bool:
        rests = now_ns - self.changed_ns > SETTLING_NS
        return not rests or now_ns - self.at_ns >= RESTING_INTERVAL_NS


class MetricsReports:
    """The reports of one worker's subtasks."""

    def __init__(self, reporter: Reporter) -> None:
        self._reporter = reporter
        self._reported: dict[SubtaskId, _Reported] = {}

    def is_due(self, chain: SubtaskId, now_ns: int) -> bool:
        """Whether a subtask is reported now though nothing of it has changed."""
        last = self._reported.get(chain)
        return last is None or last.is_due(now_ns)

    def offer(self, metrics: SubtaskMetrics, now_ns: int) -> None:
        """Report a subtask's counters, unless it rests and was reported not long ago."""
        work = _work(metrics)
        last = self._reported.get(metrics.chain)
        if last is None:
            self._reported[metrics.chain] = _Reported(work, now_ns, now_ns)
        elif last.work != work:
            last.work, last.changed_ns, last.at_ns = work, now_ns, now_ns
        elif last.is_due(now_ns):
            last.at_ns = now_ns
        else:
            return
        self._reporter.report(metrics)


def _work(metrics: SubtaskMetrics) -> tuple[object, ...]:
    """The counters that grow with work; idle time grows without."""
    return (
        metrics.records_in,
        metrics.records_out,
        metrics.bytes_in,
        metrics.bytes_out,
        metrics.busy_ms,
        metrics.back_pressured_ms,
        metrics.watermark_ms,
    )
