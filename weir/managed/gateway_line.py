"""One HTTP connection of the driver to the control plane: an address, a request, a verdict.

``Line.ask`` sends a request and says what its answer, or the absence of one, means for it. The two
lines of a driver share the version of the messages that they write.
"""

import gzip
import ipaddress
import json
import logging
import random
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from http.client import HTTPException
from ssl import TLSVersion
from typing import Any
from urllib.parse import quote, urlsplit

from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from weir.errors import ConfigError
from weir.ids import JobId
from weir.wire import batches

logger = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
PAUSE_MIN_S, PAUSE_S, PAUSE_MAX_S = 0.1, 2.0, 10.0  # That a busy control plane may ask for.
ANSWER_BYTES_MAX = 64 << 20
COMPRESSED_FROM_BYTES = 8 << 10


@dataclass(frozen=True, slots=True)
class GatewayAddress:
    """The control plane's URL, the driver's job and the driver's token.

    Raises:
        ConfigError: The URL is invalid, or would send the token in the clear over a network.
    """

    url: str
    job_id: JobId
    token: str = field(repr=False)
    allow_plain_http: bool = False
    authority: str = ""  # PEM certificates that the server's must come from; empty: the system's.
    control_plane: str = ""  # Its URL as people reach it; empty: this one.

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"the gateway's URL {self.url!r} is no http or https URL")
        if parts.username or parts.query or parts.fragment:
            raise ConfigError("the gateway's URL has no user, query or fragment")
        if (
            parts.scheme == "http"
            and not self.allow_plain_http
            and not _is_loopback(parts.hostname)
        ):
            raise ConfigError(
                f"the gateway's URL {self.url!r} would send the driver's token in the clear; use "
                "https, or set allow_plain_http where the network is trusted"
            )

    @property
    def path(self) -> str:
        """The path below which the job's two resources lie."""
        base = urlsplit(self.url).path.rstrip("/")
        return f"{base}/gateway/v1/jobs/{quote(self.job_id, safe='')}"


class Verdict(Enum):
    """The meaning of an answer, or of its absence, for a request."""

    DONE = auto()
    AGAIN = auto()  # The control plane is away.
    BUSY = auto()  # It has too many other requests in hand, and says when to ask again.
    UNKNOWN = auto()  # Token or path unknown there; may be repaired meanwhile.
    FENCED = auto()
    REFUSED = auto()


VERDICTS: Mapping[int, Verdict] = {
    200: Verdict.DONE,
    401: Verdict.UNKNOWN,
    403: Verdict.UNKNOWN,
    404: Verdict.UNKNOWN,
    408: Verdict.AGAIN,
    409: Verdict.FENCED,
    425: Verdict.AGAIN,
    429: Verdict.AGAIN,
}  # Others: AGAIN from 500 on, else REFUSED.
_BUSY = "too_busy"  # The code of the problem; a proxy that has no server also answers 503.


class Version:
    """The version that both sides write, as far as the control plane has named its highest."""

    def __init__(self) -> None:
        self.number = batches.VERSION_MAX

    def agree(self, theirs: Any) -> None:
        """Take the lower of both highest versions, if ``theirs`` is one that this side speaks."""
        text = str(theirs)
        if not text.isdecimal() or not text.isascii() or len(text) > 9:
            return
        version = batches.agreed(int(text))
        if version is not None and version != self.number:
            logger.info("the control plane speaks version %s; this driver writes %d", text, version)
            self.number = version


class Line:
    """One HTTP connection, reopened when needed; ``interrupt`` ends it from any thread."""

    def __init__(self, address: GatewayAddress, version: Version) -> None:
        self._version = version
        self.version = version.number  # Of the last request, and so of its answer.
        self.busy_s = PAUSE_S  # The pause that the last busy answer asks for.
        parts = urlsplit(address.url)
        assert parts.hostname is not None
        self._connection: HTTPConnection
        if parts.scheme == "https":
            self._connection = HTTPSConnection(
                parts.hostname,
                parts.port,
                cert_reqs="CERT_REQUIRED",
                ca_cert_data=address.authority or None,
                ssl_minimum_version=TLSVersion.TLSv1_2,
            )
        else:
            self._connection = HTTPConnection(parts.hostname, parts.port)
        self._headers = {
            "Authorization": f"Bearer {address.token}",
            "Accept": "application/json",
            "User-Agent": "weir-driver",
        }
        self._is_interrupted = False

    def ask(
        self,
        method: str,
        path: str,
        timeout_s: float,
        body: Callable[[int], bytes] | None = None,
    ) -> tuple[Verdict, str]:
        """The verdict on the answer, and its text or a description of the failure.

        ``body`` makes the JSON of a request in the version that it goes out in.
        """
        try:
            status, text = self._exchange(method, path, timeout_s, body)
            if status == 400:
                self._version.agree(_problem(text).get("schema_version"))
            if status == 400 and self._version.number != self.version:
                status, text = self._exchange(method, path, timeout_s, body)
        except (OSError, HTTPError, HTTPException, ValueError) as error:
            self._connection.close()
            return Verdict.AGAIN, f"{type(error).__name__}: {error}"
        # Redirections are refusals too: the token is for this address and no other.
        otherwise = Verdict.AGAIN if status >= 500 else Verdict.REFUSED
        verdict = VERDICTS.get(status, otherwise)
        if verdict is Verdict.DONE:
            return verdict, text
        if verdict is Verdict.AGAIN and _problem(text).get("code") == _BUSY:
            verdict = Verdict.BUSY
        told = _detail(text)
        return verdict, told if verdict is Verdict.FENCED else f"{status}: {told}"

    def _exchange(
        self, method: str, path: str, timeout_s: float, body: Callable[[int], bytes] | None
    ) -> tuple[int, str]:
        connection = self._connection
        if connection.sock is not None and not connection.is_connected:
            connection.close()  # The other side closed it while it was idle.
        if connection.sock is None:
            connection.timeout = CONNECT_TIMEOUT_S
            connection.connect()
        connection.timeout = timeout_s
        connection.sock.settimeout(timeout_s)
        if self._is_interrupted:
            raise ConnectionAbortedError("interrupted")
        self.version = self._version.number
        headers = {**self._headers, batches.VERSION_HEADER: str(self.version)}
        content = None
        if body is not None:
            content = body(self.version)
            headers["Content-Type"] = "application/json"
            if len(content) > COMPRESSED_FROM_BYTES:
                content = gzip.compress(content, compresslevel=1)
                headers["Content-Encoding"] = "gzip"
        connection.request(method, path, body=content, headers=headers, preload_content=False)
        response = connection.getresponse()
        self._version.agree(response.headers.get(batches.VERSION_HEADER))
        self.busy_s = _seconds(response.headers.get("Retry-After"))
        data = response.read(ANSWER_BYTES_MAX + 1)
        if len(data) > ANSWER_BYTES_MAX:
            raise ConnectionError(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
        return response.status, data.decode()

    def close(self) -> None:
        """Close the connection; for the thread that calls ``ask``."""
        self._connection.close()

    def interrupt(self) -> None:
        """End the connection; a thread that waits for an answer gets none."""
        self._is_interrupted = True
        sock = self._connection.sock
        if sock is not None:
            with suppress(OSError):  # It is closed already.
                # Not TLS's own shutdown, which would raise in the other thread.
                socket.socket.shutdown(sock, socket.SHUT_RDWR)


def _detail(text: str) -> str:
    """The detail of a problem document, or the beginning of any other text."""
    problem = _problem(text)
    return str(problem.get("detail") or problem.get("title") or text[:300])


def _problem(text: str) -> dict[str, Any]:
    """The problem document, empty where the text is none."""
    try:
        problem = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return problem if isinstance(problem, dict) else {}


def _seconds(retry_after: str | None) -> float:
    """The pause that an answer asks for, somewhat longer, as it is for all drivers at once."""
    is_given = retry_after is not None and retry_after.isdecimal() and retry_after.isascii()
    asked_s = float(retry_after) if retry_after is not None and is_given else PAUSE_S
    return random.uniform(1.0, 1.5) * min(max(asked_s, PAUSE_MIN_S), PAUSE_MAX_S)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
