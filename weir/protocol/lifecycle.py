"""The life cycles of a checkpoint, a job and a subtask, each as one table.

The coordinator, the job master, the stored form and the tests all read these tables; nothing else
decides which change of status is legal.
"""

from collections.abc import Mapping, Set
from enum import StrEnum


class CheckpointStatus(StrEnum):
    """The status of one checkpoint."""

    PENDING = "pending"  # triggered, acknowledgements outstanding
    FINALIZING = "finalizing"  # all acknowledged, manifest being written
    COMPLETED = "completed"  # manifest durable, may be restored from
    FAILED = "failed"  # it never will be completed, and a FailureReason says why
    ABORTED = "aborted"  # the same, as planned: the effect of a request, and no failure
    SUBSUMED = "subsumed"  # released by retention after a newer one completed
    DISCARDED = "discarded"  # its files are deleted


TRANSITIONS: Mapping[CheckpointStatus, Set[CheckpointStatus]] = {  # without a row: final
    CheckpointStatus.PENDING: {
        CheckpointStatus.FINALIZING,
        CheckpointStatus.FAILED,
        CheckpointStatus.ABORTED,
    },
    CheckpointStatus.FINALIZING: {
        CheckpointStatus.COMPLETED,
        CheckpointStatus.FAILED,
        CheckpointStatus.ABORTED,
    },
    CheckpointStatus.COMPLETED: {CheckpointStatus.SUBSUMED, CheckpointStatus.DISCARDED},
    CheckpointStatus.SUBSUMED: {CheckpointStatus.DISCARDED},
}
UNCOMPLETED: Set[CheckpointStatus] = frozenset({CheckpointStatus.FAILED, CheckpointStatus.ABORTED})


class JobStatus(StrEnum):
    """The status of a job. Names are Flink's."""

    CREATED = "created"
    INITIALIZING = "initializing"  # slots register, subtasks are being deployed and restored
    RUNNING = "running"
    FAILING = "failing"  # an attempt failed; its subtasks are being stopped
    RESTARTING = "restarting"  # waiting for the restart delay
    CANCELLING = "cancelling"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


JOB_TRANSITIONS: Mapping[JobStatus, Set[JobStatus]] = {  # without a row: final
    JobStatus.CREATED: {JobStatus.INITIALIZING, JobStatus.CANCELED, JobStatus.FAILED},
    JobStatus.INITIALIZING: {
        JobStatus.RUNNING,
        JobStatus.FAILING,
        JobStatus.CANCELLING,
        JobStatus.FAILED,
    },
    JobStatus.RUNNING: {JobStatus.FINISHED, JobStatus.FAILING, JobStatus.CANCELLING},
    JobStatus.FAILING: {JobStatus.RESTARTING, JobStatus.FAILED, JobStatus.CANCELLING},
    JobStatus.RESTARTING: {JobStatus.INITIALIZING, JobStatus.CANCELLING, JobStatus.FAILED},
    JobStatus.CANCELLING: {JobStatus.CANCELED, JobStatus.FAILED},
}


class SubtaskStatus(StrEnum):
    """The status of one subtask of one attempt."""

    DEPLOYING = "deploying"
    INITIALIZING = "initializing"  # restoring its state
    RUNNING = "running"
    ENDED = "ended"  # all input processed; still takes part in checkpoints
    FINISHED = "finished"  # ended, and everything it committed is durable
    FAILED = "failed"
    CANCELED = "canceled"


class FailureReason(StrEnum):
    """The reason why a checkpoint was refused, failed or was aborted.

    Source: Flink's CheckpointFailureReason; the names are kept so that its users find their way.
    The names of planned ends are Weir's: Flink calls most of them a suspended coordinator.
    """

    # Refused before it began: no id was consumed.
    PERIODIC_SCHEDULER_SHUTDOWN = "periodic_scheduler_shutdown"
    TOO_MANY_CHECKPOINT_REQUESTS = "too_many_checkpoint_requests"
    MINIMUM_TIME_BETWEEN_CHECKPOINTS = "minimum_time_between_checkpoints"
    NOT_ALL_REQUIRED_TASKS_RUNNING = "not_all_required_tasks_running"
    CHECKPOINT_COORDINATOR_SHUTDOWN = "checkpoint_coordinator_shutdown"
    # Counting: too many in a row fail the job.
    IO_EXCEPTION = "io_exception"
    CHECKPOINT_ASYNC_EXCEPTION = "checkpoint_async_exception"
    CHECKPOINT_EXPIRED = "checkpoint_expired"
    CHECKPOINT_DECLINED = "checkpoint_declined"
    FINALIZE_CHECKPOINT_FAILURE = "finalize_checkpoint_failure"
    # Not counting.
    CHECKPOINT_SUBSUMED = "checkpoint_subsumed"
    CHECKPOINT_DECLINED_TASK_NOT_READY = "checkpoint_declined_task_not_ready"
    CHECKPOINT_DECLINED_TASK_CLOSING = "checkpoint_declined_task_closing"
    CHECKPOINT_DECLINED_SUBSUMED = "checkpoint_declined_subsumed"
    CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER = "checkpoint_declined_on_cancellation_barrier"
    CHECKPOINT_COORDINATOR_SUSPEND = "checkpoint_coordinator_suspend"
    JOB_FAILOVER = "job_failover"
    TASK_FAILURE = "task_failure"
    CONTROL_PLANE_AWAY = "control_plane_away"
    # Planned: the end of the job or of its driver was asked for, or its input ended.
    JOB_FINISHED = "job_finished"
    JOB_CANCELED = "job_canceled"
    JOB_STOPPED = "job_stopped"  # With a savepoint, which has completed.
    JOB_RESTARTED = "job_restarted"
    JOB_RESCALED = "job_rescaled"
    JOB_ROLLED_BACK = "job_rolled_back"
    CONTROL_PLANE_STOPPED = "control_plane_stopped"  # In order, and the drivers with it.


ENDS_AS: Mapping[FailureReason, CheckpointStatus] = {  # without an entry: refused, so no status
    FailureReason.IO_EXCEPTION: CheckpointStatus.FAILED,
    FailureReason.CHECKPOINT_ASYNC_EXCEPTION: CheckpointStatus.FAILED,
    FailureReason.CHECKPOINT_EXPIRED: CheckpointStatus.FAILED,
    FailureReason.CHECKPOINT_DECLINED: CheckpointStatus.FAILED,
    FailureReason.FINALIZE_CHECKPOINT_FAILURE: CheckpointStatus.FAILED,
    FailureReason.CHECKPOINT_DECLINED_TASK_NOT_READY: CheckpointStatus.FAILED,
    FailureReason.CHECKPOINT_DECLINED_SUBSUMED: CheckpointStatus.FAILED,
    FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER: CheckpointStatus.FAILED,
    FailureReason.CHECKPOINT_COORDINATOR_SHUTDOWN: CheckpointStatus.FAILED,  # The job failed.
    FailureReason.JOB_FAILOVER: CheckpointStatus.FAILED,
    FailureReason.TASK_FAILURE: CheckpointStatus.FAILED,
    # A newer one is complete, so nothing is missing.
    FailureReason.CHECKPOINT_SUBSUMED: CheckpointStatus.ABORTED,
    FailureReason.CHECKPOINT_DECLINED_TASK_CLOSING: CheckpointStatus.ABORTED,
    FailureReason.CHECKPOINT_COORDINATOR_SUSPEND: CheckpointStatus.ABORTED,
    # The job runs on. Its driver cannot tell a control plane that is upgraded from one that died.
    FailureReason.CONTROL_PLANE_AWAY: CheckpointStatus.ABORTED,
    FailureReason.JOB_FINISHED: CheckpointStatus.ABORTED,
    FailureReason.JOB_CANCELED: CheckpointStatus.ABORTED,
    FailureReason.JOB_STOPPED: CheckpointStatus.ABORTED,
    FailureReason.JOB_RESTARTED: CheckpointStatus.ABORTED,
    FailureReason.JOB_RESCALED: CheckpointStatus.ABORTED,
    FailureReason.JOB_ROLLED_BACK: CheckpointStatus.ABORTED,
    FailureReason.CONTROL_PLANE_STOPPED: CheckpointStatus.ABORTED,
}

COUNTING_REASONS: Set[FailureReason] = frozenset(
    {
        FailureReason.IO_EXCEPTION,
        FailureReason.CHECKPOINT_ASYNC_EXCEPTION,
        FailureReason.CHECKPOINT_EXPIRED,
        FailureReason.CHECKPOINT_DECLINED,
        FailureReason.FINALIZE_CHECKPOINT_FAILURE,
    }
)
