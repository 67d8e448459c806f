"""The windows of a job's history, and what numbers sum one up. Pure, except that rows are Django's.

Percentiles are durations that some checkpoint really took (nearest rank): of 20 checkpoints the
95th percentile is the 19th.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from math import ceil

from checkpoints.models import Checkpoint
from jobs.models import Attempt
from weir.protocol.lifecycle import CheckpointStatus

BARS_MAX = 1_000  # A screen has no more columns; of more checkpoints the longest are drawn.

# What went wrong is called.
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
    """The newest so many checkpoints, or those of a time until now."""

    key: str  # In addresses.
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
    """The window that an address asks for; the usual one where it asks for none, or another."""
    return WINDOWS.get(key or "", DEFAULT)


def durations_ms(rows: Sequence[Checkpoint]) -> list[int]:
    """How long those took that completed, in milliseconds."""
    return [
        row.duration_ms
        for row in rows
        if row.status != CheckpointStatus.ABORTED and row.duration_ms is not None
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
    found = sorted(rows, key=lambda row: row.number)
    run = ceil(len(found) / at_most)
    if run <= 1:
        return found
    kept: list[Checkpoint] = []
    for at in range(0, len(found), run):
        near = found[at : at + run]
        longest = max(near, key=lambda row: row.duration_ms or 0)
        kept += [row for row in near if row is longest or row.status == CheckpointStatus.ABORTED]
    return kept


@dataclass(frozen=True, slots=True)
class DownTime:
    """From the end of an attempt until the next one runs."""

    attempt: Attempt  # The one that took over.
    since: datetime
    until: datetime | None  # None: it is not back yet.


def down_times(attempts: Sequence[Attempt]) -> list[DownTime]:
    """When the job was down, from its attempts (oldest first, the first of them only as such)."""
    found = []
    for before, after in itertools.pairwise(attempts):
        until = after.running_at or after.ended_at
        since = before.ended_at or after.started_at - timedelta(milliseconds=after.backoff_ms or 0)
        found.append(DownTime(after, min(since, until or since), until))
    return found
