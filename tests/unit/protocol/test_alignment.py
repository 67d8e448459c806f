"""The plain barrier handlers: elements in, actions out; and the cut they make of any streams."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.errors import ProtocolError
from weir.ids import ChannelId, CheckpointId
from weir.protocol.alignment import (
    PENDING_MAX,
    AbortRecording,
    Action,
    AlignedBarrierHandler,
    AtLeastOnceBarrierHandler,
    BarrierHandler,
    BlockChannel,
    CompleteRecording,
    DeclineCheckpoint,
    ForwardCancel,
    StartAlignmentTimer,
    StartRecording,
    StopRecording,
    TakeSnapshot,
    UnblockChannels,
)
from weir.protocol.elements import (
    BarrierOptions,
    CancelCheckpoint,
    CheckpointBarrier,
    CheckpointKind,
    EndOfInput,
)
from weir.protocol.lifecycle import FailureReason

A, B, C = ChannelId(0), ChannelId(1), ChannelId(2)
SUBSUMED = FailureReason.CHECKPOINT_DECLINED_SUBSUMED
CANCELLED = FailureReason.CHECKPOINT_DECLINED_ON_CANCELLATION_BARRIER


def barrier(number: int, kind: CheckpointKind = CheckpointKind.CHECKPOINT) -> CheckpointBarrier:
    return CheckpointBarrier(CheckpointId(number), 1_000 * number, BarrierOptions(kind=kind))


def cancel(number: int) -> CancelCheckpoint:
    return CancelCheckpoint(CheckpointId(number))


def snapshot(number: int) -> TakeSnapshot:
    return TakeSnapshot(barrier(number), unaligned=False)


def decline(number: int, reason: FailureReason) -> DeclineCheckpoint:
    return DeclineCheckpoint(CheckpointId(number), reason)


def forward_cancel(number: int) -> ForwardCancel:
    return ForwardCancel(CheckpointId(number))


# A driver in place of the subtask ----------------------------------------------------------------

Item = int | CheckpointBarrier | CancelCheckpoint | EndOfInput  # An int is a record, told apart.
Streams = dict[ChannelId, list[Item]]
Schedule = list[tuple[str, int]]
Cuts = dict[int, frozenset[int]]


@dataclass
class Driver:
    """Moves items from the wire into queues and from there to the handler, in a given order.

    It does what the actions say and checks after each call what every handler promises.
    """

    handler: BarrierHandler
    streams: Streams
    queues: dict[ChannelId, list[Item]] = field(init=False)
    processed: set[int] = field(default_factory=set)
    blocked: set[ChannelId] = field(default_factory=set)
    timers: list[CheckpointId] = field(default_factory=list)
    cuts: Cuts = field(default_factory=dict)  # What was processed when the snapshot was taken.
    recorded: dict[int, list[int]] = field(default_factory=dict)
    open_recordings: dict[int, set[ChannelId]] = field(default_factory=dict)
    whole: set[int] = field(default_factory=set)  # Recordings that were completed.
    log: list[Action] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.streams = {channel: list(items) for channel, items in self.streams.items()}
        self.queues = {channel: [] for channel in self.streams}

    def run(self, schedule: Schedule) -> None:
        channels = sorted(self.streams)
        steps: dict[str, Callable[[ChannelId], bool]] = {"receive": self.receive, "take": self.take}
        for what, number in schedule:
            if what == "abort":
                self.obey(self.handler.on_aborted(CheckpointId(number)))
            elif what == "timeout":
                if self.timers:
                    late = self.timers[number % len(self.timers)]
                    self.obey(self.handler.on_alignment_timeout(late))
            else:
                steps[what](channels[number % len(channels)])
        while any(step(channel) for channel in channels for step in steps.values()):
            pass
        assert not any(self.streams.values()), "the wire was not drained"
        assert not any(self.queues.values()), f"stuck behind {self.handler.aligning}"

    def receive(self, channel: ChannelId) -> bool:
        if not self.streams[channel]:
            return False
        item = self.streams[channel].pop(0)
        self.queues[channel].append(item)
        if isinstance(item, CheckpointBarrier):
            self.obey(self.handler.on_announced(channel, item))
        elif isinstance(item, EndOfInput):
            self.obey(self.handler.on_end_announced(channel))
        elif isinstance(item, int):
            for checkpoint_id, channels in self.open_recordings.items():
                if channel in channels:
                    self.recorded[checkpoint_id].append(item)
        return True

    def take(self, channel: ChannelId) -> bool:
        if not self.queues[channel] or channel in self.blocked:
            return False
        match self.queues[channel].pop(0):
            case int() as record:
                self.processed.add(record)
            case CheckpointBarrier() as arrived:
                self.obey(self.handler.on_barrier(channel, arrived))
            case CancelCheckpoint() as marker:
                self.obey(self.handler.on_cancel(channel, marker))
            case EndOfInput():
                self.obey(self.handler.on_end_of_input(channel))
        return True

    def obey(self, actions: list[Action]) -> None:
        for action in actions:
            self.log.append(action)
            match action:
                case BlockChannel(channel):
                    assert channel not in self.blocked
                    self.blocked.add(channel)
                case UnblockChannels(channels):
                    assert set(channels) == self.blocked
                    assert list(channels) == sorted(channels)
                    self.blocked.clear()
                case TakeSnapshot(taken):
                    assert all(taken.checkpoint_id > earlier for earlier in self.cuts)
                    self.cuts[taken.checkpoint_id] = frozenset(self.processed)
                case StartRecording(checkpoint_id, channels):
                    assert checkpoint_id in self.cuts
                    self.open_recordings[checkpoint_id] = set(channels)
                    self.recorded[checkpoint_id] = [
                        record
                        for channel in channels
                        for record in queued_before(self.queues[channel], checkpoint_id)
                    ]
                case StopRecording(checkpoint_id, channel):
                    self.open_recordings[checkpoint_id].remove(channel)
                case CompleteRecording(checkpoint_id):
                    assert self.open_recordings.pop(checkpoint_id) == set()
                    self.whole.add(checkpoint_id)
                case AbortRecording(checkpoint_id):
                    del self.open_recordings[checkpoint_id]
                case StartAlignmentTimer(checkpoint_id):
                    assert checkpoint_id not in self.timers
                    self.timers.append(checkpoint_id)
                case ForwardCancel() | DeclineCheckpoint():
                    pass
        self.check()

    def check(self) -> None:
        assert self.handler.blocked == self.blocked
        assert not self.blocked or self.handler.aligning is not None
        assert len(self.open_recordings) <= 1
        sent_on = [a.barrier.checkpoint_id for a in self.log if isinstance(a, TakeSnapshot)]
        sent_on += [a.checkpoint_id for a in self.log if isinstance(a, ForwardCancel)]
        assert not [n for n, count in Counter(sent_on).items() if count > 1]


def queued_before(queue: list[Item], checkpoint_id: CheckpointId) -> Iterable[int]:
    for item in queue:
        if isinstance(item, CheckpointBarrier) and item.checkpoint_id == checkpoint_id:
            return
        if isinstance(item, int):
            yield item


def records_before(streams: Streams, number: int) -> frozenset[int]:
    """The records of a checkpoint: all before its barrier, or all of an ended channel."""
    items = (queued_before(stream, CheckpointId(number)) for stream in streams.values())
    return frozenset(record for channel in items for record in channel)


def barrier_ids(streams: Streams) -> set[int]:
    return {
        item.checkpoint_id
        for stream in streams.values()
        for item in stream
        if isinstance(item, CheckpointBarrier)
    }


@st.composite
def streams_with_barriers(draw: st.DrawFn, fates: tuple[str, ...] = ("barrier",)) -> Streams:
    """Streams that each carry the same barriers, cut short or not, and end.

    With more ``fates`` a channel may skip a checkpoint, repeat its barrier or cancel it.
    """
    kinds = draw(st.lists(st.sampled_from(list(CheckpointKind)[:2]), min_size=1, max_size=4))
    record = 0
    streams: Streams = {}
    for channel in range(draw(st.integers(1, 4))):
        stream: list[Item] = []
        for number, kind in enumerate(kinds, start=1):
            for _ in range(draw(st.integers(0, 2))):
                record += 1
                stream.append(record)
            fate = draw(st.sampled_from(fates))
            if fate in ("barrier", "repeat"):
                stream.append(barrier(number, kind))
            if fate == "repeat":
                stream.append(barrier(number, kind))
            if fate == "cancel":
                stream.append(cancel(number))
        if draw(st.integers(0, 3)) == 0:
            del stream[draw(st.integers(0, len(stream))) :]
        streams[ChannelId(channel)] = [*stream, EndOfInput()]
    return streams


def schedules(*more: str) -> st.SearchStrategy[Schedule]:
    """Which channel receives or delivers next; with ``more``, aborts and timers in between."""
    what = st.sampled_from(["receive", "take", *more])
    return st.lists(st.tuples(what, st.integers(0, 5)), max_size=60)


ANY_FATE = ("barrier", "barrier", "barrier", "skip", "repeat", "cancel")


# The aligned handler -----------------------------------------------------------------------------


def test_channels_are_blocked_until_the_last_barrier_came() -> None:
    handler = AlignedBarrierHandler([A, B, C])
    assert handler.on_barrier(B, barrier(1)) == [BlockChannel(B)]
    assert (handler.aligning, handler.blocked) == (barrier(1), {B})
    assert handler.on_barrier(A, barrier(1)) == [BlockChannel(A)]
    assert handler.on_barrier(C, barrier(1)) == [snapshot(1), UnblockChannels((A, B))]
    assert (handler.aligning, handler.blocked) == (None, frozenset())


def test_a_subtask_with_one_channel_never_blocks() -> None:
    handler = AlignedBarrierHandler([A])
    assert handler.on_barrier(A, barrier(1)) == [snapshot(1)]
    assert handler.on_barrier(A, barrier(2)) == [snapshot(2)]


def test_a_newer_barrier_ends_an_older_alignment() -> None:
    handler = AlignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_barrier(B, barrier(2)) == [
        decline(1, SUBSUMED),
        forward_cancel(1),
        UnblockChannels((A,)),
        BlockChannel(B),
    ]
    assert handler.on_barrier(A, barrier(2)) == [snapshot(2), UnblockChannels((B,))]


def test_a_barrier_of_a_settled_checkpoint_blocks_nothing() -> None:
    """A channel skipped 1, so it is settled; the barriers of 1 that are still under way would
    hold their channels back for a checkpoint that no subtask waits for."""
    handler = AlignedBarrierHandler([A, B, C])
    handler.on_barrier(A, barrier(2))
    assert handler.on_barrier(B, barrier(1)) == []
    assert handler.blocked == {A}
    handler.on_barrier(B, barrier(2))
    handler.on_barrier(C, barrier(2))
    assert handler.on_barrier(C, barrier(1)) == []
    assert handler.on_barrier(C, barrier(2)) == []
    assert handler.blocked == frozenset()


def test_a_cancel_marker_ends_its_alignment() -> None:
    handler = AlignedBarrierHandler([A, B, C])
    handler.on_barrier(A, barrier(1))
    assert handler.on_cancel(B, cancel(1)) == [
        decline(1, CANCELLED),
        forward_cancel(1),
        UnblockChannels((A,)),
    ]
    assert handler.on_cancel(C, cancel(1)) == []
    assert handler.on_barrier(C, barrier(1)) == []


def test_a_cancel_marker_counts_before_any_barrier_came() -> None:
    handler = AlignedBarrierHandler([A, B])
    assert handler.on_cancel(A, cancel(3)) == [decline(3, CANCELLED), forward_cancel(3)]
    assert handler.on_barrier(B, barrier(3)) == []
    assert handler.on_barrier(B, barrier(4)) == [BlockChannel(B)]


def test_a_newer_cancel_marker_ends_an_older_alignment_too() -> None:
    handler = AlignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_cancel(B, cancel(2)) == [
        decline(1, SUBSUMED),
        forward_cancel(1),
        UnblockChannels((A,)),
        decline(2, CANCELLED),
        forward_cancel(2),
    ]
    assert handler.aligning is None


def test_a_cancel_marker_of_an_older_checkpoint_changes_nothing() -> None:
    handler = AlignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(2))
    assert handler.on_cancel(B, cancel(1)) == []
    assert handler.aligning == barrier(2)


def test_end_of_input_counts_as_aligned() -> None:
    handler = AlignedBarrierHandler([A, B, C])
    assert handler.on_end_of_input(A) == []
    handler.on_barrier(B, barrier(1))
    assert handler.on_end_of_input(C) == [snapshot(1), UnblockChannels((B,))]
    assert handler.on_barrier(B, barrier(2)) == [snapshot(2)]
    assert handler.on_end_of_input(B) == []


def test_an_alignment_the_coordinator_gave_up_is_left() -> None:
    handler = AlignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_aborted(CheckpointId(1)) == [forward_cancel(1), UnblockChannels((A,))]
    assert handler.on_aborted(CheckpointId(1)) == []
    assert handler.on_barrier(B, barrier(1)) == []


def test_a_checkpoint_given_up_before_its_barrier_is_cancelled_downstream_once() -> None:
    handler = AlignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_aborted(CheckpointId(2)) == []
    assert handler.on_barrier(B, barrier(2)) == [
        decline(1, SUBSUMED),
        forward_cancel(1),
        UnblockChannels((A,)),
        forward_cancel(2),
    ]
    assert handler.on_barrier(A, barrier(2)) == []


def test_a_cancel_marker_of_a_checkpoint_given_up_is_not_declined_again() -> None:
    handler = AlignedBarrierHandler([A, B])
    handler.on_aborted(CheckpointId(1))
    assert handler.on_cancel(A, cancel(1)) == [forward_cancel(1)]


def test_only_the_newest_checkpoints_given_up_are_remembered() -> None:
    handler = AlignedBarrierHandler([A])
    for number in range(1, PENDING_MAX + 2):
        handler.on_aborted(CheckpointId(number))
    assert handler.on_barrier(A, barrier(1)) == [snapshot(1)]
    assert handler.on_barrier(A, barrier(2)) == [forward_cancel(2)]


def test_announcements_and_timers_mean_nothing_to_the_aligned_handler() -> None:
    handler = AlignedBarrierHandler([A, B])
    assert handler.on_announced(A, barrier(1)) == []
    handler.on_barrier(A, barrier(1))
    assert handler.on_alignment_timeout(CheckpointId(1)) == []
    assert handler.blocked == {A}


@pytest.mark.parametrize(
    "deliver",
    [
        lambda handler: handler.on_barrier(A, barrier(2)),
        lambda handler: handler.on_barrier(A, barrier(1)),
        lambda handler: handler.on_cancel(A, cancel(2)),
        lambda handler: handler.on_end_of_input(A),
    ],
)
def test_a_blocked_channel_that_delivers_is_a_bug(
    deliver: Callable[[BarrierHandler], list[Action]],
) -> None:
    handler = AlignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    with pytest.raises(ProtocolError, match="channel 0 delivered while blocked"):
        deliver(handler)


@pytest.mark.parametrize("make", [AlignedBarrierHandler, AtLeastOnceBarrierHandler])
def test_a_channel_that_ended_or_does_not_exist_delivers_nothing(
    make: Callable[[list[ChannelId]], BarrierHandler],
) -> None:
    handler = make([A, B])
    handler.on_end_of_input(A)
    with pytest.raises(ProtocolError, match="ended channel 0"):
        handler.on_barrier(A, barrier(1))
    with pytest.raises(ProtocolError, match="unknown channel 2"):
        handler.on_barrier(C, barrier(1))
    with pytest.raises(ProtocolError, match="needs a channel"):
        make([])


@given(streams_with_barriers(), schedules())
def test_a_cut_holds_the_records_before_its_barrier(streams: Streams, schedule: Schedule) -> None:
    driver = Driver(AlignedBarrierHandler(list(streams)), streams)
    driver.run(schedule)
    assert driver.cuts == {n: records_before(streams, n) for n in barrier_ids(streams)}


@given(streams_with_barriers(ANY_FATE), schedules("abort"))
def test_every_aligned_snapshot_is_a_cut_with_any_skipped_or_cancelled(
    streams: Streams, schedule: Schedule
) -> None:
    driver = Driver(AlignedBarrierHandler(list(streams)), streams)
    driver.run(schedule)
    assert driver.cuts == {n: records_before(streams, n) for n in driver.cuts}
    assert driver.handler.aligning is None


# The handler that only counts --------------------------------------------------------------------


def test_at_least_once_takes_the_snapshot_at_the_last_barrier_and_blocks_nothing() -> None:
    handler = AtLeastOnceBarrierHandler([A, B])
    assert handler.on_barrier(A, barrier(1)) == []
    assert handler.on_barrier(A, barrier(2)) == []
    assert (handler.aligning, handler.blocked) == (barrier(1), frozenset())
    assert handler.on_barrier(B, barrier(1)) == [snapshot(1)]
    assert handler.aligning == barrier(2)
    assert handler.on_barrier(B, barrier(2)) == [snapshot(2)]
    assert handler.aligning is None


def test_at_least_once_drops_what_is_older_than_a_complete_checkpoint() -> None:
    handler = AtLeastOnceBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    handler.on_barrier(B, barrier(2))
    assert handler.on_barrier(A, barrier(2)) == [
        decline(1, SUBSUMED),
        forward_cancel(1),
        snapshot(2),
    ]
    assert handler.on_barrier(B, barrier(1)) == []


def test_at_least_once_counts_a_repeated_barrier_once() -> None:
    handler = AtLeastOnceBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_barrier(A, barrier(1)) == []


def test_at_least_once_completes_in_order_when_a_channel_ends() -> None:
    handler = AtLeastOnceBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    handler.on_barrier(A, barrier(2))
    assert handler.on_end_of_input(B) == [snapshot(1), snapshot(2)]


def test_at_least_once_forwards_a_cancel_marker_once() -> None:
    handler = AtLeastOnceBarrierHandler([A, B, C])
    handler.on_barrier(A, barrier(1))
    assert handler.on_cancel(B, cancel(1)) == [decline(1, CANCELLED), forward_cancel(1)]
    assert handler.on_cancel(C, cancel(1)) == []
    assert handler.on_cancel(C, cancel(2)) == [decline(2, CANCELLED), forward_cancel(2)]
    assert handler.on_barrier(A, barrier(2)) == []


def test_at_least_once_cancels_downstream_what_the_coordinator_gave_up() -> None:
    handler = AtLeastOnceBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_aborted(CheckpointId(1)) == [forward_cancel(1)]
    assert handler.on_aborted(CheckpointId(2)) == []
    assert handler.on_aborted(CheckpointId(2)) == []
    assert handler.on_barrier(A, barrier(2)) == [forward_cancel(2)]
    assert handler.on_barrier(B, barrier(2)) == []
    assert handler.on_aborted(CheckpointId(3)) == []
    assert handler.on_cancel(B, cancel(3)) == [forward_cancel(3)]


def test_at_least_once_remembers_a_bounded_number_of_checkpoints() -> None:
    handler = AtLeastOnceBarrierHandler([A, B])
    for number in range(1, PENDING_MAX + 1):
        assert handler.on_barrier(A, barrier(number)) == []
    forgotten = handler.on_barrier(A, barrier(PENDING_MAX + 1))
    assert forgotten == [decline(1, SUBSUMED), forward_cancel(1)]
    assert handler.on_barrier(B, barrier(1)) == []
    assert handler.on_barrier(B, barrier(3))[-1] == snapshot(3)


@given(streams_with_barriers(), schedules())
def test_an_at_least_once_snapshot_loses_no_record_before_its_barrier(
    streams: Streams, schedule: Schedule
) -> None:
    driver = Driver(AtLeastOnceBarrierHandler(list(streams)), streams)
    driver.run(schedule)
    assert driver.cuts.keys() == barrier_ids(streams)
    assert all(cut >= records_before(streams, n) for n, cut in driver.cuts.items())


@given(streams_with_barriers(ANY_FATE), schedules("abort"))
def test_at_least_once_keeps_its_promises_with_any_skipped_or_cancelled(
    streams: Streams, schedule: Schedule
) -> None:
    driver = Driver(AtLeastOnceBarrierHandler(list(streams)), streams)
    driver.run(schedule)
    assert all(cut >= records_before(streams, n) for n, cut in driver.cuts.items())
    assert not any(isinstance(action, BlockChannel) for action in driver.log)
