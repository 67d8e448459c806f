"""The addresses that an endpoint may have, by each way to write an internal one."""

import socket
from typing import Any

import pytest

from controlplane.deliveries.sending import addresses
from controlplane.deliveries.sending.addresses import AddressRefused, checked, parsed, refusal

PUBLIC = ["203.0.112.7", "8.8.8.8", "2001:4860:4860::8888", "64:ff9b::808:808", "2002:808:808::"]
INTERNAL = [
    *("127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "100.64.0.1", "198.18.0.1"),
    *("192.0.2.1", "240.0.0.1", "255.255.255.255"),
    *("::1", "fd00:ec2::254", "fc00::1", "fec0::1", "2001:db8::1"),
    *("::ffff:127.0.0.1", "::ffff:10.0.0.1"),  # Mapped.
    *("::127.0.0.1", "::10.0.0.1"),  # Compatible, deprecated.
    *("64:ff9b::7f00:1", "64:ff9b::a00:1"),  # Translated by NAT64.
    *("64:ff9b:1::1",),  # The local prefix of NAT64.
    *("2002:7f00:1::", "2002:a00:1::"),  # 6to4.
    *("2001:0:7f00:1::",),  # Teredo.
]
NEVER = [
    *("169.254.169.254", "0.0.0.0", "224.0.0.1", "fe80::1", "fe80::1%eth0", "ff02::1", "::"),
    *("::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe", "2002:a9fe:a9fe::", "::ffff:0.0.0.0"),
]


def judge(url: str) -> None:
    """As a URL is judged when it is saved."""
    checked(parsed(url, allow_internal=False), allow_internal=False)


@pytest.mark.parametrize("address", PUBLIC)
def test_a_public_address_is_allowed(address: str) -> None:
    assert refusal(address, allow_internal=False) is None


@pytest.mark.parametrize("address", INTERNAL)
def test_an_internal_address_is_allowed_only_where_an_admin_says_so(address: str) -> None:
    assert "internal" in str(refusal(address, allow_internal=False))
    assert refusal(address, allow_internal=True) is None


@pytest.mark.parametrize("address", NEVER)
def test_addresses_of_metadata_services_and_of_groups_are_never_allowed(address: str) -> None:
    for allow_internal in (False, True):
        assert "never allowed" in str(refusal(address, allow_internal=allow_internal))


@pytest.mark.parametrize(
    ("url", "origin", "port", "path"),
    [
        ("https://a.example", "https://a.example", 443, "/"),
        ("https://a.example:443/x?y=1", "https://a.example", 443, "/x?y=1"),
        ("https://A.example:8443/x", "https://a.example:8443", 8443, "/x"),
        ("https://[2001:DB8::1]:8443/", "https://[2001:db8::1]:8443", 8443, "/"),
    ],
)
def test_a_url_names_a_place(url: str, origin: str, port: int, path: str) -> None:
    place = parsed(url, allow_internal=False)
    assert (place.origin, place.port, place.path) == (origin, port, path)


@pytest.mark.parametrize(
    "url",
    [
        *("", "a.example/x", "//a.example", "https://", "https:///x", "ftp://a.example/"),
        *("https://user:word@a.example/", "https://user@a.example/", "https://a.example/#x"),
        *("https://a.example:70000/", "https://a.example:x/", "https://[::1/"),
        *("https://a.example/ x", "https://a.example/\r\nX: y", "https://bücher.example/"),
        *("https://a.example/" + "x" * 2_000, "http://a.example/", "HTTP://a.example/"),
        *("file:///etc/passwd", "gopher://127.0.0.1:6379/_x", "https://a.example\\@b.example/"),
    ],
)
def test_other_urls_are_refused(url: str) -> None:
    with pytest.raises(AddressRefused):
        judge(url)


def test_plain_http_is_for_the_own_network() -> None:
    with pytest.raises(AddressRefused, match="plain HTTP"):
        parsed("http://alertmanager:9093", allow_internal=False)
    assert parsed("http://alertmanager:9093", allow_internal=True).port == 9093


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "127.1", "2130706433", "0x7f.1", "0177.0.0.1", "[::ffff:7f00:1]"]
)
def test_each_spelling_of_loopback_is_refused(host: str) -> None:
    """The system's resolver knows more spellings than a list of words would."""
    with pytest.raises(AddressRefused, match="which is internal"):
        judge(f"https://{host}/")


def resolving(monkeypatch: pytest.MonkeyPatch, *found_at: str) -> None:
    def getaddrinfo(host: str, port: int, **_: Any) -> list[Any]:
        if not found_at:
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (at, port)) for at in found_at]

    monkeypatch.setattr(addresses.socket, "getaddrinfo", getaddrinfo)


def test_one_internal_address_among_several_refuses_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    place = parsed("https://a.example/", allow_internal=False)
    resolving(monkeypatch, "8.8.8.8", "8.8.4.4", "8.8.8.8")
    assert checked(place, allow_internal=False) == ["8.8.8.8", "8.8.4.4"]
    resolving(monkeypatch, "8.8.8.8", "10.0.0.1")
    with pytest.raises(AddressRefused, match=r"10\.0\.0\.1"):
        checked(place, allow_internal=False)


def test_a_name_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    resolving(monkeypatch)
    with pytest.raises(AddressRefused, match="cannot be resolved"):
        judge("https://a.example/")
