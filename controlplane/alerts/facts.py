"""The facts about a job that rules judge, in sections; pure.

A section is replaced when its rows change and stays equal otherwise: a kind of rule names the
sections that it reads, and is judged anew only when one of them differs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

HISTORY_MAX = 60  # Checkpoints of a job that are remembered.
ATTEMPTS_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """The status of a job and what follows from its submission."""

    status: str
    is_planned: bool
    cause: str = ""  # In one line.
    started_at: datetime | None = None
    ended_at: datetime | None = None
    interval_ms: float | None = None  # Null: no periodic checkpoints.
    recovery_target_s: float | None = None  # Null: the rule's limit counts.

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.ended_at is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A checkpoint that completed or failed; planned ends are left out."""

    number: int
    at: datetime
    is_completed: bool
    duration_ms: float | None = None
    alignment_ms: float = 0.0
    state_bytes: int = 0
    reason: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """The newest checkpoints of a job, oldest first.

    The last ``fresh`` of them ended since the last look: each of these is judged, so that none that
    came and went between two looks is missed.
    """

    ended: tuple[Ended, ...] = ()
    fresh: int = 0
    completed: Ended | None = None  # The newest; also where all of ``ended`` failed.

    def grown(self, new: tuple[Ended, ...]) -> "History":
        """The history with what ended since the last look."""
        if not new:
            return History(self.ended, 0, self.completed) if self.fresh else self
        kept = (*self.ended, *new)[-HISTORY_MAX:]
        completed = next((one for one in reversed(new) if one.is_completed), self.completed)
        return History(kept, min(len(new), len(kept)), completed)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """An attempt of a job."""

    number: int
    started_at: datetime
    running_at: datetime | None = None
    ended_at: datetime | None = None
    has_failed: bool = False
    cause: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverFacts:
    """The newest driver of a job."""

    number: int
    is_running: bool
    heard_at: datetime | None = None  # Or since when the control plane listens again, if later.


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainFacts:
    """The running subtasks of a chain."""

    chain: str
    back_pressured: float | None = None  # The largest share of time.
    busiest: float | None = None
    watermark_ms: int | None = None  # The least.
    updated_at: datetime | None = None  # The one that has been silent for longest.
    # Times at which there were bad records, with their number; of the last hour, in no order.
    bad_records: tuple[tuple[datetime, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotFacts:
    """A slot with running subtasks."""

    index: int
    host: str  # Empty: not known.
    cpu_wait: float | None = None  # The share of time in which its loop waited for a processor.
    memory_share: float | None = None  # Of its limit, by its process; None: without one.


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedOperation:
    """An operation that failed or expired."""

    id: str
    kind: str
    at: datetime
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """Everything that rules read about a job."""

    id: str
    name: str
    life: Life
    history: History = History()
    attempts: tuple[AttemptFacts, ...] = ()  # The newest first.
    driver: DriverFacts | None = None
    chains: tuple[ChainFacts, ...] = ()
    slots: tuple[SlotFacts, ...] = ()
    operations: tuple[FailedOperation, ...] = ()
    # Time and state in bytes of a checkpoint that completed so many seconds ago, or a bit before.
    sizes: Mapping[int, tuple[datetime, int]] = field(default_factory=dict)
