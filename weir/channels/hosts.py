"""Hosts of listeners: numeric addresses of IPv4 and IPv6, and names of this machine."""

import socket


def listen(host: str, backlog: int) -> socket.socket:
    """A listener at a free port of ``host``, of the family that its address has.

    Raises:
        OSError: ``host`` has no address, or one of another machine.
    """
    family = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server((host, 0), family=family, backlog=backlog)


def family_of(address: str) -> socket.AddressFamily:
    """The family of a numeric address, which tells it by how it is written."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
