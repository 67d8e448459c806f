"""What a URI of checkpoint storage names: the storage, a job in it, or one checkpoint of a job."""

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from weir.errors import RestoreError
from weir.ids import CheckpointId, JobId
from weir.runtime.recovery import RestoreRequest
from weir.storage.store import CheckpointStore, store_for

# What lies in a job's directory; also of jobs that have no checkpoint yet.
_IN_JOB = re.compile(r"chk-\d+/.+|attempts/\d+")
_CHECKPOINT = re.compile(r"(?:.*/)?chk-\d+")


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint storage, and what of it is meant; None means all there is."""

    storage: str
    store: CheckpointStore
    job: JobId | None = None
    checkpoint: CheckpointId | None = None


def absolute(uri: str) -> str:
    """A path as seen from anywhere; a URI with a scheme is that already."""
    return uri.rstrip("/") if urlsplit(uri).scheme else os.path.abspath(uri)


def jobs_in(store: CheckpointStore) -> set[JobId]:
    """Every job that ever ran on this storage and left something."""
    parts = (name.partition("/") for name in store.list())
    return {JobId(unquote(job)) for job, _, inside in parts if _IN_JOB.fullmatch(inside)}


def find_place(uri: str) -> Place:
    """What ``uri`` names, by what lies there.

    Raises:
        RestoreError: Nothing lies there.
        ConfigError: The scheme is not supported.
        StorageError: The storage cannot be read.
    """
    whole = absolute(uri)
    if _CHECKPOINT.fullmatch(whole.removesuffix("/manifest")):
        request = RestoreRequest.parse(whole.removesuffix("/manifest"))
        return Place(
            request.storage, store_for(request.storage), request.job_id, request.checkpoint_id
        )
    store = store_for(whole)
    names = store.list()
    if not names:
        raise RestoreError(
            f"there is nothing at {uri}; give the directory that the job got as --storage, the "
            "directory of a job in it, or that of a checkpoint (.../chk-7)"
        )
    if any(_IN_JOB.fullmatch(name) for name in names):
        root, _, job = whole.rpartition("/")
        return Place(root, store_for(root), JobId(unquote(job)))
    return Place(whole, store)
