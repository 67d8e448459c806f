"""Celery tasks. The work is in the services; the next task repeats one that is lost."""

from celery import shared_task
from celery.exceptions import Ignore

from checkpoints import chain_samples, ticks
from checkpoints.operations import previews, returns, savepoints, upgrades
from checkpoints.retention import discards, finalization
from checkpoints.retention import sweep as retention_sweep
from controlplane.base import clock
from controlplane.base.ticks import places, run_all


@shared_task
def tick() -> None:
    """Trigger and expire the checkpoints of all jobs, and carry their operations on."""
    clock.look()
    run_all(
        ticks.tick_due,
        upgrades.check_due,
        returns.launch_due,
        returns.return_due,
        returns.forks_launched,
    )


@shared_task
def tick_job(job_id: str, is_repeated: bool = False) -> None:
    """Trigger and expire the checkpoints of one job, at its exact due time."""
    ticks.tick_one(job_id, is_repeated=is_repeated)


@shared_task
def storage_tick() -> None:
    """Settle checkpoints of lost drivers, answer previews, delete files that are due, clean up."""
    with places.one() as is_free:
        if not is_free:
            raise Ignore  # Not noted as a run: `/readyz` names the tick if that goes on.
        run_all(
            finalization.settle_driverless,
            previews.answer_due,
            discards.discard_due,
            retention_sweep.clean_next,
        )


@shared_task
def sweep() -> None:
    """Tell unreported ends of jobs, drop commands, trim details, let claimed savepoints go."""
    run_all(
        retention_sweep.end_driverless,
        retention_sweep.drop_commands,
        retention_sweep.trim_details,
        savepoints.let_claimed_go,
    )


@shared_task
def sample() -> None:
    """Add the counters of the chains of all jobs to their series."""
    chain_samples.sample()
