"""Log records carry what they are about: request, job, driver, attempt, checkpoint.

``with about(job="…", checkpoint=7):`` adds fields to every record made within, in any logger.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_context: ContextVar[dict[str, Any]] = ContextVar("weir_log_context", default={})  # noqa: B039 - never changed in place


@contextmanager
def about(**fields: Any) -> Iterator[None]:
    """Add fields to the log records made within."""
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


def current() -> dict[str, Any]:
    """The fields that a record made now would get."""
    return _context.get()


class ContextFilter(logging.Filter):
    """Puts the fields on each record; a field that the record has of its own stays."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep every record."""
        for name, value in _context.get().items():
            if not hasattr(record, name):
                setattr(record, name, value)
        return True
