"""The process of a template: a fork of the slot's Python where that has the runtime, or a new one.

Under ``weir.spark.python_daemon`` every slot begins with the runtime loaded. Its first act is to
fork the process that will be its template, before it holds credentials, connections or threads;
only a process with a single thread can be forked safely. Elsewhere, and where a template has to be
replaced, Python is started anew, which takes about half a second of a processor.

Source: fork(2); PySpark's daemon starts its workers in the same way (``pyspark.daemon``).
"""

import gc
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from contextlib import suppress
from typing import NoReturn, Protocol

from weir.worker import template
from weir.worker.template import SINGLE_THREADED, TemplateLink, lead_group, thread_count

END_TIMEOUT_S = 0.5  # A template ends by itself when its link is closed.
_RUNTIME = "weir.worker.process"
STANDARD_FDS = 3  # Input, output, errors.


class ChildProcess(Protocol):
    """The part of ``subprocess.Popen`` that a template's owner uses."""

    pid: int

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, awaited for ``timeout`` seconds at most; ``subprocess.TimeoutExpired``."""

    def kill(self) -> None:
        """Send SIGKILL, if it has not ended."""


class TemplateProcess:
    """A template's process with this side's ends of its link and of its lifeline."""

    def __init__(self, process: ChildProcess, link: TemplateLink, lifeline: socket.socket) -> None:
        self.link = link
        self._process = process
        self._lifeline = lifeline

    @classmethod
    def fork(cls) -> "TemplateProcess | None":
        """Fork the template of a slot that has done nothing yet; None where that cannot be."""
        if _RUNTIME not in sys.modules or thread_count() > 1:
            return None
        ours, theirs = socket.socketpair()
        lifeline, their_lifeline = socket.socketpair()
        path = _search_path()
        try:
            pid = os.fork()
        except OSError:  # A new process may meet the same, and is reported then.
            for sock in (ours, lifeline):
                sock.close()
            return None
        else:
            if pid == 0:
                _become_template(theirs.fileno(), their_lifeline.fileno(), path)
        finally:
            theirs.close()
            their_lifeline.close()
        lead_group(pid)
        return cls(_Fork(pid), TemplateLink(ours), lifeline)

    @classmethod
    def spawn(cls, stdout: int, stderr: int) -> "TemplateProcess":
        """Start the template in a new Python.

        Raises:
            OSError: This machine has no room for another process.
        """
        ours, theirs = socket.socketpair()
        lifeline, their_lifeline = socket.socketpair()
        fds = theirs.fileno(), their_lifeline.fileno()
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "weir.worker.template", *map(str, fds)],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                pass_fds=fds,
                env={**SINGLE_THREADED, **os.environ, "PYTHONPATH": _search_path()},
                process_group=0,
            )
        except OSError:
            ours.close()
            lifeline.close()
            raise
        finally:
            theirs.close()
            their_lifeline.close()
        return cls(process, TemplateLink(ours), lifeline)

    @property
    def has_ended(self) -> bool:
        """Whether it ended before anything was requested of it."""
        return bool(select.select([self.link], [], [], 0)[0])

    def end(self) -> int:
        """Close all ends, which kills the process if it has not ended; returns its exit code."""
        self.link.close()
        try:
            exit_code = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            exit_code = self._process.wait()
        self._lifeline.close()
        return exit_code


class _Fork:
    """A child that this process has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._pidfd = os.pidfd_open(pid)
        self._exit_code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._exit_code is None:
            if not select.select([self._pidfd], [], [], timeout)[0]:
                assert timeout is not None
                raise subprocess.TimeoutExpired("a forked template", timeout)
            _, status = os.waitpid(self.pid, 0)
            self._exit_code = os.waitstatus_to_exitcode(status)
            os.close(self._pidfd)
        return self._exit_code

    def kill(self) -> None:
        if self._exit_code is None:  # Until it is reaped, the pid is its own.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _become_template(link_fd: int, lifeline_fd: int, path: str) -> NoReturn:
    """Run the template in this fork: the frames below never go on, and what they hold stays."""
    try:
        # A collection might close a descriptor of the slot whose number is another's by then.
        gc.freeze()
        lead_group(0)
        _close_others(link_fd, lifeline_fd)
        os.environ["PYTHONPATH"] = path  # For Python that user code starts.
        sys.argv = [template.__file__]
        template.main(link_fd, lifeline_fd)
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


def _close_others(*kept: int) -> None:
    """Close all descriptors but these and the standard ones."""
    first = STANDARD_FDS
    for fd in (*sorted(kept), os.sysconf("SC_OPEN_MAX")):
        os.closerange(first, fd)
        first = fd + 1


def _search_path() -> str:
    """The module search path of this process: Spark puts the user's files on no other one."""
    return os.pathsep.join(entry or os.getcwd() for entry in sys.path)
