"""Entries of a log that a filter lets through, and the work that one look may take.

A search reads from an offset back to the log's beginning, block by block, and stops after so many
bytes or entries; where it stopped is where the next one goes on. A block in which the words do not
occur is not taken apart.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import BinaryIO

from frontend.about import log_tail
from frontend.about.log_entries import Entry, Wanted, list_entries, list_whole_entries
from frontend.about.log_tail import Block, Extent, Part

BLOCK_BYTES = 256 << 10
SEARCHED_BYTES_MAX = 32 << 20  # Of one look: about a tenth of a second.
PARSED_BYTES_MAX = 2 << 20  # Of blocks in which the words occur, perhaps in what is not shown.
ENTRIES_MAX = 300

_ERRORS = ("error", "fatal", "critical", "traceback", "exception")
_NAMES_OF_LEVELS = {"error": _ERRORS, "warning": ("warn", *_ERRORS)}


@dataclass(frozen=True, slots=True)
class Shown(Extent):
    """Entries of a part of a log. Units: bytes from the log's beginning."""

    entries: Sequence[Entry]
    unfinished: str  # The text after the last line break.
    offset: int  # Where the part begins: entries before it have not been looked at.
    next_offset: int  # Where to go on with what was written since.
    end: int
    size: int
    begin: int = 0  # Where the kept part of the log begins.
    is_rotated: bool = False
    count: int = 0  # All entries of the part, also those that the filter keeps back.


def before(file: BinaryIO, end: int | None) -> Shown:
    """The last entries before an offset; None: before the end of the log.

    Raises:
        OSError: The log cannot be read.
    """
    part = log_tail.before(file, end)
    entries, offset = _entries(part)
    return _shown(replace(part, offset=offset), entries)


def after(file: BinaryIO, offset: int, wanted: Wanted) -> Shown:
    """The entries from an offset on that a filter lets through; the last ones of a log that is
    shorter.

    The first entry may be the rest of one that was there before; it is left to the reader, who
    knows whether that one is shown.

    Raises:
        OSError: As for ``before``.
    """
    part = log_tail.after(file, offset)
    is_beginning = part.offset <= part.begin
    entries = list_entries(part.lines, is_beginning=is_beginning)
    if part.has_later:  # More lines may belong to the last entry, also behind blank ones.
        last = max((n for n, line in enumerate(part.lines) if line.text.strip()), default=0)
        sure = list_entries(part.lines[: last + 1], is_beginning=is_beginning)
        if len(sure) > 1:
            entries = sure[:-1]
            part = replace(part, next_offset=sure[-1].offset, end=sure[-1].offset)
    kept = [entry for entry in entries if entry.is_rest or wanted.matches(entry)]
    return replace(_shown(part, kept), count=len(entries))


def search(file: BinaryIO, end: int | None, wanted: Wanted) -> Shown:
    """The last entries before an offset that a filter lets through, as far as one look reaches.

    Raises:
        OSError: As for ``before``.
    """
    newest = log_tail.block_before(file, end, BLOCK_BYTES)
    last = newest.part()
    shown = Shown(
        [], last.unfinished, newest.offset, last.next_offset, last.end, newest.size, newest.begin
    )
    block, parsed, kept, is_over = newest, 0, list[Entry](), False
    while not is_over:
        offset = block.offset
        if _may_have(block, wanted):
            part = block.part()
            parsed += len(block.data)
            entries, offset = _entries(part)
            matching = [entry for entry in entries if wanted.matches(entry)]
            if len(kept) + len(matching) > ENTRIES_MAX:
                matching = matching[-(ENTRIES_MAX - len(kept)) :]
                offset = matching[0].offset
            kept = matching + kept
        shown = replace(shown, offset=offset, begin=block.begin)
        is_over = (
            not shown.has_earlier
            or len(kept) >= ENTRIES_MAX
            or shown.end - offset >= SEARCHED_BYTES_MAX
            or parsed >= PARSED_BYTES_MAX
        )
        if not is_over:
            block = log_tail.block_before(file, offset, BLOCK_BYTES)
    return replace(shown, entries=[entry.shown() for entry in kept])


def _entries(part: Part) -> tuple[list[Entry], int]:
    """The entries that begin in a part, and the offset of the first.

    The rest of an entry before it is shown with its beginning, as the end of the part before.
    """
    if part.offset <= part.begin:
        return list_entries(part.lines, is_beginning=True), part.offset
    entries = list_whole_entries(part.lines)
    return entries, entries[0].offset if entries else part.offset


def _may_have(block: Block, wanted: Wanted) -> bool:
    """Whether an entry of the block may match: its text has the words, as they are or in JSON."""
    text = log_tail.without_colours(block.data.decode(errors="replace")).casefold()
    names = _NAMES_OF_LEVELS.get(wanted.level)
    if names is not None and not any(name in text for name in names):
        return False
    words = wanted.words.casefold()
    forms = {words, *(json.dumps(words, ensure_ascii=ascii)[1:-1] for ascii in (True, False))}
    return any(form in text for form in forms)


def _shown(part: Part, entries: Sequence[Entry]) -> Shown:
    return Shown(
        [entry.shown() for entry in entries],
        part.unfinished,
        part.offset,
        part.next_offset,
        part.end,
        part.size,
        part.begin,
        part.is_rotated,
        len(entries),
    )
