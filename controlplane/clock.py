"""The one clock: the database's, in UTC. Processes and machines may disagree; rows do not.

Units: the protocol counts milliseconds since 1970 as integers; rows hold aware datetimes.
"""

from datetime import UTC, datetime, timedelta

from django.db import connection


def now() -> datetime:
    """The database's time now, also in the middle of a transaction."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (value,) = cursor.fetchone()
    assert isinstance(value, datetime)
    return value


def now_ms() -> int:
    """The database's time as the protocol counts it."""
    return to_ms(now())


def to_ms(moment: datetime) -> int:
    """A datetime in the protocol's milliseconds."""
    return int(moment.timestamp() * 1000)


def from_ms(moment_ms: int) -> datetime:
    """The protocol's milliseconds as a datetime."""
    return datetime.fromtimestamp(moment_ms / 1000, UTC)


def milliseconds(count: float) -> timedelta:
    """So many milliseconds."""
    return timedelta(milliseconds=count)
