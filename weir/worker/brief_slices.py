"""The time for which slices are brief: while a barrier overtakes records, from its trigger on.

Each step of an unaligned checkpoint waits for the slice that the loop is in: the barrier at every
hop, the time-out of an alignment, the outcome of the snapshot thread. Slices that wait for an
answer last up to ``slice_size.WALL_MAX_NS``, so a handful of them is longer than all that there is
to do. While such a checkpoint is under way all subtasks of the worker take brief slices; where it
begins aligned, from the longest slice before its time-out on. An aligned checkpoint waits for the
records before its barrier, which brief slices would not make fewer.
"""

from weir.common.clock import Clock
from weir.ids import CheckpointId
from weir.protocol.elements import Alignment, CheckpointBarrier
from weir.worker.alignment_clock import timeout_at_ms
from weir.worker.slice_size import WALL_MAX_NS

EARLY_MS = int(WALL_MAX_NS / 1e6)  # A slice that begins before ends by the time-out.


class BriefSlices:
    """The checkpoints under way whose barriers overtake records now, or will soon."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._from_ms: dict[CheckpointId, int] = {}  # By ``Clock.now_ms``.

    def on_trigger(self, barrier: CheckpointBarrier) -> None:
        """A checkpoint was triggered."""
        if barrier.options.alignment is Alignment.UNALIGNED:
            self._from_ms[barrier.checkpoint_id] = self._clock.now_ms()
        elif (timeout_ms := barrier.options.alignment_timeout_ms) is not None:
            due_ms = timeout_at_ms(self._clock, timeout_ms, barrier.triggered_at_ms)
            self._from_ms[barrier.checkpoint_id] = due_ms - EARLY_MS

    def on_completed(self, checkpoint_id: CheckpointId) -> None:
        """A checkpoint is complete, and older ones do not matter any more."""
        self._from_ms = {c: at for c, at in self._from_ms.items() if c > checkpoint_id}

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        """A checkpoint was given up."""
        self._from_ms.pop(checkpoint_id, None)

    def are_due(self, now_ms: int) -> bool:
        """Whether slices that begin now are brief."""
        return bool(self._from_ms) and min(self._from_ms.values()) <= now_ms
