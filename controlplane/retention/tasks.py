"""Celery tasks of retention: the worker's part and the launcher's."""

from celery import shared_task

from controlplane.audit import chain
from controlplane.base.ticks import Budget, run_all
from controlplane.retention import files, rows

SEAL_S = 2.0


@shared_task
def storage_retention() -> None:
    """Seal the audit log, and remove rows that are too old or too many."""
    run_all(seal, rows.look)


@shared_task
def launch_retention() -> None:
    """Remove directories of drivers that are gone, and the oldest parts of large logs."""
    run_all(files.look)


def seal() -> int:
    """Seal the audit entries written since the last time."""
    return chain.seal(Budget(SEAL_S))
