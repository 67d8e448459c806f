"""The facts that conditions depend on, from rows that the caller has read: no queries."""

from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import Protocol

from django.conf import settings

from checkpoints.catalog.undeleted import Undeleted
from checkpoints.conditions.judge import Facts
from checkpoints.models import Checkpoint
from controlplane.base import server_losses
from controlplane.base.formatting import milliseconds_between
from jobs.headlines import headline
from jobs.models import DriverStatus, Job
from weir.protocol.lifecycle import CheckpointStatus, JobStatus


class Settled(Protocol):
    """The columns of a settled checkpoint that conditions need."""

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
    silence = _since_loss(milliseconds_between(heard_at, now))
    return silence if silence is not None and silence > settings.WEIR_DRIVER_SILENT_MS else None


def _since_loss(waited_ms: float | None) -> float | None:
    """A wait, cut to the time for which the database could be reached without a break."""
    lost_ms = server_losses.database_lost_ms_ago()
    if waited_ms is None or lost_ms is None:
        return waited_ms
    return min(waited_ms, lost_ms)


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
    is_redis_away: bool = False,
    undeleted: Undeleted | None = None,
) -> Facts:
    """The facts about a job; ``settled`` are its newest checkpoints that are not under way."""
    is_silent = silent_ms(now, driver_status, driver_heard_at)
    counted = [one for one in settled if one.status != CheckpointStatus.ABORTED]
    failed = list(takewhile(lambda one: one.status == CheckpointStatus.FAILED, counted))
    late = _since_loss(milliseconds_between(due_at, now))
    return Facts(
        status=JobStatus(job.status),
        is_planned=job.is_planned,
        cause=headline(job.cause),
        silent_ms=None if job.is_over else is_silent,
        launch_wait_ms=(
            milliseconds_between(driver_created_at, now)
            if driver_status == DriverStatus.REQUESTED and not job.is_over
            else None
        ),
        # Jobs whose driver is silent are not ticked on purpose.
        tick_late_ms=None if is_silent is not None or job.is_over else late,
        is_redis_away=is_redis_away and not job.is_over,
        interval_ms=(job.checkpoint_config or {}).get("interval_ms"),
        running_ms=milliseconds_between(attempt_running_at, now),
        since_completed_ms=milliseconds_between(completed.settled_at if completed else None, now),
        last_duration_ms=(completed.duration_ms if completed else None) or 0.0,
        failed_in_a_row=len(failed),
        failed_in_a_row_is_all=1 < len(failed) == len(counted),
        failed_reason=failed[0].reason if failed else "",
        undeleted=undeleted["count"] if undeleted else 0,
        undeleted_cause=headline(undeleted["cause"]) if undeleted else "",
    )
