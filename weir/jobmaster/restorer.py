"""The restorer: it chooses the checkpoint of an attempt, and stores that choice before any effect.

The order matters. The base is noted before anything acts on it, the requested checkpoint is looked
at once more after that, and the fence last: a driver that has claimed the job since either reads
the base, or is seen here, before the sinks move files that its checkpoint counts on.
"""

from dataclasses import dataclass, replace

from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.fence import Act, Fence
from weir.jobmaster.job_description import JobDescription
from weir.jobmaster.restore_choice import RestoreChoice, begin_from, check_kept, choose_restore
from weir.output.output_claims import claim_output
from weir.output.sink_directories import note_directories
from weir.protocol.messages import CheckpointsRestored
from weir.storage.catalog import OpenStore, RestoreRequest
from weir.storage.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class JobProgress:
    """The job's progress under earlier drivers, as the control plane recorded it."""

    attempt: int = 0  # The newest; 0: none.
    checkpoint: int = 0  # The newest completed that is kept; 0: none.


NO_PROGRESS = JobProgress()


@dataclass(frozen=True, slots=True)
class Restorer:
    """Chooses for one attempt after the other."""

    job: JobDescription
    store: CheckpointStore
    open_store: OpenStore
    fence: Fence
    request: RestoreRequest | None  # The checkpoint that the driver was started with.
    progress: JobProgress

    def choose(
        self, attempt: AttemptNumber, *, completed: CheckpointId | None, trusts_files: bool
    ) -> tuple[RestoreChoice, CheckpointsRestored]:
        """The choice for an attempt, and the job's checkpoints; does I/O.

        Until this driver completed a checkpoint of its own, the newest of which is ``completed``,
        the requested one is restored, not a newer one that the job went back behind.

        Workers compare each file that they read with its checksum, so to read all of them here as
        well would only make the restore longer. A worker that meets one damaged fails its attempt,
        and the next one, which does not trust the files, passes the checkpoint over.

        Raises:
            JobFinished: None was requested, and the job has finished.
            FencedError: Another driver has the job.
            RestoreError, CorruptStateError, StorageError: See ``choose_restore``.
        """
        job, store, open_store = self.job, self.store, self.open_store
        request = self.request if completed is None else None
        choice = choose_restore(
            store,
            job.job_id,
            job.plan,
            job.config,
            requested=request,
            known=completed or self.progress.checkpoint,
            open_store=open_store,
            reads=not trusts_files,
        )
        stored = begin_from(store, job.job_id, attempt, choice)
        note_directories(store, job.job_id, _sink_directories(job))
        if request is not None:
            check_kept(store, request, choice, open_store)
        self.fence.check(Act.RESTORE)
        return _with_claimed_output(choice, job, attempt), stored


def _with_claimed_output(
    choice: RestoreChoice, job: JobDescription, attempt: AttemptNumber
) -> RestoreChoice:
    """The choice once the attempt is claimed in the directories of its sinks, where it can be."""
    claimed, notes = [], []
    for directory in sorted(_sink_directories(job)):
        try:
            claim_output(directory, job.job_id, attempt)
        except OSError as error:
            notes.append(
                f"nothing checks that all machines have the same directory {directory}, since the "
                f"driver cannot create a file there: {error}"
            )
        else:
            claimed.append(directory)
    return replace(choice, claimed_output=tuple(claimed), notes=(*choice.notes, *notes))


def _sink_directories(job: JobDescription) -> set[str]:
    return {op.files for op in job.plan.graph.operators if op.files is not None}
