"""Django on the pool's threads: bodies, streams and failures as a client sees them."""

import asyncio
import gzip
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from pytest_django import Settings
from starlette.types import Message, Scope

from controlplane.base import logs, threads
from controlplane.base.problems import DATABASE_RETRY_AFTER_S
from controlplane.handler import DjangoHandler
from tests.waiting import wait_until

FILE = Path(__file__)


def echo(request: HttpRequest) -> HttpResponse:
    response = HttpResponse(request.read(), content_type="text/plain")
    response.set_cookie("one", "1")
    response.set_cookie("two", "2")
    return response


def stream(_: HttpRequest) -> StreamingHttpResponse:
    def parts() -> Iterator[bytes]:
        for number in range(3):
            yield f"{number} on {threading.current_thread().name}\n".encode()

    return StreamingHttpResponse(parts())


def file(_: HttpRequest) -> FileResponse:
    return FileResponse(FILE.open("rb"))


def away(_: HttpRequest) -> HttpResponse:
    raise OperationalError("connection refused")


def broken(_: HttpRequest) -> HttpResponse:
    raise ZeroDivisionError


def context(_: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{logs.current()['request_id']} on {threading.current_thread().name}")


is_hashing, may_go_on = threading.Event(), threading.Event()


def login(_: HttpRequest) -> HttpResponse:
    is_hashing.set()
    assert may_go_on.wait(30)
    return HttpResponse(threading.current_thread().name)


urlpatterns = [
    path("login/", login),
    *(path(view.__name__, view) for view in (echo, stream, file, away, broken, context)),
]


class Answer:
    """The response that the handler sent."""

    def __init__(self, messages: list[Message]) -> None:
        start, *bodies = messages
        self.status: int = start["status"]
        self.headers: list[tuple[bytes, bytes]] = start["headers"]
        self.parts: list[bytes] = [message.get("body", b"") for message in bodies]
        assert [m.get("more_body", False) for m in bodies] == [True] * (len(bodies) - 1) + [False]

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    def header(self, name: bytes) -> list[bytes]:
        return [value for key, value in self.headers if key.lower() == name]


@pytest.fixture(autouse=True)
def pages_of_this_module(settings: Settings) -> Iterator[None]:
    """The views above, with the outermost middleware alone."""
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["controlplane.base.requests.RequestMiddleware"]
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = None  # The handler's own limit is what counts here.
    yield
    threads.close()


def ask(
    name: str,
    *parts: bytes,
    method: str = "GET",
    client: str = "127.0.0.1",
    handler: DjangoHandler | None = None,
    **headers: str,
) -> Answer:
    """One request to a view."""
    scope: Scope = {
        "type": "http",
        "method": method,
        "path": f"/{name}",
        "query_string": b"",
        "headers": [
            (key.replace("_", "-").encode(), value.encode()) for key, value in headers.items()
        ],
        "client": (client, 1),
        "server": ("127.0.0.1", 80),
    }
    left = list(parts) or [b""]
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": left.pop(0), "more_body": bool(left)}

    async def send(message: Message) -> None:
        sent.append(message)

    async def scenario() -> None:
        await (handler or DjangoHandler())(scope, receive, send)

    asyncio.run(scenario())
    return Answer(sent)


def test_a_body_in_parts_reaches_the_view(settings: Settings) -> None:
    answer = ask("echo", b"one ", b"two", method="POST", content_type="text/plain")
    assert (answer.status, answer.body) == (200, b"one two")
    assert [cookie.split(b";")[0] for cookie in answer.header(b"set-cookie")] == [
        b"one=1",
        b"two=2",
    ]


def test_a_large_body_is_refused_by_the_middleware(settings: Settings) -> None:
    settings.WEIR_BODY_BYTES_MAX = 10
    answer = ask("echo", b"x" * 6, b"x" * 6, method="POST")
    assert answer.status == 413
    assert answer.header(b"x-request-id")
    assert ask("echo", b"x" * 10, method="POST").body == b"x" * 10


def test_a_stream_is_sent_part_by_part_from_the_pool() -> None:
    answer = ask("stream")
    assert len(answer.parts) == 4  # The last one only says that it was.
    assert all(b" on weir-database" in part for part in answer.parts[:-1])


def test_what_is_streamed_is_compressed_as_it_goes(settings: Settings) -> None:
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.gzip.GZipMiddleware"]
    for name, plain in (("stream", ask("stream").body), ("file", FILE.read_bytes())):
        answer = ask(name, accept_encoding="gzip")
        assert answer.header(b"content-encoding") == [b"gzip"]
        assert answer.header(b"content-length") == []
        assert re.sub(rb"_\d+", b"", gzip.decompress(answer.body)) == re.sub(rb"_\d+", b"", plain)


def test_a_file_is_sent_whole() -> None:
    answer = ask("file")
    assert answer.body == FILE.read_bytes()
    assert answer.header(b"content-length") == [str(FILE.stat().st_size).encode()]


def test_views_run_on_the_pools_threads_with_the_requests_context() -> None:
    body = ask("context", X_Request_ID="mine").body
    assert body.startswith(b"mine on weir-database")


def test_a_page_that_finds_the_database_away_says_so() -> None:
    answer = ask("away")
    assert answer.status == 503
    assert answer.header(b"retry-after") == [b"%d" % DATABASE_RETRY_AFTER_S]


def test_a_view_that_fails_is_an_error_of_that_request_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert ask("broken").status == 500
    assert "ZeroDivisionError" in caplog.text
    assert ask("context", X_Request_ID="next").status == 200


def test_a_client_that_leaves_in_the_middle_gets_no_view(settings: Settings) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError(message)

    scope: dict[str, Any] = {"type": "http", "method": "POST", "path": "/echo", "headers": []}
    asyncio.run(DjangoHandler()(scope, receive, send))


# Passwords -------------------------------------------------------------------------------------


def test_requests_that_hash_hold_up_no_others(settings: Settings) -> None:
    """More logins than threads for pages, all hashing: a page is answered meanwhile."""
    settings.WEIR_DATABASE_THREADS = 2
    settings.WEIR_PASSWORD_THREADS, settings.WEIR_PASSWORD_WAITING_MAX = 1, 3
    addresses = (f"198.51.100.{number}" for number in range(8))
    is_hashing.clear()
    may_go_on.clear()
    threads.close()
    with ThreadPoolExecutor(8) as clients:
        logins = [clients.submit(ask, "login/", method="POST", client=one) for one in addresses]
        try:
            assert is_hashing.wait(20)
            wait_until(
                lambda: sum(one.done() for one in logins) == 4, "those beyond the queue refused"
            )
            assert ask("echo").status == 200
        finally:
            may_go_on.set()
    statuses = [one.result().status for one in logins]
    assert (statuses.count(200), statuses.count(503)) == (4, 4)


def test_one_address_has_half_of_the_places_for_logins(settings: Settings) -> None:
    settings.WEIR_PASSWORD_THREADS, settings.WEIR_PASSWORD_WAITING_MAX = 1, 6
    is_hashing.clear()
    may_go_on.clear()
    threads.close()
    handler = DjangoHandler()
    with ThreadPoolExecutor(9) as clients:
        ours = [
            clients.submit(ask, "login/", method="POST", handler=handler, client=f"2001:db8::{one}")
            for one in range(8)
        ]
        try:
            wait_until(
                lambda: sum(one.done() for one in ours) == 5, "those beyond its half are refused"
            )
            other = clients.submit(ask, "login/", method="POST", handler=handler)
            wait_until(lambda: threads.passwords().pending == 4, "the other one waits")
        finally:
            may_go_on.set()
    assert other.result().status == 200
    assert sorted(one.result().status for one in ours) == [200] * 3 + [429] * 5
