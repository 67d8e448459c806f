"""The history of a job: its status, checkpoints and recoveries, from the stream of events.

One fold over ``events.JobEvent``, shared by the result of ``execute`` and the terminal. Details of
checkpoints are kept for the newest ones; counts are kept for all.
"""

from collections import OrderedDict
from dataclasses import dataclass, field

from weir.ids import AttemptNumber, CheckpointId, SubtaskId
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CaughtUp,
    CheckpointsDiscarded,
    CheckpointSettled,
    CheckpointTriggered,
    JobChanged,
    JobEvent,
    Notice,
    Recovered,
    SlotChanged,
    WorkerStarted,
)
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    AlignmentProgress,
    Declined,
    OperatorAck,
    SubtaskChanged,
    SubtaskMetrics,
    SubtaskStalled,
)

DETAILED_MAX = 100
NO_ATTEMPT = AttemptNumber(0)


@dataclass(slots=True)
class CheckpointRecord:
    """One checkpoint, with its acknowledgements and its outcome so far."""

    triggered: CheckpointTriggered
    acks: dict[SubtaskId, OperatorAck] = field(default_factory=dict)
    settled: CheckpointSettled | None = None

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The checkpoint's id."""
        return self.triggered.checkpoint_id

    @property
    def kind(self) -> CheckpointKind:
        """The checkpoint's kind."""
        return self.triggered.kind

    @property
    def is_completed(self) -> bool:
        """Whether it may be restored from."""
        return self.settled is not None and self.settled.failure is None


@dataclass(slots=True)
class JobHistory:
    """The history of one job so far."""

    status: JobStatus = JobStatus.CREATED
    cause: str = ""  # Why the job fails or failed; empty again once it runs again.
    attempt: AttemptNumber = NO_ATTEMPT
    restored_checkpoint: CheckpointId | None = None
    checkpoints: OrderedDict[CheckpointId, CheckpointRecord] = field(default_factory=OrderedDict)
    completed_count: int = 0
    failed_count: int = 0
    aborted_count: int = 0  # By planned ends.
    recoveries: list[Recovered] = field(default_factory=list)
    caught_up: list[CaughtUp] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)
    subtasks: dict[SubtaskId, SubtaskStatus] = field(default_factory=dict)
    metrics: dict[SubtaskId, SubtaskMetrics] = field(default_factory=dict)

    def on_event(self, event: JobEvent) -> None:
        """Fold one event in."""
        match event:
            case JobChanged(_, status, cause):
                self.status = status
                self.cause = "" if status is JobStatus.RUNNING else cause or self.cause
            case AttemptStarted(_, attempt, restored, _):
                self.attempt, self.restored_checkpoint = attempt, restored
                self.subtasks.clear()
                self.metrics.clear()
            case CheckpointTriggered():
                self.checkpoints[event.checkpoint_id] = CheckpointRecord(event)
                while len(self.checkpoints) > DETAILED_MAX:
                    self.checkpoints.popitem(last=False)
            case Acknowledged():
                if record := self.checkpoints.get(event.checkpoint_id):
                    record.acks.update((ack.subtask, ack) for ack in event.operators)
            case CheckpointSettled():
                self._settle(event)
            case Recovered():
                self.recoveries.append(event)
            case CaughtUp():
                self.caught_up.append(event)
            case Notice():
                self.notices.append(event)
            case SubtaskChanged():
                self.subtasks[event.chain] = event.status
            case SubtaskMetrics():
                self.metrics[event.chain] = event
            case CheckpointsDiscarded() | Declined() | SlotChanged() | WorkerStarted():
                pass  # Their consequences have events of their own.
            case AlignmentProgress() | SubtaskStalled():
                pass  # About a moment that is over when the history is read.

    def _settle(self, event: CheckpointSettled) -> None:
        if record := self.checkpoints.get(event.checkpoint_id):
            record.settled = event
        match event.status:
            case CheckpointStatus.COMPLETED:
                self.completed_count += 1
            case CheckpointStatus.ABORTED:
                self.aborted_count += 1
            case _:
                self.failed_count += 1

    @property
    def latest_completed(self) -> CheckpointRecord | None:
        """The newest completed checkpoint, while its details are kept."""
        records = reversed(self.checkpoints.values())
        return next((record for record in records if record.is_completed), None)

    @property
    def under_way(self) -> CheckpointRecord | None:
        """The oldest checkpoint that is not settled."""
        return next((r for r in self.checkpoints.values() if r.settled is None), None)
