"""Control connections over a loopback socket, plain and encrypted, both ends in one thread."""

import json
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager

import pytest

from tests.networks import (
    JOB_ID,
    KINDS,
    make_network,
    worker_credentials,
    worker_security,
)
from tests.waiting import wait_until
from weir.channels import control_connection
from weir.channels.authority import Network
from weir.channels.control_connection import ControlConnection, MessageDecoder, encode_frame
from weir.channels.identity import SlotIdentity
from weir.channels.security import open_credentials
from weir.config import UNANSWERED_MS_MAX, JobConfig
from weir.errors import ChannelError, ProtocolError
from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import Address, Credentials, SlotAccepted, SlotHeartbeat, WorkerExited
from weir.protocol.wire import WireMessage

RUNNING = AttemptNumber(3)


@pytest.fixture(params=list(KINDS))
def network(request: pytest.FixtureRequest) -> Network:
    return make_network(request.param)


@contextmanager
def ends(
    network: Network,
    credentials: Credentials | None = None,
    unanswered_ms_max: tuple[int, int] = (UNANSWERED_MS_MAX, UNANSWERED_MS_MAX),
) -> Iterator[tuple[ControlConnection, ControlConnection]]:
    """The end of a slot, unless credentials say otherwise, and the job master's."""
    security = open_credentials(credentials or network.slot(0))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        connector = ControlConnection.connect(
            address, security, unanswered_ms_max=unanswered_ms_max[0]
        )
        acceptor = ControlConnection.accept(
            listener.accept()[0], network.job_master(), RUNNING.__eq__, unanswered_ms_max[1]
        )
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

    def pumped() -> object:
        if not (value := until()):
            for end in (one, other):
                end.pump_out()
                received.extend(end.pump_in())
        return value

    wait_until(pumped, lambda: f"both ends are served; received {received}", poll_s=0)
    return received


def test_messages_travel_both_ways_after_both_ends_proved_themselves(network: Network) -> None:
    with ends(network) as (slot, master):
        slot.send(SlotHeartbeat(0))  # Before anybody is known: it waits.
        received = pump(slot, master, lambda: slot.authenticated and master.authenticated)
        assert master.peer == SlotIdentity(0)
        assert slot.peer is None
        master.send(SlotAccepted(JobId("j"), b"\0program"))
        received += pump(slot, master, lambda: not slot.wants_write and not master.wants_write)
        while len(received) < 2:
            received += slot.pump_in() + master.pump_in()
    assert received == [SlotHeartbeat(0), SlotAccepted(JobId("j"), b"\0program")]


def test_a_worker_proves_its_attempt(network: Network) -> None:
    with ends(network, worker_credentials(network, RUNNING, 1)) as (worker, master):
        pump(worker, master, lambda: worker.authenticated and master.authenticated)
        assert master.peer == SlotIdentity(1, RUNNING)


def refused(network: Network, credentials: Credentials, cause: str) -> None:
    with ends(network, credentials) as (stranger, master):
        stranger.send(SlotHeartbeat(0))
        with pytest.raises(ChannelError, match=cause):
            pump(stranger, master, lambda: False)
        assert not master.authenticated
        master.close()


def test_an_end_of_another_network_is_refused(network: Network) -> None:
    other = type(network)(JOB_ID)
    refused(network, other.slot(0), "does not know|belongs to another|is refused")


def test_a_worker_of_an_attempt_that_is_over_is_refused(network: Network) -> None:
    refused(network, worker_credentials(network, 2, 1), "attempt 2 is not running")


def test_the_secret_of_an_older_attempt_opens_no_newer_one() -> None:
    network = make_network("plain")
    old = worker_credentials(network, 2, 1)
    new = Credentials(JOB_ID, str(SlotIdentity(1, RUNNING)), secret=old.secret)
    refused(network, new, "does not know")


def test_a_worker_that_answers_in_place_of_the_job_master_is_refused() -> None:
    """Any worker process has a certificate of the job, and could listen at the driver's port."""
    network = make_network("encrypted")
    impostor = worker_security(network, RUNNING, 1)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        slot = ControlConnection.connect(address, open_credentials(network.slot(0)))
        with (
            closing(
                ControlConnection.accept(listener.accept()[0], impostor, RUNNING.__eq__)
            ) as other,
            closing(slot),
        ):
            with pytest.raises(ChannelError, match="in place of the job master"):
                pump(slot, other, lambda: False)
            assert not slot.authenticated


def test_the_end_of_the_peer_is_noticed_after_its_last_message(network: Network) -> None:
    with ends(network) as (slot, master):
        pump(slot, master, lambda: slot.authenticated and master.authenticated)
        slot.send(SlotHeartbeat(5))
        slot.pump_out()
        slot.close()
        received: list[object] = []
        while not master.ended:
            received += master.pump_in()
        assert received == [SlotHeartbeat(5)]
        master.send(SlotAccepted(JobId("j"), b""))  # Goes nowhere, and does no harm.
        assert not master.wants_write


def test_a_large_message_passes_a_full_socket(network: Network) -> None:
    program = bytes(range(256)) * 40_000  # 10 MB, and a third more as text.
    with ends(network) as (slot, master):
        pump(slot, master, lambda: slot.authenticated and master.authenticated)
        master.send(SlotAccepted(JobId("j"), program))
        received: list[object] = []
        while not received:
            master.pump_out()
            received = list(slot.pump_in())
    assert received == [SlotAccepted(JobId("j"), program)]


def test_a_peer_that_does_not_read_is_given_up(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_connection, "QUEUED_BYTES_MAX", 1 << 20)
    with ends(network) as (slot, master):
        pump(slot, master, lambda: slot.authenticated and master.authenticated)

        def keep_sending() -> None:
            for _ in range(100):
                master.send(SlotAccepted(JobId("j"), bytes(1 << 20)))
                master.pump_out()

        with pytest.raises(ChannelError, match="does not read"):
            keep_sending()


@pytest.mark.parametrize("impatient", [0, 1], ids=["slot", "job master"])
def test_a_peer_that_acknowledges_nothing_is_lost_after_the_time_of_its_end(
    network: Network, impatient: int
) -> None:
    limits = (500, UNANSWERED_MS_MAX) if impatient == 0 else (UNANSWERED_MS_MAX, 500)
    with ends(network, unanswered_ms_max=limits) as both:
        pump(*both, lambda: both[0].authenticated and both[1].authenticated)
        for _ in range(3):  # More than the kernel takes while the other end does not read.
            both[impatient].send(SlotAccepted(JobId("j"), bytes(8 << 20)))

        def written() -> bool:
            both[impatient].pump_out()
            return both[impatient].ended

        wait_until(written, "the peer that reads nothing is lost", timeout_s=20)


def test_a_silent_peer_is_waited_for_as_long_as_its_heartbeats_are() -> None:
    assert JobConfig(heartbeat_timeout_ms=50_000).unanswered_ms_max == 50_000
    assert JobConfig(heartbeat_timeout_ms=3_000).unanswered_ms_max == UNANSWERED_MS_MAX


def test_connecting_to_a_closed_port_says_what_to_check() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
    with pytest.raises(ChannelError, match="executors must be able to connect to the driver"):
        ControlConnection.connect(address, open_credentials(make_network("plain").slot(0)))


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
