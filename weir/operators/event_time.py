"""The watermark of an operator as part of its snapshot.

Flink does not keep watermarks in checkpoints: after a restore event time stands at the beginning
until the first watermark arrives, so a record that was late before the failure is on time when it
is replayed, and a window that had fired fires once more. In Weir an operator that decides by event
time resumes from the watermark in its snapshot. If that is the end of event time, it begins anew:
the job was drained and then restored, and every further record would be late.
"""

from weir.operators.base import OperatorContext
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.protocol.restore import WATERMARK_STATE


class WatermarkState:
    """Saves and restores the watermark of one operator subtask."""

    def __init__(self, ctx: OperatorContext) -> None:
        # Union: after rescaling every subtask starts from the least of all watermarks.
        self._state = ctx.state.list_state(WATERMARK_STATE, "union")
        self._subtask = ctx.subtask.index
        items = list(self._state.get())
        saved = {item["subtask"]: item["watermark_ms"] for item in items}
        # Whether timers that the watermark had made due were left at an unaligned snapshot. They
        # come before the records behind that watermark, also after a restore.
        self.was_firing = any(
            item.get("firing", False)
            for item in items
            if item["subtask"] == self._subtask or len(saved) != ctx.parallelism
        )
        if len(saved) == ctx.parallelism:
            self.restored_ms: int = saved.get(self._subtask, MIN_WATERMARK_MS)
        else:
            self.restored_ms = min(saved.values(), default=MIN_WATERMARK_MS)
        if self.restored_ms == MAX_WATERMARK_MS:
            self.restored_ms = MIN_WATERMARK_MS
            self.was_firing = False

    def save(self, watermark_ms: int, *, is_firing: bool = False) -> None:
        """Keep the watermark for the snapshot that follows; ``is_firing``: timers are left."""
        item = {"subtask": self._subtask, "watermark_ms": watermark_ms}
        self._state.update([{**item, "firing": True} if is_firing else item])
