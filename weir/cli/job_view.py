"""The view of a running job: a fold over its events, and pictures of that fold for display.

The fold is cheap and runs on the thread that emits the events; the display makes a picture a few
times a second. Both take the time as an argument.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from weir.config import JobConfig
from weir.graph.logical import JobGraph
from weir.graph.physical import Chain, ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, SubtaskId
from weir.jobmaster.history import CheckpointRecord, JobHistory
from weir.protocol.events import AttemptStarted, JobEvent
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import OperatorAck, SubtaskMetrics

_RATE_REPORTS = 5  # Rates are over this many reports of a subtask, some two seconds.
_ENDED = (SubtaskStatus.ENDED, SubtaskStatus.FINISHED)


@dataclass(frozen=True, slots=True)
class SlowestChannel:
    """The channel whose barrier came last, measured from the first barrier of its subtask.

    Units: ``blocked_ms`` is the longest time another channel of the subtask was blocked meanwhile.
    """

    receiver: SubtaskId
    upstream: str
    arrived_ms: float
    blocked_ms: float


@dataclass(frozen=True, slots=True)
class CheckpointPicture:
    """One checkpoint: its acknowledgements, its times and its slowest channel.

    Units: ``elapsed_ms`` since the trigger, up to its end once it is settled.
    """

    checkpoint_id: CheckpointId
    acknowledged: int
    expected: int
    elapsed_ms: float
    age_ms: float = 0.0  # Since it was settled.
    state_size: int = 0
    slowest: SlowestChannel | None = None


@dataclass(frozen=True, slots=True)
class ChainPicture:
    """One chain of operators: its subtasks, its part of a checkpoint, its throughput.

    The counts of acknowledgements belong to the checkpoint under way, or else to the last completed
    one; the times (maxima over the subtasks) and the state size to the last completed one.
    """

    name: str
    parallelism: int
    running: int
    ended: int
    failed: int
    acknowledged: int | None = None  # None: no checkpoint yet.
    expected: int = 0
    start_delay_ms: float | None = None
    alignment_ms: float | None = None
    sync_ms: float | None = None
    async_ms: float | None = None
    state_size: int | None = None
    records_per_s: float | None = None
    busy: float | None = None  # Shares between 0 and 1.
    back_pressured: float | None = None
    cpu_wait: float | None = None  # Of the subtask whose slot waits most for a processor.
    watermark_ms: int | None = None
    bad_records: int = 0  # Since the attempt began.


@dataclass(frozen=True, slots=True)
class Picture:
    """The job at one moment."""

    name: str
    job_id: JobId
    status: JobStatus
    attempt: AttemptNumber
    uptime_ms: float
    completed_count: int
    failed_count: int
    aborted_count: int  # By planned ends.
    recovery_count: int
    chains: tuple[ChainPicture, ...]
    last: CheckpointPicture | None  # The newest completed one.
    under_way: CheckpointPicture | None
    now_ms: float


class JobView:
    """Folds the events of one job."""

    def __init__(self, job_id: JobId, graph: JobGraph, config: JobConfig) -> None:
        self.job_id = job_id
        self.name = graph.name
        self.config = config
        self.history = JobHistory()
        self.first_ms: float | None = None
        self.graph = ExecutionGraph(graph)
        self._sources = frozenset(self.graph.source_subtasks)
        self._reports: dict[SubtaskId, deque[tuple[float, SubtaskMetrics]]] = {}

    def on_event(self, event: JobEvent, now_ms: float) -> None:
        """Take in one event."""
        if self.first_ms is None:
            self.first_ms = now_ms
        self.history.on_event(event)
        if isinstance(event, SubtaskMetrics):
            reports = self._reports.setdefault(event.chain, deque(maxlen=_RATE_REPORTS))
            reports.append((now_ms, event))
        elif isinstance(event, AttemptStarted):
            self._reports.clear()

    @property
    def is_over(self) -> bool:
        """Whether the job reached its end."""
        return self.history.status in (JobStatus.FINISHED, JobStatus.FAILED, JobStatus.CANCELED)

    def picture(self, now_ms: float) -> Picture:
        """The job as it is now."""
        history = self.history
        last, under_way = history.latest_completed, history.under_way
        return Picture(
            name=self.name,
            job_id=self.job_id,
            status=history.status,
            attempt=history.attempt,
            uptime_ms=0.0 if self.first_ms is None else now_ms - self.first_ms,
            completed_count=history.completed_count,
            failed_count=history.failed_count,
            aborted_count=history.aborted_count,
            recovery_count=len(history.recoveries),
            chains=tuple(self._chain(chain, last, under_way) for chain in self.graph.chains),
            last=None if last is None else checkpoint_picture(last, now_ms),
            under_way=None if under_way is None else checkpoint_picture(under_way, now_ms),
            now_ms=now_ms,
        )

    def source_rate(self) -> float | None:
        """Records per second that all sources emit; None while nothing is known."""
        rates = [r for s in self._sources if (r := self._rate(s)) is not None]
        return sum(rates) if rates else None

    def _chain(
        self, chain: Chain, last: CheckpointRecord | None, under_way: CheckpointRecord | None
    ) -> ChainPicture:
        history = self.history
        subtasks = [SubtaskId(chain.head, index) for index in range(chain.parallelism)]
        statuses = [history.subtasks.get(subtask) for subtask in subtasks]
        counted = under_way or last
        acks = [] if last is None else _of_chain(chain, last.acks.values())
        busy = [b for s in subtasks if (b := self._busy(s)) is not None]
        rates = [r for s in subtasks if (r := self._rate(s)) is not None]
        watermarks = [
            m.watermark_ms
            for s in subtasks
            if (m := history.metrics.get(s)) is not None and m.watermark_ms is not None
        ]
        operators = set(chain.operators)
        return ChainPicture(
            name=" → ".join(self.graph.operator(uid).name for uid in chain.operators),
            parallelism=chain.parallelism,
            running=statuses.count(SubtaskStatus.RUNNING),
            ended=sum(status in _ENDED for status in statuses),
            failed=statuses.count(SubtaskStatus.FAILED),
            acknowledged=None if counted is None else len(_of_chain(chain, counted.acks.values())),
            expected=0
            if counted is None
            else sum(s.operator in operators for s in counted.triggered.expected),
            start_delay_ms=_largest(acks, lambda ack: ack.metrics.start_delay_ms),
            alignment_ms=_largest(acks, lambda ack: ack.metrics.alignment_ms),
            sync_ms=_largest(acks, lambda ack: ack.metrics.sync_ms),
            async_ms=_largest(acks, lambda ack: ack.metrics.async_ms),
            state_size=sum(ack.metrics.state_size for ack in acks) if acks else None,
            records_per_s=sum(rates) if rates else None,
            busy=sum(b for b, _, _ in busy) / len(busy) if busy else None,
            back_pressured=sum(p for _, p, _ in busy) / len(busy) if busy else None,
            cpu_wait=max((w for _, _, w in busy), default=None),
            watermark_ms=min(watermarks, default=None),
            bad_records=sum(m.bad_records for s in subtasks if (m := history.metrics.get(s))),
        )

    def _rate(self, subtask: SubtaskId) -> float | None:
        """Records per second that a subtask takes in; of a source, that it emits."""
        reports = self._reports.get(subtask, deque())
        if len(reports) < 2:
            return None
        (since, old), (until, new) = reports[0], reports[-1]
        if until <= since:
            return None
        return (new.records_in - old.records_in) * 1_000 / (until - since)

    def _busy(self, subtask: SubtaskId) -> tuple[float, float, float] | None:
        """A subtask's shares of time: busy, back-pressured, and its slot's wait for a processor."""
        reports = self._reports.get(subtask, deque())
        if len(reports) < 2:
            return None
        old, new = reports[0][1], reports[-1][1]
        busy = new.busy_ms - old.busy_ms
        held = new.back_pressured_ms - old.back_pressured_ms
        whole = busy + held + new.idle_ms - old.idle_ms
        waited = new.cpu_wait_ms - old.cpu_wait_ms
        return (busy / whole, held / whole, waited / whole) if whole > 0 else None


def checkpoint_picture(record: CheckpointRecord, now_ms: float) -> CheckpointPicture:
    """The picture of a checkpoint."""
    settled = record.settled
    return CheckpointPicture(
        checkpoint_id=record.checkpoint_id,
        acknowledged=len(record.acks),
        expected=len(record.triggered.expected),
        elapsed_ms=now_ms - record.triggered.at_ms if settled is None else settled.duration_ms,
        age_ms=0.0 if settled is None else now_ms - settled.at_ms,
        state_size=0 if settled is None else settled.state_size,
        slowest=slowest_channel(record.acks.values()),
    )


def slowest_channel(acks: Iterable[OperatorAck]) -> SlowestChannel | None:
    """The channel whose barrier came last; None where no subtask aligns several channels."""
    slowest: SlowestChannel | None = None
    for ack in acks:
        if sum(len(gate.upstream) for gate in ack.metrics.gates) < 2:
            continue
        blocked = max(ms for gate in ack.metrics.gates for ms in gate.blocked_ms)
        for gate in ack.metrics.gates:
            for upstream, arrived in zip(gate.upstream, gate.arrived_ms, strict=True):
                if arrived is not None and (slowest is None or arrived > slowest.arrived_ms):
                    slowest = SlowestChannel(ack.subtask, upstream, arrived, blocked)
    return slowest


def _of_chain(chain: Chain, acks: Iterable[OperatorAck]) -> list[OperatorAck]:
    operators = set(chain.operators)
    return [ack for ack in acks if ack.subtask.operator in operators]


def _largest(acks: list[OperatorAck], of: Callable[[OperatorAck], float]) -> float | None:
    return max(map(of, acks), default=None)
