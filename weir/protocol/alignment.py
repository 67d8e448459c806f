"""Barrier handlers, which decide when a subtask takes its snapshot, and their actions.

A *barrier handler* sees every barrier, cancel marker and end of input of one subtask in the order
in which the subtask takes them from its channels, and answers each with actions for the shell
around it to carry out, in order and before it takes anything else. It lives in one loop and touches
no clock, socket or thread. All handlers keep these promises, also where barriers are skipped or
repeated, checkpoints cancelled or channels ended:

- A checkpoint id is settled once, by its snapshot or by a cancel marker downstream, never by both.
- The ids of the snapshots of one subtask strictly increase.
- A channel is blocked only while ``aligning`` names a checkpoint, and only until that is settled.
- An element of a settled id changes nothing: it was sent before upstream learned the outcome.

The aligned and the at-least-once handler are here; ``weir.protocol.unaligned`` holds the handlers
whose barriers overtake records, and ``make_handler``, which chooses by the job's settings.

Source: arXiv:1506.08603, section 4; Flink, SingleCheckpointBarrierHandler and
CheckpointBarrierTracker.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, TypeAlias

from weir.errors import ProtocolError
from weir.ids import ChannelId, CheckpointId
from weir.protocol.elements import CancelCheckpoint, CheckpointBarrier
from weir.protocol.lifecycle import FailureReason

PENDING_MAX = 50  # Checkpoints a handler remembers at a time. Source: CheckpointBarrierTracker.


@dataclass(frozen=True, slots=True)
class BlockChannel:
    """Take nothing from this channel until it is unblocked."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class UnblockChannels:
    """Take from these channels again; in channel order."""

    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class TakeSnapshot:
    """Flush, freeze the state and send the barrier on, in one step that nothing interrupts.

    Unaligned: the barrier goes ahead of all output not sent yet, which is part of the snapshot; a
    ``StartRecording`` always follows.
    """

    barrier: CheckpointBarrier
    unaligned: bool


@dataclass(frozen=True, slots=True)
class ForwardCancel:
    """Send a cancel marker downstream: the barrier of this checkpoint will not come from here."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class DeclineCheckpoint:
    """Tell the coordinator that this subtask declines the checkpoint."""

    checkpoint_id: CheckpointId
    reason: FailureReason


@dataclass(frozen=True, slots=True)
class StartRecording:
    """Keep the batches that these channels deliver before their barrier, as channel state.

    These are every batch queued now, up to the barrier where it is queued already, and every batch
    that arrives later, until ``StopRecording`` for the channel. Batches are processed as well. Each
    is followed by exactly one ``CompleteRecording`` or ``AbortRecording``.
    """

    checkpoint_id: CheckpointId
    channels: tuple[ChannelId, ...]


@dataclass(frozen=True, slots=True)
class StopRecording:
    """The barrier of this channel has arrived: nothing after it belongs to the channel state."""

    checkpoint_id: CheckpointId
    channel: ChannelId


@dataclass(frozen=True, slots=True)
class CompleteRecording:
    """The channel state is whole and may be written."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class AbortRecording:
    """The channel state will never be whole; drop it, and the snapshot it belongs to."""

    checkpoint_id: CheckpointId


@dataclass(frozen=True, slots=True)
class StartAlignmentTimer:
    """Call ``on_alignment_timeout`` once the wall clock is this long past the trigger.

    An earlier timer need not be stopped: it names its checkpoint, and a late one does nothing.
    """

    checkpoint_id: CheckpointId
    timeout_ms: int
    triggered_at_ms: int


Action: TypeAlias = (
    BlockChannel
    | UnblockChannels
    | TakeSnapshot
    | ForwardCancel
    | DeclineCheckpoint
    | StartRecording
    | StopRecording
    | CompleteRecording
    | AbortRecording
    | StartAlignmentTimer
)


class BarrierHandler(Protocol):
    """The machine that turns each control element of one subtask into actions."""

    @property
    def aligning(self) -> CheckpointBarrier | None:
        """The checkpoint whose barriers are still coming in, if there is one."""

    @property
    def blocked(self) -> frozenset[ChannelId]:
        """The channels from which the subtask must take nothing."""

    @property
    def overtakes(self) -> bool:
        """Whether barriers of checkpoints may overtake records, and so need to be announced."""

    def on_barrier(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        """The barrier is at the head of the channel: all records before it were taken.

        Raises:
            ProtocolError: The channel is blocked, ended or not the subtask's.
        """

    def on_announced(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        """The barrier is queued on the channel, with records before it that were not taken yet.

        It still goes to ``on_barrier`` when it reaches the head. Handlers whose barriers overtake
        need this call for every barrier at the moment it arrives; the other handlers ignore it.
        """

    def on_end_announced(self, channel: ChannelId) -> list[Action]:
        """The end is queued on the channel, perhaps behind records that were not taken yet.

        It still goes to ``on_end_of_input`` when it reaches the head. Else as ``on_announced``.
        """

    def on_trigger(self, barrier: CheckpointBarrier) -> list[Action]:
        """The coordinator told the subtask of a checkpoint whose barriers are on their way.

        It takes the place of barriers that cannot come, since the end of every channel is queued.
        """

    def on_cancel(self, channel: ChannelId, marker: CancelCheckpoint) -> list[Action]:
        """The channel will not deliver the barrier of this checkpoint."""

    def on_end_of_input(self, channel: ChannelId) -> list[Action]:
        """The channel is complete and counts as aligned from now on."""

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[Action]:
        """The coordinator aborted the checkpoint."""

    def on_alignment_timeout(self, checkpoint_id: CheckpointId) -> list[Action]:
        """The alignment timer of this checkpoint fired."""


class InputLedger:
    """The channels of one handler: which exist, and which have not ended."""

    def __init__(self, channels: Collection[ChannelId]) -> None:
        if not channels:
            raise ProtocolError(
                "a barrier handler needs a channel; a source takes its snapshot itself"
            )
        self._channels = frozenset(channels)
        self._live = set(channels)

    def _require_live(self, channel: ChannelId) -> None:
        if channel not in self._live:
            state = "ended" if channel in self._channels else "unknown"
            raise ProtocolError(f"{state} channel {channel} delivered a control element")

    @property
    def overtakes(self) -> bool:
        """Whether barriers of checkpoints may overtake records, and so need to be announced."""
        return False

    def on_end_announced(self, channel: ChannelId) -> list[Action]:
        """Nothing: the end counts when it reaches the head."""
        self._require_live(channel)
        return []

    def on_trigger(self, barrier: CheckpointBarrier) -> list[Action]:
        """Nothing: the subtask takes the trigger itself once its input has ended."""
        return []


class AlignedBarrierHandler(InputLedger):
    """Blocks each channel from its barrier until every other live channel delivered the same.

    ::

        state        input                           next         actions
        ----------   -----------------------------   ----------   ------------------------------
        waiting      barrier, others missing         aligning     block
                     barrier, none missing           waiting      snapshot
                     barrier, given up before        waiting      forward cancel
                     cancel                          waiting      decline, forward cancel
        aligning n   barrier n, others missing       aligning n   block
                     barrier n or end, none missing  waiting      snapshot, unblock
                     barrier m > n                   as waiting   decline n, forward cancel n,
                                                                  unblock; then as waiting
                     cancel n                        waiting      decline, forward cancel, unblock
                     cancel m > n                    waiting      as for barrier m; then cancel m
                     n aborted                       waiting      forward cancel, unblock
        any          m aborted, its barrier unseen   same         (remembered as given up)
                     anything of a settled id        same         none

    A channel that would be blocked and unblocked in the same step is not blocked at all; a subtask
    with one channel therefore never blocks. With n aligning every id below n is settled.
    """

    def __init__(self, channels: Collection[ChannelId]) -> None:
        super().__init__(channels)
        self._aligning: CheckpointBarrier | None = None
        self._blocked: set[ChannelId] = set()
        self._settled_id = CheckpointId(0)
        self._given_up: set[CheckpointId] = set()  # By the coordinator, before a barrier came.

    @property
    def aligning(self) -> CheckpointBarrier | None:
        """The checkpoint whose barriers are still coming in, if there is one."""
        return self._aligning

    @property
    def blocked(self) -> frozenset[ChannelId]:
        """The channels from which the subtask must take nothing."""
        return frozenset(self._blocked)

    def on_barrier(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        """The barrier is at the head of the channel: all records before it were taken."""
        self._require_open(channel)
        actions = self._begin(barrier)
        if self._is_current(barrier):
            actions += self._arrive(channel, barrier)
        return actions

    def on_announced(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        """Nothing: an aligned barrier never overtakes records."""
        self._require_live(channel)
        return []

    def on_cancel(self, channel: ChannelId, marker: CancelCheckpoint) -> list[Action]:
        """The channel will not deliver the barrier of this checkpoint."""
        self._require_open(channel)
        cancelled_id = marker.checkpoint_id
        if cancelled_id <= self._settled_id:
            return []
        reason = FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
        if self._aligning is not None and self._aligning.checkpoint_id == cancelled_id:
            return self._abandon(self._aligning, reason)
        actions = self._abandon_older()
        if cancelled_id not in self._given_up:  # Else the coordinator knows.
            actions.append(DeclineCheckpoint(cancelled_id, reason))
        self._settle(cancelled_id)
        return [*actions, ForwardCancel(cancelled_id)]

    def on_end_of_input(self, channel: ChannelId) -> list[Action]:
        """The channel is complete and counts as aligned from now on."""
        self._require_open(channel)
        self._live.remove(channel)
        if self._aligning is None or not self._live <= self._blocked:
            return []
        return self._complete(self._aligning)

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[Action]:
        """The coordinator gave the checkpoint up."""
        if checkpoint_id <= self._settled_id:
            return []
        if self._aligning is not None and self._aligning.checkpoint_id == checkpoint_id:
            return self._abandon(self._aligning, reason=None)
        self._given_up.add(checkpoint_id)
        if len(self._given_up) > PENDING_MAX:
            self._given_up.remove(min(self._given_up))  # At worst one snapshot more than needed.
        return []

    def on_alignment_timeout(self, checkpoint_id: CheckpointId) -> list[Action]:
        """Nothing: no timer is ever asked for."""
        return []

    def _require_open(self, channel: ChannelId) -> None:
        self._require_live(channel)
        if channel in self._blocked:
            raise ProtocolError(f"channel {channel} delivered while blocked")

    def _is_current(self, barrier: CheckpointBarrier) -> bool:
        current = self._aligning
        return current is not None and current.checkpoint_id == barrier.checkpoint_id

    def _begin(self, barrier: CheckpointBarrier) -> list[Action]:
        """Make the checkpoint of ``barrier`` the current one, unless it is that or is settled."""
        begun_id = barrier.checkpoint_id
        if begun_id <= self._settled_id or self._is_current(barrier):
            return []
        actions = self._abandon_older()
        if begun_id in self._given_up:
            self._settle(begun_id)
            return [*actions, ForwardCancel(begun_id)]
        self._settle(CheckpointId(begun_id - 1))
        self._aligning = barrier
        return actions

    def _arrive(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        if self._live <= self._blocked | {channel}:
            return self._complete(barrier)
        self._blocked.add(channel)
        return [BlockChannel(channel)]

    def _complete(self, barrier: CheckpointBarrier) -> list[Action]:
        # The snapshot comes first: what an unblocked channel holds belongs to the next one.
        actions = [TakeSnapshot(barrier, unaligned=False), *self._unblock()]
        self._leave(barrier)
        return actions

    def _abandon_older(self) -> list[Action]:
        if self._aligning is None:
            return []
        return self._abandon(self._aligning, FailureReason.CHECKPOINT_DECLINED_SUBSUMED)

    def _abandon(self, barrier: CheckpointBarrier, reason: FailureReason | None) -> list[Action]:
        """Give the current checkpoint up; without a reason the coordinator did so itself."""
        declined: list[Action] = []
        if reason is not None:
            declined.append(DeclineCheckpoint(barrier.checkpoint_id, reason))
        # Downstream must get the cancel marker even when a newer barrier follows: that barrier may
        # take a while to align here, and until then downstream would block channels for nothing.
        actions = [*declined, ForwardCancel(barrier.checkpoint_id), *self._unblock()]
        self._leave(barrier)
        return actions

    def _unblock(self) -> list[Action]:
        if not self._blocked:
            return []
        channels = tuple(sorted(self._blocked))
        self._blocked.clear()
        return [UnblockChannels(channels)]

    def _leave(self, barrier: CheckpointBarrier) -> None:
        self._aligning = None
        self._settle(barrier.checkpoint_id)

    def _settle(self, checkpoint_id: CheckpointId) -> None:
        self._settled_id = checkpoint_id
        if self._given_up:
            self._given_up = {given_up for given_up in self._given_up if given_up > checkpoint_id}


class _Counted(Enum):
    """The status of one checkpoint in the at-least-once handler."""

    COUNTING = auto()  # Some barriers have arrived.
    GIVEN_UP = auto()  # By the coordinator, and no barrier came yet.
    CANCELLED = auto()  # The cancel marker went downstream.


@dataclass(slots=True)
class _Count:
    status: _Counted
    barrier: CheckpointBarrier | None = None
    arrived: set[ChannelId] = field(default_factory=set)


class AtLeastOnceBarrierHandler(InputLedger):
    """Counts barriers per checkpoint, blocks nothing, takes the snapshot at the last barrier.

    Several checkpoints are counted side by side; each is on its own row of this table.

    ::

        state        input                        next         actions
        ----------   --------------------------   ----------   --------------------------------
        unseen       barrier, others missing      counting     none
                     aborted                      given up     none
                     cancel                       cancelled    decline, forward cancel
        counting     barrier, others missing      counting     none
                     barrier or end, none missing (settled)    snapshot
                     aborted                      cancelled    forward cancel
                     cancel                       cancelled    decline, forward cancel
        given up     barrier or cancel            cancelled    forward cancel
        cancelled    anything                     cancelled    none

    A snapshot settles every older checkpoint: one still counting was skipped by a channel and is
    declined and cancelled first. The same happens to the oldest beyond ``PENDING_MAX``.
    """

    def __init__(self, channels: Collection[ChannelId]) -> None:
        super().__init__(channels)
        self._pending: dict[CheckpointId, _Count] = {}
        self._settled_id = CheckpointId(0)

    @property
    def aligning(self) -> CheckpointBarrier | None:
        """The oldest checkpoint of which some barriers have arrived, if there is one."""
        counting = [
            checkpoint_id
            for checkpoint_id, count in self._pending.items()
            if count.status is _Counted.COUNTING
        ]
        return self._pending[min(counting)].barrier if counting else None

    @property
    def blocked(self) -> frozenset[ChannelId]:
        """No channel, ever."""
        return frozenset()

    def on_barrier(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        """Count the barrier; repeated ones count once."""
        self._require_live(channel)
        checkpoint_id = barrier.checkpoint_id
        if checkpoint_id <= self._settled_id:
            return []
        count = self._pending.setdefault(checkpoint_id, _Count(_Counted.COUNTING, barrier))
        if count.status is _Counted.GIVEN_UP:
            return self._cancel(checkpoint_id, reason=None)
        count.arrived.add(channel)
        return [*self._complete_counted(), *self._forget_oldest()]

    def on_announced(self, channel: ChannelId, barrier: CheckpointBarrier) -> list[Action]:
        """Nothing: the barrier counts when it reaches the head."""
        self._require_live(channel)
        return []

    def on_cancel(self, channel: ChannelId, marker: CancelCheckpoint) -> list[Action]:
        """The channel will not deliver the barrier of this checkpoint."""
        self._require_live(channel)
        if marker.checkpoint_id <= self._settled_id:
            return []
        count = self._pending.get(marker.checkpoint_id)
        given_up = count is not None and count.status is _Counted.GIVEN_UP
        reason = FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER
        actions = self._cancel(marker.checkpoint_id, reason=None if given_up else reason)
        return [*actions, *self._forget_oldest()]

    def on_end_of_input(self, channel: ChannelId) -> list[Action]:
        """The channel is complete and counts as having delivered every barrier."""
        self._require_live(channel)
        self._live.remove(channel)
        return self._complete_counted()

    def on_aborted(self, checkpoint_id: CheckpointId) -> list[Action]:
        """The coordinator gave the checkpoint up."""
        if checkpoint_id <= self._settled_id:
            return []
        if checkpoint_id in self._pending:
            # A repeated abort: the checkpoint already waits for its first barrier.
            counting = self._pending[checkpoint_id].status is _Counted.COUNTING
            return self._cancel(checkpoint_id, reason=None) if counting else []
        self._pending[checkpoint_id] = _Count(_Counted.GIVEN_UP)
        return self._forget_oldest()

    def on_alignment_timeout(self, checkpoint_id: CheckpointId) -> list[Action]:
        """Nothing: no timer is ever asked for."""
        return []

    def _complete_counted(self) -> list[Action]:
        actions: list[Action] = []
        for checkpoint_id in sorted(self._pending):
            count = self._pending[checkpoint_id]
            if count.barrier is None or count.status is not _Counted.COUNTING:
                continue
            if self._live <= count.arrived:
                del self._pending[checkpoint_id]
                actions += self._settle(checkpoint_id)
                actions.append(TakeSnapshot(count.barrier, unaligned=False))
        return actions

    def _cancel(self, checkpoint_id: CheckpointId, reason: FailureReason | None) -> list[Action]:
        """Forward the cancel marker once; without a reason the coordinator knows already."""
        count = self._pending.get(checkpoint_id)
        if count is not None and count.status is _Counted.CANCELLED:
            return []
        self._pending[checkpoint_id] = _Count(_Counted.CANCELLED)
        declined: list[Action] = []
        if reason is not None:
            declined.append(DeclineCheckpoint(checkpoint_id, reason))
        return [*declined, ForwardCancel(checkpoint_id)]

    def _forget_oldest(self) -> list[Action]:
        return self._settle(min(self._pending)) if len(self._pending) > PENDING_MAX else []

    def _settle(self, settled_id: CheckpointId) -> list[Action]:
        """Drop everything up to ``settled_id``; decline and cancel what was still counting."""
        actions: list[Action] = []
        for checkpoint_id in sorted(self._pending):
            if checkpoint_id <= settled_id:
                count = self._pending.pop(checkpoint_id)
                if count.status is _Counted.COUNTING:
                    reason = FailureReason.CHECKPOINT_DECLINED_SUBSUMED
                    actions += [
                        DeclineCheckpoint(checkpoint_id, reason),
                        ForwardCancel(checkpoint_id),
                    ]
        self._settled_id = max(self._settled_id, settled_id)
        return actions
