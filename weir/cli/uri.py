"""What a URI of checkpoint storage names: the storage, a job in it, or one checkpoint of a job.

A savepoint has two places: its number among its job's checkpoints, and the directory of its own,
which somebody may have moved. What lies there is believed, not the name of the directory.
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

# What lies in a job's directory; also of jobs that have no checkpoint yet.
_IN_JOB = re.compile(r"chk-\d+/.+|attempts/\d+")


@dataclass(frozen=True, slots=True)
class Place:
    """A checkpoint storage, and what of it is meant; None means all there is."""

    storage: str
    store: CheckpointStore
    job: JobId | None = None
    checkpoint: CheckpointId | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """One completed checkpoint or savepoint, and where its state lies."""

    manifest: Manifest
    uri: str  # The directory that is restored from.
    store: CheckpointStore  # Of its state.
    directory: str  # In that store: what the paths of its state are relative to.


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
        RestoreError: Nothing lies there, or a savepoint.
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
            f"there is nothing at {uri}; give the directory that the job got as --storage, the "
            "directory of a job in it, or that of a checkpoint (.../chk-7)"
        )
    if any(_IN_JOB.fullmatch(name) for name in names):
        root, _, job = whole.rpartition("/")
        return Place(root, store_for(root), JobId(unquote(job)))
    if SAVEPOINT_MANIFEST in names:
        raise RestoreError(
            f"{uri} is a savepoint by itself; `weir inspect {uri}` shows it, "
            f"`weir run PIPELINE --restore {uri}` goes on from it"
        )
    return Place(whole, store)


def find_checkpoint(uri: str) -> Found:
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
    return Found(state.manifest, named, state.store, state.directory)


def not_there(manifest: Manifest) -> str | None:
    """Why a savepoint is not where it was taken; None: it is, or the manifest is none of one.

    Raises:
        CorruptStateError: The manifest there is damaged.
        RestoreError: A newer version of Weir wrote it.
        ConfigError: The scheme of its place is not supported.
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
    found = load(store.read(SAVEPOINT_MANIFEST), path)
    if not isinstance(found, Manifest) or found.identity != manifest.identity:
        return f"savepoint {manifest.checkpoint_id} is not in {location}: another is; {moved}"
    return None


def name_of(location: str) -> str:
    """The name of a savepoint: the last part of its directory."""
    return unquote(location.rstrip("/").rpartition("/")[2])
