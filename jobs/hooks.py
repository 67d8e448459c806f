"""Hooks by which jobs tell and ask the checkpoints, which stand above them.

``CheckpointsConfig.ready`` sets them once. They run inside the transaction that holds the job's
lock, and raise to roll everything back.
"""

from typing import Any, Protocol

from jobs.models import Job, Operation
from weir.protocol.lifecycle import FailureReason


class CheckpointHooks(Protocol):
    """The checkpoints as jobs need them; ``checkpoints.job_hooks`` is a module of that shape."""

    def driver_lost(self, job: Job, reason: FailureReason) -> None:
        """The job's driver was lost or ended; it may be replaced.

        Args:
            reason: That of the checkpoints under way.
        """

    def job_ended(self, job: Job) -> None:
        """The control plane, not the driver, moved the job to a final status."""

    def job_reopened(self, job: Job) -> None:
        """A job that had ended is restarted; before its next driver is requested."""

    def withdraw(self, operation: Operation, why: str) -> None:
        """An operation has ended without the checkpoint that it may have requested."""

    def may_launch(self, job: Job) -> bool:
        """Whether a driver may be launched; where not, the next tick tries the launch again."""

    def newest_kept(self, job: Job) -> int:
        """The number of the newest completed checkpoint that the job's storage keeps; 0: none."""

    def restored(self, uri: str) -> tuple[Job, int] | None:
        """The job, locked, and number of the checkpoint or savepoint to start from, if known."""

    def job_created(self, job: Job) -> None:
        """A new job, which may start from a checkpoint, was created."""

    def compare(self, job: Job, other: str) -> dict[str, Any]:
        """Further members of the result, once the outputs of two jobs were compared."""


checkpoints: CheckpointHooks
