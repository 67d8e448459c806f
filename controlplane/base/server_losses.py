"""The servers that this process has just failed to reach: PostgreSQL and Redis.

Silence that was measured across such a loss says nothing about who was silent: what a driver
reports while the database is away cannot be stored.
"""

import logging
import time

from django.db import InterfaceError, OperationalError

from controlplane.base.unusable_database import UnusableDatabase, sqlstate

_CONNECTION_CODES = ("08", "57P")  # Connection exceptions; the server is stopping or starting.

SAID_AGAIN_S = 10.0  # Of an outage that goes on.
TASK_FAILURES = "celery.app.trace"  # The logger of tasks that raise.

_database_lost_at: list[float] = []  # Monotonic; the last loss only.
_away: set[str] = set()  # Addresses of Redis servers.


class Pause:
    """A pause in asking a server, from its failure on: each question may wait for its timeout."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._until_s = 0.0

    @property
    def lasts(self) -> bool:
        """Whether the server is left alone for now."""
        return time.monotonic() < self._until_s

    def begin(self) -> None:
        """Leave the server alone: it has just failed."""
        self._until_s = time.monotonic() + self._seconds


class LossFilter(logging.Filter):
    """Turns the traceback of an error that says that the database is lost into one line.

    Several tasks a second fail for want of it, all with the same error: of their records one in ten
    seconds is kept.
    """

    def __init__(self) -> None:
        super().__init__()
        self._pause = Pause(SAID_AGAIN_S)

    def filter(self, record: logging.LogRecord) -> bool:
        """Keep the record, or drop it as said already."""
        error = _loss_of(record)
        if error is None:
            return True
        text = record.getMessage()
        if record.name == TASK_FAILURES:
            if self._pause.lasts:
                return False
            self._pause.begin()
            text = "tasks wait for the database"
            record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.msg, record.args, record.exc_info = f"{text}: {_line(error)}", (), None
        return True


def _loss_of(record: logging.LogRecord) -> BaseException | None:
    error = record.exc_info[1] if record.exc_info else None
    return error if error is not None and is_database_lost(error) else None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def is_database_lost(error: BaseException) -> bool:
    """Whether an error says that the database cannot be reached: not a lock, nor a slow query.

    Source: PostgreSQL, appendix A, error codes; psycopg2 has none where the connection broke.
    """
    if isinstance(error, InterfaceError | UnusableDatabase):
        return True
    if not isinstance(error, OperationalError):
        return False
    code = sqlstate(error)
    return not code or code.startswith(_CONNECTION_CODES)


def note_database_error(error: BaseException) -> None:
    """Note the loss of the database, where an error says so."""
    if is_database_lost(error):
        note_database_lost()


def note_database_lost() -> None:
    """Note that the database cannot be reached now: it refuses connections, or does not answer."""
    _database_lost_at[:] = [time.monotonic()]


def database_lost_ms_ago() -> float | None:
    """The time since the database could not be reached; None: it always could."""
    if not _database_lost_at:
        return None
    return (time.monotonic() - _database_lost_at[0]) * 1_000


def note_redis(url: str, *, is_away: bool) -> None:
    """Note whether a Redis server can be reached."""
    (_away.add if is_away else _away.discard)(url)


def is_redis_away(url: str) -> bool:
    """Whether this process's subscription to a Redis server is lost."""
    return url in _away


def forget() -> None:
    """Drop all that was noted."""
    _database_lost_at.clear()
    _away.clear()
