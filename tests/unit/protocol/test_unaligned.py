"""Barrier handlers that overtake: what they do, and what snapshot and recording hold together."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.protocol.test_alignment import (
    ANY_FATE,
    CANCELLED,
    SUBSUMED,
    A,
    B,
    C,
    Driver,
    Schedule,
    Streams,
    barrier,
    barrier_ids,
    cancel,
    decline,
    forward_cancel,
    records_before,
    schedules,
    snapshot,
    streams_with_barriers,
)
from weir.config import CheckpointingMode
from weir.errors import ProtocolError
from weir.ids import ChannelId, CheckpointId
from weir.protocol.alignment import (
    AbortRecording,
    AlignedBarrierHandler,
    AtLeastOnceBarrierHandler,
    BarrierHandler,
    BlockChannel,
    CompleteRecording,
    StartAlignmentTimer,
    StartRecording,
    StopRecording,
    TakeSnapshot,
    UnblockChannels,
)
from weir.protocol.elements import Alignment, CheckpointBarrier, CheckpointKind
from weir.protocol.unaligned import TimeoutBarrierHandler, UnalignedBarrierHandler, make_handler


def overtaking(number: int) -> CheckpointBarrier:
    plain = barrier(number)
    return replace(plain, options=replace(plain.options, alignment=Alignment.UNALIGNED))


def unaligned_snapshot(number: int) -> TakeSnapshot:
    return TakeSnapshot(overtaking(number), unaligned=True)


def start(number: int, *channels: ChannelId) -> StartRecording:
    return StartRecording(CheckpointId(number), channels)


def stop(number: int, channel: ChannelId) -> StopRecording:
    return StopRecording(CheckpointId(number), channel)


def complete(number: int) -> CompleteRecording:
    return CompleteRecording(CheckpointId(number))


def abort(number: int) -> AbortRecording:
    return AbortRecording(CheckpointId(number))


def timer(number: int) -> StartAlignmentTimer:
    return StartAlignmentTimer(CheckpointId(number), 50, 1_000 * number)


# Unaligned from the start ------------------------------------------------------------------------


def test_the_first_barrier_overtakes_and_the_other_channels_are_recorded() -> None:
    handler = UnalignedBarrierHandler([A, B, C])
    assert handler.on_barrier(B, barrier(1)) == [unaligned_snapshot(1), start(1, A, C)]
    assert (handler.aligning, handler.blocked) == (barrier(1), frozenset())
    assert handler.on_barrier(C, barrier(1)) == [stop(1, C)]
    assert handler.on_barrier(A, barrier(1)) == [stop(1, A), complete(1)]
    assert handler.aligning is None
    assert handler.on_barrier(A, barrier(1)) == []


def test_a_queued_barrier_overtakes_what_is_queued_before_it() -> None:
    handler = UnalignedBarrierHandler([A, B])
    assert handler.on_announced(A, barrier(1)) == [
        unaligned_snapshot(1),
        start(1, A, B),
        stop(1, A),
    ]
    assert handler.on_barrier(A, barrier(1)) == []
    assert handler.on_announced(B, barrier(1)) == [stop(1, B), complete(1)]
    assert handler.on_barrier(B, barrier(1)) == []


def test_a_single_channel_has_nothing_to_record() -> None:
    handler = UnalignedBarrierHandler([A])
    assert handler.on_barrier(A, barrier(1)) == [unaligned_snapshot(1), start(1), complete(1)]


def test_end_of_input_ends_its_recording() -> None:
    handler = UnalignedBarrierHandler([A, B, C])
    handler.on_barrier(A, barrier(1))
    assert handler.on_end_of_input(A) == []
    assert handler.on_end_of_input(B) == [stop(1, B)]
    assert handler.on_end_of_input(C) == [stop(1, C), complete(1)]


def test_a_newer_barrier_aborts_the_recording() -> None:
    """The barrier of 1 is downstream already, so no cancel marker may follow it."""
    handler = UnalignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_barrier(B, barrier(2)) == [
        decline(1, SUBSUMED),
        abort(1),
        unaligned_snapshot(2),
        start(2, A),
    ]


def test_a_cancel_marker_aborts_the_recording() -> None:
    handler = UnalignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_cancel(B, cancel(1)) == [decline(1, CANCELLED), abort(1)]
    assert handler.on_cancel(A, cancel(1)) == []
    assert handler.on_cancel(A, cancel(2)) == [decline(2, CANCELLED), forward_cancel(2)]


def test_a_recording_the_coordinator_gave_up_is_aborted() -> None:
    handler = UnalignedBarrierHandler([A, B])
    handler.on_barrier(A, barrier(1))
    assert handler.on_aborted(CheckpointId(1)) == [abort(1)]
    assert handler.on_barrier(B, barrier(1)) == []


def test_a_checkpoint_given_up_before_it_was_announced_is_cancelled_downstream() -> None:
    handler = UnalignedBarrierHandler([A, B])
    handler.on_aborted(CheckpointId(1))
    assert handler.on_announced(A, barrier(1)) == [forward_cancel(1)]
    assert handler.on_barrier(A, barrier(1)) == []


@pytest.mark.parametrize(
    "make",
    [UnalignedBarrierHandler, lambda channels: TimeoutBarrierHandler(channels, 50)],
)
@pytest.mark.parametrize(
    "kind", [kind for kind in CheckpointKind if kind is not CheckpointKind.CHECKPOINT]
)
def test_savepoints_are_always_aligned(
    make: Callable[[list[ChannelId]], BarrierHandler], kind: CheckpointKind
) -> None:
    handler = make([A, B])
    savepoint = barrier(1, kind)
    assert handler.on_announced(A, savepoint) == []
    assert handler.on_barrier(A, savepoint) == [BlockChannel(A)]
    assert handler.on_alignment_timeout(CheckpointId(1)) == []
    assert handler.on_barrier(B, savepoint) == [
        TakeSnapshot(savepoint, unaligned=False),
        UnblockChannels((A,)),
    ]


# Aligned with a timeout --------------------------------------------------------------------------


def test_in_time_it_is_aligned() -> None:
    handler = TimeoutBarrierHandler([A, B, C], 50)
    assert handler.on_barrier(A, barrier(1)) == [BlockChannel(A), timer(1)]
    assert handler.on_barrier(B, barrier(1)) == [BlockChannel(B)]
    assert handler.on_barrier(C, barrier(1)) == [snapshot(1), UnblockChannels((A, B))]
    assert handler.on_alignment_timeout(CheckpointId(1)) == []


def test_a_single_channel_at_its_barrier_needs_no_timer() -> None:
    assert TimeoutBarrierHandler([A], 50).on_barrier(A, barrier(1)) == [snapshot(1)]


def test_the_timeout_frees_the_blocked_channels_and_records_the_missing_ones() -> None:
    handler = TimeoutBarrierHandler([A, B, C], 50)
    handler.on_barrier(B, barrier(1))
    assert handler.on_alignment_timeout(CheckpointId(1)) == [
        unaligned_snapshot(1),
        start(1, A, C),
        UnblockChannels((B,)),
    ]
    assert handler.blocked == frozenset()
    assert handler.on_alignment_timeout(CheckpointId(1)) == []
    assert handler.on_barrier(A, barrier(1)) == [stop(1, A)]
    assert handler.on_announced(C, barrier(1)) == [stop(1, C), complete(1)]


def test_an_announced_barrier_starts_the_timer_and_overtakes_when_it_fires() -> None:
    """Under back pressure no barrier reaches the head in time: all of them wait in queues."""
    handler = TimeoutBarrierHandler([A, B], 50)
    assert handler.on_announced(A, barrier(1)) == [timer(1)]
    assert handler.on_announced(B, barrier(1)) == []
    assert handler.on_alignment_timeout(CheckpointId(1)) == [
        unaligned_snapshot(1),
        start(1, A, B),
        stop(1, A),
        stop(1, B),
        complete(1),
    ]
    assert handler.on_barrier(A, barrier(1)) == []


def test_a_barrier_that_overtook_upstream_overtakes_here_at_once() -> None:
    handler = TimeoutBarrierHandler([A, B, C], 50)
    handler.on_barrier(A, barrier(1))
    assert handler.on_announced(B, overtaking(1)) == [
        unaligned_snapshot(1),
        start(1, B, C),
        UnblockChannels((A,)),
        stop(1, B),
    ]
    assert handler.on_barrier(C, overtaking(1)) == [stop(1, C), complete(1)]


def test_a_late_timer_does_not_touch_a_newer_checkpoint() -> None:
    handler = TimeoutBarrierHandler([A, B], 50)
    handler.on_barrier(A, barrier(1))
    handler.on_barrier(B, barrier(1))
    handler.on_barrier(A, barrier(2))
    assert handler.on_alignment_timeout(CheckpointId(1)) == []
    assert handler.blocked == {A}


def test_an_announced_newer_barrier_ends_an_older_alignment() -> None:
    """With one checkpoint at a time the newer one proves that the older was given up; waiting for
    it to reach the head would keep the older one's channels blocked under back pressure."""
    handler = TimeoutBarrierHandler([A, B], 50)
    handler.on_barrier(A, barrier(1))
    assert handler.on_announced(A, barrier(2)) == [
        decline(1, SUBSUMED),
        forward_cancel(1),
        UnblockChannels((A,)),
        timer(2),
    ]


def test_an_announcement_counts_for_its_own_checkpoint_only() -> None:
    """A holds a barrier of 1, which is given up; the barrier of 2 is still to come on A, and what
    arrives before it belongs to the channel state of 2."""
    handler = TimeoutBarrierHandler([A, B], 50)
    handler.on_announced(A, barrier(1))
    assert handler.on_aborted(CheckpointId(1)) == [forward_cancel(1)]
    assert handler.on_announced(B, barrier(2)) == [timer(2)]
    assert handler.on_barrier(A, barrier(1)) == []
    assert handler.on_alignment_timeout(CheckpointId(2)) == [
        unaligned_snapshot(2),
        start(2, A, B),
        stop(2, B),
    ]


def test_a_channel_that_ended_or_is_blocked_delivers_nothing() -> None:
    handler = TimeoutBarrierHandler([A, B, C], 50)
    handler.on_end_of_input(C)
    handler.on_barrier(A, barrier(1))
    with pytest.raises(ProtocolError, match="blocked"):
        handler.on_barrier(A, barrier(2))
    with pytest.raises(ProtocolError, match="ended"):
        handler.on_announced(C, barrier(1))


# Any interleaving --------------------------------------------------------------------------------


def overtaking_handlers() -> st.SearchStrategy[Callable[[list[ChannelId]], BarrierHandler]]:
    """Of both kinds, with none, some or all channels in order."""
    return st.builds(
        lambda is_timed, places: (
            lambda channels: make_handler(
                channels,
                CheckpointingMode.EXACTLY_ONCE,
                50 if is_timed else 0,
                [channel for place, channel in enumerate(channels) if place in places],
            )
        ),
        st.booleans(),
        st.one_of(st.just(set()), st.sets(st.integers(0, 3))),
    )


def check_whole_snapshots(driver: Driver, streams: Streams) -> None:
    """Snapshot and recorded channel state hold each record before the barrier, once."""
    for number, cut in driver.cuts.items():
        if number in driver.recorded and number not in driver.whole:
            continue  # Aborted: nothing restores from it.
        in_flight = driver.recorded.get(number, [])
        assert len(set(in_flight)) == len(in_flight)
        assert cut.isdisjoint(in_flight)
        assert cut.union(in_flight) == records_before(streams, number)


def one_at_a_time(streams: Streams) -> Streams:
    """The streams with the barriers of one checkpoint only, which no newer one can end."""
    return {
        channel: [
            item
            for item in stream
            if not isinstance(item, CheckpointBarrier) or item.checkpoint_id == 1
        ]
        for channel, stream in streams.items()
    }


@given(overtaking_handlers(), streams_with_barriers(), schedules("timeout"))
def test_unaligned_state_and_in_flight_data_cover_what_aligned_state_does(
    make: Callable[[list[ChannelId]], BarrierHandler], streams: Streams, schedule: Schedule
) -> None:
    streams = one_at_a_time(streams)
    driver = Driver(make(list(streams)), streams)
    driver.run(schedule)
    assert driver.cuts.keys() == barrier_ids(streams)
    assert driver.whole == driver.recorded.keys()
    check_whole_snapshots(driver, streams)


@given(overtaking_handlers(), streams_with_barriers(ANY_FATE), schedules("timeout", "abort"))
def test_overtaking_handlers_keep_their_promises_with_any_skipped_or_cancelled(
    make: Callable[[list[ChannelId]], BarrierHandler], streams: Streams, schedule: Schedule
) -> None:
    driver = Driver(make(list(streams)), streams)
    driver.run(schedule)
    check_whole_snapshots(driver, streams)
    assert driver.handler.aligning is None
    assert driver.open_recordings == {}


@given(streams_with_barriers(), schedules())
def test_without_timers_the_timeout_handler_cuts_as_the_aligned_one(
    streams: Streams, schedule: Schedule
) -> None:
    streams = one_at_a_time(streams)
    driver = Driver(TimeoutBarrierHandler(list(streams), 50), streams)
    driver.run(schedule)
    assert driver.cuts == {n: records_before(streams, n) for n in barrier_ids(streams)}
    assert driver.recorded == {}


@given(streams_with_barriers(), schedules("timeout"), st.sets(st.integers(0, 3)), st.booleans())
def test_nothing_is_recorded_on_a_channel_in_order(
    streams: Streams, schedule: Schedule, places: set[int], is_timed: bool
) -> None:
    in_order = {channel for place, channel in enumerate(streams) if place in places}
    exactly = CheckpointingMode.EXACTLY_ONCE
    handler = make_handler(list(streams), exactly, 50 if is_timed else 0, in_order)
    streams = one_at_a_time(streams)
    driver = Driver(handler, streams)
    driver.run(schedule)
    for action in driver.log:
        if isinstance(action, StartRecording):
            assert in_order.isdisjoint(action.channels)
    assert driver.cuts.keys() == barrier_ids(streams)


# Channels in order -------------------------------------------------------------------------------


def test_a_barrier_overtakes_once_the_channels_in_order_have_theirs() -> None:
    handler = UnalignedBarrierHandler([A, B, C], [C])
    assert handler.on_announced(A, barrier(1)) == []
    assert handler.on_announced(C, barrier(1)) == []  # Behind records, which it must not overtake.
    assert handler.on_barrier(A, barrier(1)) == [BlockChannel(A)]
    assert handler.on_barrier(C, barrier(1)) == [
        unaligned_snapshot(1),
        start(1, B),
        UnblockChannels((A,)),
    ]
    assert handler.on_announced(B, barrier(1)) == [stop(1, B), complete(1)]


def test_the_end_of_the_last_channel_in_order_lets_a_barrier_overtake() -> None:
    handler = UnalignedBarrierHandler([A, B, C], [B, C])
    handler.on_announced(A, barrier(1))
    assert handler.on_barrier(B, barrier(1)) == [BlockChannel(B)]
    assert handler.on_end_announced(C) == []
    assert handler.on_end_of_input(C) == [
        unaligned_snapshot(1),
        start(1, A),
        UnblockChannels((B,)),
        stop(1, A),
        complete(1),
    ]


def test_a_time_out_waits_for_the_channels_in_order() -> None:
    handler = TimeoutBarrierHandler([A, B, C], 50, [C])
    assert handler.on_announced(C, barrier(1)) == []
    assert handler.on_announced(A, barrier(1)) == [timer(1)]
    assert handler.on_alignment_timeout(CheckpointId(1)) == []
    assert handler.on_barrier(C, barrier(1))[0] == unaligned_snapshot(1)


def test_a_time_out_is_forgotten_with_its_checkpoint() -> None:
    handler = TimeoutBarrierHandler([A, B], 50, [B])
    handler.on_announced(A, barrier(1))
    handler.on_alignment_timeout(CheckpointId(1))
    handler.on_aborted(CheckpointId(1))
    assert handler.on_barrier(B, barrier(2)) == [BlockChannel(B), timer(2)]


def test_an_end_that_is_queued_ends_the_recording() -> None:
    handler = UnalignedBarrierHandler([A, B, C])
    assert handler.on_end_announced(B) == []
    assert handler.on_announced(A, barrier(1)) == [
        unaligned_snapshot(1),
        start(1, A, B, C),
        stop(1, A),
        stop(1, B),
    ]
    assert handler.on_end_announced(C) == [stop(1, C), complete(1)]
    assert handler.on_end_of_input(B) == []


# Which handler -----------------------------------------------------------------------------------


def test_the_settings_choose_the_handler() -> None:
    exactly, at_least = CheckpointingMode.EXACTLY_ONCE, CheckpointingMode.AT_LEAST_ONCE
    assert type(make_handler([A], exactly, None)) is AlignedBarrierHandler
    assert type(make_handler([A], exactly, 0)) is UnalignedBarrierHandler
    assert type(make_handler([A], exactly, 50)) is TimeoutBarrierHandler
    assert type(make_handler([A], at_least, 0)) is AtLeastOnceBarrierHandler
