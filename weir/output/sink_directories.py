"""The note of the directories that a job's sinks write to, in its checkpoint storage.

A job that dies before its first checkpoint has no manifest that names them; by the note its waiting
files are found (``weir.output.sweeping``). It holds every directory that any attempt wrote to, and
the storage that it was written in. In a copy of that storage, a backup that is tried elsewhere say,
the note is another's: files that the copy has no need of may be all that the original has.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass

from weir.ids import JobId
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, PathNotFoundError


@dataclass(frozen=True, slots=True)
class SinkDirectories:
    """The directories in a note; none where it is missing, damaged, or names no storage."""

    storage: str = ""  # Its location when they were noted.
    names: frozenset[str] = frozenset()

    def of_storage(self, store: CheckpointStore) -> frozenset[str]:
        """Those that were noted in this storage where it is now, not in one it is a copy of."""
        return self.names if self.storage == store.location else frozenset()


def note_directories(store: CheckpointStore, job_id: JobId, directories: Collection[str]) -> None:
    """Add directories to the note, before anything is written there.

    Raises:
        StorageError: The storage failed.
    """
    known = noted_directories(store, job_id).of_storage(store) if directories else frozenset()
    if not known.issuperset(directories):
        note = {"storage": store.location, "directories": sorted(known.union(directories))}
        store.put(JobLayout(job_id).outputs, json.dumps(note).encode())


def noted_directories(store: CheckpointStore, job_id: JobId) -> SinkDirectories:
    """The note.

    Raises:
        StorageError: The storage failed.
    """
    try:
        noted = json.loads(store.read(JobLayout(job_id).outputs))
    except (PathNotFoundError, ValueError):
        return SinkDirectories()
    match noted:
        case {"storage": str(storage), "directories": [*names]} if all(
            isinstance(name, str) for name in names
        ):
            return SinkDirectories(storage, frozenset(names))
        case _:
            return SinkDirectories()
