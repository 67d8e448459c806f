"""URIs of checkpoint storage: a storage, a job in it, one checkpoint of a job, or a savepoint.

A savepoint has two places: its number among its job's checkpoints, and a directory of its own,
which may have been moved. The manifest in that directory identifies it, not the directory's name.
"""

import os
import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

from weir.errors import RestoreError
from weir.ids import CheckpointId, JobId
from weir.storage.catalog import RestoreRequest, find_state
from weir.storage.layout import SAVEPOINT_MANIFEST
from weir.storage.manifest import Manifest, load
from weir.storage.store import CheckpointStore, store_for

# Files in a job's directory; a job without a checkpoint has its attempts.
_IN_JOB = re.compile(r"chk-\d+/.+|attempts/\d+")


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint storage, or one job or checkpoint in it; None means all of them."""

    storage: str
    store: CheckpointStore
    job: JobId | None = None
    checkpoint: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class LocatedCheckpoint:
    """One completed checkpoint or savepoint, and the location of its state."""

    manifest: Manifest
    uri: str  # The directory that a restore reads.
    store: CheckpointStore  # Of its state.
    directory: str  # In that store: the paths of its state are relative to it.


def absolute(uri: str) -> str:
    """The absolute path; a URI with a scheme is absolute already. Without trailing slashes."""
    return uri.rstrip("/") if urlsplit(uri).scheme else os.path.abspath(uri)


def jobs_in(store: CheckpointStore) -> set[JobId]:
    """Every job that has files in this storage."""
    parts = (name.partition("/") for name in store.list())
    return {JobId(unquote(job)) for job, _, inside in parts if _IN_JOB.fullmatch(inside)}


def find_place(uri: str) -> Place:
    """The storage, job or checkpoint at ``uri``, told by the files there.

    Raises:
        RestoreError: There are no files, or those of a savepoint.
        ConfigError: The scheme is not supported.
        StorageError: The storage cannot be read.
    """
    whole = absolute(uri)
    request = RestoreRequest.parse(whole)
    if request.checkpoint_id is not None:
        store = store_for(request.storage)
        return Place(request.storage, store, request.job_id, request.checkpoint_id)
    store = store_for(whole)
    names = store.list()
    if not names:
        raise RestoreError(
            f"there is nothing at {uri}; give the directory that the job has as --storage, the "
            "directory of a job in it, or that of a checkpoint (.../chk-7)"
        )
    if any(_IN_JOB.fullmatch(name) for name in names):
        root, _, job = whole.rpartition("/")
        return Place(root, store_for(root), JobId(unquote(job)))
    if SAVEPOINT_MANIFEST in names:
        raise RestoreError(
            f"{uri} is a savepoint, not a storage or a job; `weir inspect {uri}` shows it, "
            f"`weir run PIPELINE --restore {uri}` restores it"
        )
    return Place(whole, store)


def find_checkpoint(uri: str) -> LocatedCheckpoint:
    """The checkpoint or savepoint that ``uri`` names.

    Raises:
        RestoreError: There is none, it was given up or moved, or a newer version of Weir wrote it.
        CorruptStateError: Its manifest is damaged.
        ConfigError: The scheme is not supported.
        StorageError: The storage cannot be read.
    """
    request = RestoreRequest.parse(absolute(uri))
    state = find_state(request)
    # A checkpoint lies in its job's directory, a savepoint in one of its own.
    named = state.storage if state.manifest.location is not None else request.uri
    return LocatedCheckpoint(state.manifest, named, state.store, state.directory)


def not_there(manifest: Manifest) -> str | None:
    """The reason why a savepoint is not where it was taken; None: it is, or it is a checkpoint.

    Raises:
        CorruptStateError: The manifest there is damaged.
        RestoreError: A newer version of Weir wrote it.
        ConfigError: The scheme of its location is not supported.
        StorageError: The storage cannot be read.
    """
    location = manifest.location
    if location is None:
        return None
    moved = "if it was moved, give the directory where it is now"
    store = store_for(location)
    if not store.exists(SAVEPOINT_MANIFEST):
        return f"savepoint {manifest.checkpoint_id} is not in {location} any more; {moved}"
    path = f"{location}/{SAVEPOINT_MANIFEST}"
    stored = load(store.read(SAVEPOINT_MANIFEST), path)
    if not isinstance(stored, Manifest) or stored.identity != manifest.identity:
        return f"savepoint {manifest.checkpoint_id} is not in {location}, but another one; {moved}"
    return None


def name_of(location: str) -> str:
    """The name of a savepoint: the last part of its directory."""
    return unquote(location.rstrip("/").rpartition("/")[2])
