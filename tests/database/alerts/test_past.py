"""Rules tried on the past: the same alerts as evaluators would have fired."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.alerts import machine
from controlplane.alerts.facts import Ended, History, JobFacts, Life
from controlplane.alerts.judging import ReadyRule
from controlplane.alerts.models import Alert, Rule, Watch
from controlplane.alerts.past import Past, replay, would_have_fired
from controlplane.base import clock
from jobs.models import Job, JobEvent, JobEventKind
from tests import factories
from tests.seeds import share
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def still_clock(db: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test is of one moment, however long it takes."""
    moment = clock.now()
    monkeypatch.setattr(clock, "now", lambda: moment)


def ago(**span: float) -> datetime:
    return clock.now() - timedelta(**span)


def checkpoint(
    of: Job, number: int, at: datetime, duration_ms: int | None = None, **facts: Any
) -> None:
    factories.event(
        of,
        at=at,
        kind=JobEventKind.CHECKPOINT_FAILED
        if duration_ms is None
        else JobEventKind.CHECKPOINT_COMPLETED,
        reason="checkpoint_expired" if duration_ms is None else "",
        facts={"checkpoint": number, "kind": "checkpoint", "duration_ms": duration_ms, **facts},
    )


def times(rule: Rule, hours: int = 24) -> list[tuple[float, float | None]]:
    """Begin and end of each alert in minutes ago, oldest first."""
    now = clock.now()

    def minutes(at: datetime | None) -> float | None:
        return None if at is None else round((now - at).total_seconds() / 60, 1)

    return [
        (minutes(one.fired_at) or 0.0, minutes(one.ended_at))
        for one in reversed(would_have_fired(rule, hours).alerts)
    ]


def test_slow_checkpoints_would_have_fired_at_their_times_and_nothing_is_written() -> None:
    job = factories.job()
    for number, (minutes, took_ms) in enumerate(
        [(300, 90_000), (299, 1_000), (200, 1_000), (100, 90_000), (40, 1_000), (30, 1_000)], 1
    ):
        checkpoint(job, number, ago(minutes=minutes), took_ms)
    rule = factories.rule("checkpoint_duration", parameters={"seconds": 60}, is_enabled=False)
    events = JobEvent.objects.count()
    settles = machine.SETTLING.total_seconds() / 60
    assert times(rule) == [(300.0, 299 - settles), (100.0, 40 - settles)]
    assert times(rule, hours=2) == [(100.0, 40 - settles)]
    assert (Alert.objects.count(), Watch.objects.count()) == (0, 0)
    assert JobEvent.objects.count() == events
    rule.hold_s = 1_800
    assert times(rule) == [(70.0, 40 - settles)]
    rule.hold_s = 2 * 3_600
    assert times(rule) == []


def test_failures_in_a_row_would_have_fired_until_their_window_was_over() -> None:
    job = factories.job()
    for number, minutes in enumerate((120, 119, 118), 1):
        checkpoint(job, number, ago(minutes=minutes))
    rule = factories.rule("checkpoint_failures", parameters={"count": 3, "window_s": 600})
    settles = machine.SETTLING.total_seconds() / 60
    assert times(rule) == [(118.0, 110 - settles)]
    (alert,) = would_have_fired(rule).alerts
    assert alert.summary.startswith("The last 3 checkpoints failed.")
    assert (alert.checkpoint, alert.job) == (3, job.pk)


def test_time_alone_would_have_fired_when_no_checkpoint_completed() -> None:
    job = factories.job(created_at=ago(hours=3), started_at=ago(hours=3))
    factories.graph(job)
    driver = factories.driver(job)
    factories.attempt(driver, started_at=ago(hours=3))
    changed = {"kind": JobEventKind.JOB_CHANGED, "planned": True, "reason": "running"}
    factories.event(job, at=ago(hours=3), facts={"before": "created"}, **changed)
    checkpoint(job, 1, ago(minutes=100), 1_000)
    checkpoint(job, 2, ago(minutes=60), 1_000)
    rule = factories.rule("checkpoint_age", parameters={"seconds": 1_800})
    settles = machine.SETTLING.total_seconds() / 60
    # The second one soon followed the first: it settles for twice as long.
    assert times(rule) == [(150.0, 100 - settles), (70.0, 60 - 2 * settles), (30.0, None)]


def test_failed_jobs_and_operations_and_restarts_would_have_fired() -> None:
    job = factories.job(status=JobStatus.FAILED, ended_at=ago(minutes=30), cause="OSError: full")
    driver = factories.driver(job, status="lost")
    for number, minutes in enumerate((90, 85, 80), 1):
        factories.attempt(
            driver,
            number,
            started_at=ago(minutes=minutes + 2),
            running_at=ago(minutes=minutes + 1),
            ended_at=ago(minutes=minutes),
            end="failed",
            cause="OSError: full",
        )
    factories.event(
        job,
        at=ago(minutes=95),
        kind=JobEventKind.JOB_CHANGED,
        planned=True,
        reason="running",
        facts={"before": "created"},
    )
    factories.event(
        job,
        at=ago(minutes=30),
        kind=JobEventKind.JOB_CHANGED,
        reason="failed",
        facts={"before": "running", "cause": "OSError: full"},
    )
    factories.operation(
        job, kind="savepoint", status="failed", error="disk full", created_at=ago(minutes=50)
    )
    failed = factories.rule("job_failed", parameters={"window_s": 600})
    (alert,) = would_have_fired(failed).alerts
    assert alert.summary == "The job failed: OSError: full"
    settles = machine.SETTLING.total_seconds() / 60
    assert times(failed) == [(30.0, 20 - settles)]
    restarts = factories.rule("restarts", parameters={"count": 3, "window_s": 900})
    assert times(restarts) == [(80.0, 75 - settles)]
    operations = factories.rule("operation_failed", parameters={"window_s": 600})
    assert times(operations) == [(50.0, 40 - settles)]


def test_slow_recoveries_would_have_fired_by_the_target_of_their_job() -> None:
    began, failed = ago(minutes=90), ago(minutes=60)
    begun, ran = {"started_at": began, "running_at": began}, failed + timedelta(seconds=90)
    for name, target_s in (("strict", 30.0), ("lenient", 600.0), ("open", None)):
        driver = factories.driver(factories.job(name, recovery_target_s=target_s))
        factories.attempt(driver, 1, **begun, ended_at=failed, end="failed", cause="OSError: full")
        factories.attempt(driver, 2, started_at=failed, running_at=ran)
    rule = factories.rule("recovery_time", parameters={"seconds": 60, "window_s": 600})
    alerts = {one.job_name: one for one in would_have_fired(rule).alerts}
    assert {name: one.summary for name, one in alerts.items()} == {
        "strict": "The job has been recovering for 30.0 s, over the job's target of 30 s, after "
        "this failure: OSError: full",
        "open": "The job has been recovering for 1 min 00 s, over the rule's limit of 1 min 00 s, "
        "after this failure: OSError: full",
    }
    earlier = alerts["open"].fired_at - alerts["strict"].fired_at
    assert round(earlier.total_seconds()) == 30


def test_state_that_grew_would_have_fired() -> None:
    job = factories.job()
    for number, minutes in enumerate(range(240, 0, -5), 1):
        held = 1_000 if minutes > 100 else 5_000
        checkpoint(job, number, ago(minutes=minutes), 1_000, state_bytes=held)
    parameters = {"factor": 2, "window_s": 3_600, "least_bytes": 1_000}
    (time,) = times(factories.rule("state_growth", parameters=parameters))
    assert time[0] == 100.0
    assert time[1] is not None
    assert 34 <= time[1] <= 40


@pytest.mark.parametrize("kind", ["back_pressure", "host_starved", "slot_memory"])
def test_kinds_without_a_past_say_so_and_bad_parameters_are_refused(kind: str) -> None:
    tried = would_have_fired(factories.rule(kind))
    assert (tried.is_stored, tried.count) == (False, 0)


def test_only_the_jobs_of_the_rule_are_tried() -> None:
    for name in ("flights", "orders"):
        checkpoint(factories.job(name), 1, ago(minutes=5), 90_000)
    rule = factories.rule("checkpoint_duration", parameters={"seconds": 60}, job_pattern="ord*")
    assert [one.job_name for one in would_have_fired(rule).alerts] == ["orders"]


looks = st.lists(st.tuples(st.integers(1, 200), st.booleans()), max_size=12)


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=share(60, block=12)
)
@given(looks, st.integers(0, 60), st.integers(0, 200))
def test_a_replay_is_what_an_evaluator_that_looks_all_the_time_does(
    ends: list[tuple[int, bool]], hold_s: int, cooldown_s: int
) -> None:
    """Looks at every second, against a replay that stops where something may change."""
    row = Rule(
        kind="checkpoint_failures",
        parameters={"count": 2, "window_s": 100},
        hold_s=hold_s,
        cooldown_s=cooldown_s,
    )
    rule = ReadyRule.read(row)
    begin = datetime(2026, 3, 1, tzinfo=clock.UTC)
    facts = JobFacts(id="j", name="j", life=Life(status="running", is_planned=False))
    past, at = Past(facts, begin), 0
    by_second: dict[int, Ended] = {}
    for number, (later, is_completed) in enumerate(ends):
        at += later
        one = Ended(number=number, at=begin + timedelta(seconds=at), is_completed=is_completed)
        by_second[at] = one
        past.changes.append((one.at, lambda job, one=one: _grown(job, one)))
    horizon = at + 500
    replayed = [
        (one.fired_at, one.ended_at)
        for one in replay(rule, past, begin + timedelta(seconds=horizon))
    ]
    watched: list[tuple[datetime, datetime | None]] = []
    watch, history = machine.IDLE, History()
    for second in range(0, horizon + 1):
        now = begin + timedelta(seconds=second)
        new = by_second.get(second)
        history = history.grown(() if new is None else (new,))
        judged = rule.kind.judge(rule.parameters, _with(facts, history), now)
        watch, edge = machine.step(watch, bool(judged.holding), now, rule.policy)
        if edge is machine.Edge.FIRED:
            watched.append((now, None))
        elif edge is machine.Edge.RESOLVED:
            watched[-1] = (watched[-1][0], now)
    assert sorted(replayed, key=lambda one: one[0]) == watched


def _grown(job: JobFacts, one: Ended) -> JobFacts:
    return _with(job, job.history.grown((one,)))


def _with(job: JobFacts, history: History) -> JobFacts:
    return JobFacts(id=job.id, name=job.name, life=job.life, history=history)
