"""Uploads and script roots, which may lie on a file server: reached on threads of their own.

A file server that hangs holds these few threads, and every other request goes on.
"""

from collections.abc import Callable
from typing import TypeVar

from controlplane.base.threads import FILES_WAIT_S, FileThreads, Unavailable

WRITE_WAIT_S = 30.0  # For a file as large as an upload may be.

R = TypeVar("R")

threads = FileThreads(4, "pipeline", patience_s=1.0)


def reach(function: Callable[[], R], *, wait_s: float = FILES_WAIT_S) -> R:
    """The result of ``function``, called on one of the threads, without a database.

    Raises:
        Unavailable: The file server does not answer.
    """
    try:
        return threads.run(function, wait_s=wait_s)
    except TimeoutError as error:
        raise Unavailable(f"The files of pipelines cannot be reached. {error}") from error
