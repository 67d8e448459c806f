"""Recoveries of a job that took longer than its target, in words."""

from collections.abc import Collection

from controlplane.alerts.facts import ATTEMPTS_MAX, AttemptFacts
from controlplane.alerts.recoveries import recovery_ms
from controlplane.base.formatting import duration, interval
from jobs.models import Attempt, AttemptEnd, Job

READ_MAX = 100  # Attempts, back from the newest that is asked about.


def beyond_target(job: Job, numbers: Collection[int]) -> dict[int, str]:
    """A sentence on each of these attempts whose recovery took longer than the job's target.

    A recovery is measured as rules on slow recoveries do. One query; none without a target.
    """
    target_s = job.recovery_target_s
    if target_s is None or not numbers:
        return {}
    rows = Attempt.objects.filter(job=job, number__lte=max(numbers)).order_by("-number")
    columns = ("number", "started_at", "running_at", "ended_at", "end")
    attempts = [
        AttemptFacts(
            number=number,
            started_at=started_at,
            running_at=running_at,
            ended_at=ended_at,
            has_failed=end == AttemptEnd.FAILED,
        )
        for number, started_at, running_at, ended_at, end in rows.values_list(*columns)[:READ_MAX]
    ]
    took_ms = {
        attempt.number: recovery_ms(attempts[at : at + ATTEMPTS_MAX])
        for at, attempt in enumerate(attempts)
        if attempt.number in numbers
    }
    return {
        number: f"Recovered in {duration(took)}, over the job's target of "
        f"{interval(target_s * 1_000)}."
        for number, took in took_ms.items()
        if took is not None and took > target_s * 1_000
    }
