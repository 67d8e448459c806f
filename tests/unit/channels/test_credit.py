"""Byte credit: what is under way stays bounded, and a receiver that consumes may receive again."""

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.channels.credit import ReceiverCredit, SenderCredit
from weir.errors import ChannelError, ConfigError, ProtocolError


def test_a_sender_may_overdraw_by_one_batch() -> None:
    sender = SenderCredit(100)
    sender.consume(99)
    assert sender.can_send
    sender.consume(500)
    assert (sender.can_send, sender.available_bytes) == (False, -499)
    sender.grant(500)
    assert sender.can_send


def test_sending_without_credit_is_a_bug() -> None:
    sender = SenderCredit(100)
    sender.consume(100)
    with pytest.raises(ProtocolError, match="without credit"):
        sender.consume(1)


@pytest.mark.parametrize("size", [51, 0, -1])
def test_a_grant_of_more_than_is_under_way_is_refused(size: int) -> None:
    sender = SenderCredit(100)
    sender.consume(50)
    with pytest.raises(ChannelError, match="granted"):
        sender.grant(size)


def test_grants_wait_for_half_a_window() -> None:
    receiver = ReceiverCredit(100)
    receiver.on_delivered(60)
    assert receiver.on_consumed(49) == 0
    assert receiver.on_consumed(1) == 50
    assert receiver.on_consumed(10) == 0
    assert receiver.held_bytes == 0


def test_a_sender_that_ignores_its_credit_is_refused() -> None:
    receiver = ReceiverCredit(100)
    receiver.on_delivered(100)
    with pytest.raises(ChannelError, match="without credit"):
        receiver.on_delivered(1)


def test_consuming_more_than_was_delivered_is_a_bug() -> None:
    receiver = ReceiverCredit(100)
    receiver.on_delivered(10)
    with pytest.raises(ProtocolError, match="consumed"):
        receiver.on_consumed(11)


@pytest.mark.parametrize("side", [SenderCredit, ReceiverCredit])
def test_a_window_of_nothing_is_refused(side: type) -> None:
    with pytest.raises(ConfigError, match="at least 1"):
        side(0)


@given(
    st.integers(1, 50),
    st.lists(st.integers(0, 80), max_size=40),
    st.lists(st.sampled_from(["send", "deliver", "consume", "grant"]), max_size=200),
)
def test_what_is_under_way_is_bounded_and_nothing_deadlocks(
    window_bytes: int, sizes: list[int], schedule: list[str]
) -> None:
    sender, receiver = SenderCredit(window_bytes), ReceiverCredit(window_bytes)
    to_send, batch_max = deque(sizes), max(sizes, default=0)
    on_wire: deque[int] = deque()
    held: deque[int] = deque()
    grants: deque[int] = deque()

    def step(what: str) -> bool:
        if what == "send" and to_send and sender.can_send:
            sender.consume(to_send[0])
            on_wire.append(to_send.popleft())
        elif what == "deliver" and on_wire:
            receiver.on_delivered(on_wire[0])
            held.append(on_wire.popleft())
        elif what == "consume" and held:
            if granted := receiver.on_consumed(held.popleft()):
                grants.append(granted)
        elif what == "grant" and grants:
            sender.grant(grants.popleft())
        else:
            return False
        assert sum(on_wire) + sum(held) < window_bytes + max(batch_max, 1)
        return True

    for what in schedule:
        step(what)
    while any(step(what) for what in ("send", "deliver", "consume", "grant")):
        pass
    assert not to_send
    assert sender.can_send
