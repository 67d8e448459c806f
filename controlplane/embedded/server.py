"""Servers whose data, password, port and log lie in one directory each."""

import os
import secrets
import shutil
import socket
from abc import abstractmethod
from pathlib import Path

from controlplane.embedded.process import ServiceError, ServiceProcess, wait_until, works_in

LOOPBACK = "127.0.0.1"


class Server(ServiceProcess):
    """A server on a directory of its own, reached over the loopback interface with a password.

    ``start`` uses the data of an earlier start. The first port is a free one; later starts use the
    same one, so that clients find a restarted server at its old address. The port changes only when
    another program has taken it meanwhile, and this object has not handed it out yet.
    """

    def __init__(self, name: str, directory: Path) -> None:
        self.directory = directory.absolute()
        super().__init__(name, self.directory / f"{name.lower()}.log")
        self._port: int | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """The URL for clients, password included. Known after the first start."""

    @property
    def port(self) -> int:
        """The port on the loopback interface. Known after the first start."""
        if self._port is None:
            raise ServiceError(f"{self.name} has not been started yet")
        return self._port

    @property
    def password(self) -> str:
        """The password, generated on first use and kept for later starts."""
        return kept_secret(self.directory / "password")

    def remove(self) -> None:
        """Stop the server and delete its data, password and log."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def leftover_pid(self) -> int | None:
        """The id of the process that serves this directory, of any starter."""
        try:
            first_line = self._pid_path().read_text().split("\n", 1)[0].strip()
        except FileNotFoundError:
            return None
        # A pid alone may have been reused; a server's working directory is its own.
        if first_line.isdigit() and works_in(int(first_line), self._working_directory()):
            return int(first_line)
        return None

    @abstractmethod
    def _pid_path(self) -> Path:
        """The file in which the server keeps its process id."""

    @abstractmethod
    def _working_directory(self) -> Path:
        """The working directory of the server process."""

    def _prepare(self, deadline: float) -> None:
        self._make_directory()
        self._make_ready()
        self._port = self._choose_port(deadline)

    def _make_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)

    def _make_ready(self) -> None:
        """Create the files that the server needs inside its directory."""

    def _choose_port(self, deadline: float) -> int:
        kept = self.directory / "port"
        if self._port is not None:
            # Clients know this port, so the start waits for it instead of taking another.
            port = self._port
            wait_until(lambda: is_free(port), deadline, f"port {port} to become free")
            return port
        return kept_port(kept)

    def _already_running(self, pid: int) -> str:
        return f"{self.name} is already running on {self.directory} as process {pid}"


def free_port() -> int:
    """A port of the loopback interface on which no server listens now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of the loopback interface now."""
    with socket.socket() as probe:
        # Servers set this too: connections that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def kept_port(path: Path) -> int:
    """The port kept in ``path`` if still free, else a new one, kept from now on."""
    if path.exists() and is_free(port := int(path.read_text())):
        return port
    port = free_port()
    write_private(path, str(port))
    return port


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    scratch = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    scratch.replace(path)


def kept_secret(path: Path, *, length_bytes: int = 24) -> str:
    """The secret kept in ``path``, generated on first use."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(length_bytes))
    return path.read_text().strip()
