"""A Python process that has loaded the modules of several programs and runs each in a fork.

Weir's own programs import the same thousand modules, which takes each of them a second of a
processor. Forked from one process that has them, a program begins in milliseconds and shares their
memory. A fork is a child of the fork server; its handle is used as a ``subprocess.Popen``.

Only a process with a single thread can be forked safely, so a fork server in which an import has
started another thread ends, as one does whose modules cannot be imported: what was requested of
either is to be started as a Python of its own. One that is killed leaves its forks running.

A request is one datagram over a socket pair, JSON with the descriptors of a standard output and
error and of a socket for the answer: the fork's pid, then its exit code. No program has an input.

Source: fork(2), unix(7) (SCM_RIGHTS), pidfd_open(2).
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

END_TIMEOUT_S = 5.0
REQUEST_BYTES_MAX = 1 << 17  # The kernel's bound on a string of an environment.
LOST = -1  # The exit code of a fork whose fork server ended before it.
STANDARD_FDS = 3  # Input, output, errors.
_PR_SET_NAME = 15


class ForkServer:
    """The starter's side of a fork server."""

    def __init__(
        self,
        modules: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: Path,
        log: IO[bytes] | int,
    ) -> None:
        """Start it; it loads ``modules`` meanwhile, and what is requested waits for that."""
        self.environment = dict(environment)
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), *modules],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                cwd=directory,
                env=self.environment,
                start_new_session=True,
            )
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        """The process id of the fork server."""
        return self._process.pid

    def start(
        self,
        command: Sequence[str],
        *,
        title: str,
        stdout: int,
        stderr: int,
        directory: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> "Fork | None":
        """Run ``python -m module …`` in a fork that leads a session; None where that cannot be.

        Args:
            command: Begins with this Python and ``-m``.
            title: The name of the process in the system's table, at most 15 bytes.
            directory: Left out: the fork server's.
            environment: Left out: the fork server's, which its modules have read.
        """
        assert command[:2] == [sys.executable, "-m"], command
        request: dict[str, Any] = {
            "words": command[2:],
            "title": title,
            "directory": None if directory is None else str(directory),
            "environment": None if environment is None else dict(environment),
        }
        answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with answers, theirs:
            fds = [stdout, stderr, theirs.fileno()]
            try:
                socket.send_fds(self._link, [json.dumps(request).encode()], fds)
            except OSError:
                return None
            theirs.close()
            try:
                return _forked(answers)
            except BaseException:  # Ctrl-C. It forks no more, and what it has forked ends.
                self._process.kill()
                self._process.wait()
                if (fork := _forked(answers)) is not None:
                    fork.kill()
                raise

    def end(self) -> None:
        """End the fork server, once its forks have ended; or at once, if one does not."""
        self._link.close()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Fork:
    """A process that a fork server forked, with the part of ``subprocess.Popen`` in use here."""

    def __init__(self, pid: int, pidfd: int, answers: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd, self._answers = pidfd, answers
        self._is_answered = True  # Until the fork server has ended.
        self._lock = threading.Lock()
        weakref.finalize(self, _close, pidfd, answers)

    def poll(self) -> int | None:
        """The exit code, negative for a signal, once it has ended."""
        with self._lock:
            if self.returncode is None and self._is_answered and _is_readable(self._answers, 0):
                told = os.read(self._answers, 16)
                self._is_answered = bool(told)
                self.returncode = int(told) if told else None
            if self.returncode is None and not self._is_answered and _is_readable(self._pidfd, 0):
                self.returncode = LOST
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, awaited.

        Raises:
            subprocess.TimeoutExpired: It still runs after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise subprocess.TimeoutExpired(f"fork {self.pid}", timeout or 0.0)
            _is_readable(self._answers if self._is_answered else self._pidfd, left)
        return code

    def send_signal(self, sig: int) -> None:
        """Send a signal, if it has not ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, sig)

    def kill(self) -> None:
        """Send SIGKILL, if it has not ended."""
        self.send_signal(signal.SIGKILL)


def fork_with(
    server: ForkServer | None,
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    title: str,
    stdout: int,
    stderr: int,
) -> Fork | None:
    """A fork of a server whose environment is this one; None: there is none, or it cannot be."""
    if server is None or server.environment != environment:
        return None
    return server.start(command, title=title, stdout=stdout, stderr=stderr)


def _forked(answers: socket.socket) -> Fork | None:
    """The fork that was requested; None where there will be none."""
    pid, pidfds, _, _ = socket.recv_fds(answers, 16, 1)
    return Fork(int(pid), pidfds[0], answers.detach()) if pidfds else None


def _close(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


def _is_readable(fd: int, timeout_s: float | None) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(None if timeout_s is None else timeout_s * 1000))


# The fork server itself -------------------------------------------------------------------------


def main(link_fd: int, modules: Sequence[str]) -> None:
    """Load the modules, then fork until the starter closes the link and all forks have ended."""
    gc.disable()  # What is loaded stays.
    for name in modules:
        importlib.import_module(name)
    if (count := len(os.listdir("/proc/self/task"))) > 1:
        sys.exit(f"{count} threads run after the import of {', '.join(modules)}: no safe fork")
    gc.collect()
    gc.freeze()  # A collection in a fork would touch, and so copy, every page.
    gc.enable()
    if (request := _serve(link_fd)) is not None:
        _become(request)


def _serve(link_fd: int) -> dict[str, Any] | None:
    """Fork for each request; returns in each fork, with its request, and at the end, with None."""
    answers: dict[int, socket.socket] = {}  # Of the forks that have not ended.
    link = socket.socket(fileno=link_fd)
    ended, wake = os.pipe()
    for fd in (ended, wake):
        os.set_blocking(fd, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    poll = select.poll()
    poll.register(ended, select.POLLIN)
    poll.register(link, select.POLLIN)
    is_open = True
    while is_open or answers:
        for fd, _ in poll.poll():
            if fd == ended:
                with suppress(BlockingIOError):
                    os.read(ended, 1 << 16)
                _reap(answers)
                continue
            data, fds, _, _ = socket.recv_fds(link, REQUEST_BYTES_MAX, STANDARD_FDS)
            if not data:
                is_open = False
                poll.unregister(link)
                continue
            try:
                pid = os.fork()
            except OSError:  # This machine has no room for another process; its starter sees that.
                _close(*fds)
                continue
            if pid == 0:
                for one in (link, *answers.values()):
                    one.detach()
                _enter(fds)
                request: dict[str, Any] = json.loads(data)
                return request
            answers[pid] = socket.socket(fileno=fds[-1])
            _close(*fds[:-1])
    return None


def _enter(fds: Sequence[int]) -> None:
    """Begin in a fork: lead a session, tell the starter, keep the standard descriptors alone."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    stdout, stderr, answer_fd = fds
    with socket.socket(fileno=answer_fd) as answer:
        socket.send_fds(answer, [str(os.getpid()).encode()], [os.pidfd_open(os.getpid())])
    os.dup2(stdout, 1)
    os.dup2(stderr, 2)
    os.closerange(STANDARD_FDS, os.sysconf("SC_OPEN_MAX"))


def _reap(answers: dict[int, socket.socket]) -> None:
    """Tell the exit code of each fork that has ended."""
    for pid in list(answers):
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            with answers.pop(pid) as answer, suppress(OSError):  # Its starter may have ended.
                answer.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any]) -> None:
    """Run a program in this fork as ``python -m`` would."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, request["title"].encode())
    if request["environment"] is not None:
        os.environ.clear()
        os.environ.update(request["environment"])
    if request["directory"] is not None:
        os.chdir(request["directory"])
        sys.path.insert(0, os.getcwd())
    module, *arguments = request["words"]
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
