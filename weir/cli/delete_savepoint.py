"""``weir savepoint --delete``: the only way to delete a savepoint that no control plane manages.

Deleted are the files that the savepoint's manifest names, and none that lie beside them. Its
checkpoint number stays used, with a tombstone in place of the manifest: a sink's files carry the
number of their checkpoint, and a job that used a number twice would confuse the two.
"""

import os
import sys
import time
from dataclasses import dataclass

from weir.cli import formats
from weir.cli.confirm import confirmed
from weir.cli.uri import (
    LocatedCheckpoint,
    absolute,
    find_checkpoint,
    jobs_in,
    name_of,
    not_there,
)
from weir.errors import CorruptStateError, RestoreError
from weir.ids import CheckpointId, JobId
from weir.protocol.elements import CheckpointKind
from weir.protocol.pending import SAVEPOINT_KINDS
from weir.storage.attempt_bases import bases_of
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import (
    SAVEPOINT_MANIFEST,
    JobLayout,
    savepoint_state,
    storage_of_savepoint,
)
from weir.storage.manifest import Manifest, Tombstone, dump, list_checkpoints, load
from weir.storage.memory import MemoryStore
from weir.storage.store import CheckpointStore, PathNotFoundError, store_for

DELETED, KEPT = 0, 1
_REASON = "it was a savepoint, which was deleted on request"


@dataclass(frozen=True, slots=True)
class _Key:
    """The manifest of a savepoint in its job's directory, under its checkpoint number."""

    store: CheckpointStore
    path: str

    def read(self) -> Manifest | None:
        """The manifest; None: there is none, or a tombstone is in its place."""
        try:
            manifest = load(self.store.read(self.path), self.path)
        except PathNotFoundError:
            return None
        return manifest if isinstance(manifest, Manifest) else None


def run(uri: str, *, is_sure: bool) -> int:
    """Show the savepoint at ``uri`` and delete it, after confirmation unless ``is_sure``.

    Raises:
        RestoreError: There is no savepoint there, a job needs it, or no terminal can confirm.
        CorruptStateError: Its manifest is damaged.
        StorageError: The storage failed.
    """
    savepoint, key = _find(uri)
    manifest = savepoint.manifest
    if manifest.kind not in SAVEPOINT_KINDS or manifest.location is None:
        raise RestoreError(
            f"{uri} is no savepoint but a checkpoint; the job deletes its checkpoints by itself"
        )
    storages = _storages(savepoint, key)
    for storage in storages:
        _check_unneeded(storage, manifest)
    is_here = savepoint.store.exists(SAVEPOINT_MANIFEST)
    _show(savepoint, has_key=key is not None, is_here=is_here)
    advice = (
        "deleting a savepoint needs confirmation, and standard input is no terminal; give --yes"
    )
    if not is_sure and not confirmed("delete the savepoint?", advice):
        _say("nothing was deleted")
        return KEPT
    if key is not None:
        _write_tombstone(key, manifest)
    try:
        # Again: a job may have restored it since the first check, as while the prompt waited. A job
        # that reads the number from now on sees the tombstone; one that read it before has noted
        # its base by now.
        for storage in storages:
            _check_unneeded(storage, manifest)
    except RestoreError:
        if key is not None:
            key.store.put(key.path, dump(manifest))
        raise
    if is_here:
        _delete_files(savepoint)
    _say("the savepoint is deleted")
    return DELETED


def _find(uri: str) -> tuple[LocatedCheckpoint, _Key | None]:
    """The savepoint, and the job's own manifest of it where that can be reached.

    A URI with the checkpoint number also names a savepoint whose directory was moved away: its
    number can still be given up.
    """
    place = RestoreRequest.parse(absolute(uri))
    if place.job_id is not None and place.checkpoint_id is not None:
        key = _Key(store_for(place.storage), JobLayout(place.job_id).manifest(place.checkpoint_id))
        manifest = key.read()
        if manifest is not None and manifest.location is not None and not_there(manifest):
            nothing = MemoryStore()
            return LocatedCheckpoint(manifest, manifest.location, nothing, ""), key
    savepoint = find_checkpoint(uri)
    return savepoint, _key_of(savepoint)


def _key_of(savepoint: LocatedCheckpoint) -> _Key | None:
    """The manifest in the job's directory, if the savepoint's location tells the storage.

    None also for a copy: while the original is where it was taken, the number is the original's.
    """
    layout = JobLayout(savepoint.manifest.job_id)
    for store in _storages(savepoint, None):
        key = _Key(store, layout.manifest(savepoint.manifest.checkpoint_id))
        manifest = key.read()
        if manifest is None or manifest.identity != savepoint.manifest.identity:
            continue
        if _is_same(manifest.location, savepoint.uri) or not_there(manifest) is not None:
            return key
    return None


def _storages(savepoint: LocatedCheckpoint, key: _Key | None) -> list[CheckpointStore]:
    """The known storages whose jobs may need the savepoint."""
    if key is not None:
        return [key.store]
    roots = {}  # Of its location now and when taken, where these follow the default layout.
    for place in (savepoint.uri, savepoint.manifest.location or ""):
        if (root := storage_of_savepoint(place)) is not None:
            roots[root] = store_for(root)
    return list(roots.values())


def _is_same(location: str | None, uri: str) -> bool:
    return location is not None and os.path.realpath(location) == os.path.realpath(uri)


def _check_unneeded(store: CheckpointStore, manifest: Manifest) -> None:
    """Check that no job of the storage has this savepoint as its only restore point.

    Raises:
        RestoreError: A job has no other, or its notes are damaged.
    """
    for job in sorted(jobs_in(store)):
        user = None if store.exists(JobLayout(job).finished) else _user(store, job, manifest)
        if user is not None:
            directory = JobLayout(job).directory
            raise RestoreError(
                f"attempt {user} of job {job} restored savepoint {manifest.checkpoint_id} of "
                f"job {manifest.job_id} and has completed no checkpoint since: without the "
                "savepoint it could not be restored. Delete the savepoint after that job's next "
                f"checkpoint; or, if that job is over, delete its directory {directory} in the "
                "storage first"
            )


def _user(store: CheckpointStore, job: JobId, manifest: Manifest) -> int | None:
    """The newest attempt of a job, if this savepoint is its only restore point."""
    try:
        bases = bases_of(store, job)
    except CorruptStateError as error:
        raise RestoreError(f"cannot tell whether job {job} needs the savepoint: {error}") from error
    if not bases:
        return None
    newest = bases[max(bases)]
    restored = (newest.restored_job or job, newest.restored_id)
    if restored != (manifest.job_id, manifest.checkpoint_id):
        return None
    return None if has_completed(store, job, newest.next_id) else newest.attempt


def has_completed(store: CheckpointStore, job: JobId, first: CheckpointId) -> bool:
    """Whether the job has a checkpoint of this number or a later one."""
    return any(
        isinstance(stored.manifest, Manifest)
        and stored.manifest.kind not in SAVEPOINT_KINDS
        and stored.checkpoint_id >= first
        for stored in list_checkpoints(store, job)
    )


def _show(savepoint: LocatedCheckpoint, *, has_key: bool, is_here: bool) -> None:
    manifest = savepoint.manifest
    _say(
        f"savepoint {name_of(savepoint.uri)} of {manifest.job_name} ({manifest.job_id}), "
        f"checkpoint {manifest.checkpoint_id}, {manifest.kind}: taken "
        f"{formats.moment(manifest.completed_ms)}, {formats.size(manifest.state_size)}, in "
        f"{savepoint.uri}"
    )
    if not is_here:
        _say("its directory is not there any more: only the job's note of it is deleted")
    if not has_key:
        _say("it is a copy, or its job's directory is not known: only this directory is deleted")
    if manifest.kind is not CheckpointKind.SAVEPOINT:
        _say("a job was stopped with it: without it, the job cannot resume from where it stopped")


def _write_tombstone(key: _Key, manifest: Manifest) -> None:
    # Before the files go: a manifest of a savepoint whose files are gone would look damaged.
    tombstone = Tombstone(
        job_id=manifest.job_id,
        checkpoint_id=manifest.checkpoint_id,
        attempt=manifest.attempt,
        given_up_ms=time.time_ns() // 1_000_000,
        reason=_REASON,
    )
    key.store.put(key.path, dump(tombstone))


def _delete_files(savepoint: LocatedCheckpoint) -> None:
    own, manifest = savepoint.store, savepoint.manifest
    own.delete_prefix(savepoint_state(manifest.checkpoint_id, manifest.attempt))
    own.delete(SAVEPOINT_MANIFEST)  # Last: until then a repeated command finishes the deletion.
    if foreign := own.list():
        others = formats.counted(len(foreign), "other file")
        _say(f"left in {savepoint.uri}: {others}, such as {foreign[0]}")
    else:
        own.delete_if_empty()  # Another savepoint written there since the listing stays.


def _say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr)
