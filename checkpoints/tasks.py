"""What Celery calls. The work is in the services; a task that is lost is repeated by the next."""

from celery import shared_task

from checkpoints import discards, previews, savepoints, settling, sweeping, ticking
from controlplane import clock


@shared_task
def tick() -> None:
    """Trigger and expire what is due."""
    clock.look()
    ticking.tick_due()


@shared_task
def tick_job(job_id: str, is_repeated: bool = False) -> None:
    """The same for one job, at its exact time."""
    ticking.tick_one(job_id, is_repeated=is_repeated)


@shared_task
def storage_tick() -> None:
    """Settle what lost drivers left, answer what was asked, delete what is due, clean up."""
    settling.settle_driverless()
    previews.answer_due()
    discards.discard_due()
    sweeping.clean_next()


@shared_task
def sweep() -> None:
    """Repeat what was cut off, and trim what is old."""
    sweeping.end_driverless()
    sweeping.drop_commands()
    sweeping.trim_details()
    savepoints.let_claimed_go()
