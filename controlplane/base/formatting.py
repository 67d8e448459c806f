"""Numbers with their units, times and ages: one form everywhere.

Pages, the API and alerts write alike. The pages' ``format.js`` holds the same rules for values that
grow while a page is open; a test compares the two.
"""

from datetime import UTC, datetime

from weir.protocol.elements import MAX_WATERMARK_MS

NOTHING = "–"  # Stands for a missing value.

_SECOND = 1_000
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_UNITS = ("B", "kB", "MB", "GB", "TB")


def duration(milliseconds: float | None) -> str:
    """``"840 ms"``, ``"1.24 s"``, ``"12.4 s"``, ``"2 min 05 s"``, ``"3 h 04 min"``."""
    if milliseconds is None:
        return NOTHING
    value = max(0.0, milliseconds)
    if 0 < value < 10 and round(value) != value:
        text = f"{value:.1f}"
        return f"{text} ms" if text != "0.0" else "<0.1 ms"
    if value < 999.5:
        return f"{value:.0f} ms"
    if value < 9_995:
        return f"{value / _SECOND:.2f} s"
    if value < 59_950:
        return f"{value / _SECOND:.1f} s"
    return _long(value)


def rough_duration(milliseconds: float | None) -> str:
    """A duration in whole seconds, for values shown while they grow."""
    if milliseconds is None:
        return NOTHING
    value = max(0.0, milliseconds)
    return f"{int(value // _SECOND)} s" if value < _MINUTE else _long(value)


def _long(value: float) -> str:
    seconds = int(value // _SECOND)
    if seconds < 3_600:
        minutes, rest = divmod(max(seconds, 60), 60)
        return f"{minutes} min {rest:02d} s"
    if value < _DAY:
        hours, rest = divmod(seconds // 60, 60)
        return f"{hours} h {rest:02d} min"
    days, rest = divmod(seconds // 3_600, 24)
    return f"{days} d {rest} h"


def interval(milliseconds: float) -> str:
    """A setting as a user would write it: ``"1 s"``, ``"2.5 s"``, ``"100 ms"``."""
    if milliseconds < _SECOND:
        return f"{milliseconds:g} ms"
    return f"{milliseconds / _SECOND:g} s" if milliseconds < _MINUTE else _long(milliseconds)


def age(milliseconds: float | None) -> str:
    """``"4 s ago"``; never in the future."""
    return NOTHING if milliseconds is None else f"{rough_duration(milliseconds)} ago"


def size(count: float | None) -> str:
    """Bytes in decimal units, three digits: ``"812 B"``, ``"1.24 MB"``, ``"20.5 GB"``."""
    if count is None:
        return NOTHING
    if count < 1_000:
        return f"{count:.0f} B"
    value, unit = float(count), 0
    while value >= 999.5 and unit + 1 < len(_UNITS):
        value, unit = value / 1_000, unit + 1
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f} {_UNITS[unit]}"


def number(count: int | None) -> str:
    """A count with separated thousands."""
    return NOTHING if count is None else f"{count:,}"


def plural(count: int, noun: str, many: str | None = None) -> str:
    """``"1 subtask"``, ``"3 subtasks"``."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


def moment(at: datetime | None) -> str:
    """A point in time in UTC, to the second, with its zone."""
    return NOTHING if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def event_time(watermark_ms: int | None) -> str:
    """A watermark as a point in time, or in milliseconds where no calendar can hold it."""
    if watermark_ms is None:
        return NOTHING
    if watermark_ms >= MAX_WATERMARK_MS:
        return "the end of the input"
    try:
        return moment(datetime.fromtimestamp(watermark_ms / _SECOND, UTC))
    except (OverflowError, ValueError, OSError):  # Event times can be anything.
        return f"{watermark_ms:,} ms"


def iso(at: datetime | None) -> str | None:
    """A point in time for machines: ISO 8601 in UTC, to the millisecond."""
    if at is None:
        return None
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def milliseconds_between(earlier: datetime | None, later: datetime | None) -> float | None:
    """Milliseconds from one point in time to the other; None where either is missing."""
    if earlier is None or later is None:
        return None
    return (later - earlier).total_seconds() * 1_000


def listed(names: list[str], at_most: int) -> str:
    """The first names and the number of the rest: ``"a, b and 3 more"``."""
    if len(names) <= at_most:
        return ", ".join(names)
    return f"{', '.join(names[:at_most])} and {len(names) - at_most:,} more"
