"""The I/O thread, which owns every socket of a process.

*Endpoints* are added and from then on told when they may read or write; everything an endpoint does
happens on this thread, so endpoints need no locks. Other threads hand work over with ``call``,
which appends to a deque and, if the thread sleeps, writes one byte to a socket pair. No call on
this thread may block, and an exception that reaches the thread is a bug: it ends the thread and is
given to ``on_crash``, since a process without its I/O thread is of no use.
"""

import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

READ, WRITE = selectors.EVENT_READ, selectors.EVENT_WRITE


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
    """Serves endpoints, calls and one periodic function each interval."""

    def __init__(self, name: str, on_crash: Callable[[BaseException], None]) -> None:
        self._on_crash = on_crash
        self._selector = selectors.DefaultSelector()
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._selector.register(self._wake_reader, READ)
        self._calls: deque[Callable[[], None]] = deque()
        self._sleeps = False  # Or is about to; a wake-up is under way where it is False again.
        self._periodic: list[tuple[float, Callable[[], None]]] = []
        self._due: list[float] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    # From any thread.

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def call(self, function: Callable[[], None], *, wake: bool = True) -> None:
        """Run a function on the I/O thread, after those handed over before it.

        Waking hands the interpreter lock over, which costs a busy caller more than the call; a
        caller with more calls to make passes ``wake=False`` and wakes the thread once, at the end.
        """
        self._calls.append(function)
        if wake:
            self.wake()

    def wake(self) -> None:
        """Wake the thread, so that it runs the calls handed over."""
        if self._calls and self._sleeps:
            self._sleeps = False
            try:
                self._wake_writer.send(b"\0")
            except BlockingIOError:  # Full of bytes that wake just as well.
                return

    def stop(self) -> None:
        """End the thread after the calls handed over so far, and release its descriptors."""
        self.call(self._stop)
        if self._thread.is_alive():
            self._thread.join()
        self._selector.close()
        self._wake_reader.close()
        self._wake_writer.close()

    def _stop(self) -> None:
        self._stopping = True

    # On the I/O thread (or before it started).

    def every(self, interval_s: float, function: Callable[[], None]) -> None:
        """Call a function again and again, the first time after one interval."""
        self._periodic.append((interval_s, function))
        self._due.append(time.monotonic() + interval_s)

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
        try:
            while not self._stopping:
                self._round()
        except BaseException as error:
            self._on_crash(error)

    def _round(self) -> None:
        # Before it looks for calls: one that comes in between wakes it.
        self._sleeps = True
        ready = self._selector.select(self._timeout())
        self._sleeps = False
        for key, events in ready:
            endpoint: Endpoint | None = key.data
            if endpoint is None:
                self._wake_reader.recv(4096)
            elif (
                self._selector.get_map().get(key.fd) is key
            ):  # Not removed by an endpoint before it.
                endpoint.on_ready(readable=bool(events & READ), writable=bool(events & WRITE))
        for _ in range(len(self._calls)):
            self._calls.popleft()()
        now = time.monotonic()
        for index, (interval_s, function) in enumerate(self._periodic):
            if self._due[index] <= now:
                self._due[index] = now + interval_s
                function()

    def _timeout(self) -> float | None:
        if self._calls:
            return 0.0
        return max(0.0, min(self._due) - time.monotonic()) if self._due else None


def _interest(endpoint: Endpoint) -> int:
    return READ | WRITE if endpoint.wants_write else READ
