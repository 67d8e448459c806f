"""Sizes, durations and times as people read them."""

from datetime import datetime

from weir.common.sizes import size as size
from weir.protocol.elements import MAX_WATERMARK_MS

_NEAR_MS = 24 * 3_600_000  # A watermark this close to the clock is shown as a lag.


def duration(ms: float) -> str:
    """A duration with two or three figures that matter."""
    if ms < 1:
        return "0 ms" if ms <= 0 else "<1 ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    seconds = ms / 1_000
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min"


def rate(per_second: float) -> str:
    """A number of records per second."""
    if per_second < 9.95:
        return f"{per_second:.1f}/s" if per_second else "0/s"
    if per_second < 99_950:
        return f"{per_second:,.0f}/s"
    if per_second < 999_500:
        return f"{per_second / 1e3:.0f}k/s"
    return f"{per_second / 1e6:.1f}M/s"


def share(part: float) -> str:
    """A share between 0 and 1 as per cent."""
    return f"{part * 100:.0f} %"


def moment(ms: int, precision: str = "seconds") -> str:
    """A point in time, in the zone of this machine."""
    try:
        at = datetime.fromtimestamp(ms / 1_000).astimezone()
    except (OverflowError, ValueError, OSError):  # Event times can be anything.
        return f"{ms} ms"
    return at.isoformat(sep=" ", timespec=precision)


def watermark(ms: int | None, now_ms: float) -> str:
    """A watermark: its lag behind the clock if that is less than a day, else its time."""
    if ms is None:
        return "-"
    if ms >= MAX_WATERMARK_MS:
        return "end"
    lag = now_ms - ms
    if 0 <= lag < _NEAR_MS:
        return f"-{duration(lag)}"
    return moment(ms, "minutes")


def counted(count: int, noun: str, plural: str | None = None) -> str:
    """``1 recovery``, ``2 recoveries``."""
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"
