"""Control connections: slots and worker processes to the job master.

A connection starts with the handshake of its session (``weir.channels.session``), in which both
ends prove who they are; then each side sends messages: a length and the message's JSON envelope. A
side that ends its connection has left; there is no reconnecting.

``MessageDecoder`` and ``encode_frame`` use no socket. ``ControlConnection`` uses them over a
non-blocking one, for a loop over selectors::

    selector.register(connection, READ | (WRITE if connection.wants_write else 0))
    ...
    connection.pump_out()  # When it may be written.
    for message in connection.pump_in():  # When it can be read.
        ...
    if connection.ended:
        ...
"""

import socket
import struct
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import Self

from weir.channels.identity import JOB_MASTER, SlotIdentity, parse_identity
from weir.channels.session import BytesLike, Role, Security, Session
from weir.config import UNANSWERED_MS_MAX
from weir.errors import ChannelError, ProtocolError
from weir.ids import AttemptNumber
from weir.protocol.deployment import Address
from weir.protocol.wire import WireMessage
from weir.wire.control_messages import ControlMessage, decode_control, encode_control

MESSAGE_BYTES_MAX = 64 << 20  # A program, or an acknowledgement with all its inline state.
QUEUED_BYTES_MAX = 4 * MESSAGE_BYTES_MAX  # A peer that lets this much wait has hung.
RECEIVE_BYTES = 1 << 20
BUFFERS_MAX = 256  # Written by one call; the kernel takes at most 1,024.
CONNECT_TIMEOUT_S = 10.0

_LENGTH = struct.Struct("!I")


def encode_frame(message: ControlMessage) -> bytes:
    """A message as bytes on the connection.

    Raises:
        ProtocolError: The message is longer than ``MESSAGE_BYTES_MAX``, or has no wire form.
    """
    body = encode_control(message)
    if len(body) > MESSAGE_BYTES_MAX:
        raise ProtocolError(
            f"a {type(message).__name__} of {len(body)} bytes is over {MESSAGE_BYTES_MAX}; with "
            "much state, set a checkpoint storage instead of keeping state in memory"
        )
    return _LENGTH.pack(len(body)) + body


class MessageDecoder:
    """Decodes received bytes, in pieces of any size, into messages."""

    def __init__(self) -> None:
        self._received = bytearray()

    def feed(self, data: bytes) -> list[WireMessage]:
        """The messages that ``data`` completes.

        Raises:
            ChannelError: The peer sent a message that is too long or cannot be read; the
                connection must be closed.
        """
        received = self._received
        received += data
        messages: list[WireMessage] = []
        position = 0
        while len(received) >= position + _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, position)
            if length > MESSAGE_BYTES_MAX:
                raise ChannelError(f"the peer announced a message of {length} bytes")
            end = position + _LENGTH.size + length
            if len(received) < end:
                break
            try:
                messages.append(decode_control(bytes(received[position + _LENGTH.size : end])))
            except ProtocolError as error:
                raise ChannelError(f"the peer sent an unreadable message: {error}") from error
            position = end
        del received[:position]
        return messages


class ControlConnection:
    """One end of a control connection; use it from one thread."""

    def __init__(
        self,
        sock: socket.socket,
        role: Role,
        security: Security,
        is_running: Callable[[AttemptNumber], bool],
        unanswered_ms_max: int,
    ) -> None:
        """Use ``accept`` or ``connect``."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unanswered_ms_max)
        self.socket = sock
        self.ended = False  # The peer has left; no more messages come.
        self.peer: SlotIdentity | None = None  # None: not known yet, or the job master.
        self._role = role
        self._session: Session = security.session(role)
        self._is_running = is_running
        self._is_known = False
        self._decoder = MessageDecoder()
        self._outgoing: deque[memoryview] = deque()
        self._held: list[bytes] = []  # Messages sent before the peer was known.
        self._queued_bytes = 0

    @classmethod
    def accept(
        cls,
        sock: socket.socket,
        security: Security,
        is_running: Callable[[AttemptNumber], bool],
        unanswered_ms_max: int = UNANSWERED_MS_MAX,
    ) -> Self:
        """The job master's end of a connection that came in.

        A worker process is refused if ``is_running`` says that its attempt is over. A peer that
        acknowledges nothing for ``unanswered_ms_max`` is lost.
        """
        return cls(sock, Role.ACCEPTOR, security, is_running, unanswered_ms_max)

    @classmethod
    def connect(
        cls,
        address: Address,
        security: Security,
        timeout_s: float = CONNECT_TIMEOUT_S,
        unanswered_ms_max: int = UNANSWERED_MS_MAX,
    ) -> Self:
        """Connect to the job master, blocking, and begin to prove this end's identity.

        A job master that acknowledges nothing for ``unanswered_ms_max`` is lost.

        Raises:
            ChannelError: The job master cannot be reached.
        """
        try:
            sock = socket.create_connection((address.host, address.port), timeout_s)
        except OSError as error:
            raise ChannelError(
                f"cannot reach the job master at {address.host}:{address.port}: {error}; "
                "executors must be able to connect to the driver"
            ) from error
        connection = cls(sock, Role.CONNECTOR, security, lambda attempt: False, unanswered_ms_max)
        connection._continue_handshake()
        return connection

    @property
    def authenticated(self) -> bool:
        """Whether the peer has proved who it is, and may connect."""
        return self._is_known

    @property
    def attempt(self) -> AttemptNumber | None:
        """The attempt of the worker process at the other end; None for any other peer."""
        return None if self.peer is None else self.peer.attempt

    @property
    def slot_index(self) -> int | None:
        """The slot that the peer proved to be, or to be in; None for any other peer."""
        return None if self.peer is None else self.peer.slot_index

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._outgoing)

    def send(self, message: ControlMessage) -> None:
        """Queue a message; it leaves in ``pump_out``, after the peer has proved itself.

        Raises:
            ProtocolError: The message is too long, or has no wire form.
            ChannelError: The peer has not read for so long that the queue is full.
        """
        frame = encode_frame(message)
        if not self.authenticated:
            self._held.append(frame)
        else:
            self._seal(frame)

    def pump_out(self) -> None:
        """Write as much as is possible without blocking; sets ``ended`` where the peer left."""
        try:
            while self._outgoing:
                written = self.socket.sendmsg(list(islice(self._outgoing, BUFFERS_MAX)))
                self._queued_bytes -= written
                while self._outgoing and written >= len(self._outgoing[0]):
                    written -= len(self._outgoing.popleft())
                if written:
                    self._outgoing[0] = self._outgoing[0][written:]
        except BlockingIOError:
            return
        except OSError:  # Reset, broken pipe or timed out: the peer does not receive any more.
            self.ended = True
            self._outgoing.clear()

    def pump_in(self) -> list[WireMessage]:
        """The messages that arrived; sets ``ended`` where the peer left.

        Raises:
            ChannelError: The peer could not prove itself, or sent an unreadable message. The
                connection must be closed.
        """
        try:
            data = self.socket.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.ended = True
            if not self._is_known:
                self._session.on_end()
            return []
        return self._decoder.feed(self._unsealed(data))

    def close(self) -> None:
        """Close the socket; queued messages are lost. May be repeated."""
        self.ended = True
        self.socket.close()

    def _unsealed(self, data: bytes) -> bytes:
        session = self._session
        try:
            if self._is_known:
                data = b"".join(bytes(piece) for piece in session.unseal(data))
            else:
                data = session.receive(data)
        except ChannelError:
            self._queue(session.outgoing())  # The peer learns why.
            raise
        if self._is_known:
            self._queue(session.outgoing())
        else:
            self._continue_handshake()
        return data

    def _continue_handshake(self) -> None:
        if self._session.done:
            self._admit(self._session.peer_identity)
        self._queue(self._session.outgoing())
        if self._is_known:
            for frame in self._held:
                self._seal(frame)
            self._held.clear()

    def _admit(self, identity: str) -> None:
        """Refuse a peer that proved its identity, where that is none to talk to."""
        if self._role is Role.CONNECTOR:
            if identity != JOB_MASTER:
                raise ChannelError(f"{identity!r} answered in place of the job master")
        else:
            self.peer = parse_identity(identity)
            if self.peer is None:
                raise ChannelError(f"{identity!r} is no slot or worker process")
            if self.attempt is not None and not self._is_running(self.attempt):
                raise ChannelError(
                    f"attempt {self.attempt} is not running; its connection is refused"
                )
        self._is_known = True

    def _seal(self, frame: bytes) -> None:
        for buffer in self._session.seal([frame]):
            self._queue(buffer)

    def _queue(self, data: BytesLike) -> None:
        if not data or self.ended:
            return
        if self._queued_bytes > QUEUED_BYTES_MAX:
            raise ChannelError(f"the peer let {self._queued_bytes} bytes wait; it does not read")
        self._queued_bytes += len(data)
        self._outgoing.append(memoryview(data))
