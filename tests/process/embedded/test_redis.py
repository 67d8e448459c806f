"""The embedded Redis: what it keeps, whom it lets in, what it leaves behind."""

import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.embedded.process import ServiceError, ServiceRunningError
from controlplane.embedded.redis import Redis


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Redis]:
    with Redis(tmp_path / "a directory" / "redis") as started:
        yield started


@pytest.fixture
def client(server: Redis) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(server.url) as connected:
        yield connected


def test_what_was_written_survives_a_kill(server: Redis, client: redis.Redis) -> None:
    for number in range(1000):
        client.rpush("queue", number)
    address, before = server.url, server.pid
    server.kill()
    assert not psutil.pid_exists(before)
    server.start()
    assert server.url == address
    assert client.llen("queue") == 1000


def test_another_start_takes_up_the_data_of_the_last(tmp_path: Path) -> None:
    with Redis(tmp_path) as first, redis.Redis.from_url(first.url) as client:
        client.set("kept", "yes")
        address = first.url
    with Redis(tmp_path) as second, redis.Redis.from_url(second.url) as client:
        assert second.url == address
        assert client.get("kept") == b"yes"
        pid = second.pid
    assert not psutil.pid_exists(pid)
    assert second.leftover_pid() is None


@pytest.mark.parametrize("password", [None, "wrong"])
def test_only_the_password_opens_it(server: Redis, password: str | None) -> None:
    once = Retry(NoBackoff(), retries=0)
    with (
        redis.Redis(port=server.port, password=password, retry=once) as stranger,
        pytest.raises(redis.AuthenticationError),
    ):
        stranger.ping()


def test_it_forgets_nothing_and_listens_on_the_loopback_interface_only(
    server: Redis, client: redis.Redis
) -> None:
    assert client.config_get("appendonly") == {"appendonly": "yes"}
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
    listening = [
        connection.laddr
        for connection in psutil.Process(server.pid).net_connections(kind="all")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == [("127.0.0.1", server.port)]


def test_no_other_user_reads_its_files_or_its_command_line(server: Redis) -> None:
    assert stat.S_IMODE(server.directory.stat().st_mode) == 0o700
    for name in ("password", "redis.conf", "redis.log", "port"):
        assert stat.S_IMODE((server.directory / name).stat().st_mode) == 0o600, name
    assert server.password not in " ".join(psutil.Process(server.pid).cmdline())


def test_a_second_start_is_refused_and_harms_nothing(server: Redis, client: redis.Redis) -> None:
    with pytest.raises(ServiceRunningError, match=f"already running on .* process {server.pid}"):
        Redis(server.directory).start()
    assert client.ping()


def test_a_server_left_behind_by_a_killed_starter_is_ended(server: Redis) -> None:
    successor = Redis(server.directory)
    assert successor.end_leftover()
    assert not server.running
    with successor:
        assert successor.running


def test_a_start_that_fails_shows_the_end_of_the_log(tmp_path: Path) -> None:
    with Redis(tmp_path) as server:
        pass
    broken = tmp_path / "data" / "appendonly.aof"
    broken.write_bytes(b"this is no append-only file\n" + broken.read_bytes())
    with pytest.raises(ServiceError, match="Bad file format"):
        server.start()
    assert not server.running
