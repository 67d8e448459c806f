"""Durations under PyFlink's two names, in whole milliseconds."""

import datetime as dt
from dataclasses import dataclass
from typing import Any, Self

from weir.errors import ConfigError


def _whole(count: Any, unit_ms: int, kind: type) -> int:
    """So many units in milliseconds.

    Raises:
        ConfigError: The count is no whole number; the message says how to write it.
    """
    if isinstance(count, int) and not isinstance(count, bool):
        return count * unit_ms
    hint = ""
    if isinstance(count, float) and (count * unit_ms).is_integer():
        unit = "Duration.of_millis" if kind.__name__ == "Duration" else "Time.milliseconds"
        hint = f": write {unit}({int(count * unit_ms)})"
    raise ConfigError(f"a {kind.__name__} is made of a whole number, not of {count!r}{hint}")


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time: ``Duration.of_seconds(20)``."""

    milliseconds: int

    @classmethod
    def of_days(cls, days: int) -> Self:
        """So many times 24 hours."""
        return cls(_whole(days, 86_400_000, cls))

    @classmethod
    def of_hours(cls, hours: int) -> Self:
        """So many hours."""
        return cls(_whole(hours, 3_600_000, cls))

    @classmethod
    def of_minutes(cls, minutes: int) -> Self:
        """So many minutes."""
        return cls(_whole(minutes, 60_000, cls))

    @classmethod
    def of_seconds(cls, seconds: int) -> Self:
        """So many seconds."""
        return cls(_whole(seconds, 1_000, cls))

    @classmethod
    def of_millis(cls, millis: int) -> Self:
        """So many milliseconds."""
        return cls(_whole(millis, 1, cls))

    def to_millis(self) -> int:
        """The length in milliseconds."""
        return self.milliseconds


@dataclass(frozen=True, slots=True, order=True)
class Time:
    """A length of time as window assigners take it: ``Time.seconds(5)``."""

    length_ms: int

    @classmethod
    def days(cls, days: int) -> Self:
        """So many times 24 hours."""
        return cls(_whole(days, 86_400_000, cls))

    @classmethod
    def hours(cls, hours: int) -> Self:
        """So many hours."""
        return cls(_whole(hours, 3_600_000, cls))

    @classmethod
    def minutes(cls, minutes: int) -> Self:
        """So many minutes."""
        return cls(_whole(minutes, 60_000, cls))

    @classmethod
    def seconds(cls, seconds: int) -> Self:
        """So many seconds."""
        return cls(_whole(seconds, 1_000, cls))

    @classmethod
    def milliseconds(cls, milliseconds: int) -> Self:
        """So many milliseconds."""
        return cls(_whole(milliseconds, 1, cls))

    def to_milliseconds(self) -> int:
        """The length in milliseconds."""
        return self.length_ms


def milliseconds_of(length: Duration | Time | dt.timedelta | int) -> int:
    """A length of time of any of these types, in milliseconds; a plain int is milliseconds.

    Raises:
        ConfigError: The length is of none of these types.
    """
    match length:
        case Duration():
            return length.milliseconds
        case Time():
            return length.length_ms
        case dt.timedelta():
            return length // dt.timedelta(milliseconds=1)
        case int() if not isinstance(length, bool):
            return length
        case _:
            raise ConfigError(
                f"{length!r} is not a length of time; give whole milliseconds, such as 1_000 for a "
                "second, or a Duration, a Time or a timedelta"
            )
