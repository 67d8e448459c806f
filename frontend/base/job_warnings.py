"""What somebody should look at, in sentences that say what it means. Pure.

The list of jobs and the page of a job say the same, because both ask here.
"""

from dataclasses import dataclass

from controlplane.base.formatting import interval, plural, rough_duration
from frontend.base.status import reason_text
from frontend.base.texts import headline
from weir.protocol.lifecycle import JobStatus

# A checkpoint that is this many intervals late is worth a look; shorter intervals get the floor.
OVERDUE_INTERVALS = 5
OVERDUE_DURATIONS = 3  # Those that take longer than the interval come one after the other.
OVERDUE_FLOOR_MS = 15_000.0
LATE_TICK_MS = 5_000.0  # Ticks come every second.
LAUNCH_PATIENCE_MS = 10_000.0

NOTHING_COMMITTED = "no checkpoint is taken and exactly-once sinks commit nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a job; durations in milliseconds, None where there is none."""

    status: JobStatus
    cause: str = ""
    silent_ms: float | None = None  # The driver said nothing for so long, and it is too long.
    launch_wait_ms: float | None = None  # No launcher took the driver for so long.
    tick_late_ms: float | None = None  # The coordinator has been due for so long.
    interval_ms: float | None = None  # None: no periodic checkpoints.
    running_ms: float | None = None  # Since the newest attempt runs.
    since_completed_ms: float | None = None  # Since a checkpoint completed; None: never.
    last_duration_ms: float = 0.0  # How long the newest completed checkpoint took.
    failed_in_a_row: int = 0
    failed_in_a_row_is_all: bool = False  # There may be more than were looked at.
    failed_reason: str = ""  # Of the newest of them.


@dataclass(frozen=True, slots=True)
class Attention:
    """One thing to look at."""

    tone: str
    text: str


def list_warnings(facts: Facts, *, says_cause: bool = True) -> list[Attention]:
    """What should be looked at, the worst first; empty where all is well.

    Args:
        says_cause: The cause of a failed or failing job is part of it; a page that shows it anyway
            does without.
    """
    found: list[Attention] = []
    why = headline(facts.cause)
    match facts.status:
        case JobStatus.FAILED:
            text = f"The job failed: {why}" if why else "The job failed."
            return [Attention("bad", text)] if says_cause else []
        case JobStatus.FAILING | JobStatus.RESTARTING if says_cause:
            text = f"It is recovering from a failure: {why}" if why else "It is recovering."
            found.append(Attention("warn", text))
        case JobStatus.FINISHED | JobStatus.CANCELED:
            return []
    if facts.silent_ms is not None:
        found.append(
            Attention(
                "bad",
                f"The driver has said nothing for {rough_duration(facts.silent_ms)}. Until it is "
                f"back or replaced, {NOTHING_COMMITTED}.",
            )
        )
    if facts.launch_wait_ms is not None and facts.launch_wait_ms > LAUNCH_PATIENCE_MS:
        found.append(
            Attention(
                "warn",
                "Its driver has been waiting for a launcher for "
                f"{rough_duration(facts.launch_wait_ms)}. Is the launcher running?",
            )
        )
    if facts.tick_late_ms is not None and facts.tick_late_ms > LATE_TICK_MS:
        found.append(
            Attention(
                "bad",
                f"The control plane's workers are {rough_duration(facts.tick_late_ms)} late. "
                f"Until they are back, {NOTHING_COMMITTED}.",
            )
        )
    if facts.status is JobStatus.RUNNING and not found:  # Else that is why.
        found += _checkpoints(facts)
    return found


def _checkpoints(facts: Facts) -> list[Attention]:
    if facts.failed_in_a_row:
        because = reason_text(facts.failed_reason)
        if facts.failed_in_a_row == 1:
            return [Attention("warn", f"The last checkpoint failed: {because}.")]
        which = "At least the last" if facts.failed_in_a_row_is_all else "The last"
        count = plural(facts.failed_in_a_row, "checkpoint")
        return [Attention("warn", f"{which} {count} failed. The newest: {because}.")]
    if facts.interval_ms is None or facts.running_ms is None:
        return []
    patience = max(
        OVERDUE_FLOOR_MS,
        OVERDUE_INTERVALS * facts.interval_ms,
        OVERDUE_DURATIONS * facts.last_duration_ms,
    )
    waited = min(facts.running_ms, facts.since_completed_ms or facts.running_ms)
    if waited <= patience:
        return []
    return [
        Attention(
            "warn",
            f"No checkpoint has completed for {rough_duration(waited)}, though one is due every "
            f"{interval(facts.interval_ms)}. Exactly-once sinks commit nothing meanwhile.",
        )
    ]
