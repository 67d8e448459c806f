"""One attempt, as far as its job master has brought it up, and what its subtasks have reported."""

from collections.abc import Collection
from dataclasses import dataclass, field

from weir.ids import AttemptNumber, SubtaskId
from weir.jobmaster.restore_choice import RestoreChoice
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged, SubtaskMetrics


@dataclass(slots=True)
class Attempt:
    """The current attempt."""

    number: AttemptNumber
    claimed: bool = False
    workers_asked: bool = False
    choosing: bool = False
    choice: RestoreChoice | None = None
    deployed: bool = False
    statuses: dict[SubtaskId, SubtaskStatus] = field(default_factory=dict)
    restored_bytes: int = 0
    metrics: dict[SubtaskId, SubtaskMetrics] = field(default_factory=dict)
    suspicion: tuple[str, int] | None = None  # A failure without its cause, and when to act on it.

    def changed(self, report: SubtaskChanged) -> None:
        """A subtask reached a status."""
        self.statuses[report.chain] = report.status
        self.restored_bytes += int(report.details.get("restored_bytes", 0))

    def have_all(self, subtasks: Collection[SubtaskId], *statuses: SubtaskStatus) -> bool:
        """Whether each of the subtasks has one of the statuses."""
        return all(self.statuses.get(subtask) in statuses for subtask in subtasks)

    def records_of(self, sources: Collection[SubtaskId]) -> int:
        """The records that the sources have emitted since the attempt began."""
        reports = (self.metrics.get(source) for source in sources)
        return sum(report.records_in for report in reports if report is not None)
