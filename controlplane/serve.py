"""The web server: ``python -m controlplane.serve --host 127.0.0.1 --port 8000``.

Uvicorn, with deadlines that it does not have itself. A connection costs a file descriptor and its
buffers, so each phase in which the server waits for the client ends:

=============================  ==================================================================
the headers of a request       ``HEADERS_S`` after the connection or the request's first byte
the body of a request          ``BODY_S``, and a second for each ``BODY_BYTES_PER_S`` received
an idle kept-alive connection  ``IDLE_S`` after the last response
a response to be read          ``WRITE_S`` after the client last made room for more
=============================  ==================================================================

The head of a request, and trailers, are bounded, which the parser does not do. Of one address only
``UNREAD_PER_ADDRESS_MAX`` connections may be without a whole request: for another one the oldest is
closed, which is a slow client's, since the others need milliseconds. The peers of connections reach
the application as they are: ``controlplane.base.limits.addresses`` knows the proxies.
"""

import argparse
import asyncio
import logging
import resource
from collections import OrderedDict
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controlplane.base.limits import addresses

HEADERS_S = 10.0
BODY_S = 15.0
BODY_BYTES_PER_S = 8 << 10
IDLE_S = 5
WRITE_S = 60.0
HEAD_BYTES_MAX = 64 << 10
UNREAD_PER_ADDRESS_MAX = 100
CONNECTIONS_MAX = 20_000
FILES_BESIDE = 256  # Descriptors for all but connections: the database's, logs, bodies on disk.
GRACE_S = 5  # Event streams and long polls never end by themselves.

_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
_HEAD_TOO_LARGE = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\n"
    b"connection: close\r\n\r\n"
)

logger = logging.getLogger(__name__)


class DeadlineProtocol(HttpToolsProtocol):
    """HTTP/1.1 on one connection, closed where the client is too slow."""

    # Connections without a whole request, by peer, the oldest first.
    unread: ClassVar[dict[str, "OrderedDict[DeadlineProtocol, None]"]] = {}
    connections_max: ClassVar[int] = CONNECTIONS_MAX

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        self._reading: asyncio.TimerHandle | None = None
        self._writing: asyncio.TimerHandle | None = None
        self._unparsed_bytes = 0  # Received, and not yet a whole head or a part of a body.
        self._body_deadline_s: float | None = None  # None: no body is being received.
        super().connection_made(transport)
        self._peer = self.client[0] if self.client else ""
        if len(self.connections) > self.connections_max:
            logger.warning("%d connections are open, the most there may be", self.connections_max)
            transport.abort()
            return
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._cancel_reading()
        self._cancel_writing()
        self._note_read()
        super().connection_lost(exc)

    # A request.

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        if self._body_deadline_s is not None:
            self._body_deadline_s += len(data) / BODY_BYTES_PER_S
        elif self._reading is None and not self._is_busy:
            self._await_head()  # The first byte of the next request.
        self._unparsed_bytes += len(data)
        super().data_received(data)
        if self._unparsed_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self._end(_HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """Hand the request to the application, and begin to wait for its body."""
        self._unparsed_bytes = 0
        self._cancel_reading()
        super().on_headers_complete()
        self._body_deadline_s = self.loop.time() + BODY_S
        self._reading = self.loop.call_at(self._body_deadline_s, self._check_body)

    def on_body(self, body: bytes) -> None:
        """Take a part of the body."""
        self._unparsed_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """End the request; the response may still be under way."""
        self._unparsed_bytes = 0
        self._body_deadline_s = None
        self._cancel_reading()
        self._note_read()
        super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no request."""
        super().send_400_response(msg)
        self._await_reader()

    # A response.

    def on_response_complete(self) -> None:
        """Wait for the next request, or for the client to read the rest of this response."""
        super().on_response_complete()
        if self.transport.is_closing():
            self._await_reader()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection."""
        super().timeout_keep_alive_handler()
        self._await_reader()

    def pause_writing(self) -> None:
        """Begin to wait for the client to read."""
        super().pause_writing()
        self._await_reader()

    def resume_writing(self) -> None:
        """Go on: the client has read."""
        self._cancel_writing()
        super().resume_writing()
        if self.transport.is_closing():
            self._await_reader()  # For the rest of it.

    # --------------------------------------------------------------------------------------------

    @property
    def _is_busy(self) -> bool:
        """Whether a response is under way."""
        return self.cycle is not None and not self.cycle.response_complete

    def _await_head(self) -> None:
        self._reading = self.loop.call_later(HEADERS_S, self._end_slow_head)
        if addresses.is_trusted_proxy(self._peer):
            return  # Its connections are those of many clients.
        waiting = self.unread.setdefault(self._peer, OrderedDict())
        waiting[self] = None
        if len(waiting) > UNREAD_PER_ADDRESS_MAX:
            oldest, _ = waiting.popitem(last=False)
            logger.warning("%s has too many connections without a request", self._peer)
            oldest.transport.abort()

    def _note_read(self) -> None:
        waiting = self.unread.get(self._peer)
        if waiting is not None:
            waiting.pop(self, None)
            if not waiting:
                del self.unread[self._peer]

    def _end_slow_head(self) -> None:
        self._reading = None
        self._end(_TIMED_OUT if self._unparsed_bytes else b"")

    def _check_body(self) -> None:
        self._reading = None
        if self._body_deadline_s is None:
            return
        # While reading is paused, the application is what the body waits for.
        if self.flow.read_paused:
            self._body_deadline_s = self.loop.time() + BODY_S
        if self.loop.time() < self._body_deadline_s:
            self._reading = self.loop.call_at(self._body_deadline_s, self._check_body)
            return
        self._end(_TIMED_OUT)

    def _end(self, answer: bytes) -> None:
        if not (self._is_busy and self.cycle.response_started):
            self.transport.write(answer)
        self.transport.close()
        self._await_reader()

    def _await_reader(self) -> None:
        if self._writing is None:
            self._writing = self.loop.call_later(WRITE_S, self.transport.abort)

    def _cancel_reading(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            self._reading = None

    def _cancel_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def main() -> None:
    """Serve until a signal ends it."""
    parser = argparse.ArgumentParser(prog="python -m controlplane.serve", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--host", default="127.0.0.1", help="default: %(default)s")
    parser.add_argument("--port", type=int, default=8000, help="default: %(default)s")
    parser.add_argument(
        "--grace",
        type=int,
        default=GRACE_S,
        metavar="SECONDS",
        help="for responses under way at the end; default: %(default)s",
    )
    given = parser.parse_args()
    DeadlineProtocol.connections_max = min(CONNECTIONS_MAX, _raise_file_limit() - FILES_BESIDE)
    uvicorn.run(
        "controlplane.asgi:application",
        host=given.host,
        port=given.port,
        http=DeadlineProtocol,
        ws="none",
        access_log=False,  # controlplane.base.requests logs a line per request.
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=given.grace,
    )


def _raise_file_limit() -> int:
    """Raise the limit on open files, each connection being one, as far as allowed; return it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + FILES_BESIDE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    raised = wanted if hard == resource.RLIM_INFINITY else min(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    return raised


if __name__ == "__main__":
    main()
