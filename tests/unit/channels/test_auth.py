"""The handshake between slots: a peer that knows the secret gets in, and no other."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from weir.channels.auth import IDENTITY_BYTES_MAX, NONCE_BYTES, Handshake, Role
from weir.errors import ChannelError, ConfigError

SECRET = b"a secret of this attempt"
CONNECTOR_NONCE, ACCEPTOR_NONCE = b"c" * NONCE_BYTES, b"a" * NONCE_BYTES


def connector(secret: bytes = SECRET, identity: str = "slot-1") -> Handshake:
    return Handshake(Role.CONNECTOR, secret, identity, CONNECTOR_NONCE)


def acceptor(secret: bytes = SECRET, identity: str = "slot-0") -> Handshake:
    return Handshake(Role.ACCEPTOR, secret, identity, ACCEPTOR_NONCE)


def recorded() -> tuple[bytes, bytes]:
    """All bytes of a good handshake: the connector's and the acceptor's."""
    one, other = connector(), acceptor()
    sent, answered = one.outgoing(), other.outgoing()
    one.receive(answered)
    proof = one.outgoing()
    other.receive(sent + proof)
    return sent + proof, answered + other.outgoing()


def test_both_ends_learn_who_the_other_is() -> None:
    one, other = connector(), acceptor()
    one.receive(other.outgoing())
    assert not one.done
    other.receive(one.outgoing())
    assert not other.done or other.peer_identity == "slot-1"
    other.receive(one.outgoing())
    one.receive(other.outgoing())
    assert (one.done, one.peer_identity) == (True, "slot-0")
    assert (other.done, other.peer_identity) == (True, "slot-1")
    assert (one.outgoing(), other.outgoing()) == (b"", b"")


@given(st.lists(st.integers(1, 40), min_size=1))
def test_messages_may_come_in_any_pieces(sizes: list[int]) -> None:
    sent, _ = recorded()
    data, handshake, surplus = sent + b"frames", acceptor(), b""
    while data:
        for size in sizes:
            piece, data = data[:size], data[size:]
            surplus += handshake.receive(piece)
    assert (handshake.done, surplus) == (True, b"frames")


@pytest.mark.parametrize("role", list(Role))
def test_a_wrong_secret_is_refused(role: Role) -> None:
    good = Handshake(role, SECRET, "good", CONNECTOR_NONCE)
    bad = Handshake(role.peer, SECRET[::-1], "bad", ACCEPTOR_NONCE)
    bad.receive(good.outgoing())
    forged = b"" if role is Role.ACCEPTOR else b"\x01" * 32  # An acceptor proves itself last.
    with pytest.raises(ChannelError, match="does not know the secret"):
        good.receive(bad.outgoing() + forged)
    assert not good.done


def test_a_stranger_gets_no_proof_from_the_acceptor() -> None:
    handshake = acceptor()
    hello = handshake.outgoing()
    stranger = connector(secret=SECRET[::-1])
    stranger.receive(hello)
    with pytest.raises(ChannelError):
        handshake.receive(stranger.outgoing())
    assert handshake.outgoing() == b""


def test_a_challenge_sent_back_is_refused() -> None:
    handshake = connector()
    with pytest.raises(ChannelError, match="our own challenge"):
        handshake.receive(handshake.outgoing())


def test_a_proof_sent_back_is_refused() -> None:
    """An attacker without the secret opens the connection as acceptor and returns the proof that
    the connector made: the role in it is the wrong one."""
    handshake = connector()
    handshake.receive(acceptor().outgoing())
    proof = handshake.outgoing()[-32:]
    with pytest.raises(ChannelError, match="secret"):
        handshake.receive(proof)


def test_a_handshake_between_two_connectors_fails() -> None:
    one = connector()
    other = Handshake(Role.CONNECTOR, SECRET, "slot-2", ACCEPTOR_NONCE)
    one.receive(other.outgoing())
    with pytest.raises(ChannelError, match="secret"):
        other.receive(one.outgoing())


def test_a_recorded_handshake_is_refused() -> None:
    sent, _ = recorded()
    fresh = Handshake(Role.ACCEPTOR, SECRET, "slot-0")
    with pytest.raises(ChannelError, match="secret"):
        fresh.receive(sent)


@given(st.data())
def test_any_changed_byte_is_noticed(data: st.DataObject) -> None:
    sent, _ = recorded()
    changed = bytearray(sent)
    changed[data.draw(st.integers(0, len(sent) - 1))] ^= data.draw(st.integers(1, 255))
    handshake = acceptor()
    with suppress(ChannelError):
        handshake.receive(bytes(changed))
    assert not handshake.done


@given(st.data())
def test_a_truncated_handshake_is_not_done(data: st.DataObject) -> None:
    sent, _ = recorded()
    handshake = acceptor()
    assert handshake.receive(sent[: data.draw(st.integers(0, len(sent) - 1))]) == b""
    assert not handshake.done
    with pytest.raises(ChannelError, match="not proved"):
        _ = handshake.peer_identity
    with pytest.raises(ChannelError, match="closed the connection during authentication"):
        handshake.on_end()


def test_a_peer_of_another_protocol_is_refused_at_its_first_byte() -> None:
    with pytest.raises(ChannelError, match="does not speak"):
        acceptor().receive(b"GET / HTTP/1.1")


def test_an_identity_is_bounded_before_it_is_read() -> None:
    hello = acceptor().outgoing()
    at = len(hello) - len("slot-0") - 2
    with pytest.raises(ChannelError, match="identity of 65535 bytes"):
        connector().receive(hello[:at] + b"\xff\xff")


def test_challenges_differ_between_handshakes() -> None:
    assert Handshake(Role.CONNECTOR, SECRET, "a").outgoing() != (
        Handshake(Role.CONNECTOR, SECRET, "a").outgoing()
    )


@pytest.mark.parametrize(
    ("secret", "identity", "nonce"),
    [
        (b"short", "slot-0", CONNECTOR_NONCE),
        (SECRET, "", CONNECTOR_NONCE),
        (SECRET, "x" * (IDENTITY_BYTES_MAX + 1), CONNECTOR_NONCE),
        (SECRET, "slot-0", b"short"),
    ],
)
def test_weak_parameters_are_refused(secret: bytes, identity: str, nonce: bytes) -> None:
    with pytest.raises(ConfigError):
        Handshake(Role.CONNECTOR, secret, identity, nonce)
