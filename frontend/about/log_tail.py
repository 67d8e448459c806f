"""Parts of a log as lines: its end, the lines before an offset, the lines after one.

A log has any length and content and may still grow. A part is bounded, begins and ends between two
lines, and has its range in bytes. An unfinished line is kept apart, because more of it will come; a
line that is longer than a part is cut into pieces.
"""

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

PART_BYTES = 64 << 10
LINE_BYTES_MAX = 32 << 10  # An unfinished line that is longer is shown in pieces.
LINE_CHARACTERS_MAX = 4_000  # The rest of a longer line is in the download only.

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
_BAD = re.compile(r"\b(ERROR|FATAL|CRITICAL)\b|^Traceback \(|^\w+(\.\w+)*(Error|Exception)\b")
_WARN = re.compile(r"\bWARN(ING)?\b")


@dataclass(frozen=True, slots=True)
class Line:
    """One line as a page shows it."""

    text: str
    tone: str = ""  # bad, warn, or nothing.


@dataclass(frozen=True, slots=True)
class Part:
    """Whole lines of a log. Units: bytes from the log's beginning."""

    lines: list[Line]
    unfinished: str  # The text after the last line break.
    offset: int  # Where the first line begins.
    next_offset: int  # Where the unfinished line begins, or the next write.
    end: int  # Behind the unfinished line.
    size: int  # The length of the log.
    is_rotated: bool = False  # The log is shorter than the offset: this is its new end.

    @property
    def has_earlier(self) -> bool:
        """Whether the log has lines before this part."""
        return self.offset > 0

    @property
    def has_later(self) -> bool:
        """Whether the log has more after this part."""
        return self.end < self.size


def before(path: Path, end: int | None, length: int = PART_BYTES) -> Part:
    """The last lines before an offset; None: before the end of the log.

    Raises:
        OSError: The log is missing or cannot be read.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        stop = size if end is None else min(end, size)
        start = max(0, stop - length)
        file.seek(start)
        data = file.read(stop - start)
    if start > 0 and (first := data.find(b"\n")) >= 0 and first + 1 < len(data):
        start, data = start + first + 1, data[first + 1 :]
    return _part(data, start, size)


def after(path: Path, offset: int, length: int = PART_BYTES) -> Part:
    """The lines from an offset on, where a line begins; the log's end where the log is shorter.

    Raises:
        OSError: As for ``before``.
    """
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        file.seek(min(offset, size))
        data = file.read(length)
    if offset > size:
        return replace(before(path, None, length), is_rotated=True)
    return _part(data, offset, max(size, offset + len(data)))  # It may have grown since.


def _part(data: bytes, offset: int, size: int) -> Part:
    """The lines in ``data``, which begins at ``offset``. Pure."""
    is_end = offset + len(data) >= size
    whole, line_break, rest = data.rpartition(b"\n")
    if not line_break and (not is_end or len(data) > LINE_BYTES_MAX):
        whole, rest = data, b""  # A piece of a line that is longer than a part.
    next_offset = offset + len(whole) + len(line_break)
    texts = whole.split(b"\n") if whole or line_break else []
    return Part(
        lines=[as_line(text) for text in texts],
        unfinished=as_line(rest).text if is_end else "",
        offset=offset,
        next_offset=next_offset,
        end=offset + len(data) if is_end else next_offset,
        size=size,
    )


def as_line(data: bytes) -> Line:
    """A line as a terminal would show it: without colours, ``LINE_CHARACTERS_MAX`` at most."""
    text = _ANSI.sub("", data.decode(errors="replace")).rstrip("\r").rpartition("\r")[2]
    text = text.replace("\0", "\N{REPLACEMENT CHARACTER}")
    tone = "bad" if _BAD.search(text) else "warn" if _WARN.search(text) else ""
    if len(text) > LINE_CHARACTERS_MAX:
        more = len(text) - LINE_CHARACTERS_MAX
        text = f"{text[:LINE_CHARACTERS_MAX]}… ({more:,} more characters in the download)"
    return Line(text, tone)
