"""Withdrawn output: deleted once no checkpoint is kept to which it could be put back."""

import logging
from collections.abc import Sequence

from checkpoints.catalog import locations
from checkpoints.coordinator.shell import state_of
from checkpoints.models import UNSETTLED, Checkpoint
from controlplane.base import logs
from jobs.models import Job
from weir.errors import ConfigError, CorruptStateError, StorageError
from weir.ids import CheckpointId, JobId
from weir.output.output_files import delete_unneeded

logger = logging.getLogger(__name__)


def delete_behind(job: Job, discarded: Sequence[Checkpoint]) -> None:
    """Delete withdrawn output that only the discarded checkpoints had on their line.

    A rollback can leave a checkpoint behind that is not marked as abandoned: it was let go before,
    and kept for the attempt that had restored it.
    """
    newest = state_of(job).attempt
    behind = [
        row.number for row in discarded if row.abandoned_at is not None or row.attempt < newest
    ]
    if behind:
        _delete(job, max(behind))


def delete_stray(job: Job) -> None:
    """Delete withdrawn output that is on no line at all.

    A crash leaves whole files of checkpoints that never completed. The next attempt withdraws them,
    since a checkpoint that no attempt restored may have needed them.
    """
    _delete(job, state_of(job).next_id - 1)


def _delete(job: Job, up_to: int) -> None:
    """Delete the files of checkpoints up to ``up_to`` that are on no line that is kept.

    A directory that this machine does not have keeps its files; so does one that cannot be read.
    Neither stops the caller.
    """
    known = job.operators.exclude(files=None).values_list("files", flat=True)
    directories = sorted({directory for directory in known if directory is not None})
    if not directories:
        return
    # The outcome of an unsettled checkpoint is open, and so is whose line later output is on.
    unsettled = Checkpoint.objects.filter(job=job, status__in=UNSETTLED).order_by("number")
    first = unsettled.values_list("number", flat=True).first()
    last = CheckpointId(up_to if first is None else min(up_to, first - 1))
    with logs.about(job=job.pk):
        try:
            delete_unneeded(locations.store_of(job), JobId(job.pk), directories, last)
        except (StorageError, ConfigError, CorruptStateError, OSError) as error:
            logger.warning("withdrawn output could not be deleted and stays where it is: %s", error)
