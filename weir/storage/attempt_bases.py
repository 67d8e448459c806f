"""The bases of a job's attempts: a small file per attempt, read back as their tree."""

import json
from dataclasses import replace

from weir.errors import CorruptStateError, ProtocolError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.lineage import ANY_ATTEMPT, AttemptBase
from weir.protocol.wire import from_wire, to_wire
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore, PathNotFoundError


def note_base(store: CheckpointStore, job_id: JobId, base: AttemptBase) -> None:
    """Store the base of an attempt, before anything acts on it."""
    own = base.restored_id if base.restored_job is None else None
    data = json.dumps(to_wire(base), sort_keys=True).encode()
    store.put(JobLayout(job_id).base(base.attempt, own), data)


def bases_of(store: CheckpointStore, job_id: JobId) -> dict[AttemptNumber, AttemptBase]:
    """The base of each attempt of a job; attempts without a stored base are left out.

    Raises:
        CorruptStateError: A record is damaged.
        StorageError: The storage failed.
    """
    layout = JobLayout(job_id)
    bases: dict[AttemptNumber, AttemptBase] = {}
    for path in sorted(store.list(layout.bases), key=layout.base_of):
        try:
            data = store.read(path)
        except PathNotFoundError:
            continue  # Deleted since it was listed: the job finished.
        attempt, restored = layout.base_of(path)
        base = _read(path, data) if data else _of_name(attempt, restored, bases)
        bases[base.attempt] = base
    return bases


def _read(path: str, data: bytes) -> AttemptBase:
    try:
        return from_wire(AttemptBase, json.loads(data))
    except (ValueError, RecursionError, ProtocolError) as cause:
        raise CorruptStateError(
            f"{path} cannot be used: it is damaged ({cause}); put the file back, or start the job "
            "as a new one from a checkpoint"
        ) from cause


def _of_name(
    attempt: AttemptNumber, restored: CheckpointId, older: dict[AttemptNumber, AttemptBase]
) -> AttemptBase:
    """The base of an empty file, by its name: version 1 stored the checkpoint's id alone."""
    base = AttemptBase(attempt, CheckpointId(restored + 1))
    if not restored:
        return base
    # Version 1 restored from its newest line alone, so the checkpoint belongs to the latest attempt
    # that could have taken it.
    takers = [number for number, other in older.items() if other.next_id <= restored]
    taker = max(takers, default=ANY_ATTEMPT)
    return replace(base, restored_id=restored, restored_attempt=taker)
