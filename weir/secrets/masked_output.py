"""Standard output and error of a process with secrets masked, code in C included.

A child process reads a pipe, masks (``masking``) and writes to where the output went before. It is
a process and not a thread, because code in C may write to a full pipe while it holds the
interpreter's lock, which a reading thread would wait for. It ends once all writers have closed the
pipe; until then it outlives this process, so that the last words of one that is killed come
through. Signals to the process group do not end it.
"""

import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NoReturn

from weir.secrets.masking import Masker

FLUSH_TIMEOUT_S = 5.0
_PIECE_BYTES = 1 << 16
_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class MaskedPipe:
    """A pipe into a descriptor; what is written to ``fileno()`` arrives there masked."""

    def __init__(self, masker: Masker, target: int) -> None:
        """Start the child process.

        Raises:
            OSError: There is no room for another process or pipe.
        """
        read, self._write = os.pipe()
        # The child ignores them, and must not get one before it does.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _IGNORED)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                _serve(masker, read, target)
        except OSError:
            os.close(self._write)
            raise
        finally:
            os.close(read)
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def fileno(self) -> int:
        """The descriptor to write to, which child processes do not inherit by themselves."""
        return self._write

    def close(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Close this end and wait until all was passed on. May be repeated.

        Returns:
            Whether it was; False after ``timeout_s``, where another process still writes.
        """
        if self._write >= 0:
            os.close(self._write)
            self._write = -1
        deadline = time.monotonic() + timeout_s
        while self._pid:
            try:
                ended, _ = os.waitpid(self._pid, os.WNOHANG)
            except ChildProcessError:  # User code has reaped it, or ignores SIGCHLD.
                ended = self._pid
            if ended:
                self._pid = 0
            elif time.monotonic() >= deadline:
                return False
            else:
                time.sleep(0.005)
        return True


@contextmanager
def masked_output(masker: Masker, descriptors: Sequence[int] = (1, 2)) -> Iterator[None]:
    """Mask what this process and its children write to these descriptors, until it leaves.

    Each keeps its own target. Without a value to mask nothing changes.
    """
    if not masker:
        yield
        return
    kept: dict[int, int] = {}
    pipes: dict[tuple[int, int], MaskedPipe] = {}
    targets: dict[tuple[int, int], int] = {}  # By the pipe's file.
    try:
        for descriptor in descriptors:
            kept[descriptor] = os.dup(descriptor)
        for descriptor, target in kept.items():
            file = _file_of(target)
            if file not in pipes:  # One pipe for one file keeps the order of what is written.
                pipes[file] = MaskedPipe(masker, target)
                targets[_file_of(pipes[file].fileno())] = target
            os.dup2(pipes[file].fileno(), descriptor)
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError, AttributeError):  # Closed by user code.
                stream.flush()
        for descriptor in {1, 2, *kept}:  # One may have become a copy of the other.
            try:
                before = targets.get(_file_of(descriptor))
            except OSError:  # User code has closed it.
                before = kept.get(descriptor)
            if before is not None:
                os.dup2(before, descriptor)
        for target in kept.values():
            os.close(target)
        for pipe in pipes.values():
            pipe.close()


def _file_of(descriptor: int) -> tuple[int, int]:
    status = os.fstat(descriptor)
    return status.st_dev, status.st_ino


def _serve(masker: Masker, source: int, target: int) -> NoReturn:
    """Be the child process: it holds two descriptors, and runs no code of the parent's."""
    code = 1
    try:
        for number in _IGNORED:
            signal.signal(number, signal.SIG_IGN)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _IGNORED)
        _keep_only(source, target)
        stream = masker.stream()
        while data := os.read(source, _PIECE_BYTES):
            _write_all(target, stream.feed(data))
        _write_all(target, stream.flush())
        code = 0
    finally:
        os._exit(code)


def _keep_only(*descriptors: int) -> None:
    """Close all other descriptors, such as the pipe's other end and connections of the parent."""
    at = 0
    for descriptor in sorted(descriptors):
        os.closerange(at, descriptor)
        at = descriptor + 1
    os.closerange(at, os.sysconf("SC_OPEN_MAX"))


def _write_all(target: int, data: bytes) -> None:
    while data:
        data = data[os.write(target, data) :]
