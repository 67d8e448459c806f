"""The client's address: its peer, or what trusted proxies say."""

import asyncio

import pytest
from pytest_django import Settings
from starlette.types import Message, Receive, Scope, Send

from controlplane.base.limits import addresses
from controlplane.base.limits.addresses import ClientAddress, networks, source


def resolved(peer: str | None, **headers: str) -> Scope:
    """The scope that the application gets."""
    seen: list[Scope] = []

    async def application(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope)

    async def receive() -> Message:
        raise AssertionError

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope: Scope = {
        "type": "http",
        "scheme": "http",
        "client": None if peer is None else (peer, 1234),
        "headers": [(k.replace("_", "-").lower().encode(), v.encode()) for k, v in headers.items()],
    }
    asyncio.run(ClientAddress(application)(scope, receive, send))
    return seen[0]


def address(peer: str | None, **headers: str) -> str | None:
    return addresses.in_scope(resolved(peer, **headers))


def test_without_trusted_proxies_the_peer_counts(settings: Settings) -> None:
    settings.WEIR_TRUSTED_PROXIES = []
    for peer in ("127.0.0.1", "10.0.0.1", "203.0.113.9"):
        scope = resolved(peer, X_Forwarded_For="198.51.100.1", X_Forwarded_Proto="https")
        assert addresses.in_scope(scope) == peer
        assert scope["scheme"] == "http"
        # A proxy that the settings do not name may still say that it is reached by https.
        assert [name for name, _ in scope["headers"]] == [b"x-forwarded-proto"]


@pytest.mark.parametrize(
    ("peer", "count", "header", "expected"),
    [
        ("10.0.0.1", 1, "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", 1, "1.1.1.1, 198.51.100.1", "198.51.100.1"),  # The first is the client's lie.
        ("10.0.0.1", 2, "1.1.1.1, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("10.0.0.1", 2, "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", 1, "198.51.100.1:4711", "198.51.100.1"),
        ("10.0.0.1", 1, "[2001:db8::1]:80", "2001:db8::1"),
        ("10.0.0.1", 1, "2001:db8::1", "2001:db8::1"),
        ("10.0.0.1", 1, "::ffff:198.51.100.1", "198.51.100.1"),
        ("::ffff:10.0.0.1", 1, "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", 1, "unknown", "10.0.0.1"),
        ("10.0.0.1", 1, "x" * 10_000, "10.0.0.1"),
        ("10.0.0.1", 1, "", "10.0.0.1"),
        ("203.0.113.9", 1, "198.51.100.1", "203.0.113.9"),  # Not a proxy of ours.
        (None, 1, "198.51.100.1", None),
    ],
)
def test_a_trusted_proxy_is_believed(
    settings: Settings, peer: str | None, count: int, header: str, expected: str | None
) -> None:
    settings.WEIR_TRUSTED_PROXIES = networks(["10.0.0.0/8", "2001:db8:ffff::/48"])
    settings.WEIR_NUM_PROXIES = count
    assert address(peer, X_Forwarded_For=header) == expected


def test_only_trusted_proxies_say_https(settings: Settings) -> None:
    settings.WEIR_TRUSTED_PROXIES = networks(["10.0.0.1"])
    settings.WEIR_NUM_PROXIES = 1
    assert resolved("10.0.0.1", X_Forwarded_Proto="https")["scheme"] == "https"
    stranger = resolved("10.0.0.2", X_Forwarded_Proto="https")
    assert (stranger["scheme"], stranger["headers"]) == ("http", [])


def test_a_client_of_ipv6_is_its_network() -> None:
    assert source("2001:db8::1") == source("2001:db8::ffff:1") == "2001:db8::/64"
    assert source("2001:db8:0:1::1") != source("2001:db8::1")
    assert source("fe80::1%eth0") == "fe80::/64"
    assert source("::ffff:198.51.100.1") == source("198.51.100.1") == "198.51.100.1"
    assert source(None) == source("testclient") == "unknown"
