"""The mark of tests that need the loopback address of IPv6, which some containers lack."""

import socket

import pytest


def _has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


NEEDS_IPV6 = pytest.mark.skipif(not _has_ipv6(), reason="this machine has no ::1")
