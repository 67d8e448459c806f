"""A receiver of webhooks, as its own process: it verifies, notes each request, and misbehaves.

``python -m tests.process.deliveries.receiver LOG [--certificate FILE]`` listens on a free port of
loopback, prints it, and appends a line of JSON to LOG for each request, before it answers. The
path says how it answers::

    /ok  /500  /slow  /drip  /busy  /gone  /redirect  /reset  /garbage  /big
    /hung        never answers the first request of a message, then 200
    /after/N     500 to the first N requests of a message, then 200
    /moody/SEED  of each message a few failures of all kinds, then 200; takes a tenth of a second

A message is verified with the public library and the secrets in ``WEIR_RECEIVER_SECRETS``.
"""

import argparse
import json
import os
import random
import socket
import ssl
import struct
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from standardwebhooks import Webhook
from standardwebhooks.exceptions import WebhookVerificationError

from tests.waiting import TIMEOUT_S, wait_until

SLOW_S = 30.0
BUSY_RETRY_AFTER_S = 2
BIG_BYTES = 10 << 20
MOODS = ("500", "reset", "busy", "garbage")
MOODY_FAILURES_MAX = 3
MOODY_S = 0.1


class Handler(BaseHTTPRequestHandler):
    """One request; it is noted with the kind of answer that it gets."""

    protocol_version = "HTTP/1.1"
    server: "Receiver"

    def do_POST(self) -> None:
        """Note, then answer as the path says."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        word, _, rest = self.path.strip("/").partition("/")
        number = self.server.count((self.headers.get("webhook-id") or "", self.path))
        match word:
            case "after":
                word = "500" if number <= int(rest) else "ok"
            case "moody":
                time.sleep(MOODY_S)
                word = self.server.mood(self.headers["webhook-id"], rest, number)
            case "hung":
                word = "slow" if number == 1 else "ok"
            case "busy":
                word = "busy" if number == 1 else "ok"
        self.server.note(self, body, word)
        getattr(self, f"_answer_{word}")()

    def do_GET(self) -> None:
        """Note it: a client that follows a redirect asks like this."""
        self.server.note(self, b"", "get")
        self._say(200)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: the log of requests is enough."""

    def _say(self, status: int, body: bytes = b"ok", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _answer_ok(self) -> None:
        self._say(200)

    def _answer_500(self) -> None:
        self._say(500, b"something is wrong")

    def _answer_slow(self) -> None:
        self.server.ending.wait(SLOW_S)
        self._say(200)

    def _answer_drip(self) -> None:
        patience_s = time.monotonic() + SLOW_S
        try:
            for byte in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 10_000:
                self.connection.sendall(bytes([byte]))
                if self.server.ending.wait(0.1) or time.monotonic() > patience_s:
                    break
        except OSError:
            pass  # The sender has had enough.
        self.close_connection = True

    def _answer_busy(self) -> None:
        self._say(429, Retry_After=str(BUSY_RETRY_AFTER_S))

    def _answer_gone(self) -> None:
        self._say(410)

    def _answer_redirect(self) -> None:
        self._say(302, Location=f"http://{self.headers['Host']}/stolen")

    def _answer_reset(self) -> None:
        linger = struct.pack("ii", 1, 0)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        self.connection.close()
        self.close_connection = True

    def _answer_garbage(self) -> None:
        self.connection.sendall(b"\x00\x01 no HTTP at all\r\n\r\n")
        self.close_connection = True

    def _answer_big(self) -> None:
        try:
            self._say(200, b"x" * BIG_BYTES)
        except OSError:
            self.server.note(self, b"", "cut off")


class Receiver(ThreadingHTTPServer):
    """The server, its log and what it knows of messages."""

    daemon_threads = True
    request_queue_size = 200

    def __init__(self, log: Path, secrets: Sequence[str]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.ending = threading.Event()
        self._log = log.open("a", buffering=1)
        self._webhooks = [Webhook(secret) for secret in secrets]
        self._lock = threading.Lock()
        self._counts: Counter[tuple[str, str]] = Counter()
        self.names: dict[int, str] = {}  # Server names that TLS clients asked for, by socket.

    def count(self, of: tuple[str, str]) -> int:
        """The number of this request of a message, from 1."""
        with self._lock:
            self._counts[of] += 1
            return self._counts[of]

    def mood(self, message: str, seed: str, number: int) -> str:
        """The answer to the request of this number; the last one is ok."""
        moods = random.Random(f"{seed}{message}")
        failures = [moods.choice(MOODS) for _ in range(moods.randint(0, MOODY_FAILURES_MAX))]
        return failures[number - 1] if number <= len(failures) else "ok"

    def note(self, request: Handler, body: bytes, answer: str) -> None:
        """Append a line to the log."""
        line = {
            "at": time.time(),
            "path": request.path,
            "method": request.command,
            "headers": dict(request.headers.items()),
            "body": body.decode(),
            "answer": answer,
            "verified": [self._verifies(webhook, request, body) for webhook in self._webhooks],
            "server_name": getattr(request.connection, "weir_server_name", None),
        }
        with self._lock:
            self._log.write(json.dumps(line) + "\n")

    @staticmethod
    def _verifies(webhook: Webhook, request: Handler, body: bytes) -> bool:
        try:
            webhook.verify(body, dict(request.headers.items()), json_parse=False)
        except WebhookVerificationError:
            return False
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Nothing: senders that hang up are part of the tests."""


class NamedSocket(ssl.SSLSocket):
    """A TLS connection that knows the name by which its client asked for it."""

    weir_server_name: str | None = None


def _remember(connection: Any, name: str | None, _: ssl.SSLContext) -> None:
    connection.weir_server_name = name


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("log", type=Path)
    parser.add_argument("--certificate", type=Path)
    given = parser.parse_args()
    secrets = os.environ.get("WEIR_RECEIVER_SECRETS", "").split()
    with Receiver(given.log, secrets) as server:
        if given.certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.sslsocket_class = NamedSocket
            context.sni_callback = _remember
            context.load_cert_chain(given.certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
        print(server.server_address[1], flush=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        sys.stdin.read()
        server.ending.set()
        server.shutdown()


class Running:
    """A receiver process, as the tests see it."""

    def __init__(self, process: "subprocess.Popen[str]", log: Path, scheme: str) -> None:
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        self._log = log
        self._scheme = scheme

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        """The URL of one of its paths."""
        return f"{self._scheme}://{host}:{self.port}{path}"

    def requests(self, path: str = "") -> list[dict[str, Any]]:
        """The requests so far, all or those of a path."""
        lines = self._log.read_text().splitlines() if self._log.exists() else []
        noted = [json.loads(line) for line in lines if line.endswith("}")]
        return [one for one in noted if not path or one["path"] == path]

    def await_requests(self, count: int, path: str = "") -> list[dict[str, Any]]:
        """The requests, once there are so many."""
        wait_until(lambda: len(self.requests(path)) >= count, f"{count} requests at {path or '/'}")
        return self.requests(path)


@contextmanager
def running(
    log: Path, secrets: Sequence[str] = (), certificate: Path | None = None
) -> Iterator[Running]:
    """A receiver process; it ends with the context."""
    tls = () if certificate is None else ("--certificate", str(certificate))
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.process.deliveries.receiver", str(log), *tls],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"WEIR_RECEIVER_SECRETS": " ".join(secrets)},
    )
    try:
        yield Running(process, log, "http" if certificate is None else "https")
    finally:
        process.communicate(timeout=TIMEOUT_S)


if __name__ == "__main__":
    main()
