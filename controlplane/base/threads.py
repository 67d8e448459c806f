"""The web process's threads for database work, each with one connection that it keeps.

All database work of the web process runs on these threads, Django's own requests too, so that
threads and connections stay as many as configured, however many browsers and drivers wait. Requests
that hash a password have a small pool of their own.
"""

import asyncio
import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ClassVar, ParamSpec, Protocol, TypeVar

from django.conf import settings
from django.db import InterfaceError, OperationalError, close_old_connections, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from controlplane.base import watchdog
from controlplane.base.errors import Refusal

P = ParamSpec("P")
R = TypeVar("R")

ROUND = "database threads"  # Of the watchdog: one of them is idle, or a call was done.

# Raised while the database is away or restarts, or when it ends a wait for a lock: retry later.
DATABASE_AWAY = (OperationalError, InterfaceError)


class Unavailable(Refusal):
    """The request cannot be served now; the same request can succeed a moment later."""

    code = "unavailable"
    status = 503
    title = "Temporarily unavailable"


class DatabaseThreads:
    """A pool of ``size`` threads; at most ``waiting_max`` calls wait for one of them."""

    def __init__(self, size: int, waiting_max: int, name: str = "weir-database") -> None:
        self.size = size
        self.waiting_max = waiting_max
        self.pending = 0  # Running and waiting calls.
        self._lock = threading.Lock()  # Guards ``pending``.
        self._connections: list[BaseDatabaseWrapper] = []
        self._executor = ThreadPoolExecutor(
            size, thread_name_prefix=name, initializer=self._note_connections
        )

    async def run(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """The result of ``function``, called on one of the threads with the caller's context.

        Cancelling drops a waiting call; a running one finishes, and its result is dropped.

        Raises:
            Unavailable: Too many calls wait already.
        """
        with self._lock:
            if self.pending >= self.size + self.waiting_max:
                raise Unavailable("the web process is overloaded; try again in a moment")
            self.pending += 1
        context = contextvars.copy_context()
        call = self._executor.submit(context.run, _call, function, args, kwargs)
        call.add_done_callback(self._done)
        return await asyncio.wrap_future(call)

    def close(self) -> None:
        """Wait for the running calls, end the threads and close their connections."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        for connection in self._connections:
            connection.close()
        self._connections.clear()

    @property
    def busy(self) -> int:
        """The number of threads at work."""
        return min(self.pending, self.size)

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return self.pending - self.busy

    def came_round(self) -> None:
        """Tell the watchdog if a thread is idle; while all are busy, ends of calls tell it."""
        if self.pending < self.size:
            watchdog.came_round(ROUND)

    def _done(self, call: Future[Any]) -> None:
        with self._lock:
            self.pending -= 1
        if not call.cancelled():
            watchdog.came_round(ROUND)

    def _note_connections(self) -> None:
        for connection in connections.all():
            connection.inc_thread_sharing()  # So that close() may close it from elsewhere.
            self._connections.append(connection)


def _call(function: Callable[..., R], args: Any, kwargs: Any) -> R:
    # Before the call, for a connection that broke while idle; after it, so that a connection that
    # broke in this call is not kept.
    close_old_connections()
    try:
        return function(*args, **kwargs)
    finally:
        close_old_connections()


FILES_WAIT_S = 4.0


class FileThreads:
    """A few threads that read files which may lie on a file server, so that no other thread does.

    A read that hangs holds its thread until the file system answers; a caller waits for
    ``FILES_WAIT_S`` at most, and before that for a free thread for ``patience_s``.
    """

    def __init__(self, size: int, name: str, patience_s: float = 0.0) -> None:
        self._patience_s = patience_s
        self._free = threading.BoundedSemaphore(size)
        self._executor = ThreadPoolExecutor(size, thread_name_prefix=name)

    def run(self, function: Callable[[], R], /, *, wait_s: float = FILES_WAIT_S) -> R:
        """The result of ``function``, called on one of the threads, without a database.

        Raises:
            TimeoutError: It took too long, or no thread is free.
        """
        if not self._free.acquire(timeout=self._patience_s):
            raise TimeoutError(
                "Other files are being read, or the storage does not answer. Try again soon."
            )
        call = self._executor.submit(self._run, function)
        try:
            return call.result(wait_s)
        except TimeoutError as error:
            if call.done():
                raise  # The function's own.
            raise TimeoutError(f"The storage did not answer within {wait_s:g} s.") from error

    def close(self) -> None:
        """Wait for the reads under way and end the threads."""
        self._executor.shutdown(wait=True)

    def _run(self, function: Callable[[], R]) -> R:
        try:
            return function()
        finally:
            self._free.release()


class Readable(Protocol):
    """An open file, or a part of one."""

    def read(self, length: int = ..., /) -> bytes:
        """The next bytes; none at the end."""

    def close(self) -> None:
        """Close it."""


class FileOnThreads:
    """An open file that is read and closed on file threads, for a response that is streamed."""

    def __init__(self, threads: FileThreads, file: Readable) -> None:
        self._threads = threads
        self._file = file
        self._is_reading = False
        self._is_over = False

    def read(self, length: int = -1) -> bytes:
        """The next bytes; none at the end.

        Raises:
            TimeoutError: It took too long, or no thread is free.
        """
        return self._threads.run(lambda: self._read(length))

    def close(self) -> None:
        """Close the file, at the end of a read that hangs.

        Raises:
            TimeoutError: It took too long, or no thread is free.
        """
        self._is_over = True
        if not self._is_reading:
            self._threads.run(self._file.close)

    def _read(self, length: int) -> bytes:
        self._is_reading = True
        try:
            return self._file.read(length)
        finally:
            self._is_reading = False
            if self._is_over:  # Closing waits for a read that is under way.
                self._file.close()


class _Shared:
    """The holder of this process's pools, which are made when first needed."""

    pool: ClassVar[DatabaseThreads | None] = None
    passwords: ClassVar[DatabaseThreads | None] = None


def shared() -> DatabaseThreads:
    """The pool of this process, made by the first call."""
    if _Shared.pool is None:
        _Shared.pool = DatabaseThreads(
            settings.WEIR_DATABASE_THREADS, settings.WEIR_DATABASE_WAITING_MAX
        )
    return _Shared.pool


def passwords() -> DatabaseThreads:
    """The pool of this process for requests that hash a password, made by the first call.

    A hash takes a core for as long as thirty pages do: on the shared pool a few logins at once
    would hold up all other requests.
    """
    if _Shared.passwords is None:
        _Shared.passwords = DatabaseThreads(
            settings.WEIR_PASSWORD_THREADS, settings.WEIR_PASSWORD_WAITING_MAX, "weir-password"
        )
    return _Shared.passwords


def close() -> None:
    """End this process's pools; the next call makes a new one."""
    for name in ("pool", "passwords"):
        pool: DatabaseThreads | None = getattr(_Shared, name)
        setattr(_Shared, name, None)
        if pool is not None:
            pool.close()


async def in_database(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """The result of ``function``, called on a thread of this process's pool."""
    return await shared().run(function, *args, **kwargs)
