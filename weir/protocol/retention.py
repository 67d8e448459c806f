"""Which completed checkpoints are let go, and when.

Savepoints never come here: whoever asked for one owns it, and only they delete it.

Source: Flink, CheckpointSubsumeHelper and CheckpointProperties.
"""

from collections.abc import Mapping, Set

from weir.config import Retention
from weir.errors import ProtocolError
from weir.protocol.lifecycle import JobStatus
from weir.protocol.pending import CompletedCheckpoint

# A job that finished needs no checkpoint: its results are complete.
KEPT_ON_END: Mapping[Retention, Set[JobStatus]] = {
    Retention.NO_EXTERNALIZED_CHECKPOINTS: frozenset(),
    Retention.DELETE_ON_CANCELLATION: frozenset({JobStatus.FAILED}),
    Retention.RETAIN_ON_CANCELLATION: frozenset({JobStatus.FAILED, JobStatus.CANCELED}),
}
ENDED: Set[JobStatus] = frozenset({JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED})


def subsume(
    completed: tuple[CompletedCheckpoint, ...], retained_max: int
) -> tuple[tuple[CompletedCheckpoint, ...], tuple[CompletedCheckpoint, ...]]:
    """Split completed checkpoints, oldest first, into those kept and those let go.

    The newest is always kept.
    """
    surplus = max(len(completed) - max(retained_max, 1), 0)
    return completed[surplus:], completed[:surplus]


def is_kept_on_end(retention: Retention, status: JobStatus) -> bool:
    """Whether a job's checkpoints outlive it.

    Raises:
        ProtocolError: The status is not final.
    """
    if status not in ENDED:
        raise ProtocolError(f"{status} is not a final job status")
    return status in KEPT_ON_END[retention]
