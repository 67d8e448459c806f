"""The embedded Redis: what it keeps, whom it lets in, what it leaves behind."""

import stat
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.embedded import redis as production
from controlplane.embedded.process import ServiceError, ServiceRunningError
from controlplane.embedded.redis import MEMORY_BYTES_MAX, Redis


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


def test_it_is_bounded_and_listens_on_the_loopback_interface_only(
    server: Redis, client: redis.Redis
) -> None:
    assert client.config_get("appendonly") == {"appendonly": "yes"}
    assert client.config_get("maxmemory-policy") == {"maxmemory-policy": "volatile-ttl"}
    assert int(client.config_get("maxmemory")["maxmemory"]) == MEMORY_BYTES_MAX
    listening = [
        connection.laddr
        for connection in psutil.Process(server.pid).net_connections(kind="all")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening == [("127.0.0.1", server.port)]


def test_counters_of_strangers_never_push_a_message_out(client: redis.Redis) -> None:
    """A flood of keys that end by themselves evicts such keys, and the queue stays whole."""
    client.config_set("maxmemory", client.info("memory")["used_memory"] + (4 << 20))
    for number in range(100):
        client.rpush("coordination", f"message {number}")
    for number in range(20_000):
        client.set(f"throttle:{number}", "x" * 500, ex=60)
    assert client.info("stats")["evicted_keys"] > 0
    assert client.llen("coordination") == 100
    with client.pipeline(transaction=False) as pipeline:
        for _ in range(20_000):
            pipeline.rpush("coordination", "y" * 1_000)
        answers = pipeline.execute(raise_on_error=False)
    # Queues alone fill it: what is more is refused, and nothing was dropped.
    refused = [one for one in answers if isinstance(one, redis.exceptions.OutOfMemoryError)]
    assert refused
    assert client.llen("coordination") == 100 + len(answers) - len(refused)


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
    # Redis 6 has one file, Redis 7 several in a directory.
    (broken,) = (tmp_path / "data").rglob("*.aof")
    broken.write_bytes(b"this is no append-only file\n" + broken.read_bytes())
    with pytest.raises(ServiceError, match="Bad file format"):
        server.start()
    assert not server.running


# The choice of a server ---------------------------------------------------------------------------


@pytest.fixture
def on_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The place of a ``redis-server`` on PATH, which has nothing else."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))
    return directory / "redis-server"


def program(path: Path, said: str, code: int = 0) -> Path:
    path.write_text(f"#!/bin/sh\necho '{said}'\nexit {code}\n")
    path.chmod(0o755)
    return path


SAID = "Redis server v={} sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=d81b8ff71cfb150e"


@pytest.mark.parametrize("version", ["7.0.15", "7.2.4", "8.2.1", "12.0.0"])
def test_the_systems_server_is_taken_where_it_is_recent(on_path: Path, version: str) -> None:
    program(on_path, SAID.format(version))
    assert production.find_server() == on_path


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (SAID.format("6.2.14"), 0),
        (SAID.format("5.0.7"), 0),
        (SAID.format("7.0.15"), 1),
        ("something else", 0),
        ("", 127),
    ],
)
def test_the_bundled_server_is_taken_otherwise(on_path: Path, said: str, code: int) -> None:
    program(on_path, said, code)
    bundled = production.bundled_server()
    assert bundled is not None
    assert production.find_server() == bundled
    on_path.unlink()
    assert production.find_server() == bundled
    assert production.major_version(bundled) == 6


def test_an_old_server_is_better_than_none_and_none_is_said(
    on_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(production, "WHEEL", "a_wheel_that_is_not_installed")
    old = program(on_path, SAID.format("6.2.14"))
    assert production.find_server() == old
    old.unlink()
    with pytest.raises(ServiceError, match="install redis-server 7 or newer"):
        production.find_server()
