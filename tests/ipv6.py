"""Whether this machine has the loopback address of IPv6, which some containers lack."""

import socket


def has_ipv6() -> bool:
    """Whether ``::1`` can be listened at."""
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
