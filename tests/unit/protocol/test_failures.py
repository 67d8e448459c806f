"""Which failed checkpoints count, and when they are too many."""

import pytest

from tests.unit.protocol.test_lifecycle import PLANNED
from weir.ids import CheckpointId
from weir.protocol.elements import CheckpointKind
from weir.protocol.failures import COUNTED_MAX, FailureCount, failed, succeeded
from weir.protocol.lifecycle import COUNTING_REASONS, FailureReason


def fail(
    count: FailureCount,
    checkpoint_id: int,
    *,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    reason: FailureReason = FailureReason.CHECKPOINT_EXPIRED,
    tolerable: int = 9,
) -> tuple[FailureCount, bool]:
    return failed(count, CheckpointId(checkpoint_id), kind, reason, tolerable=tolerable)


@pytest.mark.parametrize("reason", FailureReason)
def test_exactly_the_counting_reasons_count(reason: FailureReason) -> None:
    count, _ = fail(FailureCount(), 1, reason=reason)
    assert count.in_a_row == (1 if reason in COUNTING_REASONS else 0)


def test_the_first_failure_beyond_the_tolerated_ones_fails_the_job_and_counting_starts_over() -> (
    None
):
    count, must_fail = fail(FailureCount(), 1, tolerable=2)
    assert not must_fail
    count, must_fail = fail(count, 2, tolerable=2)
    assert not must_fail
    count, must_fail = fail(count, 3, tolerable=2)
    assert must_fail
    assert count == FailureCount()


def test_one_checkpoint_counts_once() -> None:
    once, _ = fail(FailureCount(), 1, tolerable=1)
    assert fail(once, 1, tolerable=1) == (once, False)


def test_a_success_starts_the_count_over() -> None:
    count, _ = fail(FailureCount(), 1)
    assert succeeded(count, CheckpointId(2)) == FailureCount(last_success_id=CheckpointId(2))


def test_an_older_success_does_not_start_the_count_over() -> None:
    count, _ = fail(succeeded(FailureCount(), CheckpointId(5)), 6)
    assert succeeded(count, CheckpointId(4)) == count


def test_a_failure_older_than_the_last_success_does_not_count() -> None:
    count = succeeded(FailureCount(), CheckpointId(5))
    assert fail(count, 4, tolerable=0) == (count, False)
    assert fail(count, 6, tolerable=0)[1]


@pytest.mark.parametrize("kind", [CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND])
@pytest.mark.parametrize("reason", FailureReason)
def test_a_savepoint_that_failed_leaves_the_job_running(
    kind: CheckpointKind, reason: FailureReason
) -> None:
    assert fail(FailureCount(), 1, kind=kind, reason=reason, tolerable=0) == (FailureCount(), False)


@pytest.mark.parametrize("reason", FailureReason)
def test_a_drain_that_failed_fails_the_job_unless_its_attempt_is_over(
    reason: FailureReason,
) -> None:
    _, must_fail = fail(FailureCount(), 1, kind=CheckpointKind.STOP_DRAIN, reason=reason)
    over = (FailureReason.JOB_FAILOVER, FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN)
    assert must_fail is (reason not in (*over, *PLANNED))


def test_what_is_remembered_of_failures_is_bounded() -> None:
    count = FailureCount()
    for checkpoint_id in range(1, COUNTED_MAX + 10):
        count, _ = fail(count, checkpoint_id, tolerable=10**9)
    assert count.in_a_row == COUNTED_MAX + 9
    assert len(count.counted_ids) == COUNTED_MAX
