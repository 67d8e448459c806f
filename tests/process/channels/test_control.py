"""Control connections over a loopback socket, both ends in one thread."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from weir.channels import control_connection
from weir.channels.control_connection import ControlConnection, MessageDecoder, encode_frame
from weir.errors import ChannelError, ProtocolError
from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import Address, SlotAccepted, SlotHeartbeat, WorkerExited
from weir.protocol.wire import WireMessage

SECRET, ATTEMPT_SECRET = b"j" * 32, b"a" * 32
SECRETS = {None: SECRET, AttemptNumber(3): ATTEMPT_SECRET}


@contextmanager
def ends(
    secret: bytes = SECRET, attempt: AttemptNumber | None = None
) -> Iterator[tuple[ControlConnection, ControlConnection]]:
    """The connector's end and the job master's."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        connector = ControlConnection.connect(address, secret, "slot-0", attempt)
        acceptor = ControlConnection.accept(listener.accept()[0], SECRETS.get)
    try:
        yield connector, acceptor
    finally:
        connector.close()
        acceptor.close()


def pump(
    one: ControlConnection, other: ControlConnection, until: Callable[[], object]
) -> list[object]:
    """Serve both ends until the condition holds; what they received."""
    received: list[object] = []
    for _ in range(100_000):
        if until():
            return received
        for end in (one, other):
            end.pump_out()
            received += end.pump_in()
    raise AssertionError(f"the condition never held; received {received}")


def test_messages_travel_both_ways_after_both_ends_proved_themselves() -> None:
    with ends() as (slot, master):
        slot.send(SlotHeartbeat(0))  # Before anybody is known: it waits.
        received = pump(slot, master, lambda: slot.authenticated and master.authenticated)
        assert (master.peer_identity, master.attempt) == ("slot-0", None)
        assert slot.peer_identity == control_connection.JOB_MASTER
        master.send(SlotAccepted(JobId("j"), b"\0program"))
        received += pump(slot, master, lambda: not slot.wants_write and not master.wants_write)
        while len(received) < 2:
            received += slot.pump_in() + master.pump_in()
    assert received == [SlotHeartbeat(0), SlotAccepted(JobId("j"), b"\0program")]


def test_a_worker_proves_the_secret_of_its_attempt() -> None:
    with ends(ATTEMPT_SECRET, AttemptNumber(3)) as (worker, master):
        pump(worker, master, lambda: worker.authenticated)
        assert master.attempt == 3


@pytest.mark.parametrize(
    ("secret", "attempt", "cause"),
    [
        (b"x" * 32, None, "does not know"),
        (SECRET, AttemptNumber(3), "does not know"),
        (ATTEMPT_SECRET, AttemptNumber(2), "attempt 2 is not running"),
    ],
    ids=["wrong secret", "another's secret", "an attempt that is over"],
)
def test_who_cannot_prove_itself_is_refused(
    secret: bytes, attempt: AttemptNumber | None, cause: str
) -> None:
    with ends(secret, attempt) as (stranger, master):
        stranger.send(SlotHeartbeat(0))
        with pytest.raises(ChannelError, match=cause):
            pump(stranger, master, lambda: False)
        master.close()
        with pytest.raises(ChannelError, match="during authentication"):
            pump(stranger, stranger, lambda: False)


def test_the_end_of_the_peer_is_noticed_after_its_last_message() -> None:
    with ends() as (slot, master):
        pump(slot, master, lambda: slot.authenticated)
        slot.send(SlotHeartbeat(5))
        slot.pump_out()
        slot.close()
        received: list[object] = []
        while not master.ended:
            received += master.pump_in()
        assert received == [SlotHeartbeat(5)]
        master.send(SlotAccepted(JobId("j"), b""))  # Goes nowhere, and does no harm.
        assert not master.wants_write


def test_a_large_message_passes_a_full_socket() -> None:
    program = bytes(range(256)) * 40_000  # 10 MB, and a third more as text.
    with ends() as (slot, master):
        pump(slot, master, lambda: slot.authenticated)
        master.send(SlotAccepted(JobId("j"), program))
        received: list[object] = []
        while not received:
            master.pump_out()
            received = list(slot.pump_in())
    assert received == [SlotAccepted(JobId("j"), program)]


def test_a_peer_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_connection, "QUEUED_BYTES_MAX", 1 << 20)
    with ends() as (slot, master):
        pump(slot, master, lambda: slot.authenticated)

        def keep_sending() -> None:
            for _ in range(100):
                master.send(SlotAccepted(JobId("j"), bytes(1 << 20)))
                master.pump_out()

        with pytest.raises(ChannelError, match="does not read"):
            keep_sending()


def test_connecting_to_a_closed_port_says_what_to_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(ChannelError, match="executors must be able to connect to the driver"):
        ControlConnection.connect(address, SECRET, "slot-0")


def test_messages_come_out_whole_however_the_bytes_are_cut() -> None:
    messages: list[WireMessage] = [
        SlotHeartbeat(1),
        WorkerExited(0, AttemptNumber(1), 7, -9, "tail ü"),
        SlotHeartbeat(2),
    ]
    data = b"".join(encode_frame(message) for message in messages)
    for step in (1, 3, 50, len(data)):
        decoder = MessageDecoder()
        received = [
            message
            for start in range(0, len(data), step)
            for message in decoder.feed(data[start : start + step])
        ]
        assert received == messages


@pytest.mark.parametrize(
    "body",
    [
        b"no json",
        b"\xff",
        b"[" * 100_000,
        json.dumps({"schema_version": 99, "message": {"type": "SlotHeartbeat"}}).encode(),
        json.dumps({"schema_version": 1, "message": {"type": "NoSuchMessage"}}).encode(),
    ],
    ids=["text", "binary", "nested", "version", "type"],
)
def test_an_unreadable_message_ends_the_connection(body: bytes) -> None:
    with pytest.raises(ChannelError, match="unreadable"):
        MessageDecoder().feed(struct.pack("!I", len(body)) + body)


def test_a_message_beyond_the_bound_is_refused_by_both_sides(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(ChannelError, match="announced"):
        MessageDecoder().feed(struct.pack("!I", control_connection.MESSAGE_BYTES_MAX + 1))
    monkeypatch.setattr(control_connection, "MESSAGE_BYTES_MAX", 100)
    with pytest.raises(ProtocolError, match="set a checkpoint storage"):
        encode_frame(SlotAccepted(JobId("j"), bytes(100)))
