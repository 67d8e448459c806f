"""The figures of one pipeline in one mode of checkpoints, from the events of its runs.

A ``RunMeter`` hears one run. ``combine`` makes one mode's figures of several runs: rates are the
median of the runs, and the checkpoints of all runs are taken together.

The runtime does not measure the latency of records. The figure nearest to it is the travel of a
barrier, from the trigger of a checkpoint until the last barrier of a sink's subtask. An aligned
barrier keeps its place among the records, so a record that the source emitted at the trigger takes
as long; an unaligned one overtakes the records, so there it says nothing about them.

Units: durations in milliseconds, sizes in bytes, rates in records per second.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskId
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import CheckpointSettled, CheckpointTriggered, JobChanged, JobEvent
from weir.protocol.events import Recovered as JobRecovered
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus
from weir.protocol.messages import Acknowledged, OperatorAck, SubtaskChanged, SubtaskMetrics

# Of a run's time: channels fill, tables grow and slices find their size, which no rate counts.
SETTLE_SHARE = 0.2
_OVER = (JobStatus.CANCELLING, JobStatus.CANCELED, JobStatus.FINISHED, JobStatus.FAILED)
_ENDED = (SubtaskStatus.ENDED, SubtaskStatus.FINISHED, SubtaskStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Percentiles:
    """The distribution of some values; each figure is one of the values."""

    count: int
    median: float
    p95: float
    p99: float
    most: float


@dataclass(frozen=True, slots=True)
class Spread:
    """The same figure of several runs."""

    median: float
    least: float
    most: float


@dataclass(frozen=True, slots=True)
class CheckpointFigures:
    """One checkpoint.

    ``duration_ms`` is up to its end, or up to the end of the run if that cut it off.
    """

    duration_ms: float
    status: CheckpointStatus
    alignment_ms: float = 0.0  # Of the subtask that aligned longest.
    barrier_to_sinks_ms: tuple[float, ...] = ()  # Of each subtask of a sink.
    state_bytes: int = 0
    in_flight_bytes: int = 0
    is_unaligned: bool = False  # A subtask took its snapshot before its last barrier.


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run; a rate is None where the run was too short to have one."""

    running_s: float
    source_rate: float | None
    sink_rate: float | None
    checkpoints: tuple[CheckpointFigures, ...]
    recoveries: int = 0
    failure: str = ""  # Why the job failed; empty: it did not.


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeFigures:
    """One mode, over all of its runs."""

    mode: str
    title: str
    runs: int
    running_s: float  # In all.
    failures: tuple[str, ...]
    recoveries: int
    source_records_per_s: Spread | None
    sink_records_per_s: Spread | None
    completed: int
    failed: int
    cut_off: int  # Under way when a run ended, or given up for that.
    cut_off_longest_ms: float | None  # They would have taken longer than that.
    unaligned: int  # Of those completed.
    duration_ms: Percentiles | None
    alignment_ms: Percentiles | None
    barrier_to_sinks_ms: Percentiles | None
    state_bytes: Percentiles | None
    in_flight_bytes: Percentiles | None
    durations_ms: tuple[float, ...] = field(repr=False)  # Of those completed, in order.


def percentiles(values: Iterable[float]) -> Percentiles | None:
    """The distribution of values, by nearest rank; None: there are none."""
    ordered = sorted(values)
    if not ordered:
        return None

    def at(percent: int) -> float:
        return ordered[-(-percent * len(ordered) // 100) - 1]

    return Percentiles(len(ordered), at(50), at(95), at(99), ordered[-1])


def combine(mode: str, title: str, runs: Sequence[RunFigures]) -> ModeFigures:
    """The figures of a mode from its runs, of which there is at least one."""
    checkpoints = [one for run in runs for one in run.checkpoints]
    completed = [one for one in checkpoints if one.status is CheckpointStatus.COMPLETED]
    failed = [one for one in checkpoints if one.status is CheckpointStatus.FAILED]
    settled = (CheckpointStatus.COMPLETED, CheckpointStatus.FAILED)
    cut_off = [one.duration_ms for one in checkpoints if one.status not in settled]
    return ModeFigures(
        mode=mode,
        title=title,
        runs=len(runs),
        running_s=sum(run.running_s for run in runs),
        failures=tuple(run.failure for run in runs if run.failure),
        recoveries=sum(run.recoveries for run in runs),
        source_records_per_s=_spread(run.source_rate for run in runs),
        sink_records_per_s=_spread(run.sink_rate for run in runs),
        completed=len(completed),
        failed=len(failed),
        cut_off=len(cut_off),
        cut_off_longest_ms=max(cut_off, default=None),
        unaligned=sum(one.is_unaligned for one in completed),
        duration_ms=percentiles(one.duration_ms for one in completed),
        alignment_ms=percentiles(one.alignment_ms for one in completed),
        barrier_to_sinks_ms=percentiles(ms for one in completed for ms in one.barrier_to_sinks_ms),
        state_bytes=percentiles(one.state_bytes for one in completed),
        in_flight_bytes=percentiles(one.in_flight_bytes for one in completed),
        durations_ms=tuple(one.duration_ms for one in completed),
    )


def _spread(rates: Iterable[float | None]) -> Spread | None:
    known = [rate for rate in rates if rate is not None]
    return Spread(median(known), min(known), max(known)) if known else None


@dataclass(slots=True)
class _Checkpoint:
    triggered_s: float
    acks: list[OperatorAck] = field(default_factory=list)
    settled: CheckpointSettled | None = None


class RunMeter:
    """Hears the events of one run, and says when the run has lasted long enough."""

    def __init__(self, graph: JobGraph, clock_s: Callable[[], float], limit_s: float) -> None:
        """Prepare to hear a job of this graph.

        Args:
            clock_s: A monotonic clock, in seconds.
            limit_s: The time for which the job may run.
        """
        self._clock_s = clock_s
        self._limit_s = limit_s
        chains = ExecutionGraph(graph).chains
        self._sinks = {op.uid for op in graph.operators if op.is_sink}
        self._source_chains = {c.head for c in chains if graph.operator(c.head).is_source}
        self._sink_chains = {c.head for c in chains if self._sinks & set(c.operators)}
        self._started_s: float | None = None
        self._ended_s: float | None = None
        self._samples: dict[tuple[AttemptNumber, SubtaskId], list[tuple[float, int]]] = {}
        self._over: set[tuple[AttemptNumber, SubtaskId]] = set()
        self._checkpoints: dict[CheckpointId, _Checkpoint] = {}
        self._recoveries = 0

    def is_enough(self) -> bool:
        """Whether the job has run for its time."""
        started = self._started_s
        return started is not None and self._clock_s() - started >= self._limit_s

    def on_event(self, event: JobEvent) -> None:
        """Fold one event in."""
        now_s = self._clock_s()
        match event:
            case JobChanged(status=JobStatus.RUNNING):
                self._started_s = now_s if self._started_s is None else self._started_s
            case JobChanged(status=status) if status in _OVER:
                self._ended_s = now_s if self._ended_s is None else self._ended_s
            case SubtaskChanged(attempt=attempt, chain=chain, status=status) if status in _ENDED:
                self._over.add((attempt, chain))
            case SubtaskMetrics(attempt=attempt, chain=chain, records_in=records):
                if (attempt, chain) not in self._over and self._ended_s is None:
                    self._samples.setdefault((attempt, chain), []).append((now_s, records))
            case CheckpointTriggered(checkpoint_id=number, kind=CheckpointKind.CHECKPOINT):
                self._checkpoints[number] = _Checkpoint(now_s)
            case Acknowledged(checkpoint_id=number) if number in self._checkpoints:
                self._checkpoints[number].acks += event.operators
            case CheckpointSettled(checkpoint_id=number) if number in self._checkpoints:
                self._checkpoints[number].settled = event
            case JobRecovered():
                self._recoveries += 1

    def figures(self, failure: str = "") -> RunFigures:
        """The figures of the run, once it is over; ``failure`` says why its job failed."""
        end_s = self._clock_s() if self._ended_s is None else self._ended_s
        start_s = end_s if self._started_s is None else self._started_s
        from_s = start_s + SETTLE_SHARE * (end_s - start_s)
        return RunFigures(
            running_s=end_s - start_s,
            source_rate=self._rate(self._source_chains, from_s),
            sink_rate=self._rate(self._sink_chains, from_s),
            checkpoints=tuple(self._checkpoint(one, end_s) for one in self._checkpoints.values()),
            recoveries=self._recoveries,
            failure=failure,
        )

    def _rate(self, heads: set[OperatorId], from_s: float) -> float | None:
        """Records per second that the subtasks of these chains took in, of sources that came out.

        Each attempt counts its own records; the time between two attempts counts for none.
        """
        rates: dict[SubtaskId, list[tuple[float, int]]] = {}
        for (_, chain), samples in self._samples.items():
            late = [sample for sample in samples if sample[0] >= from_s]
            if chain.operator in heads and len(late) > 1:
                (since, old), (until, new) = late[0], late[-1]
                rates.setdefault(chain, []).append((until - since, new - old))
        measured = [
            (sum(seconds for seconds, _ in parts), sum(records for _, records in parts))
            for parts in rates.values()
        ]
        known = [records / seconds for seconds, records in measured if seconds > 0]
        return sum(known) if known else None

    def _checkpoint(self, one: _Checkpoint, end_s: float) -> CheckpointFigures:
        settled = one.settled
        status = CheckpointStatus.PENDING if settled is None else settled.status
        duration_ms = (end_s - one.triggered_s) * 1_000 if settled is None else settled.duration_ms
        taken = [ack.metrics for ack in one.acks]
        return CheckpointFigures(
            duration_ms=float(duration_ms),
            status=status,
            alignment_ms=max((metrics.alignment_ms for metrics in taken), default=0.0),
            barrier_to_sinks_ms=tuple(
                ack.metrics.start_delay_ms + ack.metrics.alignment_ms
                for ack in one.acks
                if ack.subtask.operator in self._sinks
            ),
            state_bytes=0 if settled is None else settled.state_size,
            in_flight_bytes=sum(metrics.bytes_persisted_in_flight for metrics in taken),
            is_unaligned=any(metrics.unaligned for metrics in taken),
        )
