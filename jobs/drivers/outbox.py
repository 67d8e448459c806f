"""The outbox: commands to a job's driver, kept as rows until the driver has taken them."""

from collections.abc import Iterable
from datetime import datetime

from controlplane.base import wakeups
from jobs.models import Job, OutboxCommand
from weir.protocol import wire
from weir.protocol.driver_messages import DriverCommand


def enqueue(job: Job, commands: Iterable[DriverCommand], now: datetime) -> None:
    """Add commands for the job's driver, in order; the caller holds the job's lock."""
    rows = [OutboxCommand(job=job, message=wire.encode(c), created_at=now) for c in commands]
    if rows:
        OutboxCommand.objects.bulk_create(rows)
        wakeups.on_commit(wakeups.commands(job.pk))


def forget(job: Job) -> None:
    """Drop the commands that an ended driver has not taken: its successor starts afresh."""
    OutboxCommand.objects.filter(job=job).delete()
