"""Celery tasks of jobs. Services do the work; the next tick repeats a lost one."""

from celery import shared_task

from controlplane.base.ticks import run_all
from jobs import due_jobs, operations, preview_processes, set_aside
from jobs.drivers import launcher


@shared_task
def tick() -> None:
    """Do the due work on jobs, and expire operations."""
    run_all(due_jobs.tick, operations.expire_due, due_jobs.keep_awake)


@shared_task
def launch_tick() -> None:
    """Start and watch this machine's drivers, previews and comparisons."""
    run_all(launcher.tick, preview_processes.tick)


@shared_task
def sweep() -> None:
    """Resume stranded jobs, and previews and comparisons of machines that are away."""
    run_all(due_jobs.resume_stranded, preview_processes.forget_lost, set_aside.forget_old)
