"""The contract of a session: one end of one connection, from its handshake to its last byte.

A session does no I/O. It is given received bytes in pieces of any size, returns those to be sent,
and knows who the peer is once ``done``. Two kinds exist: ``auth`` proves a shared secret and leaves
what follows as it is; ``tls`` encrypts it.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Protocol, TypeAlias

BytesLike: TypeAlias = bytes | bytearray | memoryview


class Role(Enum):
    """The two ends of a connection."""

    CONNECTOR = b"connector"
    ACCEPTOR = b"acceptor"

    @property
    def peer(self) -> "Role":
        """The other end."""
        return Role.ACCEPTOR if self is Role.CONNECTOR else Role.CONNECTOR


class Session(Protocol):
    """One end of one connection.

    Send ``outgoing()`` at the beginning and after every ``receive`` and ``unseal``, also one that
    raised: the peer then learns why. At ``done`` the peer is known, and data may be sealed.
    """

    @property
    def done(self) -> bool:
        """Whether the peer proved itself; send what is still outgoing all the same."""

    @property
    def peer_identity(self) -> str:
        """The identity that the peer proved.

        Raises:
            ChannelError: The peer has not proved itself yet.
        """

    def outgoing(self) -> bytes:
        """The session's own bytes to send now; each is returned once."""

    def receive(self, data: BytesLike) -> bytes:
        """Take received bytes of the handshake; returns the data behind it.

        Raises:
            ChannelError: The peer could not prove itself. The connection must be closed.
        """

    def on_end(self) -> None:
        """The connection ended.

        Raises:
            ChannelError: It ended within the handshake, as when the peer refuses this end.
        """

    def seal(self, buffers: Sequence[BytesLike]) -> list[BytesLike]:
        """The buffers as they travel, in order."""

    def unseal(self, data: BytesLike) -> Iterator[BytesLike]:
        """The data in received bytes, in pieces, each to be used before the next is taken.

        Raises:
            ChannelError: The bytes were changed on the way, or the peer ended the session.
        """


class Security(Protocol):
    """The credentials of one end, as a maker of sessions."""

    def session(self, role: Role) -> Session:
        """The session of a new connection."""
