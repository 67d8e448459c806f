"""What Celery calls. The work is in the services; a task that is lost is repeated by the next."""

from celery import shared_task

from checkpoints import ticks
from checkpoints.operations import previews, savepoints
from checkpoints.retention import discards, finalization
from checkpoints.retention import sweep as retention_sweep
from controlplane.base import clock


@shared_task
def tick() -> None:
    """Trigger and expire what is due."""
    clock.look()
    ticks.tick_due()


@shared_task
def tick_job(job_id: str, is_repeated: bool = False) -> None:
    """The same for one job, at its exact time."""
    ticks.tick_one(job_id, is_repeated=is_repeated)


@shared_task
def storage_tick() -> None:
    """Settle what lost drivers left, answer what was asked, delete what is due, clean up."""
    finalization.settle_driverless()
    previews.answer_due()
    discards.discard_due()
    retention_sweep.clean_next()


@shared_task
def sweep() -> None:
    """Repeat what was cut off, and trim what is old."""
    retention_sweep.end_driverless()
    retention_sweep.drop_commands()
    retention_sweep.trim_details()
    savepoints.let_claimed_go()
