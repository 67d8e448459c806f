"""The facts for ``job_warnings``, from rows. Pure: no queries."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from django.conf import settings

from checkpoints.models import Checkpoint
from controlplane.base.formatting import milliseconds_between
from frontend.base.job_warnings import Facts
from jobs.models import DriverStatus, Job
from weir.protocol.lifecycle import CheckpointStatus, JobStatus


class Settled(Protocol):
    """The columns of a completed or aborted checkpoint that warnings need."""

    @property
    def status(self) -> str:
        """A ``CheckpointStatus``."""

    @property
    def reason(self) -> str:
        """The reason of its failure; empty where it completed."""


def silent_ms(now: datetime, status: str | None, heard_at: datetime | None) -> float | None:
    """The time since a running driver last reported, where it is too long; else None."""
    if status != DriverStatus.RUNNING:
        return None
    silence = milliseconds_between(heard_at, now)
    return silence if silence is not None and silence > settings.WEIR_DRIVER_SILENT_MS else None


def gather(
    job: Job,
    now: datetime,
    *,
    driver_status: str | None,
    driver_heard_at: datetime | None,
    driver_created_at: datetime | None,
    attempt_running_at: datetime | None,
    completed: Checkpoint | None,
    settled: Sequence[Settled],  # Newest first.
    due_at: datetime | None = None,
) -> Facts:
    """The facts about a job."""
    is_silent = silent_ms(now, driver_status, driver_heard_at)
    failed = 0
    for checkpoint in settled:
        if checkpoint.status != CheckpointStatus.ABORTED:
            break
        failed += 1
    late = milliseconds_between(due_at, now)
    return Facts(
        status=JobStatus(job.status),
        cause=job.cause,
        silent_ms=None if job.is_over else is_silent,
        launch_wait_ms=(
            milliseconds_between(driver_created_at, now)
            if driver_status == DriverStatus.REQUESTED and not job.is_over
            else None
        ),
        # Jobs whose driver is silent are not ticked on purpose.
        tick_late_ms=None if is_silent is not None or job.is_over else late,
        interval_ms=(job.checkpoint_config or {}).get("interval_ms"),
        running_ms=milliseconds_between(attempt_running_at, now),
        since_completed_ms=milliseconds_between(completed.settled_at if completed else None, now),
        last_duration_ms=(completed.duration_ms if completed else None) or 0.0,
        failed_in_a_row=failed,
        failed_in_a_row_is_all=failed > 1 and failed == len(settled),
        failed_reason=settled[0].reason if failed else "",
    )
