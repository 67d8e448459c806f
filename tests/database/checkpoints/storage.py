"""Files of checkpoints as drivers and subtasks write them."""

from checkpoints.catalog import locations
from jobs.models import Job
from tests import claims
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId, StateHandle, SubtaskId
from weir.protocol.deployment import Versions
from weir.protocol.elements import CheckpointKind
from weir.protocol.messages import OperatorAck
from weir.storage.layout import in_job, shared_file, state_file
from weir.storage.manifest import Manifest, dump


def manifest(job_id: str, number: int, attempt: int = 1, *shared: str) -> Manifest:
    """A manifest of a checkpoint that names these shared files, and no other state."""
    handles = tuple(StateHandle("keyed", "x", 5, "0", path=path) for path in shared)
    acks = (OperatorAck(SubtaskId(OperatorId("sink"), 0), handles),) if handles else ()
    return Manifest(
        job_id=JobId(job_id),
        job_name="flights",
        checkpoint_id=CheckpointId(number),
        parent_id=None,
        kind=CheckpointKind.CHECKPOINT,
        attempt=AttemptNumber(attempt),
        triggered_ms=0,
        completed_ms=1,
        versions=Versions("0.1", "3.11", "20"),
        operators=(),
        acks=acks,
    )


def claim(job: Job, attempt: int) -> None:
    """The claim of an attempt: it lies there before anything of the attempt does."""
    claims.claim(locations.store_of(job), JobId(job.pk), AttemptNumber(attempt))


def put_state(job: Job, number: int, attempt: int = 1, *, complete: bool = True) -> None:
    """A state file of a checkpoint and, unless told otherwise, its manifest."""
    store = locations.store_of(job)
    subtask = SubtaskId(OperatorId("sink"), 0)
    name = state_file(CheckpointId(number), AttemptNumber(attempt), subtask, "counts")
    store.put(in_job(JobId(job.pk), name), b"state")
    if complete:
        path = locations.layout_of(job).manifest(CheckpointId(number))
        store.put(path, dump(manifest(job.pk, number, attempt)))


def put_shared(job: Job, number: int, *named: int, complete: bool = True) -> None:
    """A shared file of a checkpoint, and its manifest, which names those of others as well."""
    store, own = locations.store_of(job), shared_name(number)
    store.put(in_job(JobId(job.pk), own), b"state")
    if complete:
        path = locations.layout_of(job).manifest(CheckpointId(number))
        names = map(shared_name, (*named, number))
        store.put(path, dump(manifest(job.pk, number, 1, *names)))


def shared_name(number: int) -> str:
    """The shared file of a checkpoint of the first attempt."""
    subtask = SubtaskId(OperatorId("sink"), 0)
    return shared_file(CheckpointId(number), AttemptNumber(1), subtask, "counts")


def files(job: Job) -> list[str]:
    """The files of checkpoints in the job's directory, by path within it."""
    directory = locations.layout_of(job).directory
    paths = claims.unclaimed(locations.store_of(job), directory)
    return [path.removeprefix(f"{directory}/") for path in paths]
