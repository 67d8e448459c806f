"""The writer of manifests: a manifest, or a tombstone in its place, and never both.

The key of a manifest is created at most once, and its creation decides the checkpoint. Where
writing failed, a tombstone is to take the key, so that no manifest can appear later; which of the
two did take it is read again. An outcome that stays unknown is reported as ``may_exist``, and no
file of that checkpoint is deleted.

Before each of the two the driver looks at the fence (``weir.jobmaster.fence``), and after a
manifest once more: the first look keeps the key free for a successor, the second decides.

A savepoint has two manifests: one in its own directory, which makes it movable and takes the name,
and then the one under its checkpoint id, which makes it complete as for every checkpoint.
"""

from collections.abc import Callable
from typing import TypeAlias

from weir.common.clock import Clock
from weir.errors import StorageError
from weir.fault_points import reach
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.jobmaster.counted_io import CountedIo
from weir.jobmaster.fence import Act, Fence, FencedError
from weir.protocol.messages import ManifestFailed, ManifestWritten
from weir.protocol.pending import PendingCheckpoint
from weir.secrets import job_secrets
from weir.storage.catalog import OpenStore
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout
from weir.storage.manifest import Manifest, Tombstone, discard_savepoint, dump, load
from weir.storage.store import CheckpointStore

ManifestOutcome: TypeAlias = ManifestWritten | ManifestFailed


class IdTaken(StorageError):
    """A manifest of this checkpoint id exists already."""

    retryable = False


class PlaceTaken(StorageError):
    """The directory of a savepoint holds another one."""

    retryable = False


class ManifestWriter:
    """Writes manifests and tombstones, and reports each outcome once."""

    def __init__(
        self,
        store: CheckpointStore,
        job_id: JobId,
        *,
        fence: Fence,
        io: CountedIo,
        clock: Clock,
        open_store: OpenStore,
        settled: Callable[[ManifestOutcome], None],
        fenced: Callable[[], None],
    ) -> None:
        """Prepare.

        Args:
            settled: Receives every outcome.
            fenced: Called first where the outcome is that another driver has the job.
        """
        self._store = store
        self._job_id = job_id
        self._fence = fence
        self._io = io
        self._clock = clock
        self._open_store = open_store
        self._settled = settled
        self._fenced = fenced
        self._writing: set[CheckpointId] = set()  # Their outcome is not known.

    @property
    def is_writing(self) -> bool:
        """Whether the outcome of some manifest is not known."""
        return bool(self._writing)

    def write(self, pending: PendingCheckpoint, manifest: Manifest) -> None:
        """Write a manifest, and of a savepoint its own one before it."""
        checkpoint_id, target = pending.checkpoint_id, pending.barrier.options.target
        path, data = self._path(checkpoint_id), dump(manifest)

        def work() -> None:
            reach("manifest.before", id=checkpoint_id)
            # Before as well, or the successor finds its checkpoint id taken.
            self._fence.check(Act.WRITE_MANIFEST)
            if target is not None:
                self._write_own(pending, target, manifest, data)
                reach("savepoint.written", id=checkpoint_id)
            created = self._store.create_if_absent(path, data)
            self._fence.check(Act.COUNT_MANIFEST)
            if not created:  # No newer driver exists, so an older one wrote it; that one stops.
                if target is not None:
                    own = self._open_store(target)
                    discard_savepoint(own, self._job_id, checkpoint_id, pending.attempt)
                raise IdTaken(f"an older driver of the job has written {path}")
            reach("manifest.written", id=checkpoint_id)

        def done(outcome: Exception | None) -> None:
            match outcome:
                case None:
                    self._settle(ManifestWritten(checkpoint_id))
                case FencedError():
                    self._fenced()  # First, or the failure would restart the job for a moment.
                    self._settle(ManifestFailed(checkpoint_id, str(outcome), may_exist=True))
                case IdTaken():
                    self._settle(ManifestFailed(checkpoint_id, str(outcome), may_exist=True))
                case error:
                    self._give_up(pending, data, str(error))

        self._writing.add(checkpoint_id)
        self._io.run(work, done)

    def withhold(self, checkpoint_id: CheckpointId, attempt: AttemptNumber, cause: str) -> bool:
        """Write a tombstone so that the manifest never appears, and report ``ManifestFailed``.

        Returns:
            False where that is not this driver's to do any more: the manifest is being written, so
            its outcome is under way; or another driver has the job, and settles it.
        """
        if checkpoint_id in self._writing or self._fence.is_fenced_off:
            return False
        path = self._path(checkpoint_id)

        def taken() -> ManifestFailed:
            is_tombstone = isinstance(load(self._store.read(path), path), Tombstone)
            return ManifestFailed(checkpoint_id, cause, may_exist=not is_tombstone)

        self._writing.add(checkpoint_id)
        self._write_tombstone(checkpoint_id, attempt, cause, taken)
        return True

    def _write_own(
        self, pending: PendingCheckpoint, target: str, manifest: Manifest, data: bytes
    ) -> None:
        """Write the savepoint's own manifest, which makes it movable and takes its name."""
        own = self._open_store(target)
        for handle in manifest.handles:
            # No claim shows that subtasks and driver mean one directory.
            if (path := handle.path) is not None and not own.exists(path):
                raise StorageError(
                    f"{target} has no {path}, though a subtask wrote it: choose a directory that "
                    "every machine of the job has mounted"
                )
        layout = JobLayout(self._job_id)
        mark = layout.savepoint_mark(pending.checkpoint_id, pending.attempt)
        self._store.put(mark, target.encode())
        if not own.create_if_absent(SAVEPOINT_MANIFEST, data):
            raise PlaceTaken(f"{target} holds a savepoint already; choose another name")

    def _give_up(self, pending: PendingCheckpoint, manifest: bytes, cause: str) -> None:
        """Writing the manifest failed: take its key with a tombstone, so that it cannot appear."""
        checkpoint_id = pending.checkpoint_id

        def taken() -> ManifestOutcome:
            if self._store.read(self._path(checkpoint_id)) == manifest:
                self._fence.check(Act.COUNT_LATE_MANIFEST)
                return ManifestWritten(checkpoint_id)  # It was written after all.
            return ManifestFailed(checkpoint_id, cause, may_exist=True)

        self._write_tombstone(checkpoint_id, pending.attempt, cause, taken)

    def _write_tombstone(
        self,
        checkpoint_id: CheckpointId,
        attempt: AttemptNumber,
        cause: str,
        taken: Callable[[], ManifestOutcome],
    ) -> None:
        """Write a tombstone under the manifest's key; ``taken``: the outcome if the key exists."""

        def work() -> ManifestOutcome:
            tombstone = Tombstone(
                job_id=self._job_id,
                checkpoint_id=checkpoint_id,
                attempt=attempt,
                given_up_ms=self._clock.now_ms(),
                reason=job_secrets.masker().text(cause),
            )
            self._fence.check(Act.WRITE_TOMBSTONE)  # The key may be the successor's.
            if self._store.create_if_absent(self._path(checkpoint_id), dump(tombstone)):
                return ManifestFailed(checkpoint_id, cause)
            return taken()

        def done(outcome: ManifestOutcome | Exception) -> None:
            if isinstance(outcome, FencedError):
                self._fenced()
            if isinstance(outcome, Exception):
                outcome = ManifestFailed(checkpoint_id, cause, may_exist=True)
            self._settle(outcome)

        self._io.run(work, done)

    def _settle(self, outcome: ManifestOutcome) -> None:
        self._writing.discard(outcome.checkpoint_id)
        self._settled(outcome)

    def _path(self, checkpoint_id: CheckpointId) -> str:
        return JobLayout(self._job_id).manifest(checkpoint_id)
