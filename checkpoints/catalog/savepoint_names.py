"""Names, notes, labels and directories of savepoints: checked, and kept unique."""

from collections.abc import Mapping
from datetime import datetime
from pathlib import PurePosixPath

from django.db.models import Q

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint, Savepoint
from controlplane.accounts.models import User
from controlplane.base import advisory_locks, clock
from controlplane.base.errors import Invalid, Problems
from jobs.labels import check_labels
from jobs.models import Job, Operation
from jobs.options import check_uri
from weir.errors import WeirError
from weir.ids import JobId
from weir.protocol.lifecycle import CheckpointStatus
from weir.storage import savepoint_names
from weir.storage.layout import savepoint_location
from weir.storage.store import store_for

NOTE_LENGTH_MAX = 10_000


def check_description(
    name: str | None, note: str | None, labels: Mapping[str, str] | None, problems: Problems
) -> None:
    """Check a savepoint's name, note and labels; None: the request does not give it."""
    if name is not None and (problem := savepoint_names.problem_with(name)):
        problems.add("name", problem)
    if note is not None and (len(note) > NOTE_LENGTH_MAX or "\0" in note):
        problems.add("note", f"A note has at most {NOTE_LENGTH_MAX} characters.")
    if labels is not None:
        check_labels(labels, problems)


def check_location(location: str, problems: Problems) -> str:
    """Check the directory requested for a savepoint, and return it as it is stored.

    Whether the directory is free is checked when the savepoint's row is created.
    """
    problem = "Give the savepoint a directory of its own, as an absolute path or URI."
    try:
        location = check_uri(location, problem)
        store_for(location)
    except (WeirError, ValueError) as error:
        problems.add("location", str(error))
    return location


def is_free(job: Job, name: str) -> bool:
    """Whether no savepoint of the job has this name; the caller holds the job's lock."""
    return not Savepoint.objects.filter(job=job, name=name, deleted_at__isnull=True).exists()


def check_free(job: Job, name: str) -> None:
    """Refuse a name that another savepoint of the job has; the caller holds the job's lock.

    Raises:
        Invalid: Another savepoint has it.
    """
    if not is_free(job, name):
        raise Invalid(
            f"{job.pk} has a savepoint named {name} already; choose another name",
            errors={"name": ["Another savepoint of the job has this name."]},
        )


def check_place(job: Job, location: str) -> None:
    """Refuse a directory that a savepoint lies in, and one that was ever another job's.

    The files of a savepoint are deleted, perhaps again and late, by their attempt and number in its
    directory, which two jobs may have in common.

    Raises:
        Invalid: A savepoint lies there, or one of another job has been there.
    """
    advisory_locks.lock([location])
    there = Savepoint.objects.filter(location=location)
    gone = Q(deleted_at__isnull=False, checkpoint__status=CheckpointStatus.DISCARDED)
    others = Checkpoint.objects.filter(location=location).exclude(job=job)
    if there.exclude(Q(job=job) & gone).exists() or others.exists():
        raise Invalid(
            f"a savepoint cannot be taken into {location}; choose another directory",
            errors={"location": ["Another savepoint lies there, or has been there."]},
        )


def default_name(prefix: str = "savepoint") -> str:
    """A name for a savepoint that was given none."""
    return savepoint_names.default_name(prefix, clock.now().timestamp())


def create(
    job: Job,
    operation: Operation,
    actor: User | None,
    *,
    name: str,
    location: str = "",
    note: str = "",
    labels: Mapping[str, str] | None = None,
) -> Savepoint:
    """The row of a savepoint that is about to be taken; the caller holds the job's lock.

    Raises:
        Invalid: The name or the directory is in use.
    """
    check_free(job, name)
    if location:
        check_place(job, location)
    else:
        # Files deleted under this name may still lie there, since a name can be used again.
        location = savepoint_location(locations.storage_of(job), JobId(job.pk), name)
        if Savepoint.objects.filter(location=location).exists():
            location = f"{location}-{operation.pk.hex[:8]}"
    return Savepoint.objects.create(
        job=job,
        operation=operation,
        name=name,
        location=location,
        note=note,
        labels=dict(labels or {}),
        created_by=actor,
        created_at=clock.now(),
    )


def of_unnamed(job: Job, checkpoint: Checkpoint, at: datetime) -> Savepoint:
    """A row, not saved yet, for a savepoint that was requested at the job's driver."""
    name = PurePosixPath(checkpoint.location).name
    if savepoint_names.problem_with(name) or not is_free(job, name):
        name = default_name(f"chk-{checkpoint.number}")
    return Savepoint(
        job=job, name=name, location=checkpoint.location, created_at=checkpoint.triggered_at or at
    )
