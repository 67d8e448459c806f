"""Conditions of a job that need attention, in sentences that say what they mean. Pure.

The list of jobs, the page of a job and alerts take them from here, so they agree. Planned ends are
no conditions: a restart that was asked for, a checkpoint that it aborted.
"""

from dataclasses import dataclass
from enum import StrEnum

from checkpoints.conditions.reasons import reason_text
from controlplane.base.formatting import interval, plural, rough_duration
from weir.protocol.lifecycle import JobStatus

# A checkpoint this many intervals late is overdue; shorter intervals get the floor.
OVERDUE_INTERVALS = 5
OVERDUE_DURATIONS = 3  # Checkpoints that take longer than the interval run back to back.
OVERDUE_FLOOR_MS = 15_000.0
LATE_TICK_MS = 5_000.0  # Ticks come every second.
LAUNCH_PATIENCE_MS = 10_000.0

NOTHING_COMMITTED = "no checkpoint is taken and exactly-once sinks commit nothing"
REDIS_AWAY = (
    "Redis cannot be reached, so the control plane's workers get no tasks. Until it is back, "
    f"{NOTHING_COMMITTED}."
)


class Severity(StrEnum):
    """The urgency of a condition: when a person should look."""

    WARN = "warn"  # Soon.
    BAD = "bad"  # Now.


class ConditionKind(StrEnum):
    """The kinds of conditions."""

    JOB_FAILED = "job_failed"
    JOB_RECOVERING = "job_recovering"
    DRIVER_SILENT = "driver_silent"
    DRIVER_NOT_LAUNCHED = "driver_not_launched"
    REDIS_AWAY = "redis_away"
    TICKS_LATE = "ticks_late"
    CHECKPOINTS_FAILING = "checkpoints_failing"
    CHECKPOINT_OVERDUE = "checkpoint_overdue"
    FILES_NOT_DELETED = "files_not_deleted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The facts about a job that conditions depend on.

    Units: milliseconds; None where there is no such duration.
    """

    status: JobStatus
    is_planned: bool = False  # The status follows from a request.
    cause: str = ""  # In one line.
    silent_ms: float | None = None  # Since the driver last reported, where that is too long.
    launch_wait_ms: float | None = (
        None  # Since the driver was requested, while no launcher has taken it.
    )
    is_redis_away: bool = False  # Without it the control plane's workers get no tasks.
    tick_late_ms: float | None = None  # Since the coordinator's tick was due.
    interval_ms: float | None = None  # None: no periodic checkpoints.
    running_ms: float | None = None  # Since all subtasks of the newest attempt run.
    since_completed_ms: float | None = None  # Since a checkpoint completed; None: never.
    last_duration_ms: float = 0.0  # Of the newest completed checkpoint.
    failed_in_a_row: int = 0  # Checkpoints; planned ends in between neither count nor end the row.
    failed_in_a_row_is_all: bool = False  # None that was read completed: there may be more.
    failed_reason: str = ""  # Of the newest failed checkpoint.
    undeleted: int = 0  # Checkpoints whose files nothing needs and cannot be deleted.
    undeleted_cause: str = ""  # In one line.


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition that holds."""

    kind: ConditionKind
    severity: Severity
    text: str


def list_conditions(facts: Facts) -> list[Condition]:
    """The conditions of a job that hold, the first to be read first; empty where all is well."""
    held: list[Condition] = []
    why = facts.cause
    match facts.status:
        case JobStatus.FAILED:
            text = f"The job failed: {why}" if why else "The job failed."
            return [Condition(ConditionKind.JOB_FAILED, Severity.BAD, text)]
        case JobStatus.RESTARTING if facts.is_planned:
            pass
        case JobStatus.FAILING | JobStatus.RESTARTING:
            text = (
                f"The job is recovering from a failure: {why}" if why else "The job is recovering."
            )
            held.append(Condition(ConditionKind.JOB_RECOVERING, Severity.WARN, text))
        case JobStatus.FINISHED | JobStatus.CANCELED:
            return []
    if facts.silent_ms is not None:
        held.append(
            Condition(
                ConditionKind.DRIVER_SILENT,
                Severity.BAD,
                f"The driver has not reported for {rough_duration(facts.silent_ms)}. Until it is "
                f"back or replaced, {NOTHING_COMMITTED}.",
            )
        )
    if facts.launch_wait_ms is not None and facts.launch_wait_ms > LAUNCH_PATIENCE_MS:
        held.append(
            Condition(
                ConditionKind.DRIVER_NOT_LAUNCHED,
                Severity.WARN,
                "The driver has been waiting for a launcher for "
                f"{rough_duration(facts.launch_wait_ms)}. Is the launcher running?",
            )
        )
    if facts.is_redis_away:
        held.append(
            Condition(
                ConditionKind.REDIS_AWAY,
                Severity.BAD,
                REDIS_AWAY,
            )
        )
    elif facts.tick_late_ms is not None and facts.tick_late_ms > LATE_TICK_MS:
        held.append(
            Condition(
                ConditionKind.TICKS_LATE,
                Severity.BAD,
                f"The control plane's workers are {rough_duration(facts.tick_late_ms)} behind. "
                f"Until they catch up, {NOTHING_COMMITTED}.",
            )
        )
    if facts.status is JobStatus.RUNNING and not held:  # Any of those explains late checkpoints.
        held += _of_checkpoints(facts)
    if facts.undeleted:
        held.append(_of_files(facts))
    return held


def _of_files(facts: Facts) -> Condition:
    which = plural(facts.undeleted, "checkpoint")
    why = f": {facts.undeleted_cause}" if facts.undeleted_cause else "."
    text = f"Files of {which} that nothing needs cannot be deleted, and the storage grows{why}"
    return Condition(ConditionKind.FILES_NOT_DELETED, Severity.WARN, text)


def _of_checkpoints(facts: Facts) -> list[Condition]:
    if facts.failed_in_a_row:
        because = reason_text(facts.failed_reason)
        text = f"The last checkpoint failed: {because}."
        if facts.failed_in_a_row > 1:
            which = "At least the last" if facts.failed_in_a_row_is_all else "The last"
            count = plural(facts.failed_in_a_row, "checkpoint")
            text = f"{which} {count} failed. The newest: {because}."
        return [Condition(ConditionKind.CHECKPOINTS_FAILING, Severity.WARN, text)]
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
        Condition(
            ConditionKind.CHECKPOINT_OVERDUE,
            Severity.WARN,
            f"No checkpoint has completed for {rough_duration(waited)}, though one is due every "
            f"{interval(facts.interval_ms)}. Exactly-once sinks commit nothing meanwhile.",
        )
    ]
