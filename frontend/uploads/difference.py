"""The difference of two texts, line by line, with the lines around each change. Pure, bounded.

Source: difflib, whose time grows with the square of the lines that are compared; those that both
texts begin and end with are left out first.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import takewhile
from typing import Literal

CONTEXT_LINES = 3
LINES_MAX = 1_000  # Of each text, between what both begin and end with: about a second at worst.

Kind = Literal["same", "old", "new", "gap"]


@dataclass(frozen=True, slots=True)
class Row:
    """One line, in the old text, the new one or both; or a gap between two changes."""

    kind: Kind
    old: int | None = None  # Its number, from 1.
    new: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True)
class Difference:
    """The changes that lead from one text to the other."""

    rows: tuple[Row, ...] = ()
    added: int = 0
    removed: int = 0
    is_too_large: bool = False  # There are changes, of more than LINES_MAX lines.


def compare(old: Sequence[str], new: Sequence[str]) -> Difference:
    """The difference of two texts' lines; without rows where they are equal."""
    shorter = min(len(old), len(new))
    head = _equal(zip(old, new, strict=False))
    tail = min(_equal(zip(reversed(old), reversed(new), strict=False)), shorter - head)
    if len(old) == len(new) == head:
        return Difference()
    if max(len(old), len(new)) - head - tail > LINES_MAX:
        return Difference(is_too_large=True)
    begin = max(0, head - CONTEXT_LINES)
    after = max(0, tail - CONTEXT_LINES)
    rows = tuple(_rows(old[begin : len(old) - after], new[begin : len(new) - after], begin))
    ends_early = after > 0
    return Difference(
        rows=(*([Row("gap")] if begin else []), *rows, *([Row("gap")] if ends_early else [])),
        added=sum(row.kind == "new" for row in rows),
        removed=sum(row.kind == "old" for row in rows),
    )


def _equal(pairs: Iterator[tuple[str, str]]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _rows(old: Sequence[str], new: Sequence[str], before: int) -> Iterator[Row]:
    """The rows of the changes; ``before`` lines of both texts come before these."""
    groups = SequenceMatcher(None, old, new).get_grouped_opcodes(CONTEXT_LINES)
    for number, group in enumerate(groups):
        if number:
            yield Row("gap")
        for kind, old_begin, old_end, new_begin, new_end in group:
            if kind == "equal":
                for at, line in enumerate(old[old_begin:old_end]):
                    yield Row(
                        "same", before + old_begin + at + 1, before + new_begin + at + 1, line
                    )
                continue
            for at, line in enumerate(old[old_begin:old_end]):
                yield Row("old", old=before + old_begin + at + 1, text=line)
            for at, line in enumerate(new[new_begin:new_end]):
                yield Row("new", new=before + new_begin + at + 1, text=line)
