"""The failure counter: which failed checkpoints are tolerated, and when they fail the job.

A failed checkpoint loses nothing by itself. But a job whose checkpoints keep failing has no recent
state to restore, so after more than ``tolerable_failures`` in a row it is restarted.

Source: Flink, CheckpointFailureManager; there a savepoint that a subtask declines counts.
"""

from collections.abc import Set
from dataclasses import dataclass, replace

from weir.ids import CheckpointId
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import COUNTING_REASONS, FailureReason
from weir.protocol.pending import SAVEPOINT_KINDS

# Reasons that a subtask may give for declining.
DECLINE_REASONS: Set[FailureReason] = frozenset(
    {
        FailureReason.IO_EXCEPTION,
        FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        FailureReason.CHECKPOINT_DECLINED,
        FailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY,
        FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING,
        FailureReason.CHECKPOINT_DECLINED_SUBSUMED,
        FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER,
        FailureReason.TASK_FAILURE,
    }
)

# With these reasons the attempt is over, so it need not be failed any more.
_ATTEMPT_OVER: Set[FailureReason] = frozenset(
    {
        FailureReason.JOB_FAILOVER,
        FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN,
        FailureReason.JOB_FINISHED,
        FailureReason.JOB_CANCELED,
        FailureReason.JOB_STOPPED,
        FailureReason.JOB_RESTARTED,
        FailureReason.JOB_RESCALED,
        FailureReason.JOB_ROLLED_BACK,
        FailureReason.CONTROL_PLANE_STOPPED,
    }
)

# Enough to recognise any checkpoint that can still be under way: with more than this many failures
# in a row, tolerance is effectively unlimited and counting a checkpoint twice makes no difference.
COUNTED_MAX = 1_000


@dataclass(frozen=True, slots=True)
class FailureCount:
    """Counting failures in a row."""

    in_a_row: int = 0
    counted_ids: tuple[CheckpointId, ...] = ()
    last_success_id: CheckpointId | None = None


def succeeded(count: FailureCount, checkpoint_id: CheckpointId) -> FailureCount:
    """Reset the count, unless a newer checkpoint succeeded before."""
    if count.last_success_id is not None and checkpoint_id <= count.last_success_id:
        return count
    return FailureCount(last_success_id=checkpoint_id)


def failed(
    count: FailureCount,
    checkpoint_id: CheckpointId,
    kind: CheckpointKind,
    reason: FailureReason,
    *,
    tolerable: int,
) -> tuple[FailureCount, bool]:
    """Count one failed checkpoint; the second value says that the job must fail.

    A savepoint never counts: its requester gets the error, and the cause may be the directory that
    they chose. Subtasks that paused for a stop go on. But a stop that drains has ended the sources
    for good, so the job must be restored from its newest checkpoint.
    """
    if kind is CheckpointKind.STOP_DRAIN and reason not in _ATTEMPT_OVER:
        return replace(count, in_a_row=0, counted_ids=()), True
    if kind in SAVEPOINT_KINDS:
        return count, False
    if reason not in COUNTING_REASONS or checkpoint_id in count.counted_ids:
        return count, False
    if count.last_success_id is not None and checkpoint_id < count.last_success_id:
        return count, False  # A newer one succeeded: there is recent state to restore.
    in_a_row = count.in_a_row + 1
    if in_a_row > tolerable:
        return replace(count, in_a_row=0, counted_ids=()), True
    counted_ids = (*count.counted_ids, checkpoint_id)[-COUNTED_MAX:]
    return replace(count, in_a_row=in_a_row, counted_ids=counted_ids), False
