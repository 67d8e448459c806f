"""The windows of a job's history, and their percentiles. Pure, except that rows are Django's.

A percentile is the duration of an actual checkpoint (nearest rank): of 20 checkpoints the 95th
percentile is the 19th.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from checkpoints.models import Checkpoint
from frontend.job.outages import Deployment, outages
from jobs.models import Attempt
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus

BARS_MAX = 1_000  # A screen has no more columns; of more checkpoints the longest are drawn.

# Kinds of exceptions in words.
EXCEPTION_KINDS = {
    "attempt": "Attempt failed",
    "driver": "Driver lost",
    "subtask": "Subtask failed",
    "pipeline": "Pipeline failed",
    "notice": "Notice",
    "internal": "Internal error",
}


@dataclass(frozen=True, slots=True)
class Window:
    """A number of newest checkpoints, or the checkpoints of a period until now."""

    key: str  # The value in addresses.
    text: str
    count: int | None = None
    span: timedelta = timedelta()


WINDOWS = {
    window.key: window
    for window in (
        Window("50", "Last 50", count=50),
        Window("200", "Last 200", count=200),
        Window("1000", "Last 1,000", count=1_000),
        Window("hour", "Last hour", span=timedelta(hours=1)),
        Window("day", "Last day", span=timedelta(days=1)),
    )
}
DEFAULT = WINDOWS["200"]


def window(key: str | None) -> Window:
    """The window of an address; the default for none or an unknown one."""
    return WINDOWS.get(key or "", DEFAULT)


def durations_ms(rows: Sequence[Checkpoint]) -> list[int]:
    """The durations of the completed checkpoints. Units: milliseconds."""
    return [
        row.duration_ms
        for row in rows
        if row.status not in UNCOMPLETED and row.duration_ms is not None
    ]


def percentile(values: Sequence[float], share: float) -> float | None:
    """The least value that ``share`` of all do not exceed (nearest rank); None of no values."""
    if not values:
        return None
    return sorted(values)[max(ceil(share * len(values)), 1) - 1]


def drawn(rows: Sequence[Checkpoint], at_most: int = BARS_MAX) -> list[Checkpoint]:
    """The rows that get a bar: all, or of each run of neighbours the longest and all that failed.

    Args:
        rows: In any order.

    Returns:
        Oldest first.
    """
    ordered = sorted(rows, key=lambda row: row.number)
    run = ceil(len(ordered) / at_most)
    if run <= 1:
        return ordered
    kept: list[Checkpoint] = []
    for at in range(0, len(ordered), run):
        near = ordered[at : at + run]
        longest = max(near, key=lambda row: row.duration_ms or 0)
        kept += [row for row in near if row is longest or row.status == CheckpointStatus.FAILED]
    return kept


@dataclass(frozen=True, slots=True)
class DownTime:
    """An outage, with what its mark tells."""

    attempt: Attempt | None  # The one that took over, or is about to; None: there is none yet.
    since: datetime
    until: datetime | None  # None: no attempt runs yet.
    is_planned: bool = False
    cause: str = ""


def down_times(attempts: Sequence[Attempt], *, is_over: bool) -> list[DownTime]:
    """The outages between attempts, as the page of attempts counts them.

    Args:
        attempts: Consecutive ones with their drivers, oldest first.
        is_over: Whether the job has ended: then it is not down now.
    """
    by_number = {row.number: row for row in attempts}
    deployments = [Deployment.from_attempt(row) for row in attempts]
    downs = []
    for one in outages(deployments, is_over=is_over):
        last = by_number[one.ended]
        after = None if one.by is None else by_number[one.by]
        told = "" if one.is_planned or after is None else after.recovery_cause
        downs.append(DownTime(after, one.begins, one.ends, one.is_planned, told or last.cause))
    return downs
