"""Barrier handlers whose barriers overtake records, so that a slow subtask delays no checkpoint.

An unaligned snapshot is taken before the barriers of all channels have arrived. Batches that
precede a missing barrier are *recorded*: they are processed as usual and kept beside the snapshot
as channel state. State and channel state together hold what an aligned snapshot would: every record
before its channel's barrier, once.

Barriers of savepoints never overtake: a savepoint must restore at any parallelism and into a
changed program. On some exchanges none does, since records under way there could not be restored
(``weir.graph.exchanges``): such a channel is *in order*, and a subtask overtakes only once each of
its channels in order has delivered the barrier and is blocked by it.

Only one checkpoint may be under way at a time where barriers overtake, which the configuration
enforces; a newer barrier therefore proves that the older checkpoint was aborted.

Source: Flink, FLIP-76 and AlternatingCollectingBarriers.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Set
from dataclasses import replace

from weir.config import CheckpointingMode
from weir.ids import ChannelId, CheckpointId
from weir.protocol.alignment import (
    AbortRecording,
    Action,
    AlignedBarrierHandler,
    AtLeastOnceBarrierHandler,
    BarrierHandler,
    CompleteRecording,
    DeclineCheckpoint,
    StartAlignmentTimer,
    StartRecording,
    StopRecording,
    TakeSnapshot,
)
from weir.protocol.elements import (
    Alignment,
    CheckpointBarrier,
    CheckpointKind,
)
from weir.protocol.lifecycle import FailureReason

__all__ = ["TimeoutBarrierHandler", "UnalignedBarrierHandler", "make_handler"]


def make_handler(
    channels: Collection[ChannelId],
    mode: CheckpointingMode,
    alignment_timeout_ms: int | None,
    in_order: Collection[ChannelId] = (),
) -> BarrierHandler:
    """The handler for a subtask with these input channels, by the job's checkpoint settings.

    ``in_order`` are those of the channels on which no barrier overtakes.
    """
    if mode is CheckpointingMode.AT_LEAST_ONCE:
        return AtLeastOnceBarrierHandler(channels)
    if alignment_timeout_ms is None:
        return AlignedBarrierHandler(channels)
    if alignment_timeout_ms == 0:
        return UnalignedBarrierHandler(channels, in_order)
    return TimeoutBarrierHandler(channels, alignment_timeout_ms, in_order)


class _OvertakingBarrierHandler(AlignedBarrierHandler, ABC):
    """The aligned machine with one more state, *recording*, and a way into it.

    ::

        state        input                           next         actions
        ----------   -----------------------------   ----------   ------------------------------
        waiting      n announced, or triggered with  aligning n   none (or overtake, see below)
                     the end of every channel queued
        waiting,     time to overtake, some missing  recording n  snapshot (unaligned), start
        aligning n                                                recording of the missing,
                                                                  unblock, stop recording of those
                                                                  whose barrier or end is queued
                     time to overtake, none missing  waiting      the same, complete recording
                     time to overtake, a channel in  aligning n   none; overtake at the last of
                     order missing                                their barriers and ends
        recording n  barrier n (queued or at the     recording n  stop recording
                     head) or end (the same), others
                     missing
                     the last such                   waiting      stop, complete recording
                     barrier m > n                   as waiting   decline n, abort recording;
                                                                  then as waiting
                     cancel n                        waiting      decline, abort recording
                     cancel m > n                    waiting      as for barrier m; then cancel m
                     n aborted                       waiting      abort recording

    All other rows are those of ``AlignedBarrierHandler``. No cancel marker follows out of
    *recording*: the barrier went downstream already, and the coordinator tells every subtask.
    """

    def __init__(
        self, channels: Collection[ChannelId], in_order: Collection[ChannelId] = ()
    ) -> None:
        super().__init__(channels)
        self._in_order = frozenset(in_order)
        self._announced: set[ChannelId] = set()  # The current checkpoint's barrier is queued.
        self._ending: set[ChannelId] = set()  # Live, and the end is queued.
        self._recording: set[ChannelId] | None = None  # Barrier missing; None: not recording.
        self._is_due = False  # It is time to overtake, if the channels in order allow it.

    @property
    def overtakes(self) -> bool:
        """Whether barriers of checkpoints may overtake records, and so need to be announced."""
        return True

    def on_announced(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        """The barrier is queued on the channel, with records before it that were not taken yet."""
        self._require_live(channel)
        if not _may_overtake(barrier) or channel in self._in_order:
            return []
        actions = self._begin(barrier)
        if not self._is_current(barrier):
            return actions
        if self._recording is not None:
            return [*actions, *self._stop_recording(channel, barrier)]
        self._announced.add(channel)
        return [*actions, *self._overtake_or_wait(barrier)]

    def on_end_announced(self, channel: ChannelId) -> list[Action]:
        """The end is queued on the channel: nothing comes behind the records that are queued."""
        self._require_live(channel)
        self._ending.add(channel)
        if self._recording is None or self._aligning is None:
            return []
        return self._stop_recording(channel, self._aligning)

    def on_trigger(self, barrier: CheckpointBarrier) -> list[Action]:
        """Begin with the checkpoint if the end of every channel is queued: no barrier will come."""
        may_come = not self._live or not self._live <= self._ending
        if may_come or not _may_overtake(barrier) or self._is_current(barrier):
            return []
        actions = self._begin(barrier)
        if not self._is_current(barrier):
            return actions
        return [*actions, *self._overtake_or_wait(barrier)]

    def on_end_of_input(self, channel: ChannelId) -> list[Action]:
        """The channel is complete and counts as aligned from now on."""
        self._ending.discard(channel)
        if self._recording is not None and self._aligning is not None:
            self._require_live(channel)
            self._live.remove(channel)
            return self._stop_recording(channel, self._aligning)
        actions = super().on_end_of_input(channel)
        if self._aligning is not None and self._is_due and self._in_order_arrived():
            actions += self._overtake(self._aligning)
        return actions

    def on_alignment_timeout(self, checkpoint_id: CheckpointId) -> list[Action]:
        """Overtake, if this checkpoint is still aligning."""
        held_up = self._aligning
        if held_up is None or held_up.checkpoint_id != checkpoint_id:
            return []
        if self._recording is not None or not _may_overtake(held_up):
            return []
        self._is_due = True
        return self._overtake(held_up) if self._in_order_arrived() else []

    @abstractmethod
    def _must_overtake(self, barrier: CheckpointBarrier) -> bool:
        """Whether this barrier overtakes as soon as it is known."""

    def _held_up(self, barrier: CheckpointBarrier) -> list[Action]:
        """The actions when a checkpoint starts to wait for barriers."""
        return []

    def _arrive(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        if self._recording is not None:
            return self._stop_recording(channel, barrier)
        at_head = frozenset({channel})
        if self._is_time(barrier, at_head):
            return self._overtake(barrier, at_head)
        actions = super()._arrive(channel, barrier)
        if self._is_current(barrier):
            actions += self._held_up(barrier)
        return actions

    def _overtake_or_wait(self, barrier: CheckpointBarrier) -> list[Action]:
        return self._overtake(barrier) if self._is_time(barrier) else self._held_up(barrier)

    def _is_time(self, barrier: CheckpointBarrier, at_head: Set[ChannelId] = frozenset()) -> bool:
        """Whether the barrier overtakes now; ``at_head``: where it is about to be blocked."""
        self._is_due = self._is_due or self._must_overtake(barrier)
        return self._is_due and self._in_order_arrived(at_head)

    def _in_order_arrived(self, at_head: Set[ChannelId] = frozenset()) -> bool:
        return self._live & self._in_order <= self._blocked | at_head

    def _overtake(
        self, barrier: CheckpointBarrier, at_head: Set[ChannelId] = frozenset()
    ) -> list[Action]:
        checkpoint_id = barrier.checkpoint_id
        missing = tuple(sorted(self._live - self._blocked - at_head))
        # Downstream need not wait for its own timer: the barrier is marked unaligned.
        options = replace(barrier.options, alignment=Alignment.UNALIGNED)
        actions: list[Action] = [
            TakeSnapshot(replace(barrier, options=options), unaligned=True),
            StartRecording(checkpoint_id, missing),
            *self._unblock(),
        ]
        self._recording = set(missing)
        queued = [channel for channel in missing if channel in self._announced | self._ending]
        for channel in queued:
            actions.append(StopRecording(checkpoint_id, channel))
            self._recording.remove(channel)
        return [*actions, *self._complete_recording(barrier)]

    def _stop_recording(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        if self._recording is None or channel not in self._recording:
            return []  # Recording stopped when the barrier was announced.
        self._recording.remove(channel)
        stop = StopRecording(barrier.checkpoint_id, channel)
        return [stop, *self._complete_recording(barrier)]

    def _complete_recording(self, barrier: CheckpointBarrier) -> list[Action]:
        if self._recording:
            return []
        self._leave(barrier)
        return [CompleteRecording(barrier.checkpoint_id)]

    def _abandon(self, barrier: CheckpointBarrier, reason: FailureReason | None) -> list[Action]:
        if self._recording is None:
            return super()._abandon(barrier, reason)
        declined: list[Action] = []
        if reason is not None:
            declined.append(DeclineCheckpoint(barrier.checkpoint_id, reason))
        self._leave(barrier)
        return [*declined, AbortRecording(barrier.checkpoint_id)]

    def _leave(self, barrier: CheckpointBarrier) -> None:
        super()._leave(barrier)
        self._announced.clear()
        self._recording = None
        self._is_due = False


class UnalignedBarrierHandler(_OvertakingBarrierHandler):
    """Takes the snapshot at the first barrier, queued or at the head, and records the others.

    *Time to overtake* is the first barrier of a checkpoint; of a savepoint never.
    """

    def _must_overtake(self, barrier: CheckpointBarrier) -> bool:
        return _may_overtake(barrier)


class TimeoutBarrierHandler(_OvertakingBarrierHandler):
    """Aligns at first, and overtakes once the timeout since the trigger has passed.

    *Time to overtake* is the timer, or a barrier that overtook already upstream; of a savepoint
    never. The timer is started once per checkpoint, when it begins to wait.

    Units: ``alignment_timeout_ms`` counts from the trigger, not from the first barrier, so that
    subtasks far downstream overtake at once.
    """

    def __init__(
        self,
        channels: Collection[ChannelId],
        alignment_timeout_ms: int,
        in_order: Collection[ChannelId] = (),
    ) -> None:
        super().__init__(channels, in_order)
        self._timeout_ms = alignment_timeout_ms
        self._timed_id = CheckpointId(0)

    def _must_overtake(self, barrier: CheckpointBarrier) -> bool:
        return _may_overtake(barrier) and barrier.options.alignment is Alignment.UNALIGNED

    def _held_up(self, barrier: CheckpointBarrier) -> list[Action]:
        checkpoint_id = barrier.checkpoint_id
        if self._timed_id == checkpoint_id or not _may_overtake(barrier):
            return []
        self._timed_id = checkpoint_id
        return [StartAlignmentTimer(checkpoint_id, self._timeout_ms, barrier.triggered_at_ms)]


def _may_overtake(barrier: CheckpointBarrier) -> bool:
    return barrier.options.kind is CheckpointKind.CHECKPOINT
