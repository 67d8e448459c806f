"""Dictionaries, one per key group, that frozen views share with the live state.

A view copies nothing when it is made. While it lives, the loop writes into the view's *log* the
value before the first change of each key. The snapshot thread copies one group's dictionary when it
reaches it and puts back the old values of the log. After its last read of a group, or of all
groups, there is no log any more.

So freezing costs O(key groups), a change costs the loop one more look-up, and the loop never waits
between two records for a group, or all of them, to be copied.

No lock is needed. The loop logs before it changes, the snapshot thread copies before it reads the
log, and both the copy of a dictionary and every access to one are a single step under the
interpreter lock (keys are ints, strs, bytes or tuples of these, whose comparison runs no Python
code). A change that the copy saw is therefore always in the log; one that it did not see may be in
the log as well, and putting back an unchanged value has no effect.

Where checkpoints are incremental, the keys that change between two barriers are noted as well
(``note_changes``), without their values: a checkpoint takes those from its view.

An operator that may have to undo a record keeps one more log, the *changes* since it last began one
(``record_changes``). It is the last of the views, so that ``StateTable.own`` copies a mutable value
once per record, and the value that is put back is the untouched one.

Mutable values are shared by both sides even after the copy, until the view is released: their owner
copies them before the first use (``StateTable.own``), and the log, kept to the end, tells which
ones it has already copied.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")

_ABSENT: Final = object()  # In a log: the key was not there.
_NOTE_BYTES: Final = 100  # Of a key in a dictionary.


class SharedTables(Generic[K]):
    """One dictionary per key group. ``tables`` may be read freely; changes go through methods."""

    __slots__ = ("_changes", "_logs", "_values_mutable", "noted", "tables", "views")

    def __init__(self, groups: int, *, values_mutable: bool = False) -> None:
        self.tables: tuple[dict[K, Any], ...] = tuple([{} for _ in range(groups)])
        # Views that are not released, oldest first; the log of changes last.
        self._logs: tuple[FrozenTables[K] | ChangeLog[K], ...] = ()
        self.noted: NotedKeys[K] | None = None  # None: changed keys are not noted.
        # Not empty: a change has to be logged or noted.
        self.views: tuple[FrozenTables[K] | ChangeLog[K] | NotedKeys[K], ...] = ()
        self._changes: ChangeLog[K] | None = None
        self._values_mutable = values_mutable

    def put(self, group: int, key: K, value: Any) -> None:
        """Set the value of a key."""
        if self.views:
            self.log(group, key)
        self.tables[group][key] = value

    def remove(self, group: int, key: K) -> None:
        """Remove a key, if it exists."""
        if self.views:
            self.log(group, key)
        self.tables[group].pop(key, None)

    def log(self, group: int, key: K) -> None:
        """Log the value of a key that is about to change, for all views, and note the key."""
        if self.noted is not None:
            self.noted[group][key] = True
            if not self._logs:
                return
        before = self.tables[group].get(key, _ABSENT)
        for view in self._logs:
            log = view.logs[group]
            if log is not None:
                log.setdefault(key, before)

    def freeze(self) -> "FrozenTables[K]":
        """A view of all dictionaries as they are now.

        Units: O(key groups), independent of the number of keys.
        """
        view = FrozenTables(self.tables, keep_logs=self._values_mutable)
        logs = (*self._logs, view)
        if (changes := self._changes) is not None:
            changes.clear()  # The view shares what was copied before.
            logs = (*(other for other in logs if other is not changes), changes)
        self._set(logs)
        return view

    def release(self, view: "FrozenTables[K]") -> None:
        """Stop logging for this view."""
        self._set(tuple(other for other in self._logs if other is not view))

    def note_changes(self, noted: "NotedKeys[K] | None") -> None:
        """Note all keys that change from now on; None: none of them."""
        self.noted = noted
        self._set(self._logs)

    def record_changes(self) -> "ChangeLog[K]":
        """Log all changes from now on, so that ``undo`` can put values back."""
        if self._changes is None:
            self._changes = ChangeLog()
            self._set((*self._logs, self._changes))
        return self._changes

    def undo(self) -> None:
        """Put back every value that has changed since the log was cleared."""
        changes = self._changes
        if changes is None:
            return
        for group, log in changes.logs.items():
            for key, before in list(log.items()):
                if before is _ABSENT:
                    self.remove(group, key)
                else:
                    self.put(group, key, before)
        changes.clear()

    def _set(self, logs: "tuple[FrozenTables[K] | ChangeLog[K], ...]") -> None:
        self._logs = logs
        self.views = logs if self.noted is None else (*logs, self.noted)

    def __len__(self) -> int:
        return sum(map(len, self.tables))


class NotedKeys(dict[int, dict[K, bool]]):
    """The keys that changed in one interval between two barriers, by group.

    ``is_there``: whether a timer is there at the end; of other keys the view of the barrier has it.
    """

    def __missing__(self, group: int) -> dict[K, bool]:
        noted = self[group] = {}
        return noted

    def note(self, group: int, key: K, is_there: bool) -> None:
        """A key has changed, after all that are noted so far."""
        noted = self[group]
        noted.pop(key, None)
        noted[key] = is_there

    @staticmethod
    def merged(intervals: "Iterable[NotedKeys[K]]") -> "NotedKeys[K]":
        """The keys of all intervals, each with its last note."""
        first, *others = intervals
        if not others:
            return first
        merged = NotedKeys[K]()
        for noted in (first, *others):
            for group, keys in noted.items():
                for key, is_there in keys.items():
                    merged.note(group, key, is_there)
        return merged

    @property
    def count(self) -> int:
        """The number of keys."""
        return sum(map(len, self.values()))

    @property
    def size(self) -> int:
        """The bytes that the notes take, about: the keys are those of the tables."""
        return _NOTE_BYTES * self.count


class _LogsByGroup(dict[int, dict[K, Any]]):
    def __missing__(self, group: int) -> dict[K, Any]:
        log = self[group] = {}
        return log


class ChangeLog(Generic[K]):
    """The value before the first change of each key, by group, since the log was cleared."""

    __slots__ = ("logs",)

    def __init__(self) -> None:
        self.logs: _LogsByGroup[K] = _LogsByGroup()

    def clear(self) -> None:
        """Forget the changes so far: they stay."""
        if self.logs:
            self.logs.clear()


class FrozenTables(Generic[K]):
    """The dictionaries as they were when the view was made; any thread may read them.

    Shape: one dictionary per key group, in order.
    """

    __slots__ = ("_count", "_keep_logs", "_tables", "logs")

    def __init__(self, tables: tuple[dict[K, Any], ...], *, keep_logs: bool) -> None:
        self._tables = tables
        self._count = sum(map(len, tables))
        self._keep_logs = keep_logs
        self.logs: list[dict[K, Any] | None] = [{} for _ in tables]  # None: read for the last time.

    def group(self, group: int, *, last: bool = False) -> Mapping[K, Any]:
        """A copy of the dictionary of one group, which cannot be read again after ``last``."""
        copied = self._tables[group].copy()
        log = self.logs[group]
        assert log is not None, "a group is read again after its last look"
        for key, before in list(log.items()):
            if before is _ABSENT:
                copied.pop(key, None)
            else:
                copied[key] = before
        if last and not self._keep_logs:
            self.logs[group] = None
        return copied

    def pieces(
        self, group: int, size: Callable[[], int], *, last: bool = False
    ) -> Iterator[tuple[list[K], list[Any]]]:
        """Keys and values of one group, some at a time; it cannot be read again after ``last``."""
        copied = self.group(group, last=last)
        # Keys and values apart: a tuple for each pair would cost more than the rest.
        left, left_values = iter(copied), iter(copied.values())
        while piece := list(islice(left, count := size())):
            yield piece, list(islice(left_values, count))

    def values_of(self, group: int, keys: Sequence[K]) -> list[Any]:
        """The values of some keys of one group; None: there is none."""
        log = self.logs[group]
        assert log is not None, "a group is read again after its last look"
        values = list(map(self._tables[group].get, keys))
        if log:  # Only now: what has changed before it was read is in the log.
            for n, key in enumerate(keys):
                before = log.get(key, values[n])
                values[n] = None if before is _ABSENT else before
        return values

    def end(self) -> None:
        """Drop the logs: no group is read again."""
        if not self._keep_logs:
            self.logs[:] = [None] * len(self.logs)

    @property
    def groups(self) -> range:
        """The indices of the groups."""
        return range(len(self._tables))

    @property
    def is_empty(self) -> bool:
        """Whether there was no entry at all."""
        return not self._count

    def __len__(self) -> int:
        """The number of entries of all groups."""
        return self._count
