"""What Celery calls. The work is in the services; a task that is lost is repeated by the next."""

from celery import shared_task

from jobs import due_jobs, operations, preview_processes
from jobs.drivers import launcher


@shared_task
def tick() -> None:
    """Do what has come due for jobs."""
    due_jobs.tick()
    operations.expire_due()


@shared_task
def launch_tick() -> None:
    """Look after the drivers of this machine, and the questions that it works out."""
    launcher.tick()
    preview_processes.tick()


@shared_task
def sweep() -> None:
    """Find what no tick would ever come to."""
    due_jobs.resume_stranded()
    preview_processes.forget_lost()
