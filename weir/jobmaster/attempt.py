"""One attempt, as far as its job master has brought it up, and what its subtasks have reported."""

from collections.abc import Collection
from dataclasses import dataclass, field

from weir.ids import AttemptNumber, SubtaskId
from weir.jobmaster.restore_choice import RestoreChoice
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import SubtaskChanged, SubtaskMetrics

_NAMED_MAX = 3  # Damaged copies in one text.


@dataclass(slots=True)
class Attempt:
    """The current attempt."""

    number: AttemptNumber
    trusts_files: bool = True  # Only its workers read the state that it restores.
    has_run: bool = False  # All its subtasks have.
    claimed: bool = False
    workers_asked: bool = False
    choosing: bool = False
    choice: RestoreChoice | None = None
    deployed: bool = False
    statuses: dict[SubtaskId, SubtaskStatus] = field(default_factory=dict)
    restored_bytes: int = 0
    restored_local_bytes: int | None = None  # Of these, from copies of slots; None: none are kept.
    damaged_copies: list[str] = field(default_factory=list)  # Of each: why it was not taken.
    metrics: dict[SubtaskId, SubtaskMetrics] = field(default_factory=dict)
    suspicion: tuple[str, int] | None = None  # A failure without its cause, and when to act on it.

    def changed(self, report: SubtaskChanged) -> None:
        """A subtask reached a status."""
        self.statuses[report.chain] = report.status
        self.restored_bytes += int(report.details.get("restored_bytes", 0))
        if (local_bytes := report.details.get("restored_local_bytes")) is not None:
            self.restored_local_bytes = (self.restored_local_bytes or 0) + int(local_bytes)
        damaged = report.details.get("damaged_copies", ())
        self.damaged_copies += [f"{report.chain}: {text}" for text in damaged]

    @property
    def damage(self) -> str:
        """The copies of slots that its restore met damaged, for the user; empty: none."""
        damaged = self.damaged_copies
        if not damaged:
            return ""
        count = len(damaged)
        copies = (
            "a local copy of state was" if count == 1 else f"{count} local copies of state were"
        )
        more = f"; and {count - _NAMED_MAX} more" if count > _NAMED_MAX else ""
        named = "; ".join(damaged[:_NAMED_MAX])
        return f"{copies} damaged, and read from the storage instead: {named}{more}"

    def have_all(self, subtasks: Collection[SubtaskId], *statuses: SubtaskStatus) -> bool:
        """Whether each of the subtasks has one of the statuses."""
        return all(self.statuses.get(subtask) in statuses for subtask in subtasks)

    def records_of(self, sources: Collection[SubtaskId]) -> int:
        """The records that the sources have emitted since the attempt began."""
        reports = (self.metrics.get(source) for source in sources)
        return sum(report.records_in for report in reports if report is not None)
