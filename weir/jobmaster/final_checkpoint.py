"""The final checkpoint: it commits the tail of the output once every subtask has ended.

It is requested until one of them completes, or a stop's savepoint, which commits the tail as well.
"""

from weir.ids import CheckpointId
from weir.protocol.elements import CheckpointKind
from weir.protocol.messages import CheckpointRequested
from weir.protocol.pending import PendingCheckpoint

FINAL_RETRY_MS = 100
_PREFIX = "final-"


class FinalCheckpoint:
    """The requests for the final checkpoint of one attempt after the other."""

    def __init__(self) -> None:
        self.due_ms: int | None = None  # When it is requested again.
        self.checkpoint_id: CheckpointId | None = None  # Once its manifest was commanded.
        self.is_committed = False  # A stop's savepoint has completed: nothing follows it.
        self._request_id: str | None = None  # The newest request of this attempt.
        self._count = 0

    def start(self) -> None:
        """An attempt begins that takes checkpoints."""
        self.is_committed = False

    def request(self) -> CheckpointRequested:
        """The next request."""
        self.due_ms = None
        self._count += 1
        self._request_id = f"{_PREFIX}{self._count}"
        return CheckpointRequested(self._request_id)

    def postpone(self, now_ms: int) -> None:
        """Something else is under way that may commit the tail: request it in a while."""
        self.due_ms = now_ms + FINAL_RETRY_MS

    def stop(self) -> None:
        """The attempt is over; its request may still be answered."""
        self.due_ms = self._request_id = None

    def came_to_nothing(self, request_id: str | None, now_ms: int) -> None:
        """A request was refused or its checkpoint aborted; where it is this one, it is repeated.

        Under the control plane the answer may arrive in another attempt than the one that
        requested, whose subtasks have not ended.
        """
        if request_id is not None and request_id == self._request_id:
            self.postpone(now_ms)

    def commanded(self, pending: PendingCheckpoint) -> None:
        """A manifest was commanded, perhaps that of the final checkpoint."""
        is_checkpoint = pending.kind is CheckpointKind.CHECKPOINT
        if is_checkpoint and (pending.request.request_id or "").startswith(_PREFIX):
            self.checkpoint_id = pending.checkpoint_id

    def completed(self, checkpoint_id: CheckpointId, *, is_stop: bool) -> bool:
        """Whether nothing follows a checkpoint that completed: subtasks commit it, and finish."""
        self.is_committed = self.is_committed or is_stop
        return is_stop or checkpoint_id == self.checkpoint_id
