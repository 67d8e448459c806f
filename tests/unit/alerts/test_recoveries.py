"""Slow recoveries: how long one took, and by which target it is judged."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controlplane.alerts.facts import AttemptFacts, JobFacts, Life
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.kinds.base import Judged
from controlplane.alerts.recoveries import last_outage, recovery_ms
from weir.protocol.lifecycle import JobStatus

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
FULL = "OSError: no space left"


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def attempt(
    number: int, began: float, ran: float | None = None, ended: float | None = None, **parts: object
) -> AttemptFacts:
    """An attempt that failed where it has an end, unless ``parts`` say otherwise."""
    given = {
        "running_at": None if ran is None else at(ran),
        "ended_at": None if ended is None else at(ended),
        "has_failed": ended is not None,
        "cause": "" if ended is None else FULL,
    }
    return AttemptFacts(number=number, started_at=at(began), **(given | parts))  # type: ignore[arg-type]


FAILED = attempt(1, -10, -9, 0)
NEVER_RAN = attempt(2, 1, None, 5)
RUNS = attempt(3, 6, 20)


def judged(
    *attempts: AttemptFacts, own_s: float | None, limit_s: float = 60, now: float = 21
) -> Judged:
    life = Life(status=JobStatus.RUNNING, is_planned=True, recovery_target_s=own_s)
    job = JobFacts(id="flights-1", name="flights", life=life, attempts=attempts)
    kind = KINDS["recovery_time"]
    return kind.judge(kind.read({"seconds": limit_s, "window_s": 600}), job, at(now))


@pytest.mark.parametrize(
    ("own_s", "limit_s", "holds"),
    [
        (None, 19, True),
        (None, 20, False),
        (19, 60, True),
        (20, 1, False),
        (0.5, 60, True),
        (3_600, 1, False),
    ],
)
def test_the_job_s_target_counts_and_without_one_the_rule_s_limit(
    own_s: float | None, limit_s: float, holds: bool
) -> None:
    attempts = (RUNS, NEVER_RAN, FAILED)
    said = judged(*attempts, own_s=own_s, limit_s=limit_s)
    assert bool(said.holding) is holds


def test_an_alert_says_which_target_it_was() -> None:
    attempts = (RUNS, NEVER_RAN, FAILED)
    (own,) = judged(*attempts, own_s=2.5).holding
    assert own.summary == (
        "The job's recovery took 20.0 s, over the job's target of 2.5 s, after this failure: "
        + FULL
    )
    assert own.evidence == (
        ("time without a running job", "20.0 s"),
        ("job's target", "2.50 s"),
        ("cause", FULL),
    )
    (of_rule,) = judged(
        *(replace(one, cause="") for one in attempts), own_s=None, limit_s=10
    ).holding
    assert of_rule.summary == "The job's recovery took 20.0 s, over the rule's limit of 10 s."
    assert of_rule.evidence[1:] == (("rule's limit", "10.0 s"),)


def test_a_recovery_under_way_is_judged_when_its_own_target_has_passed() -> None:
    attempts = (attempt(3, 6), NEVER_RAN, FAILED)
    early = judged(*attempts, own_s=15, now=14)
    assert (early.holding, early.until) == ((), at(15))
    assert judged(*attempts, own_s=None, now=14).until == at(60)
    (late,) = judged(*attempts, own_s=15, now=15).holding
    assert late.summary.startswith(
        "The job has been recovering for 15.0 s, over the job's target of 15 s"
    )


def test_a_recovery_of_an_attempt_is_the_time_from_the_failure_on() -> None:
    assert recovery_ms((RUNS, NEVER_RAN, FAILED)) == 20_000
    # What became of the attempt later does not matter.
    later = attempt(3, 6, 20, 100)
    assert recovery_ms((later, NEVER_RAN, FAILED)) == 20_000
    planned = replace(FAILED, has_failed=False)
    assert recovery_ms((RUNS, NEVER_RAN, planned)) == 15_000


@pytest.mark.parametrize(
    "attempts",
    [
        (),
        (FAILED,),
        (NEVER_RAN, FAILED),
        (RUNS, replace(FAILED, has_failed=False)),
        (attempt(3, 6), NEVER_RAN, FAILED),
    ],
)
def test_an_attempt_that_ended_no_outage_has_no_recovery(
    attempts: tuple[AttemptFacts, ...],
) -> None:
    assert recovery_ms(attempts) is None


def test_an_outage_lasts_until_an_attempt_runs() -> None:
    outage = last_outage((attempt(3, 6), NEVER_RAN, FAILED))
    assert outage is not None
    assert (outage.began_at, outage.ended_at, outage.cause) == (at(0), None, FULL)
