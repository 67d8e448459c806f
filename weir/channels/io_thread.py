"""The service of a process' sockets, and the baton that says which of two threads does it.

*Endpoints* are added and from then on told when they may read or write. Exactly one thread at a
time serves them: the one that holds the baton. So endpoints need no locks, whichever thread it is.

A process may have a *loop*, a thread that works in rounds and sleeps between them. What arrives is
for the loop, mostly. Were another thread to read it, each element would cost two switches of
threads and of the interpreter lock. So the loop takes the baton itself whenever its round is over:
it sleeps in ``select`` (``wait``), or looks at the sockets and goes on (``visit``). During its
round the baton lies free.

The I/O thread is the loop's *stand-in*. It looks now and then whether the loop has visited since it
last looked. Where it has not, and the baton is free, the loop is in a long call: the stand-in takes
the baton and serves until the loop comes back for it. So heartbeats, commands, reads and writes go
on while user code runs, after two looks: at most twice ``LOOK_MAX_S``, or where the loop had slept
before, that and ``LOOK_ASLEEP_S``. A loop that is quick makes the looks rare, and one that sleeps
with the baton rarer still; none takes a lock that the loop waits for. In a process without a loop,
before it attends and after it left, the stand-in serves alone.

No thread waits for the baton but a loop that comes back, and that only until the stand-in has
finished what it is at; so no endpoint, call or periodic function may block. Other threads hand work
over with ``call``, which appends to a deque and, where the server sleeps in ``select``, writes one
byte to a socket pair. The server announces its sleep before it looks for calls, for work of the
loop and for a loop that is back; each of these is set before the announcement is read. One of the
two sees the other, so no wake-up is lost.

An exception that reaches the server is a bug: it is given to ``on_crash``, since a process that
does not serve its sockets is of no use.
"""

import selectors
import socket
import threading
import time
from bisect import insort
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Protocol

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE

# The stand-in's looks: so long after the loop was last seen away, and then each twice as long.
LOOK_MIN_S, LOOK_MAX_S = 0.005, 0.05
LOOK_ASLEEP_S = 0.2  # While the loop sleeps: a look wakes a processor that may have no other work.
# A busy loop looks at the sockets this often: a look costs some microseconds, and a barrier that
# comes in between waits for it.
VISIT_INTERVAL_S = 0.0005


class Endpoint(Protocol):
    """A socket and its handler."""

    def fileno(self) -> int:
        """The descriptor to watch."""

    @property
    def wants_write(self) -> bool:
        """Whether bytes wait to be written."""

    def on_ready(self, *, readable: bool, writable: bool) -> None:
        """Read or write without blocking."""


class IoThread:
    """Serves endpoints, calls and periodic functions: on its own thread, or on a loop's."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._on_crash = on_crash
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, READ)
        self._calls: deque[Callable[[], None]] = deque()
        self._periodic: list[tuple[float, Callable[[], None]]] = []
        self._due: list[float] = []
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._stopping = False
        self._baton = threading.Lock()
        self._sleeps = False  # The server, or it is about to; False as well once it is being woken.
        self._has_loop = False
        self._visits = 0  # Beginnings and ends of the loop's service.
        self._visit_due = 0.0
        self._is_wanted = False  # The loop has come back, and waits for the baton.
        self._loop_sleeps = False  # The server that sleeps is the loop.
        self._loop_has_work: Callable[[], bool] = lambda: False
        self._summons: SimpleQueue[None] = SimpleQueue()  # End the stand-in's pause.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # From any thread.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Callable[[], None], *, wake: bool = True) -> None:
        """Run a function on the thread that serves, after those handed over before it.

        ``wake=False``: it may wait until the server wakes by itself; the loop, which serves at the
        end of its round, needs to wake no other thread.
        """
        self._calls.append(function)
        if wake:
            self.wake()

    def wake(self) -> None:
        """Wake the server, so that it runs the calls handed over."""
        if self._calls and self._sleeps:
            self._rouse()

    @property
    def is_loop_asleep(self) -> bool:
        """Whether the loop sleeps now; a thread that watches it has no need to look often."""
        return self._loop_sleeps

    def wake_loop(self) -> None:
        """End the loop's ``wait``, after it was given work; callable from a signal handler."""
        if self._loop_sleeps:
            self._rouse()

    def stop(self) -> None:
        """End the thread after the calls handed over so far, and release its descriptors."""
        self.call(self._stop)
        self._summons.put(None)
        if self._thread.is_alive():
            self._thread.join()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _stop(self) -> None:
        self._stopping = True

    def _rouse(self) -> None:
        self._sleeps = self._loop_sleeps = False
        try:
            self._wake_writer.send(b"\0")
        except BlockingIOError:  # Full of bytes that wake just as well.
            return

    # On the loop.

    def attend(self, has_work: Callable[[], bool]) -> None:
        """Make the calling thread the loop: it calls ``wait`` or ``visit`` after each round.

        ``has_work`` says whether work came in for the loop; who gives it some calls ``wake_loop``.
        """
        self._loop_has_work = has_work
        self._has_loop = True

    def leave(self) -> None:
        """End the loop's service: from now on the stand-in serves alone."""
        self._has_loop = False
        self._summons.put(None)

    def visit(self) -> None:
        """Serve without sleeping, before the next round; most sockets' turn comes now and then."""
        now = time.monotonic()
        if now >= self._visit_due:
            self._visit_due = now + VISIT_INTERVAL_S
            self._serve_on_loop(0.0)
        elif self._calls:
            self._serve_on_loop(None)

    def try_now(self, function: Callable[[], None]) -> bool:
        """Run a function before the round is over; False where the stand-in serves."""
        if not self._baton.acquire(blocking=False):
            return False
        try:
            function()
        finally:
            self._baton.release()
        return True

    def wait(self, timeout_s: float) -> None:
        """Serve until work came in for the loop, something was served, or the time is over."""
        self._serve_on_loop(timeout_s)

    def _serve_on_loop(self, timeout_s: float | None) -> None:
        """None: run calls alone."""
        self._take_baton()
        try:
            if timeout_s is None:
                self._run_calls()
            else:
                self._serve(timeout_s)
        except Exception as error:
            self._on_crash(error)
            raise
        finally:
            self._visits += 1  # Its absence begins now, however long it slept.
            self._baton.release()

    def _take_baton(self) -> None:
        self._visits += 1
        if self._baton.acquire(blocking=False):
            return
        self._is_wanted = True
        if self._sleeps:
            self._rouse()
        self._baton.acquire()
        self._is_wanted = False

    # On the thread that serves (or before the I/O thread started).

    def every(self, interval_s: float, function: Callable[[], None]) -> None:
        """Call a function again and again, the first time after one interval."""
        self._periodic.append((interval_s, function))
        self._due.append(time.monotonic() + interval_s)

    def after(self, delay_s: float, function: Callable[[], None]) -> None:
        """Call a function once, after a delay; those that are due together in the order of time."""
        insort(self._later, (time.monotonic() + delay_s, function), key=itemgetter(0))

    def add(self, endpoint: Endpoint) -> None:
        """Watch an endpoint."""
        self._selector.register(endpoint.fileno(), _interest(endpoint), endpoint)

    def refresh(self, endpoint: Endpoint) -> None:
        """Update whether the endpoint is watched for writing."""
        key = self._selector.get_key(endpoint.fileno())
        if key.events != (wanted := _interest(endpoint)):
            self._selector.modify(key.fd, wanted, endpoint)

    def remove(self, endpoint: Endpoint) -> None:
        """Stop watching an endpoint; to be called before its socket is closed."""
        self._selector.unregister(endpoint.fileno())

    def _run(self) -> None:
        name_thread(self._thread.name)
        try:
            self._stand_in()
        except BaseException as error:
            self._on_crash(error)

    def _stand_in(self) -> None:
        pause_s, visits = LOOK_MIN_S, -1
        while not self._stopping:
            if self._has_loop:
                self._pause(LOOK_ASLEEP_S if self._loop_sleeps else pause_s)
                came, visits = visits != self._visits, self._visits
                if came or not self._baton.acquire(blocking=False):
                    pause_s = min(2 * pause_s, LOOK_MAX_S)
                    continue
            else:  # The loop has left, or gives the baton back as soon as it has run this call.
                self._baton.acquire()
            try:
                while not (self._is_wanted or self._stopping):
                    self._serve(None)
            finally:
                self._baton.release()
            pause_s = LOOK_MIN_S

    def _pause(self, seconds: float) -> None:
        try:
            self._summons.get(timeout=seconds)
        except Empty:
            return

    def _serve(self, timeout_s: float | None) -> None:
        """Run calls, and what is ready or due, after a sleep of ``timeout_s`` at most.

        None: the stand-in serves, which sleeps until something is due.
        """
        self._run_calls()
        self._sleeps = True
        self._loop_sleeps = timeout_s is not None
        ready = self._selector.select(self._sleep_s(timeout_s))
        self._sleeps = self._loop_sleeps = False
        for key, events in ready:
            endpoint: Endpoint | None = key.data
            if endpoint is None:
                self._wake_reader.recv(4096)
            elif (
                self._selector.get_map().get(key.fd) is key
            ):  # Not removed by an endpoint before it.
                endpoint.on_ready(readable=bool(events & READ), writable=bool(events & WRITE))
        self._run_calls()
        now = time.monotonic()
        for index, (interval_s, function) in enumerate(self._periodic):
            if self._due[index] <= now:
                self._due[index] = now + interval_s
                function()
        while self._later and self._later[0][0] <= now:
            _, function = self._later.pop(0)
            function()

    def _run_calls(self) -> None:
        while self._calls:
            self._calls.popleft()()

    def _sleep_s(self, timeout_s: float | None) -> float | None:
        """The time to sleep; to be asked after the sleep was announced."""
        if (
            self._calls
            or self._is_wanted
            or self._stopping
            or (timeout_s is not None and self._loop_has_work())
        ):
            return 0.0
        due = [*self._due, *(at for at, _ in self._later[:1])]
        if not due:
            return timeout_s
        due_s = max(0.0, min(due) - time.monotonic())
        return due_s if timeout_s is None else min(due_s, timeout_s)


def name_thread(name: str) -> None:
    """Name the calling thread, for ``ps`` and debuggers; the kernel keeps 15 characters."""
    Path("/proc/thread-self/comm").write_text(name)


def _interest(endpoint: Endpoint) -> int:
    return READ | WRITE if endpoint.wants_write else READ
