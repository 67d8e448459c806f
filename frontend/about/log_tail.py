"""Parts of a log as lines: its end, the lines before an offset, the lines after one.

A log has any length and content and may still grow. A part is bounded, begins and ends between two
lines, and has its range in bytes. An unfinished line is kept apart, because more of it will come; a
line that is longer than a part is cut into pieces.
"""

import os
import re
from dataclasses import dataclass, replace
from typing import BinaryIO

from weir.untrusted_files import first_kept, read

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
    begin: int = 0  # Where the kept part of the log begins; the rest was given back to the disk.

    @property
    def has_earlier(self) -> bool:
        """Whether the log has lines before this part."""
        return self.offset > self.begin

    @property
    def has_later(self) -> bool:
        """Whether the log has more after this part."""
        return self.end < self.size


class LastBytes:
    """The last bytes that a file has now, for reading once: what is written later is left out."""

    def __init__(self, file: BinaryIO, length: int) -> None:
        size = os.fstat(file.fileno()).st_size
        self._file = file
        self.length = self._left = min(size - first_kept(file), length)
        file.seek(size - self._left)

    def read(self, length: int = -1) -> bytes:
        """The next bytes; none at the end."""
        data = read(self._file, self._left if length < 0 else min(length, self._left))
        self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def before(file: BinaryIO, end: int | None, length: int = PART_BYTES) -> Part:
    """The last lines before an offset; None: before the end of the log.

    Raises:
        OSError: The log cannot be read.
    """
    size, begin = os.fstat(file.fileno()).st_size, first_kept(file)
    stop = max(begin, size if end is None else min(end, size))
    start = max(begin, stop - length)
    data = read(file, stop - start, offset=start)
    if start > 0 and (first := data.find(b"\n")) >= 0 and first + 1 < len(data):
        is_first = start == begin
        start, data = start + first + 1, data[first + 1 :]
        begin = start if is_first else begin  # The rest of a line whose beginning is gone.
    return replace(_part(data, start, size), begin=begin)


def after(file: BinaryIO, offset: int, length: int = PART_BYTES) -> Part:
    """The lines from an offset on, where a line begins; the log's end where the log is shorter.

    Raises:
        OSError: As for ``before``.
    """
    size, begin = os.fstat(file.fileno()).st_size, first_kept(file)
    if offset > size:
        return replace(before(file, None, length), is_rotated=True)
    offset = max(offset, begin)
    data = read(file, length, offset=offset)
    size = max(size, offset + len(data))  # It may have grown since.
    return replace(_part(data, offset, size), begin=begin)


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
