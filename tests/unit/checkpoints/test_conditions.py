"""Conditions of a job: what holds, how soon it needs a look, and what is planned and holds not."""

from datetime import UTC, datetime
from typing import Any

import pytest

from checkpoints.catalog.undeleted import Undeleted
from checkpoints.conditions.facts import gather
from checkpoints.conditions.judge import ConditionKind, Facts, Severity, list_conditions
from checkpoints.conditions.reasons import REASON, reason_text
from checkpoints.models import Checkpoint
from jobs.models import Job
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, JobStatus

NOW = datetime(2026, 1, 1, tzinfo=UTC)
EXPIRED, RESTARTED = FailureReason.CHECKPOINT_EXPIRED, FailureReason.JOB_RESTARTED


def facts(**known: Any) -> Facts:
    """A job that runs well: a checkpoint a second, the last one just completed."""
    return Facts(
        **{
            "status": JobStatus.RUNNING,
            "interval_ms": 1_000,
            "running_ms": 3_600_000,
            "since_completed_ms": 400,
            "last_duration_ms": 120,
            **known,
        }
    )


def texts(**known: Any) -> list[str]:
    return [item.text for item in list_conditions(facts(**known))]


def gathered(
    job: Job | None = None, *settled: Checkpoint, undeleted: Undeleted | None = None
) -> Facts:
    """The facts of a job and its settled checkpoints, newest first."""
    return gather(
        job or Job(status=JobStatus.RUNNING.value),
        NOW,
        driver_status=None,
        driver_heard_at=None,
        driver_created_at=None,
        attempt_running_at=None,
        completed=None,
        settled=settled,
        undeleted=undeleted,
    )


def failed(reason: FailureReason = EXPIRED) -> Checkpoint:
    return Checkpoint(status=CheckpointStatus.FAILED.value, reason=reason.value)


def aborted() -> Checkpoint:
    return Checkpoint(status=CheckpointStatus.ABORTED.value, reason=RESTARTED.value)


def completed() -> Checkpoint:
    return Checkpoint(status=CheckpointStatus.COMPLETED.value)


def test_a_job_that_runs_well_needs_none() -> None:
    assert texts() == []


def test_a_failed_job_says_why_by_the_last_line_of_its_traceback() -> None:
    cause = "Traceback (most recent call last):\n  File ...\nValueError: no column 'x'\n"
    (item,) = list_conditions(gathered(Job(status=JobStatus.FAILED.value, cause=cause)))
    assert (item.kind, item.severity) == (ConditionKind.JOB_FAILED, Severity.BAD)
    assert item.text == "The job failed: ValueError: no column 'x'"


@pytest.mark.parametrize("status", [JobStatus.FAILING, JobStatus.RESTARTING])
def test_a_job_that_recovers_says_from_what(status: JobStatus) -> None:
    (item,) = list_conditions(facts(status=status, cause="slot 1 was lost"))
    assert item.kind is ConditionKind.JOB_RECOVERING
    assert item.text == "The job is recovering from a failure: slot 1 was lost"


def test_a_restart_that_was_asked_for_needs_no_attention() -> None:
    job = Job(status=JobStatus.RESTARTING.value, is_planned=True, cause="rescaled to 4 by olga")
    assert list_conditions(gathered(job)) == []
    job.is_planned = False
    assert len(list_conditions(gathered(job))) == 1


def test_a_silent_driver_says_that_nothing_is_committed() -> None:
    assert texts(silent_ms=12_300, since_completed_ms=90_000) == [
        "The driver has not reported for 12 s. Until it is back or replaced, no checkpoint is "
        "taken and exactly-once sinks commit nothing."
    ]


def test_late_workers_are_named_but_not_a_tick_that_is_due_now() -> None:
    assert texts(tick_late_ms=4_000) == []
    (text,) = texts(tick_late_ms=31_000)
    assert text.startswith("The control plane's workers are 31 s behind.")


def test_a_driver_that_no_launcher_takes_is_named() -> None:
    created = {"status": JobStatus.CREATED, "running_ms": None, "since_completed_ms": None}
    assert texts(**created, launch_wait_ms=3_000) == []
    (text,) = texts(**created, launch_wait_ms=20_000)
    assert "Is the launcher running?" in text


def test_files_that_cannot_be_deleted_are_told_beside_everything_else() -> None:
    away = {"undeleted": 3, "undeleted_cause": "no space left on /checkpoints"}
    text = (
        "Files of 3 checkpoints that nothing needs cannot be deleted, and the storage grows: no "
        "space left on /checkpoints"
    )
    assert texts(**away) == [text]
    assert texts(undeleted=1) == [
        "Files of 1 checkpoint that nothing needs cannot be deleted, and the storage grows."
    ]
    for other in ({"failed_in_a_row": 1}, {"silent_ms": 12_300}, {"status": JobStatus.FAILING}):
        (first, last) = list_conditions(facts(**other, **away))
        assert (last.kind, last.severity) == (ConditionKind.FILES_NOT_DELETED, Severity.WARN)
        assert first.kind is not last.kind
    assert texts(status=JobStatus.CANCELED, **away) == []


def test_the_error_of_a_deletion_is_told_in_one_line() -> None:
    job = Job(status=JobStatus.RUNNING.value)
    told: Undeleted = {"count": 2, "cause": "the bucket is away\nat line 7"}
    known = gathered(job, undeleted=told)
    assert (known.undeleted, known.undeleted_cause) == (2, "the bucket is away")


@pytest.mark.parametrize(
    ("count", "is_all", "beginning"),
    [
        (1, False, "The last checkpoint failed: timed out"),
        (2, False, "The last 2 checkpoints failed. The newest: timed out"),
        (3, True, "At least the last 3 checkpoints failed."),
    ],
)
def test_failed_checkpoints_are_counted_and_explained(
    count: int, is_all: bool, beginning: str
) -> None:
    (text,) = texts(
        failed_in_a_row=count, failed_in_a_row_is_all=is_all, failed_reason="checkpoint_expired"
    )
    assert text.startswith(beginning)


@pytest.mark.parametrize(
    ("settled", "count", "is_all"),
    [
        ([], 0, False),
        ([aborted(), completed()], 0, False),
        ([aborted(), aborted()], 0, False),
        ([failed(), completed(), failed()], 1, False),
        ([failed(), aborted(), failed(), completed()], 2, False),
        ([aborted(), failed(), failed()], 2, True),
        ([failed()], 1, False),
    ],
)
def test_planned_ends_neither_count_among_failures_nor_interrupt_them(
    settled: list[Checkpoint], count: int, is_all: bool
) -> None:
    known = gathered(None, *settled)
    assert (known.failed_in_a_row, known.failed_in_a_row_is_all) == (count, is_all)


def test_the_reason_is_that_of_the_newest_failure() -> None:
    known = gathered(None, aborted(), failed(FailureReason.IO_EXCEPTION), failed())
    assert known.failed_reason == FailureReason.IO_EXCEPTION


def test_every_reason_has_words() -> None:
    assert set(REASON) == set(FailureReason)
    assert reason_text("") == ""
    assert reason_text("job_rescaled") == "the job was rescaled"


def test_a_checkpoint_that_is_overdue_is_named() -> None:
    assert texts(since_completed_ms=14_000) == []
    (text,) = texts(since_completed_ms=16_000)
    assert text.startswith("No checkpoint has completed for 16 s, though one is due every 1 s.")


def test_a_first_checkpoint_is_overdue_only_once_the_attempt_ran_for_long() -> None:
    assert texts(running_ms=3_000, since_completed_ms=None) == []
    assert texts(running_ms=3_000, since_completed_ms=900_000) == []  # It has just recovered.
    assert len(texts(running_ms=20_000, since_completed_ms=None)) == 1


def test_checkpoints_that_take_longer_than_the_interval_are_not_overdue() -> None:
    assert texts(since_completed_ms=50_000, last_duration_ms=20_000) == []


def test_no_checkpoint_is_missed_where_none_is_periodic() -> None:
    assert texts(interval_ms=None, since_completed_ms=None) == []


@pytest.mark.parametrize("status", [JobStatus.FINISHED, JobStatus.CANCELED])
def test_a_job_that_is_over_needs_none(status: JobStatus) -> None:
    assert texts(status=status, since_completed_ms=900_000, failed_in_a_row=2) == []
