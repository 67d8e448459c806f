"""Redis over TLS: the password goes to a server with a certificate that can be verified, only."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer

import pytest
from celery import Celery
from redis.asyncio import Redis as AsyncRedis

from controlplane.base import env, wakeups
from controlplane.embedded.redis import Redis
from tests.certificates import make_authority

NAME = "TEST_REDIS_URL"


class TlsFront(ThreadingTCPServer):
    """A listener that takes off the encryption in front of a Redis; counts the bytes it got."""

    daemon_threads = True
    block_on_close = False  # Clients keep their connections.

    def __init__(self, redis: Redis, context: ssl.SSLContext) -> None:
        super().__init__(("127.0.0.1", 0), Connection)
        self.redis_port, self.context = redis.port, context
        self.accepted = self.received = 0


class Connection(BaseRequestHandler):
    """A client's connection, and that to Redis."""

    server: TlsFront

    def handle(self) -> None:
        """Pass on what comes from either end, until the client's ends."""
        self.server.accepted += 1
        with (
            suppress(OSError),  # Refused handshakes, and ends of connections.
            self.server.context.wrap_socket(self.request, server_side=True) as plain,
            socket.create_connection(("127.0.0.1", self.server.redis_port)) as redis,
        ):
            threading.Thread(target=self._answer, args=(redis, plain), daemon=True).start()
            while data := plain.recv(65_536):
                self.server.received += len(data)
                redis.sendall(data)

    @staticmethod
    def _answer(redis: socket.socket, plain: socket.socket) -> None:
        with suppress(OSError):
            while data := redis.recv(65_536):
                plain.sendall(data)


@contextmanager
def tls_front(redis: Redis, context: ssl.SSLContext) -> Iterator[TlsFront]:
    """A Redis over TLS, while the context lasts."""
    with TlsFront(redis, context) as front:
        thread = threading.Thread(target=front.serve_forever)
        thread.start()
        try:
            yield front
        finally:
            front.shutdown()
            thread.join()


def of_celery(url: str) -> None:
    with Celery(broker=url).connection_for_write() as connection:
        connection.ensure_connection(max_retries=1, timeout=20)
        connection.default_channel.client.ping()


def of_streams(url: str) -> None:
    async def ping() -> None:
        async with AsyncRedis.from_url(url) as client:
            await client.ping()

    asyncio.run(ping())


def of_wakeups(url: str) -> None:
    wakeups.client(url).ping()


@pytest.mark.parametrize("connect", [of_celery, of_streams, of_wakeups])
def test_a_redis_is_reached_over_tls_where_its_certificate_is_verified(
    redis: Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    connect: Callable[[str], None],
) -> None:
    ours, other = make_authority(), make_authority()
    for name, authority in (("ours", ours), ("other", other)):
        (tmp_path / name).write_text(authority.certificate)
    with tls_front(redis, ours.server_context(tmp_path)) as front:
        base = f"rediss://:{redis.password}@127.0.0.1:{front.server_address[1]}/0"
        for refused in (base, f"{base}?ssl_ca_certs={tmp_path / 'other'}"):
            monkeypatch.setenv(NAME, refused)
            before = front.accepted
            with pytest.raises(Exception, match="CERTIFICATE_VERIFY_FAILED"):
                connect(env.redis(NAME))
            assert front.accepted > before
        assert front.received == 0
        for accepted in (f"ssl_ca_certs={tmp_path / 'ours'}", "ssl_cert_reqs=none"):
            monkeypatch.setenv(NAME, f"{base}?{accepted}")
            connect(env.redis(NAME))
        assert front.received > 0
