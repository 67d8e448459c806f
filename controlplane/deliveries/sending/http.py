"""One POST to a checked address: no redirect, no proxy, one deadline for all of it.

The deadline bounds what time-outs of single operations do not: an endpoint that sends a byte now
and then. Only name resolution stands outside of it; the system's resolver has bounds of its own. Of
the answer no more than a part is read. The wire is h11's, which does no I/O, so that each read here
gets the time that is left.
"""

import socket
import ssl
import time
from collections.abc import Sequence
from functools import cache

import h11
from django.conf import settings

from controlplane.deliveries.machine import Meaning, meaning_of
from controlplane.deliveries.notice import cut
from controlplane.deliveries.receivers.base import HttpRequest
from controlplane.deliveries.sending import addresses
from controlplane.deliveries.sending.outcome import Outcome, failed

CONNECT_TIMEOUT_S = 5.0
BODY_BYTES_MAX = 16 << 10  # Read of the answer.
BODY_KEPT_MAX = 2_000  # Characters.
HEADER_BYTES_MAX = 16 << 10
HEADERS_KEPT_MAX = 20
HEADER_KEPT_LENGTH_MAX = 200
READ_BYTES = 16 << 10
USER_AGENT = "Weir"


def post(request: HttpRequest, *, allow_internal: bool, timeout_s: float) -> Outcome:
    """Send a request and read its answer, within ``timeout_s`` from the connection on."""
    try:
        place = addresses.parsed(request.url, allow_internal=allow_internal)
        candidates = addresses.checked(place, allow_internal=allow_internal)
    except addresses.AddressRefused as refused:
        return failed(str(refused))
    deadline = _Deadline(timeout_s)
    address = ""
    try:
        connection, address = _connected(candidates, place.port, deadline)
        with connection:
            secured = _secured(connection, place, deadline)
            with secured:
                return _answer(secured, request, place, address, deadline)
    except TimeoutError:
        return failed(f"no answer within {timeout_s:g} s", address=address)
    except h11.RemoteProtocolError as error:
        return failed(f"the answer is not HTTP: {error}", address=address)
    except OSError as error:  # Of TLS as well.
        return failed(f"the connection failed: {error}", address=address)


class _Deadline:
    """The moment at which the whole exchange has to have ended. Units: seconds, monotonic."""

    def __init__(self, timeout_s: float) -> None:
        self._at = time.monotonic() + timeout_s

    def left_s(self) -> float:
        """The time left.

        Raises:
            TimeoutError: None is.
        """
        left_s = self._at - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        return left_s


def _connected(
    candidates: Sequence[str], port: int, deadline: _Deadline
) -> tuple[socket.socket, str]:
    """A connection to the first address that takes it."""
    error: OSError = OSError("there is no address")
    for address in candidates:
        try:
            timeout_s = min(CONNECT_TIMEOUT_S, deadline.left_s())
            return socket.create_connection((address, port), timeout_s), address
        except OSError as raised:
            error = raised
    if isinstance(error, TimeoutError):
        raise OSError(f"{candidates[-1]} took no connection in time") from error
    raise error


def _secured(
    connection: socket.socket, place: addresses.Place, deadline: _Deadline
) -> socket.socket:
    if place.scheme == "http":
        return connection
    connection.settimeout(deadline.left_s())
    return _tls(settings.WEIR_ENDPOINTS_CA).wrap_socket(connection, server_hostname=place.host)


@cache
def _tls(authorities: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if authorities:
        context.load_verify_locations(cadata=authorities)
    return context


def _answer(
    connection: socket.socket,
    request: HttpRequest,
    place: addresses.Place,
    address: str,
    deadline: _Deadline,
) -> Outcome:
    wire = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEADER_BYTES_MAX)
    headers = {
        "Host": place.authority,
        "User-Agent": USER_AGENT,
        "Accept": "*/*",
        "Connection": "close",
        "Content-Length": str(len(request.body)),
        **request.headers,
    }
    head = h11.Request(method="POST", target=place.path, headers=list(headers.items()))
    sent = b"".join(
        wire.send(event) or b"" for event in (head, h11.Data(request.body), h11.EndOfMessage())
    )
    connection.settimeout(deadline.left_s())
    connection.sendall(sent)

    response: h11.Response | None = None
    body = b""
    while len(body) < BODY_BYTES_MAX:
        try:
            event = wire.next_event()
            if event is h11.NEED_DATA:
                connection.settimeout(deadline.left_s())
                wire.receive_data(connection.recv(READ_BYTES))
            elif isinstance(event, h11.Response):
                response = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif not isinstance(event, h11.InformationalResponse):
                break
        except (OSError, h11.RemoteProtocolError):
            if response is None:
                raise
            break  # The status has come; a body that breaks off changes nothing about it.
    if response is None:
        raise OSError("closed without an answer")
    return _outcome(response, body[:BODY_BYTES_MAX], address)


def _outcome(response: h11.Response, body: bytes, address: str) -> Outcome:
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in response.headers}
    meaning = meaning_of(response.status_code)
    return Outcome(
        meaning=meaning,
        error="" if meaning is Meaning.DELIVERED else _said(response.status_code),
        address=address,
        status_code=response.status_code,
        headers={
            cut(name, HEADER_KEPT_LENGTH_MAX): cut(value, HEADER_KEPT_LENGTH_MAX)
            for name, value in list(headers.items())[:HEADERS_KEPT_MAX]
        },
        body=cut(body.decode(errors="replace"), BODY_KEPT_MAX),
        retry_after=headers.get("retry-after", ""),
    )


def _said(status: int) -> str:
    if 300 <= status < 400:
        return f"the endpoint answered {status}; redirects are not followed: give its final URL"
    return f"the endpoint answered {status}"
