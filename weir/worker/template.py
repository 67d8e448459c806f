"""The warm template of a slot: a process with the program loaded, which worker processes fork.

Starting Python, importing NumPy and Arrow and loading the user's program takes most of a second; a
fork of such a process takes milliseconds. The supervisor gives the template the program when the
slot is accepted, and requests a worker process of it when an attempt begins. ::

    supervisor                                     template
    LoadProgram, program,
    stdout, stderr                ------->         imports, loads
                                  <-------         TemplateReady, or ProgramFailed and the end
    RunWorker, lifeline, stderr   ------->         forks
                                  <-------         WorkerStarted, or ForkFailed
                                  <-------         WorkerEnded, once it has reaped the child

Only a process with a single thread can be forked safely. The libraries are configured to start
none; where user code has started a thread on import, the template becomes the worker itself, ends
the connection after ``WorkerStarted``, and the supervisor starts another template.

Every process has a lifeline to the supervisor (``lifeline``). Workers lead process groups of their
own, so that processes that user code starts can be killed with them. The credentials come over the
socket.
"""

import gc
import json
import os
import pkgutil
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NoReturn, TypeAlias

from weir.ids import AttemptNumber, JobId
from weir.protocol.deployment import Address, Credentials
from weir.protocol.slot_memory import MemoryLimit
from weir.protocol.wire import from_wire, to_wire
from weir.worker.lifeline import die_with

# Against libraries that start threads on import, or one per core later: a slot has one core.
SINGLE_THREADED: Mapping[str, str] = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
WORKER = "weir.worker.worker:Worker"
STDOUT, STDERR = 1, 2
_LINE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class LoadProgram:
    """Load the program, a pickled graph and its configuration; once.

    Travels with three descriptors: the program's file, which other templates of the slot share, the
    standard output and the standard error of all that the template does from now on.
    """

    worker: str  # The class whose instances the worker processes run, as ``module:name``.


@dataclass(frozen=True, slots=True)
class RunWorker:
    """Become, or fork, the worker process of an attempt.

    Travels with two descriptors: the worker's lifeline and its standard error.
    """

    attempt: AttemptNumber
    credentials: Credentials
    job_id: JobId
    slot_index: int  # In the plan; a spare slot's own index differs.
    host: str  # To listen on for data connections.
    master: Address
    memory: MemoryLimit | None  # None: nothing limits it.
    copies: str | None = None  # The slot's directory for copies of state files.


@dataclass(frozen=True, slots=True)
class TemplateReady:
    """The program is loaded."""

    load_ms: float


@dataclass(frozen=True, slots=True)
class ProgramFailed:
    """The program cannot be loaded; ``cause`` is the traceback. The template ends."""

    cause: str


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """A worker process runs; if it is not forked, it is the template itself."""

    attempt: AttemptNumber
    pid: int
    forked: bool


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """A forked worker process has ended and was reaped; ``exit_code`` as in ``subprocess``."""

    pid: int
    exit_code: int


@dataclass(frozen=True, slots=True)
class ForkFailed:
    """The fork failed: the machine has no room for another process."""

    attempt: AttemptNumber
    cause: str


TemplateMessage: TypeAlias = (
    LoadProgram
    | RunWorker
    | TemplateReady
    | ProgramFailed
    | WorkerStarted
    | WorkerEnded
    | ForkFailed
)
_CLASSES: Mapping[str, type[TemplateMessage]] = {
    cls.__name__: cls
    for cls in (
        *(LoadProgram, RunWorker, TemplateReady, ProgramFailed),
        *(WorkerStarted, WorkerEnded, ForkFailed),
    )
}


class TemplateLink:
    """Either end of the connection, as lines of JSON; descriptors travel beside them."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.ended = False
        self._received = b""
        self._fds: list[int] = []

    def fileno(self) -> int:
        """For selectors."""
        return self.socket.fileno()

    def send(self, message: TemplateMessage, fds: tuple[int, ...] = ()) -> None:
        """Send a message; messages are few and small, so this does not block."""
        line = json.dumps([type(message).__name__, to_wire(message)]).encode() + b"\n"
        if fds:
            line = line[socket.send_fds(self.socket, [line], fds) :]
        if line:  # Else the peer, which may have left with the whole message, would be missed.
            self.socket.sendall(line)

    def receive(self) -> list[TemplateMessage]:
        """The messages that arrived; blocks until some bytes do.

        Sets ``ended`` if the peer left.
        """
        try:
            data, fds, _, _ = socket.recv_fds(self.socket, _LINE_BYTES_MAX, 8)
        except ConnectionResetError:
            data, fds = b"", []
        self.ended = not data
        self._fds += fds
        *lines, self._received = (self._received + data).split(b"\n")
        return [from_wire(_CLASSES[name], body) for name, body in map(json.loads, lines)]

    def take_fds(self, count: int) -> list[int]:
        """The oldest descriptors that were not taken yet."""
        taken, self._fds = self._fds[:count], self._fds[count:]
        return taken

    def close(self) -> None:
        """Close the socket. May be repeated."""
        self.socket.close()


def main(link_fd: int, lifeline_fd: int) -> None:
    """Load the program that arrives, then serve the supervisor until it disconnects."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # A terminal's Ctrl-C is the driver's to handle.
    lifeline = socket.socket(fileno=lifeline_fd)
    die_with(lifeline)
    link = TemplateLink(socket.socket(fileno=link_fd))
    if (load := _next_message(link)) is None:
        return
    assert isinstance(load, LoadProgram)
    program, *outputs = link.take_fds(3)
    for fd, standard in zip(outputs, (STDOUT, STDERR), strict=True):
        os.dup2(fd, standard)
        os.close(fd)
    started = time.monotonic()
    try:
        template = Template(link, lifeline, _read(program), load.worker)
    except BaseException:  # Raised by the user's modules on import.
        link.send(ProgramFailed(traceback.format_exc()))
        return
    link.send(TemplateReady((time.monotonic() - started) * 1000))
    template.serve()


class Template:
    """The template process: a loaded program, which workers are forked from."""

    def __init__(
        self, link: TemplateLink, lifeline: socket.socket, program: bytes, worker: str
    ) -> None:
        # Not at the top: the supervisor imports this module, and by itself neither NumPy nor Arrow.
        import cloudpickle

        import weir.worker.process as process

        load_arrow()
        self._process = process
        self._worker_class = pkgutil.resolve_name(worker)
        self._graph, self._config = cloudpickle.loads(program)
        self._link = link
        self._lifeline = lifeline
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._selector = selectors.DefaultSelector()
        self._children: set[int] = set()

    def serve(self) -> None:
        """Start workers and reap them until the supervisor disconnects."""
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        signal.set_wakeup_fd(self._wake_writer.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda signum, frame: None)
        self._selector.register(self._link, selectors.EVENT_READ)
        self._selector.register(self._wake_reader, selectors.EVENT_READ)
        gc.collect()
        gc.freeze()  # A collection in a child would touch, and so copy, every page.
        while not self._link.ended:
            for key, _ in self._selector.select():
                if key.fileobj is self._wake_reader:
                    self._wake_reader.recv(4096)
                    self._reap()
                    continue
                for message in self._link.receive():
                    assert isinstance(message, RunWorker)
                    self._run(message)

    def _run(self, run: RunWorker) -> None:
        lifeline_fd, stderr_fd = self._link.take_fds(2)
        if thread_count() > 1:
            self._link.send(WorkerStarted(run.attempt, os.getpid(), forked=False))
            self._become_worker(run, lifeline_fd, stderr_fd)
        try:
            sys.stdout.flush()  # Or the child would print it once more.
            pid = os.fork()
        except OSError as error:
            self._link.send(ForkFailed(run.attempt, f"cannot fork a worker process: {error}"))
        else:
            if pid == 0:
                self._become_worker(run, lifeline_fd, stderr_fd)
            lead_group(pid)
            self._children.add(pid)
            self._link.send(WorkerStarted(run.attempt, pid, forked=True))
        os.close(lifeline_fd)
        os.close(stderr_fd)

    def _become_worker(self, run: RunWorker, lifeline_fd: int, stderr_fd: int) -> NoReturn:
        try:
            lead_group(0)
            die_with(lifeline := socket.socket(fileno=lifeline_fd))
            os.dup2(stderr_fd, STDERR)
            os.close(stderr_fd)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for sock in (self._link.socket, self._wake_reader, self._wake_writer, self._lifeline):
                sock.close()
            self._process.main(
                self._graph, self._config, run, self._worker_class, lifeline=lifeline
            )
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(1)

    def _reap(self) -> None:
        # One by one: other children belong to user code.
        for pid in list(self._children):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            with suppress(ProcessLookupError):  # Until it is reaped, the group id is its own.
                os.killpg(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
            self._children.remove(pid)
            self._link.send(WorkerEnded(pid, os.waitstatus_to_exitcode(status)))


def load_arrow() -> None:
    """Import Arrow as far as a snapshot or a restore does.

    The first array makes Arrow import pandas, where that is installed: half a second, which every
    worker would spend in its first one.
    """
    import pyarrow as pa

    pa.array([0])


def thread_count() -> int:
    """The number of threads of this process, those of libraries included."""
    return len(os.listdir("/proc/self/task"))


def _next_message(link: TemplateLink) -> TemplateMessage | None:
    """The one message that comes first; None if the supervisor disconnected before."""
    while not (messages := link.receive()):
        if link.ended:
            return None
    (message,) = messages
    return message


def _read(fd: int) -> bytes:
    """Read a file whole and close it; others share its position, which therefore is not used."""
    try:
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


def lead_group(pid: int) -> None:
    """Make a process (0: this one) lead its own group.

    Parent and child both call it, so that neither has to wait for the other.
    """
    with suppress(ProcessLookupError):  # The child has ended already.
        os.setpgid(pid, pid)


if __name__ == "__main__":
    # Not this copy of the module, which is __main__: its classes would differ from the imported
    # ones.
    from weir.worker.template import main

    main(int(sys.argv[1]), int(sys.argv[2]))
