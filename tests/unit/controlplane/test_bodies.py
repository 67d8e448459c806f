"""Bodies are taken up to their limit and no further, packed or not, announced or not."""

import asyncio
import gzip
import io
import tracemalloc
import zlib

import pytest
from starlette.types import Message, Scope

from controlplane.base.bodies import ClientGoneError, gunzip, read_into
from controlplane.base.errors import Invalid, TooLarge

LIMIT = 1_000


class Sender:
    """A client that sends its body in parts."""

    def __init__(self, *parts: bytes, goes_away: bool = False) -> None:
        self.parts = list(parts)
        self.goes_away = goes_away

    async def receive(self) -> Message:
        if not self.parts:
            return {"type": "http.disconnect"}
        part = self.parts.pop(0)
        more = bool(self.parts) or self.goes_away
        return {"type": "http.request", "body": part, "more_body": more}


def read(sender: Sender, length: int | None = None) -> bytes:
    headers = [] if length is None else [(b"content-length", str(length).encode())]
    scope: Scope = {"type": "http", "headers": headers}
    file = io.BytesIO()
    size = asyncio.run(read_into(file, scope, sender.receive, LIMIT))
    body = file.read()
    assert len(body) == size
    return body


def test_a_body_in_parts_is_put_together() -> None:
    assert read(Sender(b"one ", b"two ", b"")) == b"one two "


def test_a_body_as_large_as_allowed_is_taken() -> None:
    assert len(read(Sender(b"x" * LIMIT), LIMIT)) == LIMIT


def test_a_body_that_says_it_is_too_large_is_refused() -> None:
    sender = Sender(b"x" * LIMIT, b"x")
    with pytest.raises(TooLarge, match=f"{LIMIT} bytes"):
        read(sender, LIMIT + 1)
    assert not sender.parts  # Taken and thrown away: the client has sent all and reads the answer.


def test_a_body_that_does_not_say_so_is_refused_all_the_same() -> None:
    with pytest.raises(TooLarge):
        read(Sender(*[b"x" * 100] * 11))


def test_a_client_that_goes_away_is_told_apart() -> None:
    with pytest.raises(ClientGoneError):
        read(Sender(b"half", goes_away=True))


def test_a_packed_body_is_unpacked() -> None:
    assert gunzip(gzip.compress(b"x" * LIMIT), LIMIT) == b"x" * LIMIT


def test_a_bomb_is_refused_without_being_unpacked() -> None:
    bomb = gzip.compress(bytes(64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(TooLarge):
            gunzip(bomb, LIMIT)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "packed",
    [
        b"",
        b"not packed",
        gzip.compress(b"cut off", mtime=0)[:-4],
        gzip.compress(b"one", mtime=0) + b"rubbish",
        zlib.compress(b"another format"),
    ],
)
def test_what_is_not_one_whole_gzip_is_refused(packed: bytes) -> None:
    with pytest.raises(Invalid):
        gunzip(packed, LIMIT)
