"""The fold over a job's events."""

from tests.builders import ack, subtask
from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.history import DETAILED_MAX, JobHistory
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    CheckpointTriggered,
    JobChanged,
    JobEvent,
    Notice,
)
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import SubtaskChanged


def history(*events: JobEvent) -> JobHistory:
    folded = JobHistory()
    for event in events:
        folded.on_event(event)
    return folded


def triggered(checkpoint_id: int) -> CheckpointTriggered:
    return CheckpointTriggered(0, CheckpointId(checkpoint_id), CheckpointKind.CHECKPOINT, ())


def settled(checkpoint_id: int, failure: FailureReason | None = None) -> CheckpointSettled:
    return CheckpointSettled(0, CheckpointId(checkpoint_id), 5, failure)


def changed(status: JobStatus, cause: str = "") -> JobChanged:
    return JobChanged(0, status, cause)


def test_a_checkpoint_collects_its_acknowledgements_until_it_settles() -> None:
    folded = history(triggered(1), ack("source-0", 1), triggered(2))
    assert set(folded.checkpoints[CheckpointId(1)].acks) == {
        subtask("source-0"),
        subtask("parse-0"),
    }
    assert folded.under_way is folded.checkpoints[CheckpointId(1)]
    folded.on_event(settled(1))
    assert folded.under_way is folded.checkpoints[CheckpointId(2)]
    assert folded.latest_completed is folded.checkpoints[CheckpointId(1)]


def test_completed_and_failed_checkpoints_are_counted_apart() -> None:
    failed = settled(2, FailureReason.CHECKPOINT_EXPIRED)
    folded = history(triggered(1), settled(1), triggered(2), failed)
    assert (folded.completed_count, folded.failed_count) == (1, 1)
    assert folded.latest_completed is folded.checkpoints[CheckpointId(1)]
    assert not folded.checkpoints[CheckpointId(2)].is_completed


def test_details_are_bounded_and_counts_are_not() -> None:
    count = DETAILED_MAX + 20
    folded = history(*(e for n in range(1, count + 1) for e in (triggered(n), settled(n))))
    assert folded.completed_count == count
    assert next(iter(folded.checkpoints)) == 21
    folded.on_event(settled(1))  # Of one whose details are gone.
    assert folded.completed_count == count + 1


def test_a_new_attempt_forgets_the_subtasks_of_the_old_one() -> None:
    running = SubtaskChanged(AttemptNumber(1), subtask("source-0"), SubtaskStatus.RUNNING)
    folded = history(running, AttemptStarted(0, AttemptNumber(2), CheckpointId(7)))
    assert folded.subtasks == {}
    assert (folded.attempt, folded.restored_checkpoint) == (2, 7)


def test_the_cause_of_a_failure_lasts_until_the_job_runs_again() -> None:
    folded = history(changed(JobStatus.FAILING, "killed"), changed(JobStatus.RESTARTING))
    assert folded.cause == "killed"
    folded.on_event(changed(JobStatus.RUNNING))
    assert folded.cause == ""
    folded.on_event(changed(JobStatus.FAILED, "for good"))
    assert (folded.status, folded.cause) == (JobStatus.FAILED, "for good")


def test_notices_are_kept_in_order() -> None:
    assert [n.text for n in history(Notice(1, "a"), Notice(2, "b")).notices] == ["a", "b"]
