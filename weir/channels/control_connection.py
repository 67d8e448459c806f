"""Control connections: slots and worker processes to the job master.

A connection starts with four bytes that name the secret to be proved, the job's (a slot) or an
attempt's (its worker processes), then both ends authenticate (``weir.channels.auth``), then each
side sends messages: a length and the message's JSON envelope. A side that ends its connection has
left; there is no reconnecting.

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

import json
import socket
import struct
from collections import deque
from collections.abc import Callable
from typing import Self

from weir.channels.auth import Handshake, Role
from weir.errors import ChannelError, ProtocolError
from weir.ids import AttemptNumber
from weir.protocol.deployment import Address
from weir.protocol.wire import WireMessage, decode_message, encode_message

MESSAGE_BYTES_MAX = 64 << 20  # A program, or an acknowledgement with all its inline state.
QUEUED_BYTES_MAX = 4 * MESSAGE_BYTES_MAX  # A peer that lets this much wait has hung.
RECEIVE_BYTES = 1 << 20
UNANSWERED_MS_MAX = 30_000  # A machine that vanished sends no end of connection.
CONNECT_TIMEOUT_S = 10.0
JOB_MASTER = "job-master"  # The job master's identity in the handshake.

_LENGTH = struct.Struct("!I")
_ATTEMPT = struct.Struct("!I")  # 0: the job's own secret.

SecretOf = Callable[[AttemptNumber | None], bytes | None]


def encode_frame(message: WireMessage) -> bytes:
    """A message as bytes on the connection.

    Raises:
        ProtocolError: The message is longer than ``MESSAGE_BYTES_MAX``, or has no wire form.
    """
    body = json.dumps(encode_message(message), separators=(",", ":")).encode()
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
                envelope = json.loads(received[position + _LENGTH.size : end])
                messages.append(decode_message(envelope))
            except (ValueError, RecursionError, ProtocolError) as error:
                raise ChannelError(f"the peer sent an unreadable message: {error}") from error
            position = end
        del received[:position]
        return messages


class ControlConnection:
    """One end of a control connection; use it from one thread."""

    def __init__(
        self, sock: socket.socket, handshake: Handshake | None, secret_of: SecretOf | None
    ) -> None:
        """Use ``accept`` or ``connect``."""
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNANSWERED_MS_MAX)
        self.socket = sock
        self.ended = False  # The peer has left; no more messages come.
        self.attempt: AttemptNumber | None = None  # The attempt of the secret. None: the job's.
        self._handshake = handshake
        self._secret_of = secret_of
        self._preamble = b""
        self._decoder = MessageDecoder()
        self._outgoing: deque[memoryview] = deque()
        self._held: list[bytes] = []  # Messages sent before the peer was known.
        self._queued_bytes = 0

    @classmethod
    def accept(cls, sock: socket.socket, secret_of: SecretOf) -> Self:
        """The job master's end of a connection that came in.

        ``secret_of`` is asked for the secret of an attempt, or of the job (None); it answers None
        for an attempt that is over, which ends the connection.
        """
        return cls(sock, None, secret_of)

    @classmethod
    def connect(
        cls,
        address: Address,
        secret: bytes,
        identity: str,
        attempt: AttemptNumber | None = None,
        timeout_s: float = CONNECT_TIMEOUT_S,
    ) -> Self:
        """Connect to the job master, blocking, and begin to prove the secret of ``attempt``.

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
        connection = cls(sock, Handshake(Role.CONNECTOR, secret, identity), None)
        connection.attempt = attempt
        connection._queue(_ATTEMPT.pack(attempt or 0))
        connection._continue_handshake()
        return connection

    @property
    def authenticated(self) -> bool:
        """Whether the peer has proved that it knows the secret."""
        return self._handshake is not None and self._handshake.done

    @property
    def peer_identity(self) -> str:
        """The identity that the peer proved.

        Raises:
            ChannelError: The peer has not proved itself yet.
        """
        if self._handshake is None:
            raise ChannelError("the peer has not proved who it is")
        return self._handshake.peer_identity

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait to be written."""
        return bool(self._outgoing)

    def send(self, message: WireMessage) -> None:
        """Queue a message; it leaves in ``pump_out``, after the peer has proved itself.

        Raises:
            ProtocolError: The message is too long, or has no wire form.
            ChannelError: The peer has not read for so long that the queue is full.
        """
        frame = encode_frame(message)
        if not self.authenticated:
            self._held.append(frame)
        else:
            self._queue(frame)

    def pump_out(self) -> None:
        """Write as much as is possible without blocking; sets ``ended`` where the peer left."""
        try:
            while self._outgoing:
                first = self._outgoing[0]
                written = self.socket.send(first)
                self._queued_bytes -= written
                if written < len(first):
                    self._outgoing[0] = first[written:]
                    return
                self._outgoing.popleft()
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
            if self._handshake is not None:
                self._handshake.on_end()
            return []
        if self._handshake is None:
            data = self._take_preamble(data)
        if self._handshake is not None and not self._handshake.done:
            data = self._handshake.receive(data)
            self._continue_handshake()
        return self._decoder.feed(data)

    def close(self) -> None:
        """Close the socket; queued messages are lost. May be repeated."""
        self.ended = True
        self.socket.close()

    def _take_preamble(self, data: bytes) -> bytes:
        self._preamble += data
        if len(self._preamble) < _ATTEMPT.size:
            return b""
        (number,) = _ATTEMPT.unpack_from(self._preamble)
        self.attempt = AttemptNumber(number) if number else None
        secret = self._secret_of(self.attempt) if self._secret_of else None
        if secret is None:
            raise ChannelError(f"attempt {number} is not running; its connection is refused")
        self._handshake = Handshake(Role.ACCEPTOR, secret, JOB_MASTER)
        return self._preamble[_ATTEMPT.size :]

    def _continue_handshake(self) -> None:
        assert self._handshake is not None
        self._queue(self._handshake.outgoing())
        if self._handshake.done:
            for frame in self._held:
                self._queue(frame)
            self._held.clear()

    def _queue(self, data: bytes) -> None:
        if not data or self.ended:
            return
        if self._queued_bytes > QUEUED_BYTES_MAX:
            raise ChannelError(f"the peer let {self._queued_bytes} bytes wait; it does not read")
        self._queued_bytes += len(data)
        self._outgoing.append(memoryview(data))
