"""Hypothesis strategies for streams with barriers, and for the order in which they are taken.

For tests of all that stands between channels and operators: draw some channels full of elements,
draw a schedule, and feed the elements in the order of the schedule::

    @given(streams_with_barriers(), schedules())
    def test_mine(streams: Streams, schedule: Schedule) -> None:
        for channel, element in interleaved(streams, schedule):
            ...
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

from hypothesis import strategies as st

from weir.ids import ChannelId, CheckpointId
from weir.protocol.elements import (
    CancelCheckpoint,
    CheckpointBarrier,
    Element,
    EndOfInput,
    Records,
    Watermark,
)

Streams: TypeAlias = Mapping[ChannelId, tuple[Element, ...]]
Schedule: TypeAlias = tuple[int, ...]

CHANNELS_MAX = 4
CHECKPOINTS_MAX = 4


@st.composite
def streams_with_barriers(
    draw: Callable[[st.SearchStrategy[object]], object],
    channels_max: int = CHANNELS_MAX,
    checkpoints_max: int = CHECKPOINTS_MAX,
    *,
    disturbed: bool = False,
) -> Streams:
    """Channels that each carry the same barriers in order, with records and watermarks between.

    Args:
        disturbed: Barriers may also be missing, or be replaced by a cancel marker.
    """
    count = draw(st.integers(1, channels_max))
    checkpoints = draw(st.integers(0, checkpoints_max))
    assert isinstance(count, int)
    assert isinstance(checkpoints, int)
    return {
        ChannelId(index): tuple(_stream(draw, checkpoints, disturbed=disturbed))
        for index in range(count)
    }


def schedules(length_max: int = 200) -> st.SearchStrategy[Schedule]:
    """Which channel is taken next, as numbers that are read modulo the channels that are left."""
    return st.lists(st.integers(0, 11), max_size=length_max).map(tuple)


def interleaved(
    streams: Streams,
    schedule: Schedule,
    is_blocked: Callable[[ChannelId], bool] = lambda channel: False,
) -> Iterator[tuple[ChannelId, Element]]:
    """The elements of all channels, each channel in its order, channels as the schedule says.

    A channel for which ``is_blocked`` holds is passed over; when all that are left are blocked,
    nothing more comes. A schedule that is too short goes on with the first channel.
    """
    left = {channel: list(elements) for channel, elements in streams.items() if elements}
    turns = iter(schedule)
    while open_ := [channel for channel in left if not is_blocked(channel)]:
        channel = open_[next(turns, 0) % len(open_)]
        element = left[channel].pop(0)
        if not left[channel]:
            del left[channel]
        yield channel, element


def _stream(
    draw: Callable[[st.SearchStrategy[object]], object], checkpoints: int, *, disturbed: bool
) -> Iterator[Element]:
    between = st.lists(st.one_of(_records(), st.integers(0, 100).map(Watermark)), max_size=3)
    for number in range(1, checkpoints + 1):
        yield from _elements(draw(between))
        checkpoint = CheckpointId(number)
        what = draw(st.sampled_from(["barrier", "cancel", "nothing"])) if disturbed else "barrier"
        if what == "barrier":
            yield CheckpointBarrier(checkpoint, triggered_at_ms=number)
        elif what == "cancel":
            yield CancelCheckpoint(checkpoint)
    yield from _elements(draw(between))
    yield EndOfInput()


def _records() -> st.SearchStrategy[Records]:
    return st.lists(st.integers(), min_size=1, max_size=4).map(
        lambda rows: Records(rows, len(rows), 8 * len(rows))
    )


def _elements(drawn: object) -> list[Element]:
    assert isinstance(drawn, list)
    return drawn
