"""The addresses that an endpoint may have.

An endpoint's URL is a request that the control plane makes, in its own network: to an internal
address it could reach services that trust this network (server-side request forgery). So the name
is resolved, each of its addresses is checked, and the connection is made to a checked address and
not to the name, which may resolve otherwise a moment later (DNS rebinding).

Addresses of IPv6 that carry one of IPv4 are judged by the one inside. Link-local, multicast and
unspecified addresses are refused even if internal ones are allowed: the metadata services of clouds
answer there.

Source: OWASP, "Server-side request forgery prevention"; IANA's special-purpose registries (as
``ipaddress`` has them); RFC 4291, 3056, 6052.
"""

import socket
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import urlsplit

URL_LENGTH_MAX = 2_000
_GLOBAL_UNICAST = IPv6Network("2000::/3")  # All that has been given out.
_NAT64 = IPv6Network("64:ff9b::/96")
_COMPATIBLE = IPv6Network("::/96")  # Deprecated, the unspecified and the loopback address aside.


class AddressRefused(Exception):
    """An endpoint's URL or address is not allowed; the message says why."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place that a URL names."""

    scheme: str
    host: str  # In ASCII, without brackets.
    port: int
    path: str  # With its query.

    @property
    def origin(self) -> str:
        """Scheme, host and port, the port only where it is not the scheme's own."""
        return f"{self.scheme}://{self.authority}"

    @property
    def authority(self) -> str:
        """Host and port as a URL and the header ``Host`` have them."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        is_default = self.port == {"http": 80, "https": 443}[self.scheme]
        return host if is_default else f"{host}:{self.port}"


def parsed(url: str, *, allow_internal: bool) -> Place:
    """The place that an endpoint's URL names.

    Raises:
        AddressRefused: The URL is malformed, or plain HTTP without ``allow_internal``.
    """
    if len(url) > URL_LENGTH_MAX or not url.isascii() or not url.isprintable() or " " in url:
        raise AddressRefused(
            f"a URL has at most {URL_LENGTH_MAX:,} characters, all ASCII and none of them a blank; "
            "write others in their encoded form"
        )
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise AddressRefused(f"this is no URL: {error}") from error
    if parts.scheme not in ("http", "https") or not host:
        raise AddressRefused("give a URL that begins with https:// and names a host")
    if "@" in parts.netloc or parts.fragment:
        raise AddressRefused("give the URL without a user, a password and a fragment (#)")
    if parts.scheme == "http" and not allow_internal:
        raise AddressRefused(
            "plain HTTP is for endpoints in your own network: use https://, or allow an internal "
            "address for this endpoint"
        )
    path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
    return Place(parts.scheme, host, port or {"http": 80, "https": 443}[parts.scheme], path)


def checked(place: Place, *, allow_internal: bool) -> list[str]:
    """The addresses of a place, all of them allowed, in the order in which to try them.

    Raises:
        AddressRefused: One of them is not allowed, or the name does not resolve.
    """
    addresses = resolve(place.host, place.port)
    for address in addresses:
        if (said := refusal(address, allow_internal=allow_internal)) is not None:
            raise AddressRefused(f"{place.host} has the address {address}, {said}")
    return addresses


def resolve(host: str, port: int) -> list[str]:
    """The addresses of a host, by the system's resolver.

    Raises:
        AddressRefused: It has none.
    """
    try:
        entries = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressRefused(f"the name {host} cannot be resolved: {error}") from error
    return list(dict.fromkeys(str(entry[4][0]) for entry in entries))


def refusal(address: str, *, allow_internal: bool) -> str | None:
    """The reason why an endpoint may not have an address; None: it may."""
    ip = _inner(ip_address(address))
    if ip.is_multicast or ip.is_link_local or ip.is_unspecified:
        return "which is link-local, multicast or unspecified and never allowed"
    is_public = ip.is_global and (isinstance(ip, IPv4Address) or ip in _GLOBAL_UNICAST)
    if is_public or allow_internal:
        return None
    return "which is internal; an admin can allow that for an endpoint"


def _inner(ip: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """The address of IPv4 in one of IPv6, by each of the ways to write one into it."""
    if isinstance(ip, IPv4Address):
        return ip
    if (mapped := ip.ipv4_mapped or ip.sixtofour) is not None:
        return mapped
    if ip in _NAT64 or (ip in _COMPATIBLE and int(ip) > 1):
        return IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip
