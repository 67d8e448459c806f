"""Hosts of listeners: numeric addresses of IPv4 and IPv6, and names of this machine."""

import socket


def listen(host: str, backlog: int) -> socket.socket:
    """A listener at a free port of ``host``: of IPv4, unless its addresses are of IPv6 alone.

    Raises:
        OSError: ``host`` has no address, or one of another machine.
    """
    families = [entry[0] for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    family = socket.AF_INET if socket.AF_INET in families else families[0]
    return socket.create_server((host, 0), family=family, backlog=backlog)


def family_of(address: str) -> socket.AddressFamily:
    """The family of a numeric address, which tells it by how it is written."""
    return socket.AF_INET6 if ":" in address else socket.AF_INET
