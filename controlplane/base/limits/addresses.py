"""Client addresses: the one place that decides from where a request comes.

The peer of a connection counts, unless it is one of ``WEIR_TRUSTED_PROXIES``. Then the client is
the ``WEIR_NUM_PROXIES``-th address of ``X-Forwarded-For`` from the right: each trusted proxy
appends its own peer, and everything to the left was written by the client. ``ClientAddress`` is the
outermost part of the application and puts the result into the ASGI scope, from where throttles,
limits, audit log and access log take it. A request from any other peer loses its forwarding
headers, so that nothing behind believes them.
"""

import ipaddress
from collections.abc import Iterable

from django.conf import settings
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

_SOURCE_BITS_IPV6 = 64  # A client of IPv6 has at least that many addresses of its own.

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class ClientAddress:
    """The ASGI application with the client's own address in the scope, behind proxies too."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on."""
        if scope["type"] == "http":
            scope = _resolved(scope)
        await self._app(scope, receive, send)


def in_scope(scope: Scope) -> str | None:
    """The client's address in a scope that passed ``ClientAddress``; None: not an IP connection."""
    client = scope.get("client")
    return client[0] if client else None


def source(address: str | None) -> str:
    """The part of an address that stands for one client: of IPv6 the network of 64 bits.

    For counters and limits: a client changes the rest of its IPv6 address at will.
    """
    if address is None:
        return "unknown"
    parsed = _parsed(address)
    if parsed is None:
        return "unknown"
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _SOURCE_BITS_IPV6), strict=False))
    return str(parsed)


def plain(address: str | None) -> str | None:
    """The address as the database stores it; None for what is no IP address."""
    parsed = None if address is None else _parsed(address)
    return None if parsed is None else str(parsed)


def networks(words: Iterable[str]) -> list[Network]:
    """Addresses and networks in text, such as ``10.0.0.0/8``.

    Raises:
        ValueError: A word is neither.
    """
    return [ipaddress.ip_network(word.strip(), strict=False) for word in words]


def is_trusted_proxy(peer: str | None) -> bool:
    """Whether the peer of a connection is one of ``WEIR_TRUSTED_PROXIES``."""
    parsed = None if peer is None else _parsed(peer)
    return parsed is not None and any(parsed in one for one in settings.WEIR_TRUSTED_PROXIES)


def _resolved(scope: Scope) -> Scope:
    client = scope.get("client")
    if not is_trusted_proxy(client[0] if client else None):
        return _without_forwarding(scope)
    headers = Headers(scope=scope)
    address = _forwarded_for(",".join(headers.getlist("x-forwarded-for")))
    is_https = headers.get("x-forwarded-proto", "").strip().lower() == "https"
    return {
        **scope,
        "client": client if address is None else (address, 0),
        "scheme": "https" if is_https else scope.get("scheme", "http"),
    }


def _without_forwarding(scope: Scope) -> Scope:
    dropped = {b"forwarded", b"x-forwarded-for", b"x-forwarded-host", b"x-forwarded-port"}
    if settings.WEIR_TRUSTED_PROXIES:
        # Without the setting this header stays: a proxy in front may set it all the same.
        dropped.add(b"x-forwarded-proto")
    kept = [(name, value) for name, value in scope["headers"] if name not in dropped]
    return scope if len(kept) == len(scope["headers"]) else {**scope, "headers": kept}


def _forwarded_for(header: str) -> str | None:
    given = [word.strip() for word in header.split(",") if word.strip()]
    if not given:
        return None
    parsed = _parsed(_without_port(given[-min(settings.WEIR_NUM_PROXIES, len(given))]))
    return None if parsed is None else str(parsed)


def _without_port(given: str) -> str:
    if given.startswith("["):
        return given[1:].partition("]")[0]
    return given.partition(":")[0] if given.count(":") == 1 else given


def _parsed(address: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])  # Without an interface's name.
    except ValueError:
        return None
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return mapped or parsed
