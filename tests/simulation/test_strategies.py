"""The strategies that users get make what they say."""

from hypothesis import given

from tests.simulation.strategies import (
    Schedule,
    Streams,
    interleaved,
    schedules,
    streams_with_barriers,
)
from weir.ids import ChannelId, CheckpointId
from weir.protocol.alignment import (
    AlignedBarrierHandler,
    BlockChannel,
    TakeSnapshot,
    UnblockChannels,
)
from weir.protocol.elements import CheckpointBarrier, Element, EndOfInput, Records


@given(streams_with_barriers(), schedules())
def test_an_interleaving_keeps_the_order_of_every_channel(
    streams: Streams, schedule: Schedule
) -> None:
    taken: dict[ChannelId, list[Element]] = {channel: [] for channel in streams}
    for channel, element in interleaved(streams, schedule):
        taken[channel].append(element)
    assert {channel: tuple(elements) for channel, elements in taken.items()} == streams


@given(streams_with_barriers(), schedules())
def test_a_cut_holds_the_records_before_its_barrier(streams: Streams, schedule: Schedule) -> None:
    handler = AlignedBarrierHandler(frozenset(streams))
    blocked: set[ChannelId] = set()
    held = dict.fromkeys(streams, 0)
    cuts: dict[CheckpointId, dict[ChannelId, int]] = {}
    for channel, element in interleaved(streams, schedule, blocked.__contains__):
        match element:
            case Records(count=count):
                held[channel] += count
                continue
            case CheckpointBarrier():
                actions = handler.on_barrier(channel, element)
            case EndOfInput():
                actions = handler.on_end_of_input(channel)
            case _:
                continue
        for action in actions:
            match action:
                case BlockChannel(one):
                    blocked.add(one)
                case UnblockChannels(channels):
                    blocked.difference_update(channels)
                case TakeSnapshot(barrier):
                    cuts[barrier.checkpoint_id] = dict(held)
    assert cuts == {
        number: {channel: records_before(streams[channel], number) for channel in streams}
        for number in barrier_ids(streams)
    }


def barrier_ids(streams: Streams) -> set[CheckpointId]:
    return {
        element.checkpoint_id
        for elements in streams.values()
        for element in elements
        if isinstance(element, CheckpointBarrier)
    }


def records_before(elements: tuple[Element, ...], number: CheckpointId) -> int:
    total = 0
    for element in elements:
        if isinstance(element, CheckpointBarrier) and element.checkpoint_id == number:
            return total
        if isinstance(element, Records):
            total += element.count
    raise AssertionError(f"no barrier {number}")
