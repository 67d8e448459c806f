"""Restore targets: the checkpoints and savepoints known here that are kept."""

import re
from dataclasses import dataclass
from urllib.parse import quote
from uuid import UUID

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, Savepoint
from controlplane.base.errors import Invalid, existing
from jobs import services
from jobs.models import Job
from jobs.options import local_path
from weir.ids import CheckpointId
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus
from weir.storage.layout import SAVEPOINT_MANIFEST

_CHECKPOINT_URI = re.compile(r"(?P<storage>.+)/(?P<job>[^/]+)/chk-(?P<number>\d+)")


@dataclass(frozen=True, slots=True)
class Restorable:
    """A checkpoint or savepoint that is kept, and its URI for a restore."""

    job: Job
    number: int
    uri: str
    savepoint: Savepoint | None = None


def chosen(job: Job, checkpoint: int | None, savepoint: UUID | None) -> Restorable:
    """The restore target of a request, of this very job, whose lock the caller holds.

    Raises:
        Invalid: Not exactly one of the two was given, it is another job's, or it is not kept.
        NotFound: There is no such checkpoint or savepoint.
    """
    if (checkpoint is None) == (savepoint is None):
        raise Invalid("name either a checkpoint of the job or one of its savepoints")
    if checkpoint is not None:
        return of_checkpoint(job, checkpoint)
    assert savepoint is not None
    return of_savepoint(job, savepoint)


def of_checkpoint(job: Job, number: int) -> Restorable:
    """A checkpoint of the job by its number.

    Raises:
        NotFound: The job has none of this number.
        Invalid: The checkpoint is not kept.
    """
    rows = Checkpoint.objects.filter(job=job)
    rows = rows.filter(number=number) if 0 < number < 2**63 else rows.none()
    row = existing(rows, f"{job.pk} has no checkpoint {number}")
    savepoint = Savepoint.objects.filter(checkpoint=row).first()
    return Restorable(job, number, _uri_of_kept(job, row), savepoint)


def of_savepoint(job: Job, savepoint_id: UUID) -> Restorable:
    """A savepoint of the job by its id.

    Raises:
        NotFound: There is no savepoint with this id.
        Invalid: The savepoint is another job's, is not durable yet, or was deleted.
    """
    savepoint = find_savepoint(savepoint_id)
    if savepoint.job_id != job.pk:
        raise Invalid(
            f"savepoint {savepoint.name} is of {savepoint.job_id}, not of {job.pk}; to begin with "
            f"it, fork {savepoint.job_id} or submit a new job",
            errors={"savepoint": [f"It is another job's: {savepoint.job_id}."]},
        )
    if savepoint.checkpoint is None or savepoint.deleted_at is not None:
        what = "was deleted" if savepoint.deleted_at else "is being taken"
        raise Invalid(f"savepoint {savepoint.name} {what}", errors={"savepoint": [f"It {what}."]})
    number = savepoint.checkpoint.number
    return Restorable(job, number, _uri_of_kept(job, savepoint.checkpoint), savepoint)


def newest(job: Job) -> Checkpoint | None:
    """The checkpoint that the job restores by itself: no plain savepoint, none abandoned."""
    own = Checkpoint.objects.filter(
        job=job, status=CheckpointStatus.COMPLETED, abandoned_at__isnull=True
    )
    return own.exclude(kind=CheckpointKind.SAVEPOINT.value).order_by("-number").first()


def find_savepoint(savepoint_id: UUID) -> Savepoint:
    """A savepoint by its id, also one that was deleted.

    Raises:
        NotFound: There is no savepoint with this id.
    """
    return existing(
        Savepoint.objects.select_related("checkpoint").filter(pk=savepoint_id),
        f"there is no savepoint {savepoint_id}",
    )


def of_uri(uri: str) -> Restorable | None:
    """The restore target that a URI names, with its job locked; None: it is not known here.

    Raises:
        Invalid: It is known, and not kept.
    """
    place = _spelled(uri).removesuffix(f"/{SAVEPOINT_MANIFEST}")
    spellings = {uri, place, f"file://{quote(place)}"}
    savepoint = Savepoint.objects.filter(location__in=spellings).order_by("-created_at").first()
    if savepoint is not None:
        return of_savepoint(services.locked(savepoint.job_id), savepoint.pk)
    named = _CHECKPOINT_URI.fullmatch(place)
    if named is None or not Job.objects.filter(pk=named["job"]).exists():
        return None
    job = services.locked(named["job"])
    if _spelled(locations.storage_of(job)) != named["storage"]:
        return None  # A copy elsewhere, of which no row tells.
    if not Checkpoint.objects.filter(job=job, number=named["number"]).exists():
        return None
    return of_checkpoint(job, int(named["number"]))


def _spelled(uri: str) -> str:
    return local_path(uri) or uri.rstrip("/")


def uri_of(job: Job, row: Checkpoint) -> str:
    """The URI of a checkpoint for a restore; of a savepoint, the directory it was taken into."""
    return row.location or locations.path_of(job, CheckpointId(row.number))


def _uri_of_kept(job: Job, row: Checkpoint) -> str:
    if row.status != CheckpointStatus.COMPLETED or row.discard_due_at is not None:
        state = "being deleted" if row.status == CheckpointStatus.COMPLETED else row.status
        raise Invalid(
            f"checkpoint {row.number} of {job.pk} is {state}; only one that is kept can be restored"
        )
    return uri_of(job, row)
