"""One server process on a directory of its own, from its start to its end."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar, Self

import psutil

from weir.errors import ExternalError

LOOPBACK = "127.0.0.1"
START_TIMEOUT_S = 60.0  # Recovery after a crash included; a first start takes two seconds.
STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.02
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 16_384


class ServiceError(ExternalError):
    """A server could not be started or did not get ready; the end of its log is in the message."""


class ServiceRunningError(ServiceError):
    """Another process already serves this directory."""


class Server(ABC):
    """A server whose data, password, port and log live in one directory.

    ``start`` takes up the data of an earlier start. The first port is a free one; later starts use
    the same again, so that clients find a restarted server where they knew it. Only when another
    program has taken it meanwhile, and nobody knows the old one through this object, is it changed.
    """

    name: ClassVar[str]

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self._process: subprocess.Popen[bytes] | None = None
        self._port: int | None = None

    @property
    @abstractmethod
    def url(self) -> str:
        """Where clients connect, password included. Known after the first start."""

    @property
    def port(self) -> int:
        """The port on the loopback interface. Known after the first start."""
        if self._port is None:
            raise ServiceError(f"{self.name} has not been started yet")
        return self._port

    @property
    def password(self) -> str:
        """The password, made on first use and kept for later starts."""
        return kept_secret(self.directory / "password")

    @property
    def log_path(self) -> Path:
        """Where the server writes its log."""
        return self.directory / f"{self.name.lower()}.log"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None or self._process.poll() is not None:
            raise ServiceError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process that this object started is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the server and return once it answers.

        Raises:
            ServiceRunningError: A server already runs on this directory; it is left alone.
            ServiceError: The server ended or stayed silent; the end of its log says why.
        """
        deadline = time.monotonic() + timeout_s
        self._make_directory()
        if (pid := self.leftover_pid()) is not None:
            raise ServiceRunningError(
                f"{self.name} is already running on {self.directory} as process {pid}"
            )
        self._prepare()
        self._port = self._choose_port(deadline)
        self._await_ready(deadline)

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Shut the server down cleanly, or kill it when that takes too long. Twice is harmless."""
        if self._process is None:
            return
        for signal_number in (*self._stop_signals(), signal.SIGKILL):
            if self._process.poll() is not None:
                break
            self._process.send_signal(signal_number)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                continue
        self._forget()

    def kill(self) -> None:
        """End the server the way a power failure would: SIGKILL, no clean-up."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(KILL_TIMEOUT_S)
            self._forget()

    def remove(self) -> None:
        """Stop the server and delete its data, password and log."""
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)

    def end_leftover(self) -> bool:
        """End the server that a killed starter left behind; whether there was one.

        Only for a caller that knows it is the directory's only owner.
        """
        pid = self.leftover_pid()
        if pid is None:
            return False
        end_process(psutil.Process(pid), self._stop_signals())
        return True

    def leftover_pid(self) -> int | None:
        """The process that serves this directory, whoever started it."""
        try:
            first_line = self._pid_path().read_text().split("\n", 1)[0].strip()
        except FileNotFoundError:
            return None
        # A pid alone may belong to anybody by now; a server works inside its own directory.
        if first_line.isdigit() and works_in(int(first_line), self._working_directory()):
            return int(first_line)
        return None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # What a server has to say about itself.

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The command that runs the server in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the server takes connections now."""

    @abstractmethod
    def _pid_path(self) -> Path:
        """The file in which the server keeps its process id."""

    @abstractmethod
    def _working_directory(self) -> Path:
        """The directory the server process works in."""

    def _prepare(self) -> None:
        """Whatever comes before the process: configuration, an initialised data directory."""

    def _stop_signals(self) -> tuple[signal.Signals, ...]:
        """Signals that ask for an orderly end, the gentlest first."""
        return (signal.SIGTERM,)

    def _popen(self, command: Sequence[str], log: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            # Ctrl-C in the terminal is for whoever started this server, who then stops it in order.
            start_new_session=True,
        )

    # How it is started.

    def _make_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)

    def _choose_port(self, deadline: float) -> int:
        kept = self.directory / "port"
        if self._port is not None:
            # Clients hold this port, so it is waited for instead of replaced.
            port = self._port
            wait_until(lambda: is_free(port), deadline, f"port {port} to become free")
            return port
        if kept.exists() and is_free(port := int(kept.read_text())):
            return port
        port = free_port()
        write_private(kept, str(port))
        return port

    def _await_ready(self, deadline: float) -> None:
        log_start = self._spawn()
        try:
            while not self._answers():
                assert self._process is not None
                if (code := self._process.poll()) is not None:
                    log = self._log_since(log_start)
                    if self._may_start_later(log) and time.monotonic() < deadline:
                        time.sleep(POLL_S * 10)
                        log_start = self._spawn()
                        continue
                    raise ServiceError(f"{self.name} ended with code {code}:\n{log}")
                if time.monotonic() > deadline:
                    raise ServiceError(
                        f"{self.name} did not get ready in time:\n{self._log_since(log_start)}"
                    )
                time.sleep(POLL_S)
        except BaseException:
            self.kill()
            raise

    def _may_start_later(self, log: str) -> bool:
        """Whether the reason in the log passes by itself."""
        return False

    def _spawn(self) -> int:
        """Start the process; where in the log its own lines begin."""
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            log_start = os.fstat(log).st_size
            self._process = self._popen(self._command(), log)
        finally:
            os.close(log)
        return log_start

    def _log_since(self, position: int) -> str:
        return tail(self.log_path, since=position)

    def _forget(self) -> None:
        self._process = None


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind((LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


def is_free(port: int) -> bool:
    """Whether a server could listen on ``port`` of the loopback interface now."""
    with socket.socket() as probe:
        # As servers do: connections that are still closing do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def wait_until(condition: Callable[[], bool], deadline: float, what: str) -> None:
    """Return once ``condition`` holds.

    Raises:
        ServiceError: It did not before ``deadline`` (``time.monotonic``).
    """
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"waited too long for {what}")
        time.sleep(POLL_S)


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
    """The secret kept in ``path``, made on first use."""
    if not path.exists():
        write_private(path, secrets.token_urlsafe(length_bytes))
    return path.read_text().strip()


def tail(path: Path, *, since: int = 0) -> str:
    """The last lines of a log, none from before byte ``since``."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since, end - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log was written)"
    return "\n".join(lines[-LOG_TAIL_LINES:]) or "(it logged nothing)"


def works_in(pid: int, directory: Path) -> bool:
    """Whether ``pid`` is alive and its working directory is ``directory``."""
    try:
        return Path(psutil.Process(pid).cwd()) == directory.resolve()
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # Gone or a zombie; or someone else's.
        return False


def end_process(process: psutil.Process, signals: Sequence[signal.Signals]) -> None:
    """End a process that may not be a child of ours: ask with each signal in turn, then kill.

    ``process`` carries its start time, so a recycled process id is never signalled.
    """
    for signal_number in (*signals, signal.SIGKILL):
        try:
            process.send_signal(signal_number)
            process.wait(STOP_TIMEOUT_S)
        except psutil.NoSuchProcess:
            return
        except psutil.TimeoutExpired:
            continue
        return
