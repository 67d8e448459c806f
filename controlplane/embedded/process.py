"""One process: started, awaited, watched over, stopped, and found again after its starter died."""

import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import psutil

from weir.errors import ExternalError

START_TIMEOUT_S = 60.0  # Recovery after a crash included; a first start takes a second or two.
STOP_TIMEOUT_S = 20.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.02
RETRY_S = 0.2
LOG_TAIL_LINES = 20
LOG_TAIL_BYTES = 16_384


class ServiceError(ExternalError):
    """A process could not be started or did not get ready; the end of its log is in the message."""


class ServiceRunningError(ServiceError):
    """Another process already does this one's work, on the same files."""


class ServiceStoppedError(ServiceError):
    """It was told to stop before it got ready."""


class ServiceProcess(ABC):
    """A process that one starter owns. Its methods may be called from several threads."""

    def __init__(self, name: str, log_path: Path) -> None:
        self.name = name
        self.log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._wanted = False
        self._lock = threading.RLock()

    @property
    def pid(self) -> int:
        """The process id.

        Raises:
            ServiceError: It is not running.
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
        """Whether it is meant to run: started and not stopped since, be it killed or not."""
        return self._wanted

    def start(self, *, timeout_s: float = START_TIMEOUT_S) -> None:
        """Start the process and return once it does its work. Nothing happens if it runs already.

        Raises:
            ServiceRunningError: Somebody else started it on the same files; it is left alone.
            ServiceError: It ended or stayed silent; the end of its log says why.
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
        """Want it no longer: a start under way in another thread ends with an error."""
        self._wanted = False

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the process in order, or kill it if that takes too long. Twice is harmless."""
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
        """End the process that a killed starter left behind; whether there was one.

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

    # What each kind has to say about itself.

    @abstractmethod
    def leftover_pid(self) -> int | None:
        """The process that does this one's work now, whoever started it."""

    @abstractmethod
    def _command(self) -> Sequence[str]:
        """What runs it in the foreground."""

    @abstractmethod
    def _answers(self) -> bool:
        """Whether it does its work."""

    def _prepare(self, deadline: float) -> None:
        """What comes before the process: configuration, an initialised data directory."""

    def _after_end(self) -> None:
        """What is left to do when the process has ended in order."""

    def _stop_signals(self) -> tuple[signal.Signals, ...]:
        """Signals that ask for an orderly end, the gentlest first."""
        return (signal.SIGTERM,)

    def _may_start_later(self, log: str) -> bool:
        """Whether the reason in the log of a failed start passes by itself."""
        return False

    def _popen_options(self) -> Mapping[str, Any]:
        """Further arguments of ``subprocess.Popen``."""
        return {}

    def _already_running(self, pid: int) -> str:
        return f"{self.name} is already running as process {pid}"

    # How it is started.

    def _await_ready(self, deadline: float) -> None:
        log_start = self._spawn()
        try:
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
        """Start the process; where in the log its own lines begin."""
        with open_log(self.log_path) as log:
            log_start = log.seek(0, os.SEEK_END)
            self._process = self._popen(self._command(), log.fileno())
        return log_start

    def _popen(self, command: Sequence[str], log: int) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            # Ctrl-C in the terminal is for the starter, which then stops everything in order.
            start_new_session=True,
            **({"cwd": "/"} | dict(self._popen_options())),
        )


def open_log(path: Path) -> Any:
    """The log at ``path``, to be appended to; only its owner can read it."""

    def private(name: str, flags: int) -> int:
        return os.open(name, flags, 0o600)

    return open(path, "ab", opener=private)


def wait_until(condition: Callable[[], bool], deadline: float, what: str) -> None:
    """Return once ``condition`` holds.

    Raises:
        ServiceError: It did not before ``deadline`` (``time.monotonic``).
    """
    while not condition():
        if time.monotonic() > deadline:
            raise ServiceError(f"waited too long for {what}")
        time.sleep(POLL_S)


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
        except psutil.NoSuchProcess:
            return
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while is_alive(process) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        if not is_alive(process):
            return


def is_alive(process: psutil.Process) -> bool:
    """Whether a process still runs; one that only waits for its parent to notice does not.

    A process of several threads is shown as a zombie from the end of its first one on, while the
    others still hold its files and its port.
    """
    try:
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return process.is_running() and not (is_zombie and process.num_threads() <= 1)
    except psutil.NoSuchProcess:
        return False
