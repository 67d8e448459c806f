"""Retention: which completed checkpoints are discarded, and when.

Savepoints never come here: a savepoint belongs to its user, and only its user deletes it. Nor do
*abandoned* checkpoints count, those that a rollback left behind: they are kept for a time, so that
the job can still be restored from them.

Source: Flink, CheckpointSubsumeHelper and CheckpointProperties.
"""

from collections.abc import Mapping, Set

from weir.config import CheckpointConfig, Retention
from weir.errors import ProtocolError
from weir.ids import CheckpointId
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
    completed: tuple[CompletedCheckpoint, ...],
    retained_max: int,
    bases: Set[CheckpointId] = frozenset(),
) -> tuple[tuple[CompletedCheckpoint, ...], tuple[CompletedCheckpoint, ...]]:
    """Split completed checkpoints, oldest first, into those retained and those subsumed.

    The newest is always retained, and so are the abandoned ones, and the ``bases`` of checkpoints
    under way, whose manifests are to name some of their files.
    """
    counted = [c for c in completed if c.abandoned_at_ms is None]
    past = counted[: max(len(counted) - max(retained_max, 1), 0)]
    let_go = [c for c in past if c.checkpoint_id not in bases]
    return tuple(c for c in completed if c not in let_go), tuple(let_go)


def discard_due_ms(checkpoint: CompletedCheckpoint, config: CheckpointConfig) -> int | None:
    """The time at which an abandoned checkpoint is discarded; None: it is not abandoned."""
    if checkpoint.abandoned_at_ms is None:
        return None
    return checkpoint.abandoned_at_ms + config.abandoned_ttl_ms


def is_kept_on_end(retention: Retention, status: JobStatus) -> bool:
    """Whether a job's checkpoints outlive it.

    Raises:
        ProtocolError: The status is not final.
    """
    if status not in ENDED:
        raise ProtocolError(f"{status} is not a final job status")
    return status in KEPT_ON_END[retention]
