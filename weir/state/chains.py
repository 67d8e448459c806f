"""Chains of state files: key groups that a file holds whole, and the changes of later checkpoints.

A state that is written incrementally is the files of its chain, read in their order. One of the
mode ``WHOLE`` begins its key groups anew: what the files before it say of them is void. One of the
mode ``CHANGES`` holds the keys that changed, or were removed, since the checkpoint before. One
without a mode goes on with the file before it, or stands for itself.

A chain stays short. A state is written whole in slices, sixteen files of a sixteenth of its key
groups each. Where the changes of a chain have half of the bytes that it holds whole, or are in 48
files, a checkpoint that writes changes rewrites the oldest slice as well, and files of which no
group is valid any more leave the chain. So a restore reads the changes of 64 checkpoints at most,
and at 1 % of changes two thirds more than the state at most. And where the changes of a chain are
larger than what it holds whole, the next checkpoint writes everything anew. So a checkpoint has at
most about three times the bytes of its state: what is whole, changes of that size, and the last
changes; after a change of parallelism also void parts of old slices, until all of their groups are
rewritten.

At 1 % of changes a checkpoint writes 3 % of the state, with a slice every third time. It would be
7 % with a slice each time, and 1 % without, at the price of ever longer restores.

A columnar table has no slices, for its rows lie in the order in which their keys came: a checkpoint
writes its changes until those have half of the bytes that are whole, or are in 64 files, and then
all of it anew.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from weir.ids import KeyGroupRange, StateHandle
from weir.protocol.deployment import RestoredHandle
from weir.protocol.restore import CHANGES, WHOLE
from weir.storage.layout import writer_of_shared

SLICES: Final = 16
_ONE_SLICE_BYTES: Final = 1 << 20  # Of a state that is no larger: files cost more than its bytes.
CHANGES_LONG: Final = 1 / 2  # The size of a chain's changes from which on slices are rewritten.
CHANGES_FILES_LONG: Final = 48  # And their number.
TABLE_CHANGES_LONG: Final = 1 / 2  # The size of a table's changes from which on it is written anew.
TABLE_FILES_LONG: Final = 64  # And their number.
TABLE_CHANGED_MAX: Final = 1 / 2  # The share of rows up to which changes are written alone.
CHANGES_MAX: Final = 1.0  # The size of a chain's changes, in sizes of what it holds whole.

Valid: TypeAlias = npt.NDArray[np.bool_]  # By the index of a key group.


def parts_to_read(
    pieces: Sequence[RestoredHandle], key_groups: KeyGroupRange
) -> list[tuple[RestoredHandle, Valid | None]]:
    """The pieces of keyed state that a restore reads, with the groups of which they are valid.

    The groups are counted from the first of ``key_groups``. None: of all groups.
    """
    latest: dict[str, npt.NDArray[np.int64]] = {}
    for index, piece in enumerate(pieces):
        if piece.handle.mode == WHOLE:
            latest.setdefault(piece.handle.name, _none(key_groups))
            span = _span(piece.key_groups or key_groups, key_groups)
            latest[piece.handle.name][span] = index
    read: list[tuple[RestoredHandle, Valid | None]] = []
    for index, piece in enumerate(pieces):
        since = latest.get(piece.handle.name)
        if since is None:
            read.append((piece, None))
            continue
        valid = since <= index
        if valid[_span(piece.key_groups or key_groups, key_groups)].any():
            read.append((piece, None if valid.all() else valid))
    return read


class Chain:
    """The files of one state in one subtask."""

    def __init__(self, files: Sequence[StateHandle], key_groups: KeyGroupRange) -> None:
        self._key_groups = key_groups
        self._since = _none(key_groups)  # The newest file that holds each group whole.
        for index, file in enumerate(files):
            if file.mode == WHOLE:
                self._since[self._span(file)] = index
        self._shares = [
            float((self._since[self._span(f)] <= i).mean()) for i, f in enumerate(files)
        ]
        self._files = files

    @property
    def files(self) -> tuple[StateHandle, ...]:
        """The files of which some group is valid."""
        return tuple(file for file, share in zip(self._files, self._shares, strict=True) if share)

    @property
    def is_long(self) -> bool:
        """Whether a slice of it is to be rewritten."""
        return self._has_changes(CHANGES_LONG, CHANGES_FILES_LONG)

    def is_table_due(self, changed: int, rows: int) -> bool:
        """Whether a table is to be written anew, so many of whose rows have changed now."""
        is_long = self._has_changes(TABLE_CHANGES_LONG, TABLE_FILES_LONG)
        return is_long or changed > TABLE_CHANGED_MAX * rows

    @property
    def is_too_long(self) -> bool:
        """Whether its changes are larger than what it holds whole."""
        return sum(self._changes) > CHANGES_MAX * self.whole_size

    @property
    def whole_size(self) -> int:
        """The bytes of the groups that it holds whole, about."""
        each = zip(self._files, self._shares, strict=True)
        return int(sum(file.size * share for file, share in each if file.mode != CHANGES))

    @property
    def _changes(self) -> list[int]:
        """The sizes of the files of changes."""
        return [file.size for file in self.files if file.mode == CHANGES]

    def _has_changes(self, part: float, files: int) -> bool:
        """Whether its changes have a part of what is whole, or are in so many files."""
        return sum(self._changes) >= part * self.whole_size or len(self._changes) >= files

    def next_slice(self) -> KeyGroupRange:
        """The key groups to rewrite next: those that were rewritten the longest ago."""
        first = int(self._since.argmin())
        last = min(first + _slice_length(self._key_groups), len(self._key_groups)) - 1
        return KeyGroupRange(self._key_groups.first + first, self._key_groups.first + last)

    def _span(self, file: StateHandle) -> slice:
        return _span(file.key_groups or self._key_groups, self._key_groups)


def slices(key_groups: KeyGroupRange, size: int) -> list[KeyGroupRange]:
    """The key groups of each file in which a state of this size is written; 0: not known."""
    if 0 < size <= _ONE_SLICE_BYTES:
        return [key_groups]
    length = _slice_length(key_groups)
    firsts = range(key_groups.first, key_groups.last + 1, length)
    return [KeyGroupRange(first, min(first + length - 1, key_groups.last)) for first in firsts]


def _slice_length(key_groups: KeyGroupRange) -> int:
    return -(-len(key_groups) // SLICES)


def is_shared(file: StateHandle, key_groups: KeyGroupRange) -> bool:
    """Whether later checkpoints may name a file, which holds nothing but these groups."""
    groups = file.key_groups
    return (
        file.path is not None
        and writer_of_shared(file.path) is not None
        and groups is not None
        and groups.first in key_groups
        and groups.last in key_groups
    )


def by_name(handles: Sequence[StateHandle]) -> dict[str, list[StateHandle]]:
    """The handles of each state, in their order."""
    ordered = sorted(handles, key=lambda handle: handle.name)
    return {name: list(own) for name, own in groupby(ordered, key=lambda handle: handle.name)}


def _none(key_groups: KeyGroupRange) -> npt.NDArray[np.int64]:
    return np.full(len(key_groups), -1, np.int64)


def _span(groups: KeyGroupRange, within: KeyGroupRange) -> slice:
    return slice(max(groups.first - within.first, 0), groups.last - within.first + 1)
