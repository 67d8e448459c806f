"""Fields on log records: request, job, driver, attempt, checkpoint.

``with about(job="…", checkpoint=7):`` adds fields to every record made within, in any logger. A
function as value is called for each record; values that are None or empty are left out.
"""

import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

# Controls (C0, C1), separators of lines, and marks that change the direction of text.
_UNPRINTABLE = re.compile("[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")

_context: ContextVar[dict[str, Any]] = ContextVar("weir_log_context", default={})  # noqa: B039 - never changed in place


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Add fields to the log records made within."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


@contextmanager
def guarding(logger: logging.Logger, problem: str, **fields: Any) -> Iterator[None]:
    """Log any exception raised within, with ``fields``, and go on.

    For one of many items that are handled in turn, each in a transaction of its own: an item that
    fails must not hold up the others, and the next tick tries it again.
    """
    with about(**fields):
        try:
            yield
        except Exception:
            logger.exception(problem)


def current() -> dict[str, Any]:
    """The fields that a record made now would get."""
    return _context.get()


class ContextFilter(logging.Filter):
    """Adds the fields to each record; a field that the record already has stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        context: dict[str, Any] = {}
        for name, value in _context.get().items():
            value = value() if callable(value) else value
            if value not in (None, ""):
                context[name] = value
                if not hasattr(record, name):
                    setattr(record, name, value)
        record.context = context
        return True


class PlainFormatter(logging.Formatter):
    """Lines for people: the fields in brackets after the message.

    A record is one line, and its traceback is indented: text of a client's, such as a path, can
    neither begin a line nor move the terminal's cursor.
    """

    def formatMessage(self, record: logging.LogRecord) -> str:
        """The line without a traceback."""
        fields = [f"{name}={value}" for name, value in getattr(record, "context", {}).items()]
        line = super().formatMessage(record)
        return printable(f"{line} [{' '.join(fields)}]" if fields else line)

    def formatException(self, ei: Any) -> str:
        """The traceback, indented."""
        return _indented(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        """The stack, indented."""
        return _indented(super().formatStack(stack_info))


def printable(text: str) -> str:
    """The text with each control character, line end and change of direction as its escape."""
    return _UNPRINTABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def _indented(text: str) -> str:
    return "\n".join(f"    {printable(line)}" for line in text.split("\n"))
