"""The table of reasons: which end of a checkpoint is a failure, and which was planned."""

import pytest

from weir.protocol.coordinator import END_REASONS, GIVE_UP_REASONS, STOP_REASONS
from weir.protocol.failures import DECLINE_REASONS
from weir.protocol.lifecycle import (
    COUNTING_REASONS,
    ENDS_AS,
    UNCOMPLETED,
    CheckpointStatus,
    FailureReason,
    JobStatus,
)
from weir.protocol.retention import ENDED

REFUSALS = {
    FailureReason.PERIODIC_SCHEDULER_SHUTDOWN,
    FailureReason.TOO_MANY_CHECKPOINT_REQUESTS,
    FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS,
    FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING,
}
PLANNED = {
    FailureReason.JOB_FINISHED,
    FailureReason.JOB_CANCELED,
    FailureReason.JOB_STOPPED,
    FailureReason.JOB_RESTARTED,
    FailureReason.JOB_RESCALED,
    FailureReason.JOB_ROLLED_BACK,
    FailureReason.CONTROL_PLANE_STOPPED,
}


def test_each_reason_ends_a_checkpoint_in_one_way_or_refuses_it() -> None:
    assert set(ENDS_AS) | REFUSALS == set(FailureReason)
    assert not set(ENDS_AS) & REFUSALS
    assert set(ENDS_AS.values()) == UNCOMPLETED


@pytest.mark.parametrize("reason", sorted(PLANNED))
def test_a_planned_end_aborts(reason: FailureReason) -> None:
    assert ENDS_AS[reason] is CheckpointStatus.ABORTED


def test_what_counts_towards_the_tolerated_failures_is_a_failure() -> None:
    assert {ENDS_AS[reason] for reason in COUNTING_REASONS} == {CheckpointStatus.FAILED}


def test_all_that_can_end_a_checkpoint_has_a_status() -> None:
    assert set(ENDS_AS) >= STOP_REASONS | GIVE_UP_REASONS | DECLINE_REASONS
    assert set(END_REASONS) == ENDED
    assert [status for status, reason in END_REASONS.items() if reason not in PLANNED] == [
        JobStatus.FAILED
    ]
