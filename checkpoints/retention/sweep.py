"""The sweep behind the ticks: unreported ends of jobs, details of old checkpoints, stray files.

Each part does a bounded amount and can be cut off anywhere; the next sweep goes on.
"""

import logging
import re
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache

from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, Q, QuerySet

from checkpoints.catalog import locations
from checkpoints.coordinator.shell import pump, state_of
from checkpoints.models import COMPLETED_ONCE, Checkpoint, CoordinatorRow
from checkpoints.retention import rows, withdrawn_output
from checkpoints.retention.finalization import is_driverless
from controlplane.base import clock, logs
from jobs import services
from jobs.models import FINAL_JOB_STATUSES, Attempt, Job, OutboxCommand
from jobs.set_aside import Step, is_set_aside, setting_aside
from weir.errors import ConfigError, CorruptStateError, RestoreError, StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus, JobStatus
from weir.protocol.messages import JobEnded
from weir.storage.manifest import Manifest, Tombstone, dump, load
from weir.storage.shared_files import sweep_shared

logger = logging.getLogger(__name__)

ENDED_MAX = 100  # In one sweep each.
DROPPED_MAX = 5_000
TRIMMED_JOBS_MAX = 50
TRIMMED_MAX = 500  # Checkpoints of one job.

GIVEN_UP_MAX = 100  # Savepoints of one job.
MANIFESTS_READ_MAX = 200  # Of one job's checkpoints without a row.

CLEANED_EVERY_S = 600.0
# Late writers of an uncompleted checkpoint are done by then: uploads time out long before.
LATE_S = 600.0
# A job's storage is cleaned up until this long after its end.
CLEANED_AFTER_END_S = 3_600.0


# Rows ---------------------------------------------------------------------------------------------


def end_driverless() -> int:
    """Tell coordinators the end of their jobs, where the driver could not; return how many."""
    over = CoordinatorRow.objects.filter(
        is_driverless("job", clock.now()), has_ended=False, job__status__in=FINAL_JOB_STATUSES
    ).exclude(is_set_aside(Step.END, clock.now(), "job_id"))
    count = 0
    for job_id in list(over.values_list("job", flat=True)[:ENDED_MAX]):
        with setting_aside(Step.END, job_id), transaction.atomic():
            job = services.locked(job_id)
            if job.is_over:
                pump(job, [JobEnded(JobStatus(job.status))], now_ms=clock.now_ms())
                count += 1
    return count


def drop_commands() -> int:
    """Drop the commands to jobs that are over and have no driver left; return how many."""
    over = OutboxCommand.objects.filter(
        is_driverless("job", clock.now()), job__status__in=FINAL_JOB_STATUSES
    )
    count, _ = OutboxCommand.objects.filter(pk__in=over.values("pk")[:DROPPED_MAX]).delete()
    return count


def trim_details() -> int:
    """Delete acknowledgements and alignments of old checkpoints; return of how many.

    They are kept for the newest few of each job that completed, for as many that failed and for
    savepoints. The evidence of their verdicts goes with them.
    """
    detailed = Checkpoint.objects.filter(has_details=True)
    completed = detailed.filter(kind=CheckpointKind.CHECKPOINT.value, status__in=COMPLETED_ONCE)
    return _trim(completed) + _trim(detailed.filter(status__in=UNCOMPLETED))


def _trim(detailed: QuerySet[Checkpoint]) -> int:
    kept: int = settings.WEIR_DETAILED_CHECKPOINTS
    crowded = detailed.order_by().values("job").annotate(count=Count("pk")).filter(count__gt=kept)
    count = 0
    for job_id in list(crowded.values_list("job", flat=True)[:TRIMMED_JOBS_MAX]):
        own = detailed.filter(job=job_id).order_by("-number")
        old = own.values_list("pk", "acknowledged_count")[kept : kept + TRIMMED_MAX]
        for keys in rows.by_volume(old):
            with transaction.atomic():
                rows.delete_details(keys)
                Checkpoint.objects.filter(pk__in=keys).update(has_details=False, evidence=None)
            count += len(keys)
    return count


# Files --------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Stored:
    """The contents of one checkpoint's directory."""

    has_manifest: bool = False
    attempts: set[AttemptNumber] = field(default_factory=set)


def clean_next() -> str | None:
    """Clean up the storage of the job whose turn it is; return its id, or None without one."""
    now = clock.now()
    row = _next(now)
    if row is None:
        return None
    with logs.about(job=row.job_id):
        try:
            _clean(row.job, now)
        except (StorageError, ConfigError) as error:
            logger.warning("the job's storage could not be cleaned up: %s", error)
    return str(row.job_id)


def _next(now: datetime) -> CoordinatorRow | None:
    """The job that has waited longest; setting ``swept_at`` takes it."""
    ended_long = Q(job__status__in=FINAL_JOB_STATUSES) & Q(
        swept_at__gte=F("job__ended_at") + clock.milliseconds(CLEANED_AFTER_END_S * 1_000)
    )
    since = now - clock.milliseconds(CLEANED_EVERY_S * 1_000)
    due = CoordinatorRow.objects.filter(Q(swept_at__isnull=True) | Q(swept_at__lt=since))
    waiting = due.exclude(ended_long).order_by(F("swept_at").asc(nulls_first=True))
    row = waiting.select_related("job").defer("state").first()
    if row is None:
        return None
    taken = CoordinatorRow.objects.filter(pk=row.pk, swept_at=row.swept_at)
    return row if taken.update(swept_at=now) else None


def _clean(job: Job, now: datetime) -> None:
    locations.own_store_of(job)  # Elsewhere nothing may be concluded from what is missing.
    late = now - clock.milliseconds(LATE_S * 1_000)
    _give_savepoints_up(job, late, now)
    withdrawn_output.delete_stray(job)
    stored = _stored(job)
    if stored:
        _clean_stored(job, stored, late, now)
    _clean_shared(job, late)


def _give_savepoints_up(job: Job, late: datetime, now: datetime) -> None:
    """Discard the rest of uncompleted savepoints whose manifests were in doubt."""
    unknown = Checkpoint.objects.filter(
        job=job,
        status__in=UNCOMPLETED,
        settled_at__lt=late,
        discard_due_at=None,
        discarded_at=None,
    )
    for row in unknown.exclude(location="").order_by("-number")[:GIVEN_UP_MAX]:
        if _is_given_up(job, row):
            _arm(job.pk, row.pk, now)


def _clean_stored(
    job: Job, stored: dict[CheckpointId, _Stored], late: datetime, now: datetime
) -> None:
    known = {row.number: row for row in Checkpoint.objects.filter(job=job, number__in=stored)}
    next_id = state_of(job).next_id
    read = 0
    for number, directory in sorted(stored.items()):
        row = known.get(number)
        if row is None:
            # This control plane did not trigger it, or retention removed its row since; without a
            # manifest it never completed.
            if number < next_id and not directory.has_manifest:
                _delete_attempts(job, number, directory)
            elif number < next_id and read < MANIFESTS_READ_MAX:
                read += 1
                _clean_rowless(job, number, directory)
        elif row.discard_due_at is None and row.settled_at is not None and row.settled_at < late:
            if row.status in UNCOMPLETED and directory.attempts:
                if row.discarded_at is not None or _is_given_up(job, row):
                    _arm(job.pk, row.pk, now)
            elif row.status == CheckpointStatus.DISCARDED:
                _arm(job.pk, row.pk, now)


def _clean_shared(job: Job, late: datetime) -> None:
    """Delete files in ``shared/`` of which a crash, or a late writer, left no manifest."""
    next_id = state_of(job).next_id  # Read first: what is triggered from now on has later numbers.

    @cache
    def is_settled(number: CheckpointId) -> bool:
        row = Checkpoint.objects.filter(job=job, number=number).first()
        if row is None:
            return number < next_id
        if row.settled_at is None or row.settled_at >= late:
            return False
        is_in_doubt = row.status in UNCOMPLETED and row.discarded_at is None
        return not is_in_doubt or _is_given_up(job, row)

    count = sweep_shared(
        locations.store_of(job), JobId(job.pk), lambda _, number: is_settled(number)
    )
    if count:
        logger.info("deleted %d shared files that no checkpoint names", count)


def _clean_rowless(job: Job, number: CheckpointId, directory: _Stored) -> None:
    """Delete a tombstone, and files beside it, whose row and whose driver are gone.

    The tombstone keeps a frozen driver of its attempt from writing a manifest; once the process has
    ended, none is left to be kept.
    """
    store, path = locations.store_of(job), locations.layout_of(job).manifest(number)
    try:
        stored = load(store.read(path), path)
    except (CorruptStateError, RestoreError):
        return  # Perhaps a newer Weir's.
    if not isinstance(stored, Tombstone):
        return
    _delete_attempts(job, number, directory)
    attempt = Attempt.objects.filter(job=job, number=stored.attempt).select_related("driver")
    if all(row.driver.stopped_at is not None for row in attempt):
        store.delete(path)


def _stored(job: Job) -> dict[CheckpointId, _Stored]:
    """The job's checkpoint directories, with the attempts whose files are in them."""
    directory = locations.layout_of(job).directory
    pattern = re.compile(re.escape(directory) + r"/chk-(\d+)/(?:(manifest)|(\d+)/.*)")
    stored: dict[CheckpointId, _Stored] = defaultdict(_Stored)
    for path in locations.store_of(job).list(directory):
        if match := pattern.fullmatch(path):
            entry = stored[CheckpointId(int(match[1]))]
            if match[2]:
                entry.has_manifest = True
            else:
                entry.attempts.add(AttemptNumber(int(match[3])))
    return dict(stored)


def _is_given_up(job: Job, row: Checkpoint) -> bool:
    """Whether the checkpoint has no manifest and never will: a tombstone takes its key."""
    number = CheckpointId(row.number)
    store, path = locations.store_of(job), locations.layout_of(job).manifest(number)
    tombstone = Tombstone(
        job_id=JobId(job.pk),
        checkpoint_id=number,
        attempt=AttemptNumber(row.attempt),
        given_up_ms=clock.now_ms(),
        reason=row.cause or row.reason,
    )
    if store.create_if_absent(path, dump(tombstone)):
        return True
    try:
        return not isinstance(load(store.read(path), path), Manifest)
    except (CorruptStateError, RestoreError) as error:
        logger.warning("checkpoint %d keeps its files: %s", row.number, error)
        return False


def _arm(job_id: str, key: int, now: datetime) -> None:
    """Mark the files of a checkpoint as due for deletion, again."""
    with transaction.atomic():
        job = services.locked(job_id)
        row = Checkpoint.objects.get(pk=key)
        if row.discard_due_at is None and row.number not in {
            completed.checkpoint_id for completed in state_of(job).completed
        }:
            row.discard_due_at, row.discard_tries = now, 0
            row.save(update_fields=["discard_due_at", "discard_tries"])


def _delete_attempts(job: Job, number: CheckpointId, directory: _Stored) -> None:
    store, layout = locations.store_of(job), locations.layout_of(job)
    for attempt in sorted(directory.attempts):
        logger.info("deleting the files of checkpoint %s, which has no row", number)
        store.delete_prefix(layout.attempt_state(number, attempt))
