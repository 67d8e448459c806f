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

_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


@dataclass(frozen=True, slots=True)
class Line:
    """One line as a terminal would show it. Units: bytes from the log's beginning."""

    text: str
    offset: int
    end: int


class Extent:
    """The place of a part in its log. Units: bytes from the log's beginning."""

    __slots__ = ()

    offset: int  # Where the part begins.
    end: int
    size: int  # The length of the log.
    begin: int  # Where the kept part of the log begins.

    @property
    def has_earlier(self) -> bool:
        """Whether the log has lines before this part."""
        return self.offset > self.begin

    @property
    def has_later(self) -> bool:
        """Whether the log has more after this part."""
        return self.end < self.size


@dataclass(frozen=True, slots=True)
class Part(Extent):
    """Whole lines of a log. Units: bytes from the log's beginning."""

    lines: list[Line]
    unfinished: str  # The text after the last line break.
    offset: int  # Where the first line begins.
    next_offset: int  # Where the unfinished line begins, or the next write.
    end: int  # Behind the unfinished line.
    size: int  # The length of the log.
    is_rotated: bool = False  # The log is shorter than the offset: this is its new end.
    begin: int = 0  # Where the kept part of the log begins; the rest was given back to the disk.


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
    return block_before(file, end, length).part()


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of a log as bytes, and what follows the last line break."""

    data: bytes
    offset: int
    size: int  # The length of the log.
    begin: int  # Where the kept part of the log begins.

    def part(self) -> Part:
        """The block's lines."""
        return replace(_part(self.data, self.offset, self.size), begin=self.begin)


def block_before(file: BinaryIO, end: int | None, length: int) -> Block:
    """The block of the last lines before an offset; None: before the end of the log.

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
    return Block(data, start, size, begin)


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
    lines, at = [], offset
    for text in whole.split(b"\n") if whole or line_break else []:
        lines.append(Line(as_text(text), at, min(at + len(text) + 1, next_offset)))
        at += len(text) + 1
    return Part(
        lines=lines,
        unfinished=as_text(rest) if is_end else "",
        offset=offset,
        next_offset=next_offset,
        end=offset + len(data) if is_end else next_offset,
        size=size,
    )


def as_text(data: bytes) -> str:
    """A line as a terminal would show it, without colours."""
    text = without_colours(data.decode(errors="replace")).rstrip("\r").rpartition("\r")[2]
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}")


def without_colours(text: str) -> str:
    """The text without a terminal's escape sequences."""
    return _ANSI.sub("", text) if "\x1b" in text else text
