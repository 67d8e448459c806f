"""Weir's log on standard error, for programs that do not configure ``logging``.

Where a program configures it, before or after, its handlers and levels decide. Else lines of level
INFO and above of ``weir`` go to standard error.
"""

import logging
import sys

_ROOM = logging.getLogger("weir")


class _LastResort(logging.StreamHandler):  # type: ignore[type-arg]  # Generic for type checkers only.
    """Writes to standard error, as long as the program has not configured logging."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("weir: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, unless a handler of the program's gets it too."""
        if not logging.getLogger().handlers:
            self.stream = sys.stderr
            super().emit(record)


def log_to_stderr() -> None:
    """Let ``weir``'s lines of level INFO and above go to standard error.

    Nothing changes where logging is configured, or ``weir`` has a level already.
    """
    if _ROOM.hasHandlers():
        return
    _ROOM.addHandler(_LastResort())
    if _ROOM.level == logging.NOTSET:
        _ROOM.setLevel(logging.INFO)
