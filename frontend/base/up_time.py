"""The time for which a job's subtasks were all running, as its attempts tell.

The time between attempts does not count: neither downtime nor the time in which the job was over.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import DurationField, ExpressionWrapper, F, OuterRef, Subquery, Sum

from controlplane.base.formatting import NOTHING, moment, rough_duration
from jobs.models import Attempt


def ended_up_time() -> Subquery:
    """The time for which the ended attempts of the job of the outer query ran; null: none did."""
    ran = Attempt.objects.filter(
        job=OuterRef("pk"), running_at__isnull=False, ended_at__isnull=False
    )
    time = ExpressionWrapper(F("ended_at") - F("running_at"), output_field=DurationField())
    total = ran.order_by().values("job").annotate(total=Sum(time)).values("total")
    return Subquery(total, output_field=DurationField())


@dataclass(frozen=True, slots=True)
class UpTime:
    """The up time of a job: of its ended attempts, and since when the newest one runs."""

    ended: timedelta | None
    running_at: datetime | None = None

    @property
    def since(self) -> datetime | None:
        """A point in time from which the up time grows; None: the job does not run now."""
        if self.running_at is None:
            return None
        return self.running_at - (self.ended or timedelta())

    def text(self, now: datetime) -> str:
        """The up time in words."""
        if self.since is not None:
            return rough_duration((now - self.since).total_seconds() * 1_000)
        if self.ended is None:
            return NOTHING
        return rough_duration(self.ended.total_seconds() * 1_000)


def running_since(running_at: datetime | None, ended_at: datetime | None) -> datetime | None:
    """The moment since which an attempt runs; None: it does not."""
    return running_at if ended_at is None else None


def first_ran(started_at: datetime | None) -> str:
    """The explanation of an up time."""
    if started_at is None:
        return "The job has not run yet."
    return (
        "Time for which all subtasks were running, in all attempts together. The job first ran at "
        f"{moment(started_at)}."
    )
