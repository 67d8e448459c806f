"""The catalog: which checkpoint or savepoint lies under a URI.

A URI is ``<storage>/<job>/chk-<n>``, or the directory of a savepoint; ``latest`` is the job of a
name that completed a checkpoint last. The manifest decides: a checkpoint without one does not
exist.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import unquote

from weir.errors import RestoreError
from weir.ids import CheckpointId, JobId
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout
from weir.storage.manifest import Manifest, find_jobs, list_checkpoints, load
from weir.storage.store import CheckpointStore, PathNotFoundError, store_for

OpenStore: TypeAlias = Callable[[str | None], CheckpointStore]

_CHECKPOINT_URI = re.compile(r"(?P<root>.*)/(?P<job>[^/]+)/chk-(?P<id>\d+)/?")


@dataclass(frozen=True, slots=True)
class RestoreRequest:
    """A request to restore a checkpoint or savepoint, with its options.

    With a job and a checkpoint id it is that checkpoint in ``storage``; without, ``storage`` is
    itself the directory of a savepoint.
    """

    storage: str
    job_id: JobId | None = None
    checkpoint_id: CheckpointId | None = None
    rewinds_output: bool = True  # File sinks withdraw output committed beside its line.
    claims: bool = False  # A savepoint becomes the job's own, to delete.
    origin_is_over: bool = False  # Known to the control plane, whether or not the storage says so.

    @classmethod
    def parse(
        cls,
        uri: str,
        *,
        rewinds_output: bool = True,
        claims: bool = False,
        origin_is_over: bool = False,
    ) -> "RestoreRequest":
        """Read ``<storage>/<job>/chk-<n>``, or the directory of a savepoint.

        Raises:
            RestoreError: The URI is neither.
        """
        uri = uri.rstrip("/").removesuffix(f"/{SAVEPOINT_MANIFEST}")
        if match := _CHECKPOINT_URI.fullmatch(uri):
            job, checkpoint = JobId(unquote(match["job"])), CheckpointId(int(match["id"]))
            return cls(match["root"], job, checkpoint, rewinds_output, claims, origin_is_over)
        if "/" not in uri:
            raise RestoreError(
                f"{uri!r} names no checkpoint; give latest, or a path such as "
                "<storage>/<job>/chk-7 or the directory of a savepoint (`weir checkpoints "
                "<storage>` lists them)"
            )
        return cls(uri, None, None, rewinds_output, claims, origin_is_over)

    @property
    def uri(self) -> str:
        """The URI that ``parse`` reads, as shown to users."""
        if self.job_id is None or self.checkpoint_id is None:
            return self.storage
        return f"{self.storage}/{JobLayout(self.job_id).checkpoint(self.checkpoint_id)}"


@dataclass(frozen=True, slots=True)
class StoredState:
    """A completed checkpoint or savepoint, with the present location of its files."""

    manifest: Manifest
    store: CheckpointStore
    storage: str  # The path or URI of ``store``.
    directory: str  # The directory in it that the paths of the files are relative to.


def find_state(request: RestoreRequest, open_store: OpenStore = store_for) -> StoredState:
    """The requested checkpoint or savepoint, by its manifest.

    The id of a savepoint leads to the directory where it was taken; a moved savepoint is named by
    its present directory.

    Raises:
        RestoreError: It does not exist, was given up, or a newer version of Weir wrote it.
        CorruptStateError: Its manifest is damaged, or none of Weir's.
        StorageError: The storage failed.
    """
    store = open_store(request.storage)
    if request.job_id is None or request.checkpoint_id is None:
        return _find_savepoint(store, request.storage)
    layout = JobLayout(request.job_id)
    path = layout.manifest(request.checkpoint_id)
    if not store.exists(path):
        raise RestoreError(
            f"there is no checkpoint {request.checkpoint_id} of job {request.job_id} in "
            f"{request.storage}; `weir checkpoints {request.storage}` lists those that exist"
        )
    manifest = load(store.read(path), path)
    if not isinstance(manifest, Manifest):
        raise RestoreError(f"checkpoint {request.checkpoint_id} was given up: {manifest.reason}")
    if manifest.location is None:
        return StoredState(manifest, store, request.storage, layout.directory)
    own = open_store(manifest.location)
    try:
        copy = load(own.read(SAVEPOINT_MANIFEST), f"{manifest.location}/{SAVEPOINT_MANIFEST}")
    except PathNotFoundError:
        copy = None
    if isinstance(copy, Manifest) and copy.identity == manifest.identity:
        return StoredState(manifest, own, manifest.location, "")
    there = open_store(request.uri)
    if any(handle.path and there.exists(handle.path) for handle in manifest.handles):
        return StoredState(manifest, there, request.uri, "")  # A savepoint in a chk- directory.
    raise RestoreError(
        f"savepoint {manifest.checkpoint_id} of job {manifest.job_id} is not in "
        f"{manifest.location} any more; if it was moved, give the directory where it is now"
    )


def _find_savepoint(store: CheckpointStore, directory: str) -> StoredState:
    path = f"{directory}/{SAVEPOINT_MANIFEST}"
    try:
        manifest = load(store.read(SAVEPOINT_MANIFEST), path)
    except PathNotFoundError as cause:
        raise RestoreError(
            f"there is no checkpoint or savepoint at {directory}; give a path such as "
            "<storage>/<job>/chk-7 (`weir checkpoints <storage>` lists them), or the directory of "
            f"a savepoint, which holds a file named {SAVEPOINT_MANIFEST}"
        ) from cause
    if not isinstance(manifest, Manifest):
        raise RestoreError(f"the savepoint of {path} was given up: {manifest.reason}")
    if manifest.location is None and any(handle.path for handle in manifest.handles):
        raise RestoreError(
            f"{path} belongs to checkpoint {manifest.checkpoint_id} of job {manifest.job_id}, "
            "whose files are located by its path in the storage: give <storage>/<job>/chk-"
            f"{manifest.checkpoint_id}. Only savepoints can be moved"
        )
    return StoredState(manifest, store, directory, "")


def latest_job(store: CheckpointStore, name: str) -> JobId:
    """The job of this name that completed a checkpoint last and has not finished.

    Raises:
        RestoreError: There is none.
    """
    jobs = find_jobs(store, name)
    for job_id in jobs:
        if not store.exists(JobLayout(job_id).finished):
            return job_id
    if jobs:
        raise RestoreError(
            f"job {jobs[0]}, the latest named {name!r}, has finished. To restore "
            f"{_left_behind(store, jobs[0])}; to run it anew, start it without --restore"
        )
    raise RestoreError(
        f"the checkpoint storage holds no completed checkpoint of a job named {name!r}; "
        "check --storage and the job's name, or start without --restore"
    )


def _left_behind(store: CheckpointStore, job_id: JobId) -> str:
    """Advice on what to restore of a job that has finished."""
    manifests = (stored.manifest for stored in list_checkpoints(store, job_id))
    newest = next((manifest for manifest in manifests if isinstance(manifest, Manifest)), None)
    if newest is None or newest.location is None:
        return "a checkpoint that is left of it give its path, <storage>/<job>/chk-<n>"
    return f"its savepoint give its path, --restore {newest.location}"
