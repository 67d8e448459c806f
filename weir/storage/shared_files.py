"""Shared state files: those that several checkpoints of a job name, and the end of each.

A checkpoint of large state writes what changed, and names the files of the checkpoint it builds on
for the rest. They lie in ``<job>/shared/``, each under a name that no other file ever has. One goes
when no manifest of the job names it any more: ``unneeded`` is that rule, for driver and control
plane alike.

A checkpoint under way has no manifest. It names files of its base, whose manifest the coordinator
retains meanwhile, and new ones, which no other checkpoint ever names. So a file that no manifest
names now is named by none later, and any process may delete it, however late.

The manifest goes first. A crash after that leaves files that nothing needs, which a sweep finds,
and never a manifest without its files.
"""

from collections.abc import Callable, Iterable

from weir.errors import CorruptStateError, RestoreError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.storage.layout import JobLayout, in_job, parse_manifest_path, writer_of_shared
from weir.storage.manifest import Manifest, load
from weir.storage.store import CheckpointStore, PathNotFoundError


def unneeded(paths: Iterable[str], retained: Iterable[Manifest]) -> set[str]:
    """The shared files among these paths that no retained manifest names; pure."""
    needed = frozenset[str]().union(*(manifest.shared_paths for manifest in retained))
    return {path for path in paths if writer_of_shared(path) is not None} - needed


def discard_checkpoint(store: CheckpointStore, job_id: JobId, checkpoint: CheckpointId) -> None:
    """Delete a completed checkpoint: its manifest, then its files, as far as no other names them.

    Raises:
        StorageError: Some files are left.
    """
    layout = JobLayout(job_id)
    path = layout.manifest(checkpoint)
    try:
        manifest = load(store.read(path), path)
    except (CorruptStateError, RestoreError, PathNotFoundError):
        manifest = None  # What it shares is left to the sweep.
    store.delete(path)
    if isinstance(manifest, Manifest) and manifest.shared_paths:
        _delete_unneeded(store, job_id, manifest.shared_paths)
    store.delete_prefix(layout.checkpoint(checkpoint))


def discard_attempt(
    store: CheckpointStore, job_id: JobId, checkpoint: CheckpointId, attempt: AttemptNumber
) -> None:
    """Delete the files of a checkpoint that came to nothing, and never has a manifest.

    Raises:
        StorageError: Some files are left.
    """
    layout = JobLayout(job_id)
    store.delete_prefix(layout.shared_state(checkpoint, attempt))
    store.delete_prefix(layout.attempt_state(checkpoint, attempt))


def sweep_shared(
    store: CheckpointStore,
    job_id: JobId,
    is_over: Callable[[AttemptNumber, CheckpointId], bool],
) -> int:
    """Delete the shared files that no manifest names; returns their number.

    ``is_over`` tells whether a checkpoint was settled long ago, so that its files are complete.

    Raises:
        StorageError: Some files are left.
    """
    layout = JobLayout(job_id)
    # Listed before the manifests: a checkpoint that completes in between keeps its files.
    listed = (*store.list(layout.shared), *store.list_temporary(layout.shared))
    paths = [path[len(layout.directory) + 1 :] for path in listed]
    over = [path for path in paths if (by := writer_of_shared(path)) and is_over(*by)]
    return _delete_unneeded(store, job_id, over) if over else 0


def _delete_unneeded(store: CheckpointStore, job_id: JobId, paths: Iterable[str]) -> int:
    retained = _retained(store, job_id)
    if retained is None:
        return 0
    doomed = sorted(unneeded(paths, retained))
    for path in doomed:
        store.delete(in_job(job_id, path))
    for directory in {in_job(job_id, path.rpartition("/")[0]) for path in doomed}:
        if not store.list(directory):  # Nothing is written there any more.
            store.delete_prefix(directory)
    return len(doomed)


def _retained(store: CheckpointStore, job_id: JobId) -> list[Manifest] | None:
    """All manifests of a job at one time; None: one cannot be read, and may name any file."""
    directory = JobLayout(job_id).directory
    while True:
        manifests: list[Manifest] = []
        try:
            for path in store.list(directory):
                if parse_manifest_path(path) is not None:
                    manifest = load(store.read(path), path)
                    if isinstance(manifest, Manifest):
                        manifests.append(manifest)
        except PathNotFoundError:
            # Discarded meanwhile; one that builds on it may have been created since the listing.
            continue
        except (CorruptStateError, RestoreError):
            return None
        return manifests
