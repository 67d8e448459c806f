"""Bounded reading of request bodies: on disk, in memory and unpacked."""

import asyncio
import zlib
from typing import IO

from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from controlplane.base.errors import Invalid, TooLarge

# Most clients read no response before they have sent all: this much more is read and discarded.
DRAINED_BYTES_MAX = 32 << 20
DRAIN_TIMEOUT_S = 2.0

_GZIP = 16 + zlib.MAX_WBITS


class ClientGoneError(Exception):
    """The client went away before its request was complete."""


def too_large(bytes_max: int) -> TooLarge:
    """The refusal of a body larger than ``bytes_max``."""
    return TooLarge(f"the body is larger than {bytes_max} bytes, the most that is accepted")


async def read_into(file: IO[bytes], scope: Scope, receive: Receive, bytes_max: int) -> int:
    """Write the body of a request into a file and return its size.

    Raises:
        TooLarge: The body has, or declares, more than ``bytes_max`` bytes.
        ClientGoneError: The client went away before the end of the body.
    """
    declared = Headers(scope=scope).get("content-length", "")
    if declared.isdecimal() and int(declared) > bytes_max:
        await discard(receive)
        raise too_large(bytes_max)
    size, is_complete = 0, False
    while not is_complete:
        part, is_complete = await _part(receive)
        size += len(part)
        if size > bytes_max:
            if not is_complete:
                await discard(receive)
            raise too_large(bytes_max)
        file.write(part)
    file.seek(0)
    return size


async def discard(receive: Receive) -> None:
    """Read the rest of a refused body and keep nothing of it, for a bounded while.

    A client that is still sending when its connection closes may lose the response.
    """
    size, is_complete = 0, False
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            while not is_complete and size <= DRAINED_BYTES_MAX:
                part, is_complete = await _part(receive)
                size += len(part)
    except TimeoutError:
        return  # The response closes the connection; a client that still sends notices.


async def _part(receive: Receive) -> tuple[bytes, bool]:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise ClientGoneError
    return message.get("body", b""), not message.get("more_body", False)


def gunzip(packed: bytes, bytes_max: int) -> bytes:
    """The content of a gzip body, without ever holding more than ``bytes_max`` bytes of it.

    Raises:
        TooLarge: The content has more.
        Invalid: The body is no gzip, is not whole, or is followed by something else.
    """
    unpacker = zlib.decompressobj(_GZIP)
    try:
        body = unpacker.decompress(packed, bytes_max + 1)
    except zlib.error as error:
        raise Invalid(f"the body is not valid gzip: {error}") from error
    if len(body) > bytes_max:
        raise too_large(bytes_max)
    if not unpacker.eof or unpacker.unused_data:
        raise Invalid("the body is not one whole gzip member")
    return body
