"""Dictionaries, one per key group, that a frozen view shares with the state that goes on changing.

A view copies nothing when it is made. While it lives, the loop notes in the view's *log* what was
there before the first change of each key. The snapshot thread copies one group's dictionary when it
gets to it and puts back what the log says changed meanwhile. After its last look at a group, or at
all of them, there is no log any more.
So freezing costs O(key groups), a change costs the loop one more look-up, and nobody ever waits for
a whole group, or all of them, to be copied between two records.

No lock is needed. The loop logs before it changes, the snapshot thread copies before it reads the
log, and both the copy of a dictionary and every access to one are a single step under the
interpreter lock (keys are ints, strs, bytes or tuples of these, whose comparison runs no Python
code). A change that the copy saw is therefore always in the log; one that it did not see may be
there as well, and putting back what is still there changes nothing.

Values that can be changed in place are shared by both sides even after the copy, until the view is
released: their owner copies them before the first use (``StateTable.own``), and the log, kept to
the end, says which ones it has already copied.
"""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

K = TypeVar("K")

_ABSENT: Final = object()  # In a log: the key was not there.


class SharedTables(Generic[K]):
    """One dictionary per key group. ``tables`` may be read freely; changes go through methods."""

    __slots__ = ("_values_mutable", "tables", "views")

    def __init__(self, groups: int, *, values_mutable: bool = False) -> None:
        self.tables: tuple[dict[K, Any], ...] = tuple({} for _ in range(groups))
        self.views: tuple[FrozenTables[K], ...] = ()  # Those alive, oldest first.
        self._values_mutable = values_mutable

    def put(self, group: int, key: K, value: Any) -> None:
        """Set the value of a key."""
        if self.views:
            self.log(group, key)
        self.tables[group][key] = value

    def remove(self, group: int, key: K) -> None:
        """Forget a key, if it is there."""
        if self.views:
            self.log(group, key)
        self.tables[group].pop(key, None)

    def log(self, group: int, key: K) -> None:
        """Note for all views what stands under a key that is about to change."""
        before = self.tables[group].get(key, _ABSENT)
        for view in self.views:
            log = view.logs[group]
            if log is not None:
                log.setdefault(key, before)

    def freeze(self) -> "FrozenTables[K]":
        """A view of everything as it is now.

        Units: O(key groups), whatever the number of keys.
        """
        view = FrozenTables(self.tables, keep_logs=self._values_mutable)
        self.views = (*self.views, view)
        return view

    def release(self, view: "FrozenTables[K]") -> None:
        """Log nothing more for this view."""
        self.views = tuple(other for other in self.views if other is not view)

    def __len__(self) -> int:
        return sum(map(len, self.tables))


class FrozenTables(Generic[K]):
    """The dictionaries as they were when the view was made; any thread may read them.

    Shape: one dictionary per key group, in order.
    """

    __slots__ = ("_count", "_keep_logs", "_tables", "logs")

    def __init__(self, tables: tuple[dict[K, Any], ...], *, keep_logs: bool) -> None:
        self._tables = tables
        self._count = sum(map(len, tables))
        self._keep_logs = keep_logs
        self.logs: list[dict[K, Any] | None] = [{} for _ in tables]  # None: taken for good.

    def group(self, group: int, *, last: bool = False) -> Mapping[K, Any]:
        """The dictionary of one group, a copy; after the ``last`` look it is gone."""
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

    def end(self) -> None:
        """That was the last look at every group."""
        if not self._keep_logs:
            self.logs[:] = [None] * len(self.logs)

    @property
    def groups(self) -> range:
        """The places of the groups."""
        return range(len(self._tables))

    def __len__(self) -> int:
        """How many entries all groups had."""
        return self._count
