"""The TCP transport of channels: one connection between each two slots that share a channel.

The slot with the lower index connects, the other one accepts. Both prove that they are the worker
processes of their slots in this attempt (``session``); from then on the frames of all channels
between them share the connection, elements one way and credit the other.

Elements are encoded as they are sent, by the loop in its round: one that cannot be encoded then
fails the subtask that made it. All else, which is system calls, encryption and the decoding of
received frames, is done by the thread that serves the sockets, which is the loop as well where its
round is over (``weir.channels.io_thread``). Bytes that wait to be written are bounded by the credit
of their channels, for which the sender waits before it calls ``send``; received bytes are always
read, and bounded by the credit that this side has granted.

A side that leaves in good order says goodbye first. A connection that ends in any other way is
broken, and with it the attempt. So is one whose peer acknowledges nothing, as where the network
between two machines is cut that both reach the job master: TCP alone would try for a quarter of an
hour (RFC 5482).
"""

import errno
import logging
import os
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial

from weir.channels.framing import (
    CONNECTION,
    ElementDecoder,
    ElementEncoder,
    Frame,
    FrameDecoder,
    FrameEncoder,
    FrameType,
    granted_bytes,
)
from weir.channels.hosts import family_of, listen
from weir.channels.identity import SlotIdentity
from weir.channels.io_thread import IoThread
from weir.channels.session import BytesLike, Role, Security, Session
from weir.config import UNANSWERED_MS_MAX
from weir.errors import ChannelError
from weir.graph.physical import Channel
from weir.ids import AttemptNumber, ChannelId
from weir.protocol.deployment import Address
from weir.protocol.elements import CheckpointBarrier, Element

AUTHENTICATION_TIMEOUT_S = 10.0
STRANGERS_MAX = 64  # Connections under authentication, beyond one for each peer.
RECEIVE_BYTES = 1 << 19
BUFFERS_MAX = 64  # In one system call; Linux takes 1,024.
SEALED_BYTES = 1 << 19  # Encrypted at once, before any of it is sent.

_GOODBYE = b"goodbye"

log = logging.getLogger(__name__)


class TcpTransport:
    """Carries elements between the slots of one attempt; a ``Transport`` of ``weir.worker.ports``.

    ``send``, ``grant`` and ``close`` belong to one thread, the loop. The callbacks are called on
    the thread that serves, for channels within the slot on the loop. Elements for a peer that said
    goodbye are dropped: the attempt is over for it.
    """

    def __init__(
        self,
        io: IoThread,
        channels: Iterable[Channel],
        *,
        attempt: AttemptNumber,
        slot_index: int,
        security: Security,
        host: str,
        frame_bytes_max: int,
        pickles: bool = False,
        unanswered_ms_max: int = UNANSWERED_MS_MAX,
        on_element: Callable[[ChannelId, Element], None],
        on_credit: Callable[[ChannelId, int], None],
        on_broken: Callable[[str, str], None],
    ) -> None:
        """Listen, to be connected to.

        Args:
            pickles: Whether the job allows pickled records.
            unanswered_ms_max: A peer that acknowledges nothing for so long is lost, as is one that
                takes nothing for so long.
        """
        self._io = io
        self.unanswered_ms_max = unanswered_ms_max
        self._attempt = attempt
        self._slot_index = slot_index
        self._security = security
        self._on_element = on_element
        self._on_credit = on_credit
        self._on_broken = on_broken
        self._links: dict[int, _Link] = {}  # By the peer's slot index.
        self._outgoing: dict[ChannelId, tuple[_Link, ElementEncoder]] = {}
        self._incoming: dict[ChannelId, _Link] = {}
        for channel in channels:
            sender, receiver = channel.sender.index, channel.receiver.index
            if (sender == slot_index) == (receiver == slot_index):
                continue  # Between other slots, or within this one.
            peer = receiver if sender == slot_index else sender
            if (link := self._links.get(peer)) is None:
                link = self._links[peer] = _Link(self, peer, attempt, frame_bytes_max)
            if sender == slot_index:
                self._outgoing[channel.id] = (
                    link,
                    ElementEncoder(channel.id, link.encoder, pickles=pickles),
                )
                link.outgoing.add(channel.id)
            else:
                self._incoming[channel.id] = link
                link.decoders[channel.id] = ElementDecoder(channel.id, pickles=pickles)
        # Whether a loop sends, which calls ``end_round`` after each round and then serves.
        self.corked = False
        self._unflushed: list[_Link] = []  # Those of this round.
        self._openings: set[_Opening] = set()
        self._awaits_openings = False  # A timer runs for the earliest of them.
        self._flushed = threading.Event()
        self._leaving = False
        self.buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._listener = _Listener(self, host)
        self.address = self._listener.address
        io.call(lambda: io.add(self._listener))

    # On the loop.

    def send(self, channel: ChannelId, element: Element) -> None:
        """Queue an element for the receiver of an outgoing channel.

        Raises:
            ConfigError: One record alone is too large for a frame.
            SchemaError: A record is no data, and the job allows no pickles.
        """
        route = self._outgoing.get(channel)
        if route is None:
            self._on_element(channel, element)
        else:
            link, encoder = route
            self._queue(link, encoder.encode(element))
            if self.corked and type(element) is CheckpointBarrier:
                # All that is behind it waits for it, and the rest of the round is the snapshot.
                self._io.try_now(link.flush)

    def grant(self, channel: ChannelId, size: int) -> None:
        """Allow the sender of an incoming channel this many more bytes."""
        link = self._incoming.get(channel)
        if link is None:
            self._on_credit(channel, size)
        else:
            self._queue(link, link.encoder.credit(channel, size))

    def _queue(self, link: "_Link", buffers: list[BytesLike]) -> None:
        if link.ended:
            return
        link.queue.extend(buffers)
        if not link.flush_due:
            link.flush_due = True
            if self.corked:
                self._unflushed.append(link)
            else:
                self._io.call(link.flush)

    def end_round(self) -> None:
        """Write what this round queued; where the stand-in serves just now, it is to."""
        for link in self._unflushed:
            if link.flush_due and not self._io.try_now(link.flush):
                self._io.call(link.flush, wake=False)
        self._unflushed.clear()

    def connect(self, addresses: Sequence[Address]) -> None:
        """Connect to the peers, given every slot's address by its index. From any thread."""
        for peer, link in self._links.items():
            if peer > self._slot_index:
                self._io.call(partial(self._connect, link, addresses[peer]))

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what is queued, say goodbye and close all sockets; within ``timeout_s``."""
        self.end_round()
        self.corked = False
        for link in self._links.values():
            self._queue(link, link.encoder.hello(_GOODBYE))
        self._io.call(self._leave)
        self._flushed.wait(timeout_s)
        closed = threading.Event()
        self._io.call(lambda: self._close_all(closed))
        closed.wait(timeout_s)

    # On the thread that serves.

    def _leave(self) -> None:
        self._leaving = True
        self.on_flushed()

    def on_flushed(self) -> None:
        """A link has written its queue; the last one ends the wait in ``close``."""
        if self._leaving and not any(link.is_unsent for link in self._links.values()):
            self._flushed.set()

    def _close_all(self, closed: threading.Event) -> None:
        for opening in list(self._openings):
            self._give_up(opening)
        for link in self._links.values():
            link.close()
        self._io.remove(self._listener)
        self._listener.socket.close()
        closed.set()

    def _connect(self, link: "_Link", to: Address) -> None:
        sock = socket.socket(family_of(to.host))
        sock.setblocking(False)
        code = sock.connect_ex((to.host, to.port))
        if code in (0, errno.EINPROGRESS):
            self._open(sock, Role.CONNECTOR, link, to)
        else:
            sock.close()
            self.on_link_ended(link, unreachable(to, os.strerror(code)))

    def accepted(self, sock: socket.socket) -> None:
        """A peer that is not authenticated yet connected."""
        if len(self._openings) >= len(self._links) + STRANGERS_MAX:
            log.warning(
                "attempt %d: refused a connection: %d others are not authenticated yet",
                self._attempt,
                len(self._openings),
            )
            sock.close()
            return
        self._open(sock, Role.ACCEPTOR)

    def _open(
        self,
        sock: socket.socket,
        role: Role,
        link: "_Link | None" = None,
        to: Address | None = None,
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, self.unanswered_ms_max)
        opening = _Opening(self, sock, self._security.session(role), link, to)
        self._openings.add(opening)
        self._io.add(opening)
        self._await_openings()

    def refresh(self, endpoint: "_Link | _Opening") -> None:
        """Update whether the endpoint is watched for writing."""
        self._io.refresh(endpoint)

    def on_opened(self, opening: "_Opening", rest: bytes) -> None:
        """The peer proved its identity; ``rest`` is the data that it sent since."""
        who = opening.session.peer_identity
        link = opening.link or self._link_of(who)
        if link is None or link.is_open or link.ended:
            self.on_refused(opening, f"{who!r} is no peer that may connect")
            return
        expected = self._identity_of(link.peer)
        if who != expected:
            self.on_refused(opening, f"{who!r} answered in place of {expected!r}")
            return
        self._openings.remove(opening)
        self._io.remove(opening)
        link.open(opening.socket, opening.session, opening.unsent + opening.session.outgoing())
        self._io.add(link)
        link.take(rest)
        if link.is_open:
            link.flush()

    def _link_of(self, identity: str) -> "_Link | None":
        """The link of a peer that has to connect to this slot; None for any other identity."""
        peers = [peer for peer in self._links if peer < self._slot_index]
        return next(
            (self._links[peer] for peer in peers if self._identity_of(peer) == identity), None
        )

    def _identity_of(self, slot_index: int) -> str:
        return str(SlotIdentity(slot_index, self._attempt))

    def on_refused(self, opening: "_Opening", cause: str) -> None:
        """Authentication failed; the link ends only if this side had opened the connection."""
        self._give_up(opening)
        if opening.link is not None:
            self.on_link_ended(opening.link, cause)
        else:
            log.warning("attempt %d: refused a connection: %s", self._attempt, cause)

    def _give_up(self, opening: "_Opening") -> None:
        self._openings.discard(opening)
        self._io.remove(opening)
        opening.socket.close()

    def _await_openings(self) -> None:
        """See to it that the earliest opening ends in time; without one there is no timer."""
        if self._openings and not self._awaits_openings:
            self._awaits_openings = True
            earliest = min(opening.deadline for opening in self._openings)
            self._io.after(earliest - time.monotonic(), self._close_late_openings)

    def _close_late_openings(self) -> None:
        self._awaits_openings = False
        now = time.monotonic()
        for opening in [o for o in self._openings if o.deadline <= now]:
            self.on_refused(opening, opening.late)
        self._await_openings()

    def on_link_ended(self, link: "_Link", cause: str) -> None:
        """A connection ended; an empty cause means that the peer left in good order."""
        if link.is_open:
            self._io.remove(link)
        link.close()
        if cause and not self._leaving:
            self._on_broken(f"slot {link.peer}", cause)
        self.on_flushed()

    def on_frame(self, link: "_Link", frame: Frame) -> None:
        """Deliver the contents of a frame.

        Raises:
            ChannelError: This peer may not send the frame.
        """
        if frame.type is FrameType.CREDIT:
            if frame.channel not in link.outgoing:
                raise ChannelError(
                    f"credit for channel {frame.channel}, which this peer does not receive"
                )
            self._on_credit(frame.channel, granted_bytes(frame))
        elif frame.channel == CONNECTION:
            link.said_goodbye = True
        elif (decoder := link.decoders.get(frame.channel)) is None:
            raise ChannelError(
                f"an element on channel {frame.channel}, which this peer does not send"
            )
        elif (element := decoder.decode(frame)) is not None:
            self._on_element(frame.channel, element)


def unreachable(to: Address, cause: str) -> str:
    """The cause of a connection that could not be made."""
    return f"cannot reach {to.host}:{to.port}: {cause}"


class _Listener:
    """Accepts connections."""

    wants_write = False

    def __init__(self, transport: TcpTransport, host: str) -> None:
        self._transport = transport
        self.socket = listen(host, backlog=128)
        self.socket.setblocking(False)
        self.address = Address(host, self.socket.getsockname()[1])

    def fileno(self) -> int:
        return self.socket.fileno()

    def on_ready(self, *, readable: bool, writable: bool) -> None:
        try:
            sock, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        self._transport.accepted(sock)


class _Opening:
    """A connection whose peer has not proved itself yet."""

    def __init__(
        self,
        transport: TcpTransport,
        sock: socket.socket,
        session: Session,
        link: "_Link | None",
        to: Address | None,
    ) -> None:
        self._transport = transport
        self.socket = sock
        self.session = session
        self.link = link  # None: the peer connected, and names itself.
        self._reaches = to  # The address that has not answered yet.
        self.deadline = time.monotonic() + AUTHENTICATION_TIMEOUT_S
        self.unsent = session.outgoing()

    def fileno(self) -> int:
        return self.socket.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self.unsent)

    @property
    def late(self) -> str:
        """The cause of the end at the deadline."""
        if self._reaches is None:
            return f"no authentication in {AUTHENTICATION_TIMEOUT_S:.0f} s"
        asks = "is a firewall between the machines?"
        return unreachable(self._reaches, f"no answer in {AUTHENTICATION_TIMEOUT_S:.0f} s; {asks}")

    def on_ready(self, *, readable: bool, writable: bool) -> None:
        try:
            if writable and self.unsent:
                self.unsent = self.unsent[self.socket.send(self.unsent) :]
                self._reaches = None
            data = self.socket.recv(4096) if readable else None
            if data == b"":
                self.session.on_end()
            rest = self.session.receive(data) if data else b""
        except BlockingIOError:
            return
        except (OSError, ChannelError) as error:
            with suppress(OSError):  # The peer learns why, if it still listens.
                self.socket.send(self.session.outgoing())
            cause = str(error)
            if self._reaches is not None:
                cause = unreachable(self._reaches, getattr(error, "strerror", None) or cause)
            self._transport.on_refused(self, cause)
            return
        if self.session.done:
            # An acceptor's proof is still unsent: the peer gets it unless it is refused.
            self._transport.on_opened(self, rest)
            return
        self.unsent += self.session.outgoing()
        self._transport.refresh(self)


class _Link:
    """The connection to one peer slot, from before it is opened until after it is closed."""

    def __init__(
        self, transport: TcpTransport, peer: int, attempt: AttemptNumber, frame_bytes_max: int
    ) -> None:
        self._transport = transport
        self.peer = peer
        self.encoder = FrameEncoder(attempt, frame_bytes_max)  # The loop's.
        self.queue: deque[BytesLike] = deque()  # The loop appends; the server takes.
        self.flush_due = False
        self.outgoing: set[ChannelId] = set()
        self.decoders: dict[ChannelId, ElementDecoder] = {}
        self.said_goodbye = False
        self.ended = False
        self._frames = FrameDecoder(attempt, frame_bytes_max)
        self._socket: socket.socket | None = None
        self._session: Session | None = None
        self._writing: deque[memoryview] = deque()  # Sealed, and not yet written.
        self._write_error = ""

    @property
    def is_open(self) -> bool:
        """Whether frames flow."""
        return self._socket is not None

    @property
    def is_unsent(self) -> bool:
        """Whether bytes still wait for a connected peer."""
        return self.is_open and bool(self._writing or self.queue)

    def open(self, sock: socket.socket, session: Session, first: bytes) -> None:
        """Take over an authenticated socket; ``first`` is the handshake's unsent bytes."""
        self._socket, self._session = sock, session
        if first:
            self._writing.append(memoryview(first))

    def close(self) -> None:
        """Close the socket. May be repeated."""
        self.ended = True
        self.queue.clear()
        self._writing.clear()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def fileno(self) -> int:
        assert self._socket is not None
        return self._socket.fileno()

    @property
    def wants_write(self) -> bool:
        return bool(self._writing)

    def on_ready(self, *, readable: bool, writable: bool) -> None:
        if readable:
            self._read()
        if writable and self.is_open:
            self.flush()

    def flush(self) -> None:
        """Write as much as is possible without blocking."""
        self.flush_due = False  # Before the queue is read: a later append schedules a new flush.
        if self._socket is None:
            return
        watched = self.wants_write
        self._write(self._socket)
        if watched or self.wants_write:
            self._transport.refresh(self)
        if not self._writing:
            self._transport.on_flushed()

    def _write(self, sock: socket.socket) -> None:
        while self._fill():
            try:
                written = sock.sendmsg(self._writing)
            except BlockingIOError:
                return
            except OSError as error:
                # Reading decides: the peer may have said goodbye before it closed.
                self._write_error = self._told(error)
                self.ended = True
                self.queue.clear()
                self._writing.clear()
                return
            self._written(written)

    def _fill(self) -> bool:
        assert self._session is not None
        queued: list[BytesLike] = []
        size = 0
        while self.queue and size < SEALED_BYTES and len(self._writing) + len(queued) < BUFFERS_MAX:
            queued.append(memoryview(self.queue.popleft()).cast("B"))
            size += len(queued[-1])
        if queued:
            self._writing += map(memoryview, self._session.seal(queued))
        return bool(self._writing)

    def _written(self, count: int) -> None:
        while count:
            first = self._writing[0]
            if count < len(first):
                self._writing[0] = first[count:]
                return
            count -= len(first)
            self._writing.popleft()

    def _read(self) -> None:
        assert self._socket is not None
        try:
            count = self._socket.recv_into(self._transport.buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._end(self._told(error))
            return
        if count:
            self.receive(self._transport.buffer[:count])
        elif self.said_goodbye:
            self._end("")
        else:
            self._end(self._write_error or "the peer closed the connection")

    def receive(self, data: memoryview) -> None:
        """Take in bytes from the peer."""
        assert self._session is not None
        try:
            for piece in self._session.unseal(data):
                self.take(piece)
                if not self.is_open:
                    return
        except ChannelError as error:
            self._end(str(error))
        if self.is_open and (own := self._session.outgoing()):
            self._writing.append(memoryview(own))
            self.flush()

    def take(self, data: BytesLike) -> None:
        """Take in data of the session."""
        try:
            for frame in self._frames.feed(data):
                self._transport.on_frame(self, frame)
        except ChannelError as error:
            self._end(str(error))

    def _told(self, error: OSError) -> str:
        if error.errno != errno.ETIMEDOUT:
            return str(error)
        return (
            f"it took in nothing for {self._transport.unanswered_ms_max / 1000:g} s: the network "
            "between the two machines is cut, or its process hangs"
        )

    def _end(self, cause: str) -> None:
        self._transport.on_link_ended(self, "" if self.said_goodbye else cause)
