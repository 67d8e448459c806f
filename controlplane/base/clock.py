"""The database server's clock, in UTC, corrected when it is set: the one that all rows go by.

Due times are rows, compared with this clock: the next trigger of a checkpoint, the moment it
expires, a driver's next sign of life, restarts, deadlines. The database's own clock is set now
and then, by hand or by a time server, and after a fail-over it is another machine's. If it went an
hour ahead, every checkpoint under way expired and every driver was silent; if it went back, nothing
came due for an hour.

So a move is *corrected*: one row says what to add to the database's clock, and ``now()`` adds it.
Rows of due times stay as they are, those in the middle of a transaction included.

**Detection.** Each reading notes the database's clock and this process's own, which is never set,
in pairs. Between two readings both must have advanced alike. If they differ by more than
``TOLERANCE_S``, the database's clock was moved, and the reading is corrected before any decision
uses it. How long a query took is in doubt, and a process that stood still (garbage collection,
SIGSTOP) counts that time as its own: neither is a move.

**One correction per move.** The correction is written by compare-and-set on its number, on a
connection of its own, so that it neither waits for the transaction under way nor is rolled back
with it. Of several processes that notice one move, one wins; the others then read the clock they
expect. A process for which the database's clock went steadily accepts any correction, by any
process: it knows nothing about the time before its own first look.

**Paused machines.** A machine that was suspended counts that time (CLOCK_BOOTTIME). A virtual
machine that was paused may not, and sees the database's clock ahead by the time that truly passed.
Processes whose clocks went steadily leave a mark every second (``look``): a mark within the time
that this process missed says that this process was paused. Where all were paused there is none, and
the time counts as not passed. That is the safer mistake: drivers keep their time to report,
checkpoints theirs to complete.

**Slewing.** The correction shrinks by ``SLEW`` of the time that passes, so that timestamps agree
with other clocks again: an hour is made up for within a day. Time-outs are longer or shorter by as
much meanwhile, and the clock never stands still or goes back for it.

Units: the protocol counts milliseconds since 1970 as integers; rows hold aware datetimes.
"""

import logging
import threading
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection
from django.db.models import DateTimeField, Func

logger = logging.getLogger(__name__)

TOLERANCE_S = 2.0
DRIFT = 0.001  # Clocks that are being adjusted differ by half as much at most (adjtimex(2)).
SLEW = 0.05
# A process that has watched for less may have begun just behind a move.
VOUCHES_AFTER_S = 10.0
TRIES_MAX = 5  # Each one overtaken by another process's correction.

_TABLE = "controlplane_clockcorrection"
_RAW = "clock_timestamp()"


def now() -> datetime:
    """The time now, also in the middle of a transaction."""
    return _watch.read().now


def now_ms() -> int:
    """The time now in the protocol's milliseconds."""
    return to_ms(now())


class DatabaseNow(Func):
    """``now()`` as an expression in a query; includes a move of the clock not yet corrected."""

    output_field = DateTimeField()

    def as_sql(self, *_: Any, **__: Any) -> tuple[str, list[Any]]:
        """The SQL of the corrected clock, without parameters."""
        return f"({_now_sql()})", []


def look() -> None:
    """Correct a move if there was one, and leave the mark that the clock went steadily until now.

    The ticks, which decide what is due, call this every second, outside of transactions.
    """
    _watch.read()
    if not _watch.vouches:
        return
    with connection.cursor() as cursor:
        cursor.execute(f"{_insert_sql()} (id) DO UPDATE SET looked_at = {_RAW}")


def to_ms(moment: datetime) -> int:
    """A datetime in the protocol's milliseconds."""
    return int(moment.timestamp() * 1000)


def from_ms(moment_ms: int) -> datetime:
    """The protocol's milliseconds as a datetime."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def milliseconds(count: float) -> timedelta:
    """A duration of ``count`` milliseconds."""
    return timedelta(milliseconds=count)


# Detection ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Reading:
    """The database's clock, and this process's own before and after the query."""

    raw: datetime
    now: datetime
    number: int  # Of the correction in ``now``.
    looked_at: datetime | None
    before_s: float
    after_s: float


class _Watch:
    """This process's readings of the database's clock."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: _Reading | None = None
        self._since_s: float | None = None

    @property
    def vouches(self) -> bool:
        """Whether this process has watched for long enough to say that the clock goes steadily."""
        return self._since_s is not None and own_s() - self._since_s >= VOUCHES_AFTER_S

    def read(self) -> _Reading:
        """Read the clock, and correct it first if it was moved since the last reading."""
        for _ in range(TRIES_MAX):
            last, reading = self._last, _read()
            move = None if last is None else _move(last, reading)
            if move is None:
                self._note(reading)
                return reading
            _correct(move, reading.number)  # Or another process did: the next reading shows it.
        raise RuntimeError(f"the database's clock was moved {TRIES_MAX} times while it was read")

    def _note(self, reading: _Reading) -> None:
        with self._lock:
            if self._last is None or self._last.before_s < reading.before_s:
                self._last = reading
            if self._since_s is None:
                self._since_s = reading.before_s


_watch = _Watch()


def own_s() -> float:
    """This process's own clock: seconds that nothing sets, suspension of the machine included."""
    boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    return time.clock_gettime(boot)


@dataclass(frozen=True, slots=True)
class _Move:
    """A move of the database's clock without a correction yet."""

    by_s: float
    offset_s: float  # The correction with which the clock goes on as before.


def _move(last: _Reading, reading: _Reading) -> _Move | None:
    """The uncorrected move of the clock since ``last``; None: it was not moved."""
    least_s = reading.before_s - last.after_s
    most_s = reading.after_s - last.before_s
    raw_s = _beyond(reading.raw - last.raw, least_s, most_s)
    if raw_s == 0.0:
        return None  # The clock went steadily; other processes have corrected earlier moves.
    if reading.number != last.number:
        # Perhaps another process corrected this move; its correction has shrunk a little since.
        allowed_s = SLEW * max(0.0, most_s)
        by_s = _beyond(reading.now - last.now, least_s - allowed_s, most_s + allowed_s)
        offset_s = (reading.now - reading.raw).total_seconds() - by_s
        return _Move(by_s, offset_s) if by_s else None
    if raw_s > 0 and reading.looked_at is not None:
        missed = last.raw + timedelta(seconds=most_s + TOLERANCE_S + DRIFT * abs(most_s))
        if missed < reading.looked_at <= reading.raw:
            logger.warning(
                "this process missed %.1f s that passed for others: its machine was paused", raw_s
            )
            return None
    # From the offset at ``last``: the move itself has shrunk the correction since.
    return _Move(raw_s, (last.now - last.raw).total_seconds() - raw_s)


def _beyond(passed: timedelta, least_s: float, most_s: float) -> float:
    """Seconds by which ``passed`` lies outside of its possible range; 0: within."""
    passed_s = passed.total_seconds()
    slack_s = TOLERANCE_S + DRIFT * abs(most_s)
    if least_s - slack_s <= passed_s <= most_s + slack_s:
        return 0.0
    return passed_s - (least_s if passed_s < least_s else most_s)


# The database -------------------------------------------------------------------------------------


def _left_sql() -> str:
    """SQL: the rest of the correction, in seconds."""
    passed = f"GREATEST(0, EXTRACT(EPOCH FROM {_RAW} - since)::float8)"
    return f"SIGN(offset_s) * GREATEST(0, ABS(offset_s) - {SLEW} * {passed})"


def _now_sql() -> str:
    left = f"SELECT make_interval(secs => {_left_sql()}) FROM {_TABLE} WHERE id = 1"
    return f"{_RAW} + COALESCE(({left}), INTERVAL '0')"


def _read() -> _Reading:
    with connection.cursor() as cursor:
        before_s = own_s()
        cursor.execute(
            f"SELECT {_RAW}, {_now_sql()}, number, looked_at "
            f"FROM (VALUES (1)) one (id) LEFT JOIN {_TABLE} USING (id)"
        )
        raw, moment, number, looked_at = cursor.fetchone()
        after_s = own_s()
    return _Reading(raw, moment, number or 0, looked_at, before_s, after_s)


def _correct(move: _Move, number: int) -> None:
    """Write the correction of a move, unless another process has corrected since ``number``."""
    own = connection.copy()
    try:
        with own.cursor() as cursor:
            cursor.execute(f"{_insert_sql()} DO NOTHING")
            cursor.execute(
                f"UPDATE {_TABLE} SET number = number + 1, offset_s = %s, since = {_RAW} "
                "WHERE id = 1 AND number = %s",
                [move.offset_s, number],
            )
            is_first = cursor.rowcount == 1
    finally:
        own.close()
    if is_first:
        logger.warning(
            "the database's clock was moved by %+.1f s; due times stay as far away as they were, "
            "and timestamps return to the database's clock gradually",
            move.by_s,
        )


def _insert_sql() -> str:
    columns = "(id, number, offset_s, since, looked_at)"
    return f"INSERT INTO {_TABLE} {columns} VALUES (1, 0, 0, {_RAW}, {_RAW}) ON CONFLICT"
