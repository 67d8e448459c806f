"""Stacks of running threads: of all of them on SIGUSR1, and of a stalled loop.

The frames of a thread may be read only while it cannot run, that is with the interpreter lock held.
So the signal's handler reads none: it writes the signal's number to a socket, which is all that a
handler in C may do, and the thread that serves the sockets, which holds the lock as every thread
that runs Python does, reads it from there. (``faulthandler.register`` reads the frames at once,
without the lock, while they change: it can crash a healthy process.) No thread masks the signal, so
a program that user code starts has the signal's default; a fork by user code shares the socket, and
a signal to it shows the stacks of the process that it was forked from.

A thread that stays in C and keeps the lock stops all others: then no stack can be printed safely,
and only a debugger shows it from outside (``py-spy dump --native``, ``gdb``). The same holds where
user code sets a wakeup descriptor of its own, as ``asyncio`` does for signals.
"""

import os
import signal
import socket
import sys
import threading
import traceback
from contextlib import suppress
from types import FrameType

STDERR = 2


class StackDumps:
    """The handler of SIGUSR1, which writes all stacks of the process to standard error.

    An endpoint of ``weir.channels.io_thread``. To be created on the main thread; a signal that
    comes before endpoints are served is answered when they are.
    """

    wants_write = False

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGUSR1, lambda signum, frame: None)
        # System calls of libraries are resumed after the signal: few of them expect EINTR.
        signal.siginterrupt(signal.SIGUSR1, False)

    def fileno(self) -> int:
        """The descriptor at which the handler's bytes arrive."""
        return self._reader.fileno()

    def on_ready(self, *, readable: bool, writable: bool) -> None:
        """Write the stacks on SIGUSR1; other signals that Python handles come here as well."""
        if readable and signal.SIGUSR1 in self._reader.recv(4096):
            write_stderr(stacks())


def stacks() -> str:
    """The stacks of all threads that run Python code, innermost frame last."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [f"Stacks of all threads of process {os.getpid()}, innermost call last\n"]
    for ident, frame in sys._current_frames().items():
        parts.append(f"Thread {names.get(ident, 'of a library')} ({ident:#x})\n")
        parts += traceback.format_list(frames_of(frame))
    return "".join([*parts, "End of the stacks\n"])


def frames_of(frame: FrameType) -> traceback.StackSummary:
    """A frame of any thread and those that called it, innermost last."""
    frames = traceback.StackSummary.extract(traceback.walk_stack(frame))
    frames.reverse()
    return frames


def write_stderr(text: str) -> None:
    """Write past ``sys.stderr``: a thread that will never run again may hold its lock.

    Where standard error is closed or has no reader, the rest is lost without an error.
    """
    data = text.encode(errors="backslashreplace")
    with suppress(OSError):
        while data:
            data = data[os.write(STDERR, data) :]
