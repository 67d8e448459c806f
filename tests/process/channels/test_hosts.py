"""Listeners at addresses of both families, and at names."""

import socket

import pytest

from tests.ipv6 import NEEDS_IPV6
from weir.channels.hosts import family_of, listen


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", pytest.param("::1", marks=NEEDS_IPV6)])
def test_a_listener_is_reached_at_its_host(host: str) -> None:
    with listen(host, backlog=1) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((host, port), 10) as client:
            accepted, _ = listener.accept()
            with accepted:
                assert accepted.getsockname()[:2] == client.getpeername()[:2]
                assert accepted.family == family_of(client.getpeername()[0])


@pytest.mark.parametrize("host", ["192.0.2.1", "no-such-host.invalid"])
def test_no_listener_is_at_the_address_of_another_machine(host: str) -> None:
    with pytest.raises(OSError, match=r"assign|not known|resolution|No address"):
        listen(host, backlog=1)
