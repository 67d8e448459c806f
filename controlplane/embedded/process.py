"""The life of one process: started, awaited, stopped, and found again after its starter died."""

import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, Self

import psutil

from weir.child_process import KILL_TIMEOUT_S, ProcessOptions, is_alive, popen
from weir.errors import ExternalError

START_TIMEOUT_S = 60.0  # Includes recovery after a crash; a first start takes a second or two.
STOP_TIMEOUT_S = 20.0
POLL_S = 0.02
RETRY_S = 0.2
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 16_384


class ServiceError(ExternalError):
    """A process could not be started or did not get ready; the message has the end of its log."""


class ServiceRunningError(ServiceError):
    """Another process already runs this service on the same files."""


class ServiceStoppedError(ServiceError):
    """The process was told to stop before it got ready."""


class ChildProcess(Protocol):
    """The part of ``subprocess.Popen`` that the owner of a process uses."""

    pid: int

    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, awaited for ``timeout`` seconds at most; ``subprocess.TimeoutExpired``."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it has not ended."""

    def kill(self) -> None:
        """Send SIGKILL, if it has not ended."""


class ServiceProcess(ABC):
    """A process that one starter owns. Its methods may be called from several threads."""

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process: ChildProcess | None = None
        self._wanted = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            ServiceError: The process is not running.
        """
        process = self._process
        if process is None or process.poll() is not None:
            raise ServiceError(f"{self.name} is not running")
        return process.pid

    @property
    def running(self) -> bool:
        """Whether the process that this object started is alive."""
        process = self._process
        return process is not None and process.poll() is None

    @property
    def wanted(self) -> bool:
        """Whether the process is meant to run: started and not stopped since, even if it died."""
        return self._wanted

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the process, unless it runs, and return once it is ready.

        Raises:
            ServiceRunningError: Another process runs the service on the same files; it is left
                alone.
            ServiceError: The process ended or did not get ready; the end of its log says why.
        """
        with self._lock:
            if self.running:
                return
            self._wanted = True
            deadline = time.monotonic() + timeout_s
            if (pid := self.leftover_pid()) is not None:
                raise ServiceRunningError(self._already_running(pid))
            self._prepare(deadline)
            self._await_ready(deadline)

    def give_up(self) -> None:
        """Cancel the wish to run: a start under way in another thread ends with an error."""
        self._wanted = False

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process in order, or kill it after ``timeout_s`` per signal. Idempotent."""
        self.give_up()
        with self._lock:
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
            self._process = None
            self._after_end()

    def kill(self) -> None:
        """End the process as a crash would: SIGKILL to it alone, no clean-up."""
        process = self._process
        if process is not None:
            process.kill()
            process.wait(KILL_TIMEOUT_S)

    def end_leftover(self) -> bool:
        """End the process that a killed starter left behind; return whether there was one.

        Only for a caller that knows that it is the only owner of the files.
        """
        pid = self.leftover_pid()
        if pid is None:
            return False
        end_process(psutil.Process(pid), self._stop_signals())
        return True

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    # For each kind of process to define.

    @abstractmethod
    def leftover_pid(self) -> int | None:
        """The id of the process that runs this service now, of any starter."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """The command line that runs the process in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether the process is ready."""

    def _prepare(self, deadline: float) -> None:
        """Prepare the start: configuration, an initialised data directory."""

    def _after_end(self) -> None:
        """Clean up after the process has ended."""

    def _stop_signals(self) -> tuple[signal.Signals, ...]:
        """Signals that ask for an orderly end, the gentlest first."""
        return (signal.SIGTERM,)

    def _may_start_later(self, log: str) -> bool:
        """Whether the log of a failed start names a cause that passes by itself."""
        return False

    def _popen_options(self) -> ProcessOptions:
        """Further arguments of ``subprocess.Popen``."""
        return {}

    def _already_running(self, pid: int) -> str:
        return f"{self.name} is already running as process {pid}"

    # The start.

    def _await_ready(self, deadline: float) -> None:
        try:
            log_start = self._spawn()
            while not self._answers():
                assert self._process is not None
                if (code := self._process.poll()) is not None:
                    log = tail(self.log_path, since=log_start)
                    if not self._may_start_later(log) or time.monotonic() > deadline:
                        raise ServiceError(f"{self.name} ended with code {code}:\n{log}")
                    time.sleep(RETRY_S)
                    log_start = self._spawn()
                if not self._wanted:
                    raise ServiceStoppedError(f"{self.name} was stopped before it got ready")
                if time.monotonic() > deadline:
                    log = tail(self.log_path, since=log_start)
                    raise ServiceError(f"{self.name} did not get ready in time:\n{log}")
                time.sleep(POLL_S)
        except BaseException:
            self.kill()
            self._after_end()
            raise

    def _spawn(self) -> int:
        """Start the process; return the offset of its first line in the log."""
        with open_log(self.log_path) as log:
            log_start = log.seek(0, os.SEEK_END)
            self._process = self._popen(self._command(), log.fileno())
        return log_start

    def _popen(self, command: Sequence[str], log: int) -> ChildProcess:
        options: ProcessOptions = {"cwd": "/", **self._popen_options()}
        return popen(command, stdout=log, stderr=log, **options)


def open_log(path: Path) -> BinaryIO:
    """The log at ``path``, opened for appending; only its owner can read it."""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    return open(path, "ab", opener=private)


def wait_until(condition: Callable[[], bool], deadline: float, what: str) -> None:
    """Return once ``condition`` holds.

    Raises:
        ServiceError: It does not hold by ``deadline`` (``time.monotonic``).
    """
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"waited too long for {what}")
        time.sleep(POLL_S)


def tail(path: Path, *, since: int = 0) -> str:
    """The last lines of a log after byte ``since``."""
    try:
        with path.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(since, end - LOG_TAIL_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return "(no log was written)"
    return "\n".join(lines[-LOG_TAIL_LINES:]) or "(the log is empty)"


def works_in(pid: int, directory: Path) -> bool:
    """Whether ``pid`` is alive and its working directory is ``directory``."""
    try:
        return Path(psutil.Process(pid).cwd()) == directory.resolve()
    except (psutil.NoSuchProcess, psutil.AccessDenied):  # Ended or a zombie; or another user's.
        return False


def end_process(process: psutil.Process, signals: Sequence[signal.Signals]) -> None:
    """End a process that may not be a child: send each signal in turn, then SIGKILL.

    ``process`` carries its start time, so a recycled process id is never signalled.
    """
    for signal_number in (*signals, signal.SIGKILL):
        try:
            process.send_signal(signal_number)
        except psutil.NoSuchProcess:
            return
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not is_alive(process):
            return
