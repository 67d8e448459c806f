"""Durations under PyFlink's two names, in whole milliseconds."""

import datetime as dt
from dataclasses import dataclass
from typing import Self

from weir.errors import ConfigError


@dataclass(frozen=True, slots=True, order=True)
class Duration:
    """A length of time: ``Duration.of_seconds(20)``."""

    milliseconds: int

    @classmethod
    def of_days(cls, days: int) -> Self:
        """So many times 24 hours."""
        return cls(days * 86_400_000)

    @classmethod
    def of_hours(cls, hours: int) -> Self:
        """So many hours."""
        return cls(hours * 3_600_000)

    @classmethod
    def of_minutes(cls, minutes: int) -> Self:
        """So many minutes."""
        return cls(minutes * 60_000)

    @classmethod
    def of_seconds(cls, seconds: int) -> Self:
        """So many seconds."""
        return cls(seconds * 1_000)

    @classmethod
    def of_millis(cls, millis: int) -> Self:
        """So many milliseconds."""
        return cls(millis)

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
        return cls(days * 86_400_000)

    @classmethod
    def hours(cls, hours: int) -> Self:
        """So many hours."""
        return cls(hours * 3_600_000)

    @classmethod
    def minutes(cls, minutes: int) -> Self:
        """So many minutes."""
        return cls(minutes * 60_000)

    @classmethod
    def seconds(cls, seconds: int) -> Self:
        """So many seconds."""
        return cls(seconds * 1_000)

    @classmethod
    def milliseconds(cls, milliseconds: int) -> Self:
        """So many milliseconds."""
        return cls(milliseconds)

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
                f"{length!r} is not a length of time; give a Duration, a Time, a timedelta or "
                "milliseconds"
            )
