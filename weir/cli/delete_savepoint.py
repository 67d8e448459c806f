"""``weir savepoint --delete``: nobody else deletes a savepoint of a job that no control plane runs.

What goes is what its manifest names, and nothing that lies beside it. The number stays used, with a
note in its place: the files of a sink are known by the number of their checkpoint, and a job that
used it twice would take the second for the first.
"""

import os
import sys
import time
from dataclasses import dataclass

from weir.cli import formats
from weir.cli.uri import (
    Found,
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
    """The file of a savepoint's number in its job's directory."""

    store: CheckpointStore
    path: str

    def read(self) -> Manifest | None:
        """What it says; None: there is none, or the number was given up."""
        try:
            manifest = load(self.store.read(self.path), self.path)
        except PathNotFoundError:
            return None
        return manifest if isinstance(manifest, Manifest) else None


def run(uri: str, *, is_sure: bool) -> int:
    """Show the savepoint at ``uri`` and delete it, once somebody is sure of that.

    Raises:
        RestoreError: There is no savepoint there, or its job needs it.
        CorruptStateError: It cannot be told what it is.
        StorageError: The storage failed.
    """
    found, key = _find(uri)
    manifest = found.manifest
    if manifest.kind not in SAVEPOINT_KINDS or manifest.location is None:
        raise RestoreError(
            f"{uri} is no savepoint but a checkpoint, which the job deletes by itself"
        )
    storages = _storages(found, key)
    for storage in storages:
        _check_unneeded(storage, manifest)
    is_here = found.store.exists(SAVEPOINT_MANIFEST)
    _show(found, has_key=key is not None, is_here=is_here)
    if not is_sure and not _confirmed():
        _say("nothing was deleted")
        return KEPT
    if key is not None:
        _leave_note(key, manifest)
    try:
        # Again: a job may have gone on from it meanwhile, or while the answer was waited for. One
        # that looks from now on sees the note, and one that looked before has said so by now.
        for storage in storages:
            _check_unneeded(storage, manifest)
    except RestoreError:
        if key is not None:
            key.store.put(key.path, dump(manifest))
        raise
    if is_here:
        _delete_files(found)
    _say("the savepoint is deleted")
    return DELETED


def _find(uri: str) -> tuple[Found, _Key | None]:
    """The savepoint, and the job's own manifest of it where that can be reached.

    By its number a savepoint is found as well if it was moved away: the number can still be given
    up.
    """
    place = RestoreRequest.parse(absolute(uri))
    if place.job_id is not None and place.checkpoint_id is not None:
        key = _Key(store_for(place.storage), JobLayout(place.job_id).manifest(place.checkpoint_id))
        manifest = key.read()
        if manifest is not None and manifest.location is not None and not_there(manifest):
            nothing = MemoryStore()
            return Found(manifest, manifest.location, nothing, ""), key
    found = find_checkpoint(uri)
    return found, _key_of(found)


def _key_of(found: Found) -> _Key | None:
    """The manifest in the job's directory, where a place of the savepoint tells the storage.

    None also for a copy: as long as the savepoint is where it was taken, its number is that one's.
    """
    layout = JobLayout(found.manifest.job_id)
    for store in _storages(found, None):
        key = _Key(store, layout.manifest(found.manifest.checkpoint_id))
        manifest = key.read()
        if manifest is None or manifest.identity != found.manifest.identity:
            continue
        if _is_same(manifest.location, found.uri) or not_there(manifest) is not None:
            return key
    return None


def _storages(found: Found, key: _Key | None) -> list[CheckpointStore]:
    """The storages that are known to have jobs which may need the savepoint."""
    if key is not None:
        return [key.store]
    roots = {}  # Of where it is and where it was taken, should it lie as it does by default.
    for place in (found.uri, found.manifest.location or ""):
        if (root := storage_of_savepoint(place)) is not None:
            roots[root] = store_for(root)
    return list(roots.values())


def _is_same(location: str | None, uri: str) -> bool:
    return location is not None and os.path.realpath(location) == os.path.realpath(uri)


def _check_unneeded(store: CheckpointStore, manifest: Manifest) -> None:
    """Refuse while a job of the same storage has nothing else to recover from.

    Raises:
        RestoreError: It is so.
    """
    for job in sorted(jobs_in(store)):
        user = None if store.exists(JobLayout(job).finished) else _user(store, job, manifest)
        if user is not None:
            directory = JobLayout(job).directory
            raise RestoreError(
                f"attempt {user} of job {job} went on from savepoint {manifest.checkpoint_id} of "
                f"job {manifest.job_id} and has completed no checkpoint since: it would have "
                "nothing to recover from. Delete the savepoint once it has; or first the job's "
                f"directory {directory} in the storage, if that job is over"
            )


def _user(store: CheckpointStore, job: JobId, manifest: Manifest) -> int | None:
    """The newest attempt of a job, if this savepoint is all that it can recover from."""
    try:
        bases = bases_of(store, job)
    except CorruptStateError as error:
        raise RestoreError(
            f"whether job {job} needs the savepoint cannot be told: {error}"
        ) from error
    if not bases:
        return None
    newest = bases[max(bases)]
    restored = (newest.restored_job or job, newest.restored_id)
    if restored != (manifest.job_id, manifest.checkpoint_id):
        return None
    return None if _has_completed(store, job, newest.next_id) else newest.attempt


def _has_completed(store: CheckpointStore, job: JobId, first: CheckpointId) -> bool:
    """Whether the job has a checkpoint of this number or a later one."""
    return any(
        isinstance(stored.manifest, Manifest)
        and stored.manifest.kind not in SAVEPOINT_KINDS
        and stored.checkpoint_id >= first
        for stored in list_checkpoints(store, job)
    )


def _show(found: Found, *, has_key: bool, is_here: bool) -> None:
    manifest = found.manifest
    _say(
        f"savepoint {name_of(found.uri)} of {manifest.job_name} ({manifest.job_id}), checkpoint "
        f"{manifest.checkpoint_id}, {manifest.kind}: taken {formats.moment(manifest.completed_ms)},"
        f" {formats.size(manifest.state_size)}, in {found.uri}"
    )
    if not is_here:
        _say("it is not there any more: only the job's note of it is deleted")
    if not has_key:
        _say("it is a copy, or its job's directory cannot be found: only this directory is deleted")
    if manifest.kind is not CheckpointKind.SAVEPOINT:
        _say("a job was stopped with it: without it, that job cannot go on from where it stopped")


def _confirmed() -> bool:
    if not sys.stdin.isatty():
        raise RestoreError("deleting has to be confirmed: there is no terminal to ask; give --yes")
    print("delete it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _leave_note(key: _Key, manifest: Manifest) -> None:
    # First: a job whose note of a savepoint leads nowhere would look damaged.
    note = Tombstone(
        job_id=manifest.job_id,
        checkpoint_id=manifest.checkpoint_id,
        attempt=manifest.attempt,
        given_up_ms=time.time_ns() // 1_000_000,
        reason=_REASON,
    )
    key.store.put(key.path, dump(note))


def _delete_files(found: Found) -> None:
    own, manifest = found.store, found.manifest
    own.delete_prefix(savepoint_state(manifest.checkpoint_id, manifest.attempt))
    own.delete(SAVEPOINT_MANIFEST)  # Last: until then the same command goes on where it stopped.
    if foreign := own.list():
        others = formats.counted(len(foreign), "other file")
        _say(f"left in {found.uri}: {others}, such as {foreign[0]}")
    else:
        own.delete_if_empty()  # Where another savepoint was put since it was listed, that stays.


def _say(text: str) -> None:
    print(f"weir: {text}", file=sys.stderr)
