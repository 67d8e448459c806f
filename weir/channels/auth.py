"""The sessions of plain networks: both ends prove that they know a secret, and data stays as it is.

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

It keeps strangers out of the connection, and protects nothing that travels afterwards: data can be
read and changed by those who can read and change the packets of the network. On the loopback
interface these are the machine's administrators alone: the kernel gives raw sockets to no other
user, and accepts no packet for a connection but those that its own ends write. A job whose slots
all are on the driver's machine therefore needs no more than this; any other has TLS (``tls``).

The job's secret reaches the slots with their Spark tasks. Attempts have secrets of their own, which
both ends derive from it, so that none is ever sent and that a worker process, which gets no other,
cannot speak for a later attempt.
"""

import hashlib
import hmac
import secrets
import struct
from collections.abc import Callable, Iterator, Sequence

from weir.channels.identity import parse_identity
from weir.channels.session import BytesLike, Role
from weir.errors import ChannelError, ConfigError
from weir.ids import AttemptNumber

NONCE_BYTES = 32
SECRET_BYTES_MIN = 16
IDENTITY_BYTES_MAX = 256

_MAGIC = b"weir-1"
_HELLO = struct.Struct(f"!{len(_MAGIC)}s{NONCE_BYTES}sH")
_PROOF_BYTES = hashlib.sha256().digest_size


def attempt_secret(job_secret: bytes, attempt: AttemptNumber) -> bytes:
    """The secret of one attempt.

    Shape: 32 bytes; the expansion of HKDF (RFC 5869) for a single block. The job's secret is
    random, so there is nothing to extract.
    """
    return hmac.digest(job_secret, b"weir attempt %d\x01" % attempt, "sha256")


class SharedSecret:
    """The secret of a job or of one of its attempts, as one end knows it; makes sessions."""

    def __init__(self, identity: str, secret: bytes, *, derives: bool = False) -> None:
        """Prepare; with ``derives`` a worker process is to prove the secret of its attempt."""
        self._identity = identity
        self._secret = secret
        self._derives = derives

    def session(self, role: Role) -> "Handshake":
        """The session of a new connection."""
        secret_of = self._secret_of if self._derives else None
        return Handshake(role, self._secret, self._identity, secret_of=secret_of)

    def _secret_of(self, peer: str) -> bytes:
        who = parse_identity(peer)
        if who is None or who.attempt is None:
            return self._secret
        return attempt_secret(self._secret, who.attempt)


class Handshake:
    """One end of one connection.

    The peer must know ``secret``, or the one that ``secret_of`` names for its identity.
    """

    def __init__(
        self,
        role: Role,
        secret: bytes,
        identity: str,
        nonce: bytes | None = None,
        *,
        secret_of: Callable[[str], bytes] | None = None,
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
        self._secret_of = secret_of
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

    def receive(self, data: BytesLike) -> bytes:
        """Take received bytes of the handshake; returns the data behind it.

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

    def seal(self, buffers: Sequence[BytesLike]) -> list[BytesLike]:
        """The buffers themselves."""
        return list(buffers)

    def unseal(self, data: BytesLike) -> Iterator[BytesLike]:
        """The data itself."""
        yield data

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
            peer = hello[_HELLO.size :].decode()
        except UnicodeDecodeError as error:
            raise ChannelError("the peer sent an identity that is no text") from error
        self._peer_identity = peer
        if self._secret_of is not None:
            self._secret = self._secret_of(peer)
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
            raise ChannelError("the peer does not know the secret of this job or attempt")
        self._proved = True
        if self._role is Role.ACCEPTOR:
            self._outgoing += self._proof_of(self._role)

    def _proof_of(self, role: Role) -> bytes:
        ours, theirs = self._hello, self._peer_hello
        connector, acceptor = (ours, theirs) if self._role is Role.CONNECTOR else (theirs, ours)
        # A hello states its own length, so no two pairs of them run together alike.
        message = b"\0".join((_MAGIC, role.value)) + connector + acceptor
        return hmac.digest(self._secret, message, "sha256")
