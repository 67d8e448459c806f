"""Takeovers of a job's attempts in words, and recoveries that took longer than its target."""

from collections.abc import Collection

from controlplane.alerts.facts import ATTEMPTS_MAX, AttemptFacts
from controlplane.alerts.recoveries import recovery_ms
from controlplane.base.formatting import NOTHING, duration, interval, size
from frontend.base.texts import headline
from frontend.job.outages import Takeover
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


def why(row: Attempt, last: Attempt | None, took: Takeover | None) -> str:
    """The reason for an attempt, in a sentence; ``last`` is the attempt before it."""
    if last is None or took is None:
        return "The first attempt." if row.number == 1 else ""
    if took.was_over:
        return "Resumed the job after it was over."
    if took.is_planned:
        if last.end == AttemptEnd.SUSPENDED:
            return "Took over when the control plane was started again."
        return f"Took over as requested: {headline(last.cause) or 'attempt was ended'}."
    # The failed attempt shows the cause; for some it is known only to the successor.
    cause = "" if last.cause else headline(row.recovery_cause)
    return f"Took over after attempt {last.number:,} failed{f': {cause}' if cause else ''}."


def down(took: Takeover | None) -> str:
    """The time for which the job was down before an attempt."""
    if took is None:
        return NOTHING
    return "was over" if took.was_over else duration(took.down_ms)


def down_parts(took: Takeover | None) -> str:
    """The parts of that time."""
    if took is None:
        return ""
    if took.was_over:
        return "The job had finished or been cancelled: it was over, not down."
    return (
        f"Detection and delay {duration(took.delay_ms)}, redeploy {duration(took.redeploy_ms)}, "
        f"restore {duration(took.restore_ms)}"
    )


def read_bytes(row: Attempt) -> str:
    """The size of the state that an attempt restored, and how much of it came from local copies."""
    whole, local = size(row.restored_bytes), row.restored_local_bytes
    if local is None:
        return whole
    return f"{whole}, {size(local) if local else 'none'} of it from local copies"
