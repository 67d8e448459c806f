"""Two transports over loopback sockets, plain and encrypted: order, credit, proofs, endings."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from tests.networks import JOB_ID, KINDS, make_network, worker_security
from weir.channels import tcp
from weir.channels.authority import Network
from weir.channels.credit import ReceiverCredit, SenderCredit
from weir.channels.io_thread import LOOK_MIN_S, IoThread
from weir.channels.tcp import TcpTransport
from weir.common.batch import Batch
from weir.config import UNANSWERED_MS_MAX
from weir.graph.physical import Channel
from weir.ids import AttemptNumber, ChannelId, CheckpointId, OperatorId, SubtaskId
from weir.protocol.deployment import Address
from weir.protocol.elements import (
    CheckpointBarrier,
    Element,
    EndOfInput,
    Records,
    Watermark,
)

DEADLINE_S = 60.0


def channel(number: int, sender: int, receiver: int) -> Channel:
    return Channel(
        id=ChannelId(number),
        edge_index=0,
        sender=SubtaskId(OperatorId("a"), sender),
        receiver=SubtaskId(OperatorId("b"), receiver),
        sender_index=0,
        receiver_index=0,
    )


FORTH, BACK, WITHIN = channel(0, 0, 1), channel(1, 1, 0), channel(2, 0, 0)


@dataclass
class End:
    """One transport and what it was told."""

    transport: TcpTransport
    io: IoThread
    heard: "SimpleQueue[tuple[str, Any, Any]]"
    crashes: list[BaseException] = field(default_factory=list)

    def next(self, timeout: float = DEADLINE_S) -> tuple[str, Any, Any]:
        return self.heard.get(timeout=timeout)

    def hears_nothing(self, timeout: float = 0.2) -> bool:
        try:
            self.heard.get(timeout=timeout)
        except Empty:
            return True
        return False


@pytest.fixture(params=list(KINDS))
def network(request: pytest.FixtureRequest) -> Network:
    return make_network(request.param)


@contextmanager
def end(
    network: Network,
    slot_index: int,
    *,
    attempt: int = 1,
    frame_bytes_max: int = 1 << 20,
    unanswered_ms_max: int = UNANSWERED_MS_MAX,
) -> Iterator[End]:
    heard: SimpleQueue[tuple[str, Any, Any]] = SimpleQueue()
    crashes: list[BaseException] = []
    io = IoThread(f"io-{slot_index}", crashes.append)
    transport = TcpTransport(
        io,
        [FORTH, BACK, WITHIN],
        attempt=AttemptNumber(attempt),
        slot_index=slot_index,
        security=worker_security(network, attempt, slot_index),
        host="127.0.0.1",
        frame_bytes_max=frame_bytes_max,
        unanswered_ms_max=unanswered_ms_max,
        on_element=lambda channel, element: heard.put(("element", channel, element)),
        on_credit=lambda channel, size: heard.put(("credit", channel, size)),
        on_broken=lambda peer, cause: heard.put(("broken", peer, cause)),
    )
    io.start()
    try:
        yield End(transport, io, heard, crashes)
    finally:
        transport.close()
        io.stop()
        assert crashes == []


@contextmanager
def pair(network: Network, **options: Any) -> Iterator[tuple[End, End]]:
    with ExitStack() as stack:
        left, right = (stack.enter_context(end(network, index, **options)) for index in (0, 1))
        addresses = [left.transport.address, right.transport.address]
        for each in (left, right):
            each.transport.connect(addresses)
        yield left, right


def columns(values: list[int]) -> Records:
    batch = Batch.of_columns(pa.record_batch({"v": pa.array(values, pa.int64())}))
    return Records(batch, len(values), batch.size)


def values_of(records: Records) -> list[int]:
    batch: Batch = records.payload
    values: list[int] = batch.columns.column(0).to_pylist()
    return values


def test_elements_arrive_whole_and_in_order(network: Network) -> None:
    sent: list[Element] = [
        columns([1, 2]),
        Watermark(7),
        columns([3]),
        CheckpointBarrier(CheckpointId(1), 5),
    ]
    with pair(network) as (left, right):
        for element in [*sent, EndOfInput()]:
            left.transport.send(FORTH.id, element)
        heard = [right.next() for _ in range(5)]
    assert [kind for kind, _, _ in heard] == ["element"] * 5
    assert {channel for _, channel, _ in heard} == {FORTH.id}
    elements = [element for _, _, element in heard]
    assert values_of(elements[0]) == [1, 2]
    assert elements[1] == sent[1]
    assert values_of(elements[2]) == [3]
    assert elements[3:] == [sent[3], EndOfInput()]


def test_rows_and_their_times_survive_the_way(network: Network) -> None:
    batch = Batch.of_rows(["a", ("b", 1)], timestamps=np.array([5, 6], dtype=np.int64))
    with pair(network) as (left, right):
        right.transport.send(BACK.id, Records(batch, 2, batch.size))
        _, where, records = left.next()
    assert where == BACK.id
    assert records.payload.rows == ["a", ("b", 1)]
    assert records.payload.timestamps.tolist() == [5, 6]


def test_what_is_sent_before_the_connection_stands_is_not_lost(network: Network) -> None:
    with end(network, 0) as left, end(network, 1) as right:
        left.transport.send(FORTH.id, Watermark(1))
        right.transport.send(BACK.id, Watermark(2))
        left.transport.connect([left.transport.address, right.transport.address])
        assert right.next() == ("element", FORTH.id, Watermark(1))
        assert left.next() == ("element", BACK.id, Watermark(2))


def test_a_channel_within_the_slot_needs_no_socket(network: Network) -> None:
    with end(network, 0) as left:
        element = columns([1])
        left.transport.send(WITHIN.id, element)
        left.transport.grant(WITHIN.id, 9)
        assert left.next() == ("element", WITHIN.id, element)
        assert left.next() == ("credit", WITHIN.id, 9)


def test_credit_bounds_what_is_under_way_and_lets_everything_through(network: Network) -> None:
    """The sender waits for credit; both sides count the size that the element states."""
    window, total = 10_000, 300
    with pair(network) as (left, right):
        held = ReceiverCredit(window)
        received: list[int] = []

        def receive() -> None:
            while len(received) < total:
                _, _, element = right.next()
                held.on_delivered(element.size)
                received.extend(values_of(element)[:1])
                if granted := held.on_consumed(element.size):
                    right.transport.grant(FORTH.id, granted)

        consumer = threading.Thread(target=receive)
        consumer.start()
        credit = SenderCredit(window)
        for number in range(total):
            element = columns([number] * 100)
            while not credit.can_send:
                kind, _, granted = left.next()
                assert kind == "credit"
                credit.grant(granted)
            credit.consume(element.size)
            left.transport.send(FORTH.id, element)
        consumer.join(DEADLINE_S)
    assert received == list(range(total))


def test_a_loop_writes_at_the_end_of_its_round_itself(network: Network) -> None:
    values = list(range(100_000))
    with pair(network) as (left, right):
        left.transport.send(FORTH.id, Watermark(1))
        assert right.next() == ("element", FORTH.id, Watermark(1))  # The connection stands.
        left.transport.corked = True
        left.io.attend(lambda: False)
        left.io.wait(0)  # The loop takes the baton.
        for element in (Watermark(2), columns(values), Watermark(3)):
            left.transport.send(FORTH.id, element)
        assert right.hears_nothing()  # The round has not ended.
        left.transport.end_round()
        left.io.visit()
        assert right.next() == ("element", FORTH.id, Watermark(2))
        assert values_of(right.next()[2]) == values
        assert right.next() == ("element", FORTH.id, Watermark(3))
        left.io.leave()


def test_a_barrier_leaves_before_the_round_is_over(network: Network) -> None:
    """With all that was sent before it; what comes behind it waits."""
    barrier = CheckpointBarrier(CheckpointId(1), 5)
    with pair(network) as (left, right):
        left.transport.send(FORTH.id, Watermark(1))
        assert right.next() == ("element", FORTH.id, Watermark(1))  # The connection stands.
        left.transport.corked = True
        left.io.attend(lambda: False)
        left.io.wait(0)
        for element in (Watermark(2), barrier, Watermark(3)):
            left.transport.send(FORTH.id, element)
        assert right.next() == ("element", FORTH.id, Watermark(2))
        assert right.next() == ("element", FORTH.id, barrier)
        assert right.hears_nothing()
        left.transport.end_round()
        left.io.visit()
        assert right.next() == ("element", FORTH.id, Watermark(3))
        left.io.leave()


def test_a_stand_in_goes_on_writing_while_the_loop_is_away(network: Network) -> None:
    """Much more than the sockets hold: the loop's round writes its beginning alone."""
    values = list(range(4_000_000))
    with pair(network) as (left, right):
        left.transport.send(FORTH.id, Watermark(1))
        assert right.next() == ("element", FORTH.id, Watermark(1))  # The connection stands.
        left.transport.corked = True
        left.io.attend(lambda: False)
        left.io.wait(0)
        with held(right.io):
            left.transport.send(FORTH.id, columns(values))
            left.transport.end_round()
            left.io.visit()
            assert any(link.is_unsent for link in left.transport._links.values())
        assert len(values_of(right.next()[2])) == len(values)  # And this thread did not serve.
        left.io.leave()


@contextmanager
def held(io: IoThread) -> Iterator[None]:
    """The I/O thread is in a call for as long."""
    is_held, may_go = threading.Event(), threading.Event()

    def hold() -> None:
        is_held.set()
        may_go.wait(DEADLINE_S)

    io.call(hold)
    assert is_held.wait(DEADLINE_S)
    try:
        yield
    finally:
        may_go.set()


def test_loops_and_their_stand_ins_write_to_one_connection_in_order(network: Network) -> None:
    """Rounds of a few bytes and of many, quick and long ones, both ways."""
    rounds = 400
    with pair(network, frame_bytes_max=4096) as (left, right):
        left.transport.corked = right.transport.corked = True

        def send(sender: End, channel: Channel) -> None:
            sender.io.attend(lambda: False)
            for number in range(rounds):
                size = 30_000 if number % 7 == 0 else 1
                sender.transport.send(channel.id, columns([number] * size))
                sender.transport.send(channel.id, Watermark(number))
                sender.transport.end_round()
                if number % 50 == 0:
                    time.sleep(3 * LOOK_MIN_S)  # A long round: the stand-in comes.
                    sender.transport.send(channel.id, CheckpointBarrier(CheckpointId(number), 5))
                if number % 3:
                    sender.io.visit()
                else:
                    sender.io.wait(0.001)
            sender.io.leave()

        senders = [
            threading.Thread(target=send, args=way) for way in ((left, FORTH), (right, BACK))
        ]
        for sender in senders:
            sender.start()
        for receiver in (left, right):
            for number in range(rounds):
                assert values_of(receiver.next()[2])[0] == number
                assert receiver.next()[2] == Watermark(number)
                if number % 50 == 0:
                    assert receiver.next()[2] == CheckpointBarrier(CheckpointId(number), 5)
        for sender in senders:
            sender.join(DEADLINE_S)


def test_a_batch_larger_than_a_frame_and_the_socket_buffer_comes_as_one(network: Network) -> None:
    values = list(range(1_000_000))
    with pair(network, frame_bytes_max=1 << 16) as (left, right):
        left.transport.send(FORTH.id, columns(values))
        _, _, element = right.next()
    assert values_of(element) == values


def test_a_peer_of_another_network_is_refused(
    network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """Another driver of the same job, or another job: its secret or authority differs."""
    other = type(network)(JOB_ID)
    with end(other, 0) as stranger, end(network, 1) as right:
        stranger.transport.send(FORTH.id, Watermark(1))
        stranger.transport.connect([stranger.transport.address, right.transport.address])
        kind, peer, cause = stranger.next()
        assert (kind, peer) == ("broken", "slot 1")
        assert "authentication" in cause or "certificate" in cause
        assert right.hears_nothing()
    assert "refused a connection" in caplog.text


def test_an_older_attempt_is_refused(network: Network, caplog: pytest.LogCaptureFixture) -> None:
    with end(network, 0, attempt=1) as old, end(network, 1, attempt=2) as right:
        old.transport.send(FORTH.id, Watermark(1))
        old.transport.connect([old.transport.address, right.transport.address])
        assert old.next()[0] == "broken"
        assert right.hears_nothing()
    assert "refused a connection" in caplog.text


def test_a_stranger_does_not_disturb_the_slots(network: Network) -> None:
    with end(network, 0) as left, end(network, 1) as right:
        to = right.transport.address
        with socket.create_connection((to.host, to.port), DEADLINE_S) as stranger:
            stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
            stranger.settimeout(DEADLINE_S)
            while stranger.recv(4096):
                pass
        left.transport.connect([left.transport.address, to])
        left.transport.send(FORTH.id, Watermark(1))
        assert right.next() == ("element", FORTH.id, Watermark(1))


def test_a_peer_that_has_ended_breaks_the_connection(network: Network) -> None:
    with end(network, 1) as gone:
        address = gone.transport.address
    with end(network, 0) as left:
        left.transport.connect([left.transport.address, Address("127.0.0.1", address.port)])
        kind, peer, cause = left.next()
    assert (kind, peer) == ("broken", "slot 1")
    assert cause == f"cannot reach 127.0.0.1:{address.port}: Connection refused"


def test_an_address_that_does_not_answer_is_named(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a firewall that drops what it does not know: here the queue of a port is full."""
    monkeypatch.setattr(tcp, "AUTHENTICATION_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0), backlog=0) as silent:
        address = Address("127.0.0.1", silent.getsockname()[1])
        with ExitStack() as stack, end(network, 0) as left:
            for _ in range(4):
                waiting = stack.enter_context(socket.socket())
                waiting.setblocking(False)
                waiting.connect_ex((address.host, address.port))
            left.transport.connect([left.transport.address, address])
            kind, peer, cause = left.next()
    assert (kind, peer) == ("broken", "slot 1")
    assert cause == (
        f"cannot reach 127.0.0.1:{address.port}: no answer in 0 s; is a firewall between the "
        "machines?"
    )


def test_a_peer_that_answers_and_does_not_prove_itself_is_told_apart(
    network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tcp, "AUTHENTICATION_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as mute, end(network, 0) as left:
        address = Address("127.0.0.1", mute.getsockname()[1])
        left.transport.connect([left.transport.address, address])
        assert left.next() == ("broken", "slot 1", "no authentication in 0 s")


def test_a_connection_cut_without_goodbye_is_broken(network: Network) -> None:
    with pair(network) as (left, right):
        left.transport.send(FORTH.id, Watermark(1))
        right.next()
        shut(left.transport)
        kind, peer, cause = right.next()
    assert (kind, peer) == ("broken", "slot 0")
    assert cause


def test_a_peer_that_takes_nothing_in_is_lost_after_a_time(network: Network) -> None:
    """As one that the network cut off; here its process does not come to read."""
    with pair(network, unanswered_ms_max=500) as (left, right):
        left.transport.send(FORTH.id, Watermark(1))
        right.next()
        with held(right.io):
            left.transport.send(FORTH.id, columns(list(range(4_000_000))))
            kind, peer, cause = left.next()
        assert (kind, peer) == ("broken", "slot 1")
        assert cause == (
            "it took in nothing for 0.5 s: the network between the two machines is cut, or its "
            "process hangs"
        )
        while (heard := right.next())[0] != "broken":
            assert heard[0] == "element"
        assert heard[1] == "slot 0"


def test_leaving_in_good_order_breaks_nothing_and_delivers_everything(network: Network) -> None:
    with end(network, 1) as right:
        with end(network, 0) as left:
            left.transport.connect([left.transport.address, right.transport.address])
            left.transport.send(FORTH.id, Watermark(1))
            right.next()
            values = list(range(200_000))
            left.transport.send(FORTH.id, columns(values))
        _, _, element = right.next()
        assert values_of(element) == values
        right.transport.send(BACK.id, Watermark(2))
        assert right.hears_nothing()


def shut(transport: TcpTransport) -> None:
    """Cut its connections as the death of its process would."""
    event = threading.Event()

    def cut() -> None:
        for link in transport._links.values():
            assert link._socket is not None
            transport._io.remove(link)
            link.close()
        event.set()

    transport._io.call(cut)
    assert event.wait(DEADLINE_S)
