"""Warnings about a job, in sentences that say what they mean. Pure.

The list of jobs and the page of a job both take them from here, so they agree.
"""

from dataclasses import dataclass

from controlplane.base.formatting import interval, plural, rough_duration
from frontend.base.status import reason_text
from frontend.base.texts import headline
from weir.protocol.lifecycle import JobStatus

# A checkpoint this many intervals late is a warning; shorter intervals get the floor.
OVERDUE_INTERVALS = 5
OVERDUE_DURATIONS = 3  # Checkpoints that take longer than the interval run back to back.
OVERDUE_FLOOR_MS = 15_000.0
LATE_TICK_MS = 5_000.0  # Ticks come every second.
LAUNCH_PATIENCE_MS = 10_000.0

NOTHING_COMMITTED = "no checkpoint is taken and exactly-once sinks commit nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about a job that warnings depend on.

    Units: milliseconds; None where there is no such duration.
    """

    status: JobStatus
    cause: str = ""
    silent_ms: float | None = None  # Since the driver last reported, where that is too long.
    launch_wait_ms: float | None = (
        None  # Since the driver was requested, while no launcher has taken it.
    )
    tick_late_ms: float | None = None  # Since the coordinator's tick was due.
    interval_ms: float | None = None  # None: no periodic checkpoints.
    running_ms: float | None = None  # Since all subtasks of the newest attempt run.
    since_completed_ms: float | None = None  # Since a checkpoint completed; None: never.
    last_duration_ms: float = 0.0  # Of the newest completed checkpoint.
    failed_in_a_row: int = 0
    failed_in_a_row_is_all: bool = (
        False  # Every checkpoint that was read failed: there may be more.
    )
    failed_reason: str = ""  # Of the newest failed checkpoint.


@dataclass(frozen=True, slots=True)
class Attention:
    """One warning."""

    tone: str
    text: str


def list_warnings(facts: Facts, *, says_cause: bool = True) -> list[Attention]:
    """The warnings about a job, the worst first; empty where all is well.

    Args:
        says_cause: Whether the cause of a failed or failing job is a warning; false on a page that
            shows the cause by itself.
    """
    warnings: list[Attention] = []
    why = headline(facts.cause)
    match facts.status:
        case JobStatus.FAILED:
            text = f"The job failed: {why}" if why else "The job failed."
            return [Attention("bad", text)] if says_cause else []
        case JobStatus.FAILING | JobStatus.RESTARTING if says_cause:
            text = (
                f"The job is recovering from a failure: {why}" if why else "The job is recovering."
            )
            warnings.append(Attention("warn", text))
        case JobStatus.FINISHED | JobStatus.CANCELED:
            return []
    if facts.silent_ms is not None:
        warnings.append(
            Attention(
                "bad",
                f"The driver has not reported for {rough_duration(facts.silent_ms)}. Until it is "
                f"back or replaced, {NOTHING_COMMITTED}.",
            )
        )
    if facts.launch_wait_ms is not None and facts.launch_wait_ms > LAUNCH_PATIENCE_MS:
        warnings.append(
            Attention(
                "warn",
                "The driver has been waiting for a launcher for "
                f"{rough_duration(facts.launch_wait_ms)}. Is the launcher running?",
            )
        )
    if facts.tick_late_ms is not None and facts.tick_late_ms > LATE_TICK_MS:
        warnings.append(
            Attention(
                "bad",
                f"The control plane's workers are {rough_duration(facts.tick_late_ms)} behind. "
                f"Until they catch up, {NOTHING_COMMITTED}.",
            )
        )
    if (
        facts.status is JobStatus.RUNNING and not warnings
    ):  # Any of those explains late checkpoints.
        warnings += _checkpoints(facts)
    return warnings


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
