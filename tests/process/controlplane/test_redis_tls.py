"""Redis over TLS: the password goes to a server with a certificate that can be verified, only."""

import asyncio
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from celery import Celery
from redis.asyncio import Redis as AsyncRedis

from controlplane.base import env, wakeups
from controlplane.embedded.redis import Redis
from tests.certificates import Authority, make_authority

NAME = "TEST_REDIS_URL"


class TlsFront:
    """A listener that takes off the encryption in front of a Redis; counts the bytes it got."""

    def __init__(self, redis: Redis, authority: Authority, directory: Path) -> None:
        file = directory / "server.pem"
        file.write_bytes(authority.server)
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.load_cert_chain(file)
        self._redis = redis
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.accepted = self.received = 0

    def serve(self) -> None:
        """Accept connections until the listener is closed."""
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.accepted += 1
                threading.Thread(target=self._serve_one, args=(client,), daemon=True).start()

    def _serve_one(self, client: socket.socket) -> None:
        with (
            suppress(OSError),  # Refused handshakes, and ends of connections.
            client,
            self._context.wrap_socket(client, server_side=True) as plain,
            socket.create_connection(("127.0.0.1", self._redis.port)) as server,
        ):
            back = threading.Thread(target=self._copy, args=(server, plain), daemon=True)
            back.start()
            while data := plain.recv(65_536):
                self.received += len(data)
                server.sendall(data)

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65_536):
                target.sendall(data)

    def close(self) -> None:
        """Accept no more connections."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@contextmanager
def tls_front(redis: Redis, authority: Authority, directory: Path) -> Iterator[TlsFront]:
    """A Redis over TLS, while the context lasts."""
    front = TlsFront(redis, authority, directory)
    thread = threading.Thread(target=front.serve)
    thread.start()
    try:
        yield front
    finally:
        front.close()
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
    with tls_front(redis, ours, tmp_path) as front:
        base = f"rediss://:{redis.password}@127.0.0.1:{front.port}/0"
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
