"""The handshake by which two ends of a connection prove that they know the attempt's secret.

Neither sends the secret. Each sends a fresh *challenge*, and answers the other's with a *proof*: an
HMAC-SHA256 over its own role, both challenges and both identities. The role keeps a proof from
being sent back to its maker, the challenges keep it from being used again, and the identities keep
it from being used under another name. The acceptor proves itself only after it has checked the
connector, so that a stranger gets no proof to attack. ::

    connector                                acceptor
    hello(nonce, identity)        ------->
                                  <-------   hello(nonce, identity)
    proof                         ------->   checks, or ends the connection
    checks, or ends the connection  <-----   proof

This is a machine without I/O: it returns the bytes to send and is given the received ones, in
pieces of any size. It keeps strangers out; traffic that leaves the machine is protected by TLS.
"""

import hashlib
import hmac
import secrets
import struct
from enum import Enum

from weir.errors import ChannelError, ConfigError

NONCE_BYTES = 32
SECRET_BYTES_MIN = 16
IDENTITY_BYTES_MAX = 256

_MAGIC = b"weir-1"
_HELLO = struct.Struct(f"!{len(_MAGIC)}s{NONCE_BYTES}sH")
_PROOF_BYTES = hashlib.sha256().digest_size


class Role(Enum):
    """The two ends of a connection."""

    CONNECTOR = b"connector"
    ACCEPTOR = b"acceptor"

    @property
    def peer(self) -> "Role":
        """The other end."""
        return Role.ACCEPTOR if self is Role.CONNECTOR else Role.CONNECTOR


class Handshake:
    """One end of one handshake.

    Send ``outgoing()`` at the beginning and after every ``receive``; at ``done`` the peer is known.
    """

    def __init__(
        self, role: Role, secret: bytes, identity: str, nonce: bytes | None = None
    ) -> None:
        nonce = secrets.token_bytes(NONCE_BYTES) if nonce is None else nonce
        if len(secret) < SECRET_BYTES_MIN:
            raise ConfigError(f"a channel secret has at least {SECRET_BYTES_MIN} bytes")
        if len(nonce) != NONCE_BYTES:
            raise ConfigError(f"a nonce has {NONCE_BYTES} bytes")
        name = identity.encode()
        if not 0 < len(name) <= IDENTITY_BYTES_MAX:
            raise ConfigError(f"an identity has 1 to {IDENTITY_BYTES_MAX} bytes")
        self._role = role
        self._secret = secret
        self._hello = _HELLO.pack(_MAGIC, nonce, len(name)) + name
        self._received = bytearray()
        self._peer_hello = b""
        self._peer_identity: str | None = None
        self._proved = False
        self._outgoing = self._hello

    @property
    def done(self) -> bool:
        """Whether the peer proved itself; send what is still outgoing all the same."""
        return self._proved

    @property
    def peer_identity(self) -> str:
        """The identity that the peer proved.

        Raises:
            ChannelError: The peer has not proved itself yet.
        """
        if not self._proved or self._peer_identity is None:
            raise ChannelError("the peer has not proved who it is")
        return self._peer_identity

    def outgoing(self) -> bytes:
        """The bytes to send now; each is returned once."""
        data, self._outgoing = self._outgoing, b""
        return data

    def receive(self, data: bytes) -> bytes:
        """Take received bytes; returns those after the handshake, for the frame decoder.

        Raises:
            ChannelError: The peer does not know the secret or speaks another protocol. The
                connection must be closed.
        """
        self._received += data
        if not self._peer_hello:
            self._take_hello()
        if self._peer_hello and not self._proved:
            self._take_proof()
        if not self._proved:
            return b""
        surplus = bytes(self._received)
        self._received.clear()
        return surplus

    def on_end(self) -> None:
        """The connection ended.

        Raises:
            ChannelError: It ended within the handshake, as when the peer refuses this end.
        """
        if not self._proved:
            raise ChannelError("the peer closed the connection during authentication")

    def _take_hello(self) -> None:
        received = self._received
        if not _MAGIC.startswith(received[: len(_MAGIC)]):
            raise ChannelError("the peer does not speak Weir's channel protocol")
        if len(received) < _HELLO.size:
            return
        _, nonce, name_bytes = _HELLO.unpack_from(received)
        if not 0 < name_bytes <= IDENTITY_BYTES_MAX:
            raise ChannelError(f"the peer sent an identity of {name_bytes} bytes")
        if len(received) < _HELLO.size + name_bytes:
            return
        hello = bytes(received[: _HELLO.size + name_bytes])
        if hmac.compare_digest(nonce, self._hello[len(_MAGIC) : len(_MAGIC) + NONCE_BYTES]):
            raise ChannelError("the peer sent our own challenge back")
        try:
            self._peer_identity = hello[_HELLO.size :].decode()
        except UnicodeDecodeError as error:
            raise ChannelError("the peer sent an identity that is no text") from error
        del received[: len(hello)]
        self._peer_hello = hello
        if self._role is Role.CONNECTOR:
            self._outgoing += self._proof_of(self._role)

    def _take_proof(self) -> None:
        if len(self._received) < _PROOF_BYTES:
            return
        proof = bytes(self._received[:_PROOF_BYTES])
        del self._received[:_PROOF_BYTES]
        if not hmac.compare_digest(proof, self._proof_of(self._role.peer)):
            raise ChannelError("the peer does not know this attempt's secret")
        self._proved = True
        if self._role is Role.ACCEPTOR:
            self._outgoing += self._proof_of(self._role)

    def _proof_of(self, role: Role) -> bytes:
        ours, theirs = self._hello, self._peer_hello
        connector, acceptor = (ours, theirs) if self._role is Role.CONNECTOR else (theirs, ours)
        # A hello states its own length, so no two pairs of them run together alike.
        message = b"\0".join((_MAGIC, role.value)) + connector + acceptor
        return hmac.digest(self._secret, message, "sha256")
