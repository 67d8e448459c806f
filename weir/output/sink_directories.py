"""The note of the directories that a job's sinks write to, in its checkpoint storage.

A job that dies before its first checkpoint has no manifest that names them; by the note its waiting
files are found (``weir.output.sweeping``). It holds every directory that any attempt wrote to.
"""

import json
from collections.abc import Collection

from weir.ids import JobId
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, PathNotFoundError


def note_directories(store: CheckpointStore, job_id: JobId, directories: Collection[str]) -> None:
    """Add directories to the note, before anything is written there.

    Raises:
        StorageError: The storage failed.
    """
    known = noted_directories(store, job_id) if directories else frozenset()
    if not known.issuperset(directories):
        data = json.dumps(sorted(known.union(directories))).encode()
        store.put(JobLayout(job_id).outputs, data)


def noted_directories(store: CheckpointStore, job_id: JobId) -> frozenset[str]:
    """The directories in the note; none where it is missing or damaged.

    Raises:
        StorageError: The storage failed.
    """
    try:
        noted = json.loads(store.read(JobLayout(job_id).outputs))
    except PathNotFoundError:
        return frozenset()
    except ValueError:
        return frozenset()  # The manifests of completed checkpoints name them too.
    is_known = isinstance(noted, list) and all(isinstance(one, str) for one in noted)
    return frozenset(noted if is_known else ())
