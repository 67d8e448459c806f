"""The sessions of encrypted networks: TLS 1.3, in which both ends show a certificate of their job.

A job has a certificate authority of its own (``weir.channels.authority``), which no other job's
ends trust. A certificate names its holder in a URI, ``weir:JOB/IDENTITY``; there are no host names,
since slots come to lie wherever the cluster has room. A peer is refused without a certificate, with
one of another authority, with one that has expired or is not valid yet, and with one that names
another job. Whether the identity is one that may connect is for the acceptor's owner to decide.

TLS runs over buffers in memory: one system call then moves many records, where OpenSSL would make
two for each when it reads a socket. In TLS 1.3 the connector has finished its handshake before the
acceptor has looked at its certificate; if that is refused, the cause comes with the first
``unseal``.

Keys are never on a disk: OpenSSL reads them from a file of the process's memory, which is closed
before the constructor returns.
"""

import os
import ssl
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote, unquote

from weir.channels.session import BytesLike, Role
from weir.errors import ChannelError, ConfigError
from weir.ids import JobId
from weir.protocol.deployment import Credentials

RECORD_BYTES = 1 << 14  # Of data, at most.
JOIN_BYTES = 1 << 12  # Shorter buffers are joined: every record costs some microseconds.
UNSEAL_BYTES = 1 << 17  # In one piece.

_SCHEME = "weir:"
_CAUSES = {
    "PEER_DID_NOT_RETURN_A_CERTIFICATE": "the peer shows no certificate of this job",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS",
    "HTTP_REQUEST": "the peer does not speak TLS",
    "UNSUPPORTED_PROTOCOL": "the peer does not speak TLS 1.3",
    "TLSV1_ALERT_UNKNOWN_CA": "the peer belongs to another job, or to another driver of this one",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the peer demands a certificate",
    "SSLV3_ALERT_CERTIFICATE_EXPIRED": "the peer finds this end's certificate expired",
    "TLSV1_ALERT_DECRYPT_ERROR": "the peer finds this end's proof wrong",
}


def identity_uri(job_id: JobId, identity: str) -> str:
    """The URI by which a certificate names its holder."""
    return f"{_SCHEME}{quote(job_id, safe='')}/{identity}"


class TlsCredentials:
    """The certificate of one end, ready for use; makes sessions."""

    def __init__(self, credentials: Credentials) -> None:
        """Load certificate and key.

        Raises:
            ConfigError: The credentials hold no certificate, or one that its key does not fit.
        """
        self._job_id = credentials.job_id
        self._identity = credentials.identity
        self._contexts = {role: _context(role, credentials) for role in Role}

    def session(self, role: Role) -> "TlsSession":
        """The session of a new connection."""
        return TlsSession(role, self._contexts[role], self._job_id)


class TlsSession:
    """One end of one connection."""

    def __init__(self, role: Role, context: ssl.SSLContext, job_id: JobId) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(
            self._incoming, self._outgoing, server_side=role is Role.ACCEPTOR
        )
        self._job_id = job_id
        self._peer_identity: str | None = None
        self._unsealed: memoryview | None = None  # Made once data comes in.
        self._advance()  # The connector speaks first.

    @property
    def done(self) -> bool:
        """Whether the peer proved itself; send what is still outgoing all the same."""
        return self._peer_identity is not None

    @property
    def peer_identity(self) -> str:
        """The identity that the peer proved.

        Raises:
            ChannelError: The peer has not proved itself yet.
        """
        if self._peer_identity is None:
            raise ChannelError("the peer has not proved who it is")
        return self._peer_identity

    def outgoing(self) -> bytes:
        """The session's own bytes to send now; each is returned once."""
        return self._outgoing.read()

    def receive(self, data: BytesLike) -> bytes:
        """Take received bytes of the handshake; returns the data behind it.

        Raises:
            ChannelError: The peer could not prove itself. The connection must be closed.
        """
        self._incoming.write(data)
        self._advance()
        return b"".join(bytes(piece) for piece in self._pieces()) if self.done else b""

    def on_end(self) -> None:
        """The connection ended.

        Raises:
            ChannelError: It ended within the handshake, as when the peer refuses this end.
        """
        if not self.done:
            raise ChannelError("the peer closed the connection during authentication")

    def seal(self, buffers: Sequence[BytesLike]) -> list[BytesLike]:
        """The buffers encrypted, as one buffer; short ones share a record."""
        short = bytearray()
        for buffer in buffers:
            if len(buffer) < JOIN_BYTES:
                short += buffer
                continue
            self._write(short)
            short = bytearray()
            self._write(buffer)
        self._write(short)
        return [self._outgoing.read()]

    def unseal(self, data: BytesLike) -> Iterator[BytesLike]:
        """The data in received bytes, in pieces, each to be used before the next is taken.

        Raises:
            ChannelError: The bytes were changed on the way, or the peer ended the session.
        """
        self._incoming.write(data)
        return self._pieces()

    def _advance(self) -> None:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return
        except ssl.SSLError as error:
            raise ChannelError(_cause(error)) from error
        names: Any = (self._tls.getpeercert() or {}).get("subjectAltName", ())
        self._peer_identity = _identity_of(names, self._job_id)

    def _write(self, data: BytesLike) -> None:
        view = memoryview(data).cast("B")
        while view:
            view = view[self._tls.write(view) :]

    def _pieces(self) -> Iterator[BytesLike]:
        if self._unsealed is None:
            self._unsealed = memoryview(bytearray(UNSEAL_BYTES))
        buffer, ended = self._unsealed, False
        while not ended:
            filled = 0
            while filled + RECORD_BYTES <= len(buffer):
                try:
                    count: Any = self._tls.read(RECORD_BYTES, buffer[filled:])  # A number of bytes.
                except ssl.SSLWantReadError:
                    ended = True
                    break
                except ssl.SSLError as error:
                    raise ChannelError(_cause(error)) from error
                filled += count
            if filled:
                yield buffer[:filled]


def _context(role: Role, credentials: Credentials) -> ssl.SSLContext:
    if not credentials.is_encrypted:
        raise ConfigError(f"{credentials.identity} has no certificate to connect with")
    server = role is Role.ACCEPTOR
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # Names of hosts say nothing here; ``_identity_of`` checks.
    context.verify_mode = ssl.CERT_REQUIRED
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if server:
        context.num_tickets = 0  # A connection is never resumed.
    file = os.memfd_create("weir-key", os.MFD_CLOEXEC)
    try:
        os.fchmod(file, 0o600)
        with open(file, "wb", closefd=False) as writer:
            writer.write(credentials.key + credentials.certificate)
        context.load_cert_chain(f"/proc/self/fd/{file}")
        context.load_verify_locations(cadata=credentials.authority.decode())
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"the certificate of {credentials.identity} is unusable: {error}"
        ) from error
    finally:
        os.close(file)
    return context


def _identity_of(names: Sequence[tuple[str, str]], job_id: JobId) -> str:
    uris = [value for kind, value in names if kind == "URI"]
    if len(uris) != 1 or not uris[0].startswith(_SCHEME):
        raise ChannelError("the peer's certificate names no end of a job's connections")
    job, _, identity = uris[0].removeprefix(_SCHEME).partition("/")
    if unquote(job) != job_id:
        raise ChannelError(f"the peer's certificate is one of job {unquote(job)}")
    return identity


def _cause(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"the peer's certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLZeroReturnError):
        return "the peer ended the session"
    reason = error.reason or str(error)
    return _CAUSES.get(reason, f"TLS failed: {reason.lower().replace('_', ' ')}")
