"""Names of browsers, from headers that browsers send."""

import pytest

from frontend.accounts.browsers import browser_name

WEBKIT = "AppleWebKit/537.36 (KHTML, like Gecko)"


@pytest.mark.parametrize(
    ("header", "name"),
    [
        (f"Mozilla/5.0 (X11; Linux x86_64) {WEBKIT} Chrome/140 Safari/537.36", "Chrome on Linux"),
        (
            f"Mozilla/5.0 (Windows NT 10.0) {WEBKIT} Chrome/140 Safari/537.36 Edg/140",
            "Edge on Windows",
        ),
        (
            "Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) Version/18 Safari/604.1",
            "Safari on iOS",
        ),
        ("Mozilla/5.0 (Android 15; Mobile) Gecko Firefox/140.0", "Firefox on Android"),
        ("curl/8.11.0", "curl/8.11.0"),
        ("x" * 300, "x" * 40),
        ("", "not named"),
    ],
)
def test_a_browser_is_named_with_its_system(header: str, name: str) -> None:
    assert browser_name(header) == name
