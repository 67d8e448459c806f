"""Static files as a browser gets them: compressed, and not again what it has."""

import asyncio
import gzip
import os
from pathlib import Path

import pytest
from django.core.management import call_command
from pytest_django import Settings
from starlette.exceptions import HTTPException
from starlette.types import Message, Scope

from controlplane.static import Static, accepts_gzip

SCRIPT = b"export const answer = 42;\n" * 200
SMALL = b"export const answer = 42;\n"
NOISE = os.urandom(4_000)
MODIFIED_NS = 1_700_000_000_000_000_000


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """The directory of the files that are collected."""
    directory = tmp_path / "source"
    directory.mkdir()
    for name, content in (("large.js", SCRIPT), ("small.js", SMALL), ("noise.png", NOISE)):
        (directory / name).write_bytes(content)
    return directory


@pytest.fixture
def root(tmp_path: Path, source: Path, settings: Settings) -> Path:
    """The directory that they have been collected in."""
    settings.STATIC_ROOT = tmp_path / "collected"
    settings.STATICFILES_DIRS = [source]
    settings.STATICFILES_FINDERS = ["django.contrib.staticfiles.finders.FileSystemFinder"]
    collect()
    return settings.STATIC_ROOT


def collect() -> None:
    call_command("collectstatic", verbosity=0, interactive=False)


def names(directory: Path) -> set[str]:
    return {file.name for file in directory.iterdir()}


class Answer:
    """The status, headers and body that came back."""

    def __init__(self, messages: list[Message]) -> None:
        self.status: int = messages[0]["status"]
        self.headers = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        self.body = b"".join(message.get("body", b"") for message in messages[1:])


def get(root: Path, path: str, **headers: str) -> Answer:
    scope: Scope = {
        "type": "http",
        "method": "GET",
        "path": path,
        "headers": [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()],
    }
    sent: list[Message] = []

    async def receive() -> Message:
        return await asyncio.get_running_loop().create_future()  # The browser stays.

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Static(root)(scope, receive, send))
    return Answer(sent)


def test_what_gets_smaller_is_collected_twice(root: Path) -> None:
    assert names(root) == {"large.js", "large.js.gz", "small.js", "noise.png"}
    assert gzip.decompress((root / "large.js.gz").read_bytes()) == SCRIPT


def test_a_file_is_compressed_again_once_it_has_changed(root: Path, source: Path) -> None:
    before = (root / "large.js.gz").stat().st_mtime_ns
    collect()
    assert (root / "large.js.gz").stat().st_mtime_ns == before
    os.utime(root / "large.js", ns=(MODIFIED_NS, MODIFIED_NS))  # The source is newer.
    (source / "large.js").write_bytes(SCRIPT + SMALL)
    collect()
    assert gzip.decompress((root / "large.js.gz").read_bytes()) == SCRIPT + SMALL


def test_what_no_longer_gets_smaller_is_not_left_compressed(root: Path, source: Path) -> None:
    os.utime(root / "large.js", ns=(MODIFIED_NS, MODIFIED_NS))
    (source / "large.js").write_bytes(SMALL)
    collect()
    assert names(root) == {"large.js", "small.js", "noise.png"}


def test_who_takes_gzip_gets_it(root: Path) -> None:
    answer = get(root, "/large.js", accept_encoding="gzip, deflate, br")
    assert (answer.status, gzip.decompress(answer.body)) == (200, SCRIPT)
    assert len(answer.body) < len(SCRIPT) / 10
    assert answer.headers["content-encoding"] == "gzip"
    assert answer.headers["content-type"].startswith("text/javascript")
    assert answer.headers["content-length"] == str(len(answer.body))
    assert (answer.headers["vary"], answer.headers["cache-control"]) == (
        "Accept-Encoding",
        "no-cache",
    )


def test_who_does_not_gets_the_file_and_caches_know_the_difference(root: Path) -> None:
    answer = get(root, "/large.js")
    assert (answer.status, answer.body) == (200, SCRIPT)
    assert "content-encoding" not in answer.headers
    assert answer.headers["vary"] == "Accept-Encoding"
    assert answer.headers["etag"] != get(root, "/large.js", accept_encoding="gzip").headers["etag"]


@pytest.mark.parametrize("accepted", ["gzip", "identity"])
def test_what_a_browser_has_is_not_sent_again(root: Path, accepted: str) -> None:
    etag = get(root, "/large.js", accept_encoding=accepted).headers["etag"]
    answer = get(root, "/large.js", accept_encoding=accepted, if_none_match=etag)
    assert (answer.status, answer.body) == (304, b"")
    assert (answer.headers["etag"], answer.headers["vary"]) == (etag, "Accept-Encoding")


@pytest.mark.parametrize(("name", "content"), [("small.js", SMALL), ("noise.png", NOISE)])
def test_what_is_there_once_is_sent_as_it_is(root: Path, name: str, content: bytes) -> None:
    answer = get(root, f"/{name}", accept_encoding="gzip")
    assert (answer.status, answer.body) == (200, content)
    assert "content-encoding" not in answer.headers


def test_a_compressed_file_older_than_the_file_is_not_served(root: Path) -> None:
    os.utime(root / "large.js.gz", ns=(MODIFIED_NS, MODIFIED_NS))
    (root / "large.js").write_bytes(SCRIPT + SMALL)
    assert get(root, "/large.js", accept_encoding="gzip").body == SCRIPT + SMALL


def test_there_is_nothing_before_files_are_collected(tmp_path: Path) -> None:
    with pytest.raises(HTTPException, match="collectstatic"):
        get(tmp_path / "none", "/large.js")


@pytest.mark.parametrize(
    ("accepted", "is_taken"),
    [
        ("", False),
        ("identity", False),
        ("x-gzip", False),
        ("gzip", True),
        ("br, GZIP ; q=0.1", True),
        ("gzip;q=1.0, *;q=0", True),
        ("gzip;q=0, br", False),
        ("gzip; q=0.000", False),
    ],
)
def test_an_accept_encoding_says_whether_gzip_is_taken(accepted: str, is_taken: bool) -> None:
    assert accepts_gzip(accepted) is is_taken
