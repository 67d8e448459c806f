"""Deleting the files of checkpoints that nobody needs any more.

What is due is claimed under the job's lock, with a lease; the files are deleted outside of any
transaction, and then the rows say so. What a killed worker had claimed comes due again when its
lease ends; deleting twice does no harm.

Of a completed checkpoint the manifest goes first: without it the rest is nothing that somebody
could restore. Of an aborted one only what its attempt wrote goes; the tombstone in the manifest's
place stays, for a driver that was frozen may still want to write there.
"""

import logging
from collections.abc import Iterable
from datetime import datetime

from django.db import transaction
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils.text import Truncator

from checkpoints import places
from checkpoints.coordination import state_of
from checkpoints.models import Checkpoint
from controlplane import clock, logs, wakeups
from jobs import services
from jobs.models import LIVE_DRIVERS, Attempt, Driver, Job
from weir.errors import ConfigError, StorageError
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.lifecycle import CheckpointStatus, JobStatus
from weir.storage.layout import JobLayout
from weir.storage.store import CheckpointStore

logger = logging.getLogger(__name__)

JOBS_MAX = 50  # In one look; the next, a second later, takes the rest.
BATCH = 50  # Checkpoints of a job that are claimed at once.
LEASE_S = 120.0
NEEDED_AGAIN_S = 30.0  # When one is looked at again that something still needs.
BACKOFF_MIN_S, BACKOFF_MAX_S = 2.0, 600.0


def discard_due() -> int:
    """Delete the files of all checkpoints that are due; says of how many."""
    count = 0
    for job_id in list(_due(clock.now()).values_list("job", flat=True).distinct()[:JOBS_MAX]):
        problem = "its files could not be deleted; a later look tries again"
        with logs.guarding(logger, problem, job=job_id):
            count += _discard_of(job_id)
    return count


def _due(now: datetime) -> QuerySet[Checkpoint]:
    """What may be deleted: completed ones not while a driver may be choosing what to restore."""
    drivers = Driver.objects.filter(job=OuterRef("job"), status__in=LIVE_DRIVERS)
    is_undisturbed = Q(job__status=JobStatus.RUNNING) | ~Q(Exists(drivers))
    aborted = Q(status=CheckpointStatus.ABORTED)
    return Checkpoint.objects.filter(aborted | is_undisturbed, discard_due_at__lte=now).order_by()


def _discard_of(job_id: str) -> int:
    claimed = _claim(job_id)
    if claimed is None:
        return 0
    job, lease_until, rows = claimed
    failed: dict[int, str] = {}
    try:
        store, layout = places.store_of(job), places.layout_of(job)
    except ConfigError as error:
        failed = {row.pk: str(error) for row in rows}
    for row in rows:
        if row.pk in failed:
            continue
        try:
            delete_files(store, layout, row)
        except StorageError as error:
            failed[row.pk] = str(error)
            with logs.about(checkpoint=row.number):
                logger.warning("its files could not be deleted: %s", error)
    _conclude(job_id, lease_until, [row.pk for row in rows], failed)
    return len(rows) - len(failed)


def delete_files(store: CheckpointStore, layout: JobLayout, row: Checkpoint) -> None:
    """Delete what is due of one checkpoint.

    Raises:
        StorageError: Something is left.
    """
    number = CheckpointId(row.number)
    if row.status == CheckpointStatus.ABORTED:
        store.delete_prefix(layout.attempt_state(number, AttemptNumber(row.attempt)))
        return
    store.delete(layout.manifest(number))
    store.delete_prefix(layout.checkpoint(number))


def _claim(job_id: str) -> tuple[Job, datetime, list[Checkpoint]] | None:
    """Take what is due of a job and not needed; None where somebody works on the job."""
    with transaction.atomic():
        claim = Job.objects.filter(pk=job_id).select_for_update(skip_locked=True, of=("self",))
        job = claim.first()
        if job is None:
            return None
        now = clock.now()
        lease_until = now + clock.milliseconds(LEASE_S * 1_000)
        needed = needed_numbers(job)
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


def needed_numbers(job: Job) -> set[int]:
    """The checkpoints that something needs: the caller holds the job's lock.

    Those that are kept for a restore, those under way and what they build on, and what the attempt
    that runs went on from.
    """
    state = state_of(job)
    needed = {int(c.checkpoint_id) for c in state.completed}
    for pending in state.pending:
        needed |= {int(pending.checkpoint_id), int(pending.parent_id or 0)}
    live = Attempt.objects.filter(job=job, ended_at=None)
    return needed | set(live.values_list("restored_checkpoint", flat=True))


def _conclude(
    job_id: str, lease_until: datetime, keys: Iterable[int], failed: dict[int, str]
) -> None:
    """Note what was deleted and what was not."""
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
            if row.status != CheckpointStatus.ABORTED:
                row.status = CheckpointStatus.DISCARDED.value
            row.discarded_at = now
            if is_ours:  # Else more of it has come due meanwhile.
                row.discard_due_at, row.discard_tries = None, 0
        fields = ["status", "discarded_at", "discard_due_at", "discard_error", "discard_tries"]
        Checkpoint.objects.bulk_update(rows, fields)
        wakeups.on_commit(wakeups.job(job.pk))


def _backoff_s(row: Checkpoint) -> float:
    return min(BACKOFF_MAX_S, BACKOFF_MIN_S * 2.0 ** min(row.discard_tries - 1, 20))
