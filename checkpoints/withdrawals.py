"""Output that a rewind took back, once nothing is kept any more to which it could be put back."""

import logging
from collections.abc import Sequence

from checkpoints import places
from checkpoints.models import Checkpoint
from controlplane import logs
from jobs.models import Job
from weir.errors import ConfigError, CorruptStateError, StorageError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.lifecycle import CheckpointStatus
from weir.protocol.lineage import NO_END, lineage_of
from weir.storage.bases import bases_of
from weir.storage.withdrawn import delete_withdrawn

logger = logging.getLogger(__name__)

_KEPT = (CheckpointStatus.COMPLETED.value, CheckpointStatus.SUBSUMED.value)


def delete_behind(job: Job, discarded: Sequence[Checkpoint]) -> None:
    """Delete withdrawn output that only the discarded checkpoints had on their line.

    A directory that this machine does not have keeps what it holds; so does one that cannot be
    read. The checkpoints are gone all the same.
    """
    abandoned = [row for row in discarded if row.abandoned_at is not None]
    if not abandoned:
        return
    directories = job.operators.exclude(files=None).values_list("files", flat=True)
    with logs.about(job=job.pk):
        try:
            ids = _useless(job, discarded, max(row.number for row in abandoned))
            for directory in sorted(set(directories)) if ids else ():
                delete_withdrawn(directory, JobId(job.pk), ids)
        except (StorageError, ConfigError, CorruptStateError, OSError) as error:
            logger.warning("output that was taken back stays where it is: %s", error)


def _useless(job: Job, discarded: Sequence[Checkpoint], newest: int) -> frozenset[CheckpointId]:
    """The checkpoints up to ``newest`` that are on the line of nothing that is kept."""
    bases = bases_of(places.store_of(job), JobId(job.pk))
    if not bases:
        return frozenset()
    lines = [lineage_of(max(bases), NO_END, bases)]
    kept = Checkpoint.objects.filter(job=job, status__in=_KEPT)
    kept = kept.exclude(pk__in=[row.pk for row in discarded])
    for number, attempt in kept.values_list("number", "attempt"):
        lines.append(lineage_of(AttemptNumber(attempt), CheckpointId(number), bases))
    own = Checkpoint.objects.filter(job=job, number__lte=newest).values_list("number", flat=True)
    return frozenset(
        CheckpointId(number) for number in own if not any(number in line for line in lines)
    )
