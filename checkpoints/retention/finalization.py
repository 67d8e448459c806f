"""Finalization of checkpoints whose driver was lost while it wrote the manifest.

The first writer of the manifest's key decides. The control plane creates it as a tombstone; where
that fails the driver was faster, and the object under the key is the outcome. A driver that was
only frozen and goes on later finds the key taken.
"""

import logging
from datetime import datetime

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, Q
from django.utils.text import Truncator

from checkpoints.catalog import locations
from checkpoints.coordinator.shell import pump
from checkpoints.models import Checkpoint
from controlplane.base import clock, logs
from jobs import services
from jobs.models import LIVE_DRIVERS, Driver, DriverStatus, Job
from jobs.set_aside import Step, is_set_aside, setting_aside
from weir.errors import ConfigError, CorruptStateError, RestoreError, StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.lifecycle import CheckpointStatus
from weir.protocol.messages import ManifestFailed, ManifestWritten
from weir.storage.manifest import Manifest, Tombstone, dump, load

logger = logging.getLogger(__name__)

SETTLED_MAX = 100  # In one look.
CAUSE = "its driver was lost before it had reported the manifest as written"


def is_driverless(job: str, now: datetime) -> Q:
    """Whether the job in column ``job`` has no driver that may still speak.

    A driver that ended its job itself winds up: it may be writing a manifest, and will report the
    outcome. It may speak for as long as it is heard from.
    """
    since = now - clock.milliseconds(settings.WEIR_DRIVER_SILENT_MS)
    winds_up = Q(status=DriverStatus.ENDED, stop_requested_at__isnull=True, heard_at__gte=since)
    speaking = Driver.objects.filter(winds_up | Q(status__in=LIVE_DRIVERS), job=OuterRef(job))
    return ~Q(Exists(speaking))


def settle_driverless() -> int:
    """Settle the finalizing checkpoints of lost drivers; return how many were settled.

    While the storage cannot be read a checkpoint stays finalizing; the next look tries again.
    """
    finalizing = Checkpoint.objects.filter(
        is_driverless("job", clock.now()), status=CheckpointStatus.FINALIZING
    ).exclude(is_set_aside(Step.SETTLE, clock.now(), "job_id"))
    count = 0
    for row in finalizing.select_related("job").order_by("pk")[:SETTLED_MAX]:
        with logs.about(checkpoint=row.number), setting_aside(Step.SETTLE, row.job_id):
            try:
                outcome = outcome_of(row.job, row)
            except (StorageError, ConfigError) as error:
                _note_failure(row, error)
                continue
            _settle(row.job_id, outcome)
            count += 1
    return count


def outcome_of(job: Job, row: Checkpoint) -> ManifestWritten | ManifestFailed:
    """The outcome of a checkpoint's manifest, which is final once this has returned.

    Raises:
        StorageError: The storage failed.
        ConfigError: This process cannot work with the storage.
    """
    number = CheckpointId(row.number)
    store, path = locations.claimed_store_of(job), locations.layout_of(job).manifest(number)
    tombstone = Tombstone(
        job_id=JobId(job.pk),
        checkpoint_id=number,
        attempt=AttemptNumber(row.attempt),
        given_up_ms=clock.now_ms(),
        reason=CAUSE,
    )
    if store.create_if_absent(path, dump(tombstone)):
        return ManifestFailed(number, CAUSE)
    try:
        stored = load(store.read(path), path)
    except (CorruptStateError, RestoreError) as error:
        return ManifestFailed(number, str(error), may_exist=True)
    if isinstance(stored, Manifest):
        return ManifestWritten(number)
    return ManifestFailed(number, stored.reason)


def _settle(job_id: str, outcome: ManifestWritten | ManifestFailed) -> None:
    with transaction.atomic():
        job = services.locked(job_id)
        pump(job, [outcome], now_ms=clock.now_ms())
    logger.info("the storage says %s", type(outcome).__name__)


def _note_failure(row: Checkpoint, error: Exception) -> None:
    """Record the storage's error on the checkpoint, and log it when it is a new one."""
    cause = Truncator(f"The checkpoint cannot be settled yet: {error}").chars(2_000)
    if row.cause != cause:
        logger.warning("the storage cannot say whether the manifest exists: %s", error)
        Checkpoint.objects.filter(pk=row.pk, status=CheckpointStatus.FINALIZING).update(cause=cause)
