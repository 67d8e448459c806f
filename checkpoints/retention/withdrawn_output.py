"""Output that a rewind took back, once nothing is kept any more to which it could be put back."""

import logging
from collections.abc import Sequence

from checkpoints.catalog import locations
from checkpoints.coordinator.shell import state_of
from checkpoints.models import Checkpoint
from controlplane.base import logs
from jobs.models import Job
from weir.errors import ConfigError, CorruptStateError, StorageError
from weir.ids import CheckpointId, JobId
from weir.output.output_files import delete_unneeded
from weir.protocol.lifecycle import CheckpointStatus

logger = logging.getLogger(__name__)

_UNSETTLED = (CheckpointStatus.PENDING.value, CheckpointStatus.FINALIZING.value)


def delete_behind(job: Job, discarded: Sequence[Checkpoint]) -> None:
    """Delete withdrawn output that only the discarded checkpoints had on their line."""
    abandoned = [row.number for row in discarded if row.abandoned_at is not None]
    if abandoned:
        _delete(job, max(abandoned))


def delete_stray(job: Job) -> None:
    """Delete withdrawn output that is on no line at all.

    A crash leaves whole files of checkpoints that never completed. The next attempt withdraws them,
    for a checkpoint that nobody went on from may have needed them.
    """
    _delete(job, state_of(job).next_id - 1)


def _delete(job: Job, up_to: int) -> None:
    """Delete what is on no line that is kept, of checkpoints up to this one.

    A directory that this machine does not have keeps what it holds; so does one that cannot be
    read. Neither keeps anything else from going on.
    """
    known = job.operators.exclude(files=None).values_list("files", flat=True)
    directories = sorted(set(known))
    if not directories:
        return
    # What becomes of one that is not settled is not known; nor then of what comes after it.
    unsettled = Checkpoint.objects.filter(job=job, status__in=_UNSETTLED).order_by("number")
    first = unsettled.values_list("number", flat=True).first()
    last = CheckpointId(up_to if first is None else min(up_to, first - 1))
    with logs.about(job=job.pk):
        try:
            delete_unneeded(locations.store_of(job), JobId(job.pk), directories, last)
        except (StorageError, ConfigError, CorruptStateError, OSError) as error:
            logger.warning("output that was taken back stays where it is: %s", error)
