"""The reasons of checkpoints that were refused, failed or were aborted, in words. Pure."""

from collections.abc import Mapping

from weir.protocol.lifecycle import FailureReason

REASON: Mapping[FailureReason, str] = {
    FailureReason.PERIODIC_SCHEDULER_SHUTDOWN: "periodic checkpoints were switched off",
    FailureReason.TOO_MANY_CHECKPOINT_REQUESTS: "too many checkpoint requests were waiting",
    FailureReason.MINIMUM_TIME_BETWEEN_CHECKPOINTS: "the minimum pause was not over",
    FailureReason.NOT_ALL_REQUIRED_TASKS_RUNNING: "not all subtasks were running",
    FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN: "the job failed",
    FailureReason.IO_EXCEPTION: "reading or writing failed",
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION: "writing a snapshot failed",
    FailureReason.CHECKPOINT_EXPIRED: "timed out before all subtasks acknowledged",
    FailureReason.CHECKPOINT_DECLINED: "a subtask declined it",
    FailureReason.FINALIZE_CHECKPOINT_FAILURE: "its manifest could not be written",
    FailureReason.CHECKPOINT_SUBSUMED: "a newer checkpoint completed first",
    FailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY: "a subtask was not ready",
    FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING: "a subtask was closing",
    FailureReason.CHECKPOINT_DECLINED_SUBSUMED: "a newer barrier arrived first",
    FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER: "a subtask upstream cancelled it",
    FailureReason.CHECKPOINT_COORDINATOR_SUSPEND: "checkpoints were suspended",
    FailureReason.JOB_FAILOVER: "the job was recovering from a failure",
    FailureReason.TASK_FAILURE: "a subtask failed",
    FailureReason.CONTROL_PLANE_AWAY: "the control plane could not be reached",
    FailureReason.JOB_FINISHED: "the job finished",
    FailureReason.JOB_CANCELED: "the job was cancelled",
    FailureReason.JOB_STOPPED: "the job was stopped with a savepoint",
    FailureReason.JOB_RESTARTED: "the job was restarted",
    FailureReason.JOB_RESCALED: "the job was rescaled",
    FailureReason.JOB_ROLLED_BACK: "the job was rolled back",
    FailureReason.CONTROL_PLANE_STOPPED: "the control plane was stopped",
}


def reason_text(reason: str) -> str:
    """The reason in words; empty for none."""
    return REASON[FailureReason(reason)] if reason else ""
