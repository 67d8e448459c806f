"""Discards: the files of checkpoints that are no longer needed are deleted.

Checkpoints that are due are taken under the job's lock, with a lease; their files are deleted
outside of any transaction, and then the rows say so. The checkpoints that a killed worker had taken
come due again when its lease ends; deleting twice does no harm.

Of a completed checkpoint the manifest goes first: without it no driver can restore the rest. Files
that other checkpoints name stay (``weir.storage.shared_files``). Of a
failed or aborted one only the files of its attempt go; the tombstone in the manifest's place stays,
since a driver that was frozen may still try to write there.

A savepoint's own directory is the user's choice and may hold anything: only files that bear the
savepoint's number go, and the manifest only if it is the savepoint's.
"""

import logging
from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.text import Truncator

from checkpoints.catalog import locations
from checkpoints.models import Checkpoint
from checkpoints.retention import references, withdrawn_output
from controlplane.base import clock, logs, wakeups
from jobs import operations, services
from jobs.models import LIVE_DRIVERS, OPEN_OPERATIONS, Driver, Job, Operation, OperationKind
from jobs.set_aside import Step, is_set_aside, setting_aside
from weir.errors import ConfigError, CorruptStateError, RestoreError, StorageError
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus, JobStatus
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout, savepoint_state
from weir.storage.manifest import load
from weir.storage.shared_files import discard_attempt, discard_checkpoint
from weir.storage.store import CheckpointStore, PathNotFoundError, store_for

logger = logging.getLogger(__name__)

JOBS_MAX = 50  # In one look; the next, a second later, takes the rest.
BATCH = 50  # Checkpoints of a job that are taken at once.
LEASE_S = 120.0
NEEDED_AGAIN_S = 30.0  # Until a checkpoint that is still needed is checked again.
BACKOFF_MIN_S, BACKOFF_MAX_S = 2.0, 600.0


def discard_due() -> int:
    """Delete the files of all checkpoints that are due; return of how many."""
    count = 0
    now = clock.now()
    due = _due(now).exclude(is_set_aside(Step.DISCARD, now, "job_id"))
    for job_id in list(due.values_list("job", flat=True).distinct()[:JOBS_MAX]):
        with setting_aside(Step.DISCARD, job_id):
            count += _discard_of(job_id)
    return count


def _due(now: datetime) -> QuerySet[Checkpoint]:
    """Checkpoints due for deletion: no completed one while a driver may choose it for a restore."""
    drivers = Driver.objects.filter(job=OuterRef("job"), status__in=LIVE_DRIVERS)
    is_undisturbed = Q(job__status=JobStatus.RUNNING) | ~Q(Exists(drivers))
    uncompleted = Q(status__in=UNCOMPLETED)
    return Checkpoint.objects.filter(
        uncompleted | is_undisturbed, discard_due_at__lte=now
    ).order_by()


def _discard_of(job_id: str) -> int:
    claimed = _claim(job_id)
    if claimed is None:
        return 0
    job, lease_until, rows = claimed
    failed: dict[int, str] = {}
    try:
        store, layout = locations.own_store_of(job), locations.layout_of(job)
    except (StorageError, ConfigError) as error:
        failed = {row.pk: str(error) for row in rows}
        logger.warning("the files of %d checkpoints could not be deleted: %s", len(rows), error)
    for row in rows:
        if row.pk in failed:
            continue
        try:
            delete_files(store, layout, row)
        except (StorageError, ConfigError) as error:
            failed[row.pk] = str(error)
            with logs.about(checkpoint=row.number):
                logger.warning("the checkpoint's files could not be deleted: %s", error)
    withdrawn_output.delete_behind(job, [row for row in rows if row.pk not in failed])
    _conclude(job_id, lease_until, [row.pk for row in rows], failed)
    return len(rows) - len(failed)


def delete_files(store: CheckpointStore, layout: JobLayout, row: Checkpoint) -> None:
    """Delete the files of one checkpoint that is due.

    Raises:
        StorageError: Some files are left.
        ConfigError: This process cannot work with the storage of a savepoint.
    """
    number = CheckpointId(row.number)
    is_uncompleted = row.status in UNCOMPLETED
    if row.location:
        if not is_uncompleted:
            store.delete(layout.manifest(number))
        _delete_savepoint(row)
    if is_uncompleted:
        discard_attempt(store, layout.job, number, AttemptNumber(row.attempt))
    else:
        discard_checkpoint(store, layout.job, number)


def _delete_savepoint(row: Checkpoint) -> None:
    """Delete a savepoint's files from its own directory, and the directory if it is empty then."""
    store = store_for(row.location)
    if _is_manifest_of(store, row):
        store.delete(SAVEPOINT_MANIFEST)
    number, attempt = CheckpointId(row.number), AttemptNumber(row.attempt)
    store.delete_prefix(savepoint_state(number, attempt))
    store.delete_if_empty()  # In one step: another savepoint may just be written there.


def _is_manifest_of(store: CheckpointStore, row: Checkpoint) -> bool:
    """Whether the manifest in a savepoint's directory is that savepoint's."""
    try:
        manifest = load(store.read(SAVEPOINT_MANIFEST))
    except PathNotFoundError:
        return False
    except RestoreError:
        return False  # A newer Weir's.
    except CorruptStateError:
        # No driver can restore it, nor can a savepoint use its directory.
        return row.status not in UNCOMPLETED
    return (manifest.job_id, manifest.checkpoint_id) == (row.job_id, row.number)


def _claim(job_id: str) -> tuple[Job, datetime, list[Checkpoint]] | None:
    """Take the checkpoints of a job that are due and not needed; None where the job is locked."""
    with transaction.atomic():
        claim = Job.objects.filter(pk=job_id).select_for_update(skip_locked=True, of=("self",))
        job = claim.first()
        if job is None:
            return None
        now = clock.now()
        lease_until = now + clock.milliseconds(LEASE_S * 1_000)
        needed = references.retained_ids(job) | references.previewed_ids(job)
        claimed, kept = [], []
        for row in _due(now).filter(job=job).order_by("number")[:BATCH]:
            if row.number in needed:
                row.discard_due_at = now + clock.milliseconds(NEEDED_AGAIN_S * 1_000)
                kept.append(row)
                continue
            row.discard_due_at, row.discard_error = lease_until, ""
            row.discard_tries += 1
            claimed.append(row)
        fields = ["discard_due_at", "discard_error", "discard_tries"]
        Checkpoint.objects.bulk_update([*claimed, *kept], fields)
        return job, lease_until, claimed


def _conclude(
    job_id: str, lease_until: datetime, keys: Iterable[int], failed: dict[int, str]
) -> None:
    """Record which checkpoints' files were deleted, and the errors of the others."""
    with transaction.atomic():
        job = services.locked(job_id)
        now = clock.now()
        rows = list(Checkpoint.objects.filter(pk__in=list(keys)))
        for row in rows:
            is_ours = row.discard_due_at == lease_until
            if (error := failed.get(row.pk)) is not None:
                if is_ours:
                    row.discard_due_at = now + clock.milliseconds(_backoff_s(row) * 1_000)
                    row.discard_error = Truncator(error).chars(2_000)
                continue
            if row.status not in UNCOMPLETED:
                row.status = CheckpointStatus.DISCARDED.value
            row.discarded_at = now
            if is_ours:  # Else it has come due again meanwhile.
                row.discard_due_at, row.discard_tries = None, 0
        fields = ["status", "discarded_at", "discard_due_at", "discard_error", "discard_tries"]
        Checkpoint.objects.bulk_update(rows, fields)
        _answer(job, [row for row in rows if row.pk not in failed])
        wakeups.on_commit(wakeups.job(job.pk))


def _answer(job: Job, deleted: Iterable[Checkpoint]) -> None:
    """Let the operations succeed whose savepoints were deleted."""
    wanted = Operation.objects.filter(
        job=job, kind=OperationKind.DISCARD, status__in=OPEN_OPERATIONS
    )
    numbers = {row.number: row for row in deleted if row.location}
    for operation in wanted if numbers else ():
        if (row := numbers.get(operation.parameters.get("checkpoint"))) is not None:
            operations.succeed(operation, {"checkpoint": row.number, "path": row.location})


def _backoff_s(row: Checkpoint) -> float:
    return min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(row.discard_tries - 1, 20))
