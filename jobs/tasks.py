"""What Celery calls. The work is in the services; a task that is lost is repeated by the next."""

from celery import shared_task

from jobs import answers, launcher, operations, recovery


@shared_task
def tick() -> None:
    """Do what has come due for jobs."""
    recovery.tick()
    operations.expire_due()


@shared_task
def launch_tick() -> None:
    """Look after the drivers of this machine, and the questions that it works out."""
    launcher.tick()
    answers.tick()


@shared_task
def sweep() -> None:
    """Find what no tick would ever come to."""
    recovery.resume_stranded()
    answers.forget_lost()
