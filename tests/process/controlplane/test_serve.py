"""Slow and greedy clients: the web server ends each wait for them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
import uvicorn
from pytest_django import Settings
from starlette.types import Message, Receive, Scope, Send

from controlplane import serve
from controlplane.base.limits.addresses import networks
from controlplane.serve import DeadlineProtocol
from tests.waiting import wait_until

GET = b"GET /plain HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /plain HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"
CHUNKED = b"POST /plain HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
PATIENCE_S = 30.0  # Of the tests: a deadline that does not come at all fails them.

seen: list[str] = []


async def application(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body and answers with its size; ``/large`` answers with 64 MiB."""
    if scope["type"] != "http":
        raise NotImplementedError
    size, more = 0, True
    while more:
        message: Message = await receive()
        if message["type"] == "http.disconnect":
            seen.append("gone")
            return
        size += len(message.get("body", b""))
        more = message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/large":
        for _ in range(1_024):
            await send({"type": "http.response.body", "body": b"x" * (64 << 10), "more_body": True})
    await send({"type": "http.response.body", "body": str(size).encode()})
    seen.append(scope["path"])


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The server with short deadlines."""
    for name, value in {
        "HEADERS_S": 0.6,
        "BODY_S": 0.6,
        "BODY_BYTES_PER_S": 10_000,
        "WRITE_S": 0.6,
        "UNREAD_PER_ADDRESS_MAX": 5,
    }.items():
        monkeypatch.setattr(serve, name, value)
    seen.clear()
    with serving() as port:
        yield port
    assert DeadlineProtocol.unread == {}


@contextmanager
def serving() -> Iterator[int]:
    config = uvicorn.Config(
        application, port=0, log_config=None, http=DeadlineProtocol, ws="none", lifespan="off",
        timeout_keep_alive=1, timeout_graceful_shutdown=2,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started, "the server has started")
        yield server.servers[0].sockets[0].getsockname()[1]
        wait_until(lambda: not server.server_state.connections, "no connection is left")
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)


@contextmanager
def connected(port: int, *, receive_bytes: int | None = None) -> Iterator[socket.socket]:
    with socket.socket() as client:
        if receive_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        client.settimeout(PATIENCE_S)
        client.connect(("127.0.0.1", port))
        yield client


def rest(client: socket.socket) -> bytes:
    """The bytes that the server sends until it closes the connection."""
    received = b""
    while True:
        try:
            part = client.recv(65_536)
        except ConnectionResetError:
            return received
        if not part:
            return received
        received += part


def drip(client: socket.socket, data: bytes, every_s: float) -> float:
    """Send byte by byte until the server closes the connection; the seconds it took."""
    began = time.monotonic()
    client.settimeout(every_s)
    for byte in data:
        try:
            client.sendall(bytes([byte]))
            if client.recv(1) == b"":
                break
        except TimeoutError:
            continue
        except OSError:
            break
    client.settimeout(PATIENCE_S)
    return time.monotonic() - began


def test_a_connection_that_says_nothing_is_closed(port: int) -> None:
    with connected(port) as client:
        assert rest(client) == b""


def test_a_head_that_drips_in_is_refused(port: int) -> None:
    with connected(port) as client:
        client.sendall(b"GET / HTTP/1.1\r\nX-Slow: ")
        assert rest(client).startswith(b"HTTP/1.1 408 ")
    with connected(port) as client:
        assert drip(client, GET + b"x" * 200, 0.05) < 20
    assert seen == []


def test_the_next_head_on_a_kept_connection_has_a_deadline_too(port: int) -> None:
    with connected(port) as client:
        client.sendall(GET)
        wait_until(lambda: seen == ["/plain"], "the first request is answered")
        client.recv(1_000)
        client.sendall(b"GET / HTTP")
        assert rest(client).startswith(b"HTTP/1.1 408 ")


def test_an_idle_connection_is_closed(port: int) -> None:
    with connected(port) as client:
        client.sendall(GET)
        assert rest(client).endswith(b"0\r\n\r\n")


def test_a_body_that_does_not_come_is_refused_and_the_application_told(port: int) -> None:
    with connected(port) as client:
        client.sendall(POST + b"x" * 10)
        assert rest(client).startswith(b"HTTP/1.1 408 ")
    wait_until(lambda: seen == ["gone"], "the application is told")


def test_a_body_that_drips_in_is_refused(port: int) -> None:
    with connected(port) as client:
        client.sendall(POST)
        assert drip(client, b"x" * 600, 0.05) < 20
    wait_until(lambda: seen == ["gone"], "the application is told")


def test_a_body_that_comes_slowly_but_steadily_is_read(port: int) -> None:
    """Two seconds at 50 kB a second, where 0.6 s and 10 kB a second are asked for."""
    with connected(port) as client:
        client.sendall(POST)
        for _ in range(20):
            client.sendall(b"x" * 5_000)
            time.sleep(0.1)
        assert b"100000" in client.recv(1_000)


def test_a_client_that_reads_nothing_is_let_go(port: int) -> None:
    with connected(port, receive_bytes=4_096) as client:
        client.sendall(GET.replace(b"/plain", b"/large"))
        wait_until(lambda: seen == ["/large"], "the response to it ends")
        client.settimeout(PATIENCE_S)
        assert len(rest(client)) < 64 << 20


@pytest.mark.parametrize(
    "request_head",
    [
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\n",
        b"GET / HTTP/1.1\r\nX-Long: " + b"x" * 200_000,
        b"GET / HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(20_000)),
        b"GET / HTTP/1.1\r\n" + b"X" * 200_000,
        CHUNKED + b"5\r\nhello\r\n0\r\nX-Trailer: " + b"x" * 200_000,
        CHUNKED + b"5;" + b"x" * 200_000,
    ],
    ids=["url", "value", "many", "name", "trailer", "extension"],
)
def test_a_head_without_end_is_refused(port: int, request_head: bytes) -> None:
    with connected(port) as client:
        with suppress(OSError):
            client.sendall(request_head)
        answer = rest(client)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 ")), answer
    assert "/plain" not in seen


def test_one_address_holds_few_connections_without_a_request(port: int) -> None:
    """The oldest is closed: a client that is quick gets through while another one floods."""
    with connected(port) as oldest:
        silent = []
        for _ in range(8):
            silent.append(socket.create_connection(("127.0.0.1", port), PATIENCE_S))
        assert rest(oldest) == b""
        with connected(port) as quick:
            quick.sendall(GET)
            assert quick.recv(1_000).startswith(b"HTTP/1.1 200 ")
        for client in silent:
            client.close()


def test_a_trusted_proxy_may_hold_more(
    port: int, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serve, "HEADERS_S", PATIENCE_S)
    settings.WEIR_TRUSTED_PROXIES = networks(["127.0.0.0/8"])
    clients = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(10)]
    for client in clients:
        client.sendall(GET)
        assert client.recv(1_000).startswith(b"HTTP/1.1 200 ")
        client.close()


def test_requests_in_one_packet_are_all_answered(port: int) -> None:
    with connected(port) as client:
        client.sendall(GET * 3)
        assert rest(client).count(b"HTTP/1.1 200 ") == 3


def test_a_websocket_is_not_opened(port: int) -> None:
    with connected(port) as client:
        client.sendall(
            GET[:-2] + b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
            b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        assert client.recv(1_000).startswith(b"HTTP/1.1 200 ")


def test_more_connections_than_there_may_be_are_closed(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeadlineProtocol, "connections_max", 2)
    with connected(port) as one, connected(port) as two, connected(port) as three:
        assert rest(three) == b""
        for client in (one, two):
            client.sendall(GET)
            assert client.recv(1_000).startswith(b"HTTP/1.1 200 ")
