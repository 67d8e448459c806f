"""The progress of a state from checkpoint to checkpoint: its files at each, and the changes since.

A checkpoint is written as the changes since its *base*, which its barrier names: the checkpoint
that completed last before it was triggered. What changed between two barriers is an *interval*.
The changes since the base are those of all intervals behind it, however the checkpoints in between
ended. So one that was aborted, or that completed unheard of, loses nothing: its interval is
written again with the next one, and its own files are named by no other. Intervals and files that
are older than a base are dropped, since bases only grow.

Where the base is not known here, the state is written whole: at first, after a restore from files
that are not this job's own or were written for other key groups, and when more has changed since
the last completed checkpoint than is worth keeping track of.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

from weir.ids import CheckpointId, StateHandle

INTERVALS_MAX: Final = 16  # Since a base: of checkpoints that did not complete.
CHANGED_BYTES_MIN: Final = 16 << 20  # Of notes, which are kept however small the state is.
LOOK_EVERY: Final = 64  # Slices of records, from one look at the size of notes to the next.
ONLY: Final = 0  # The number of the table of a progress that has no other.

Files: TypeAlias = Mapping[int, Sequence[StateHandle]]  # By the number of a table.


class Changes(Protocol):
    """Notes on what changed between two barriers."""

    @property
    def size(self) -> int:
        """The bytes that the notes take."""


C = TypeVar("C", bound=Changes)


@dataclass(slots=True)
class _Interval(Generic[C]):
    """The changes up to a barrier, since the one before it."""

    up_to: CheckpointId
    changes: C


@dataclass(slots=True)
class _Known:
    """The shared files of a checkpoint, as far as they are written."""

    files: dict[int, tuple[StateHandle, ...]] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """The size of all files, in bytes."""
        return sum(handle.size for files in self.files.values() for handle in files)


@dataclass(frozen=True, slots=True)
class Since(Generic[C]):
    """The files and changes that one checkpoint builds on."""

    files: Files  # Of its base; empty: there is none.
    intervals: Sequence[C]  # Since its base.
    _own: _Known

    def store(self, table: int, handles: Sequence[StateHandle]) -> None:
        """The shared files of a table in this checkpoint, for later ones to build on."""
        self._own.files[table] = tuple(handles)


class Progress(Generic[C]):
    """The progress of all tables of one operator subtask; one thread at a time uses it."""

    def __init__(self, make: Callable[[], C]) -> None:
        """``make`` begins the notes of an interval."""
        self.now: C | None = None  # Since the last barrier. None: not kept track of.
        self._make = make
        self._known: dict[CheckpointId, _Known] = {}
        self._intervals: deque[_Interval[C]] = deque()  # Oldest first.
        self._slices = 0  # Since the size of notes was last looked at.

    def begin(self, checkpoint_id: CheckpointId, files: Files) -> None:
        """The tables are as this checkpoint has them."""
        known = {number: tuple(handles) for number, handles in files.items()}
        self._known[checkpoint_id] = _Known(known)
        self.now = self._make()

    def limit(self, bytes_max: int | None = None) -> None:
        """Keep track no more where more has changed than is worth it, or notes take more bytes."""
        whole = max((known.size for known in self._known.values()), default=0)
        worth = max(CHANGED_BYTES_MIN, whole)
        if self._size > (worth if bytes_max is None else min(worth, bytes_max)):
            self._drop()

    def limit_at_times(self, bytes_max: int | None = None) -> None:
        """``limit`` at every 64th call: one comes with each slice of records."""
        self._slices += 1
        if self._slices >= LOOK_EVERY:
            self._slices = 0
            self.limit(bytes_max)

    def close(self, checkpoint_id: CheckpointId, base_id: CheckpointId) -> Since[C]:
        """A barrier ends the interval before it; the files and changes of its checkpoint."""
        if self.now is not None:
            self._intervals.append(_Interval(checkpoint_id, self.now))
        if len(self._intervals) > INTERVALS_MAX:
            self._drop()
        for old in [number for number in self._known if number < base_id]:
            del self._known[old]
        while self._intervals and self._intervals[0].up_to <= base_id:
            self._intervals.popleft()
        base = self._known.get(base_id)
        files = {} if base is None else base.files
        intervals = () if base is None else tuple(one.changes for one in self._intervals)
        own = self._known[checkpoint_id] = _Known()
        self.now = self._make()
        return Since(files, intervals, own)

    @property
    def _size(self) -> int:
        now = 0 if self.now is None else self.now.size
        return now + sum(one.changes.size for one in self._intervals)

    def _drop(self) -> None:
        """Keep track no more, until the next barrier."""
        self._known.clear()
        self._intervals.clear()
        self.now = None
