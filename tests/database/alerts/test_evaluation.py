"""Rounds of the evaluator: from rows of jobs to alerts and their notices."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from controlplane.alerts import alerting, rules
from controlplane.alerts.evaluation import Evaluation
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.machine import SETTLING
from controlplane.alerts.models import Alert, Evaluator, Rule, Watch
from controlplane.base import clock
from controlplane.deliveries.models import Delivery, Endpoint
from jobs import services
from jobs.models import Job, JobEventKind
from tests import factories
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db

FAILED = JobEventKind.CHECKPOINT_FAILED


class Evaluators:
    """An evaluator at a clock that a test sets; ``restarted`` is another process."""

    def __init__(self) -> None:
        self.now = clock.now()
        self._evaluation = Evaluation(lambda: self.now)

    def look(self, after_s: float = 5.0) -> list[Alert]:
        """One round, so many seconds after the last; the alerts that fire, oldest first."""
        self.now += timedelta(seconds=after_s)
        assert self._evaluation.run() is not None
        return list(Alert.objects.filter(state="firing").order_by("fired_at", "subject"))

    def settle(self) -> list[Alert]:
        """Two rounds, between which a condition that is over settles."""
        self.look()
        return self.look(SETTLING.total_seconds())

    def restart(self) -> None:
        """Go on with another process."""
        self._evaluation = Evaluation(lambda: self.now)


@pytest.fixture
def evaluator() -> Evaluators:
    """An evaluator without rules."""
    Rule.objects.all().delete()
    return Evaluators()


@pytest.fixture
def endpoint(settings: Settings) -> Endpoint:
    """An endpoint that takes notices."""
    return factories.endpoint()


def end_checkpoint(of: Job, number: int, at: datetime, **facts: Any) -> None:
    """A checkpoint that completed, or failed if ``failed`` says so."""
    failed = facts.pop("failed", False)
    factories.event(
        of,
        at=at,
        kind=FAILED if failed else JobEventKind.CHECKPOINT_COMPLETED,
        reason="checkpoint_expired" if failed else "",
        facts={"checkpoint": number, "kind": "checkpoint", **facts},
    )


def told(alert: Alert) -> list[tuple[int, str]]:
    rows = Delivery.objects.filter(alert=str(alert.pk)).order_by("sequence")
    return list(rows.values_list("sequence", "notice_status"))


def test_a_failed_job_fires_once_and_resolves_when_its_window_is_over(
    evaluator: Evaluators, endpoint: Endpoint, settings: Settings
) -> None:
    settings.WEIR_URL = "https://weir.example"
    rule = factories.rule("job_failed", parameters={"window_s": 600}, severity="critical")
    assert evaluator.look() == []
    cause = "ZeroDivisionError: division by zero"
    job = factories.job(status=JobStatus.FAILED, cause=cause, ended_at=evaluator.now)
    (alert,) = evaluator.look()
    assert (alert.rule, alert.job, alert.job_name) == (rule, job.pk, "flights")
    assert alert.summary == f"The job failed: {cause}"
    assert alert.links == [["Job", f"https://weir.example/jobs/{job.pk}/"]]
    assert told(alert) == [(1, "firing")]
    for _ in range(3):
        assert evaluator.look() == [alert]
    evaluator.look(600)
    assert evaluator.look(SETTLING.total_seconds()) == []
    alert.refresh_from_db()
    assert (alert.state, alert.resolution) == ("resolved", alerting.CLEARED)
    assert told(alert) == [(1, "firing"), (2, "resolved")]
    row = Evaluator.objects.get()
    assert row.fired == {"job_failed": {"critical": 1}}
    assert row.rounds == 7


def test_a_job_that_ends_as_planned_fires_nothing(evaluator: Evaluators) -> None:
    for kind in KINDS:
        factories.rule(kind)
    for status in (JobStatus.FINISHED, JobStatus.CANCELED):
        factories.job(status=status, ended_at=evaluator.now)
    restarting = factories.job(status=JobStatus.RESTARTING, is_planned=True)
    factories.graph(restarting)
    driver = factories.driver(restarting, status="ended")
    factories.attempt(driver, ended_at=evaluator.now, end="suspended")
    factories.operation(restarting, status="cancelled", error="overtaken")
    factories.event(restarting, kind=JobEventKind.CHECKPOINT_ABORTED, planned=True)
    assert evaluator.look() == []
    assert evaluator.look(7_200) == []
    assert set(Rule.objects.values_list("problem", flat=True)) == {""}


def test_failures_that_come_and_go_between_two_looks_are_seen(
    evaluator: Evaluators, endpoint: Endpoint
) -> None:
    factories.rule("checkpoint_failures", parameters={"count": 3})
    job = factories.job()
    evaluator.look()
    for number in (1, 2, 3):
        end_checkpoint(job, number, evaluator.now, failed=True, cause=f"disk {number}")
    end_checkpoint(job, 4, evaluator.now)
    (alert,) = evaluator.look()
    assert alert.summary.startswith("The last 3 checkpoints failed. The newest: timed out")
    assert "disk 3" in alert.summary
    assert evaluator.settle() == []


def test_two_or_three_failures_do_not_keep_later_ones_from_firing(evaluator: Evaluators) -> None:
    factories.rule("checkpoint_failures", parameters={"count": 3})
    job = factories.job()
    evaluator.look()
    end_checkpoint(job, 1, evaluator.now, failed=True)
    end_checkpoint(job, 2, evaluator.now, failed=True)
    assert evaluator.look() == []
    end_checkpoint(job, 3, evaluator.now)
    end_checkpoint(job, 4, evaluator.now, failed=True)
    end_checkpoint(job, 5, evaluator.now, failed=True)
    assert evaluator.look() == []
    factories.event(job, kind=JobEventKind.CHECKPOINT_ABORTED, planned=True)
    factories.event(job, kind=FAILED, planned=True, reason="job_restarted")
    evaluator.restart()
    assert evaluator.look() == []
    end_checkpoint(job, 7, evaluator.now, failed=True)
    assert len(evaluator.look()) == 1


def test_a_slow_checkpoint_fires_in_the_words_of_its_verdict(
    evaluator: Evaluators, endpoint: Endpoint
) -> None:
    factories.rule("checkpoint_duration", parameters={"seconds": 10})
    job = factories.job()
    factories.graph(job)
    slow = factories.checkpoint(job, 41, duration_ms=48_000, alignment_ms=44_000)
    evaluator.look()
    end_checkpoint(job, 41, evaluator.now, duration_ms=48_000, alignment_ms=44_000)
    (alert,) = evaluator.look()
    assert alert.checkpoint == slow.number
    assert alert.summary.startswith("Checkpoint 41 took 48.0 s. ")
    assert len(alert.summary) > len("Checkpoint 41 took 48.0 s. ")
    assert ["limit", "10.0 s"] in alert.evidence
    assert alert.links[0][1].endswith(f"/jobs/{job.pk}/checkpoints/41")
    end_checkpoint(job, 42, evaluator.now, duration_ms=2_000)
    assert evaluator.settle() == []


def test_a_checkpoint_far_above_its_own_median_fires(evaluator: Evaluators) -> None:
    factories.rule("checkpoint_duration", parameters={"times_median": 3, "least_s": 1})
    job = factories.job()
    for number in range(1, 11):
        end_checkpoint(job, number, evaluator.now, duration_ms=1_000)
    assert evaluator.look() == []
    end_checkpoint(job, 11, evaluator.now, duration_ms=2_900)
    assert evaluator.look() == []
    end_checkpoint(job, 12, evaluator.now, duration_ms=3_100)
    (alert,) = evaluator.look()
    assert ["median of the 20 before", "1.00 s"] in alert.evidence


def test_no_checkpoint_for_too_long_fires_and_a_failing_job_does_not_hide_it(
    evaluator: Evaluators,
) -> None:
    factories.rule("checkpoint_age", parameters={"seconds": 300})
    job = factories.job()
    factories.graph(job)
    driver = factories.driver(job)
    began = evaluator.now
    factories.attempt(
        driver, 1, started_at=began, ended_at=began + timedelta(seconds=200), end="failed"
    )
    factories.attempt(driver, 2, started_at=began + timedelta(seconds=210))
    evaluator.look()
    assert evaluator.look(280) == []
    (alert,) = evaluator.look(20)
    assert alert.summary.startswith("No checkpoint has completed for 5 min")
    end_checkpoint(job, 1, evaluator.now)
    assert evaluator.settle() == []


def test_a_restart_that_was_asked_for_begins_the_age_anew(evaluator: Evaluators) -> None:
    factories.rule("checkpoint_age", parameters={"seconds": 300})
    job = factories.job()
    factories.graph(job)
    driver = factories.driver(job)
    hour = timedelta(hours=1)
    factories.attempt(
        driver,
        1,
        started_at=evaluator.now - 2 * hour,
        ended_at=evaluator.now - hour,
        end="suspended",
    )
    factories.attempt(driver, 2, started_at=evaluator.now)
    assert evaluator.look(200) == []
    assert len(evaluator.look(200)) == 1


def test_failed_operations_restarts_and_slow_recoveries_fire(evaluator: Evaluators) -> None:
    factories.rule("operation_failed", name="a", parameters={"kinds": ["savepoint"]})
    factories.rule("restarts", name="b", parameters={"count": 2, "window_s": 600})
    factories.rule("recovery_time", name="c", parameters={"seconds": 60, "window_s": 600})
    job = factories.job()
    driver = factories.driver(job)
    now = evaluator.now
    for number, (began, ran, ended) in enumerate([(-500, -499, -400), (-300, None, -250)], 1):
        factories.attempt(
            driver,
            number,
            started_at=now + timedelta(seconds=began),
            running_at=None if ran is None else now + timedelta(seconds=ran),
            ended_at=now + timedelta(seconds=ended),
            end="failed",
            cause="OSError: no space left",
        )
    factories.attempt(driver, 3, started_at=now - timedelta(seconds=240))
    factories.operation(job, kind="savepoint", status="failed", error="disk full", created_at=now)
    factories.operation(job, kind="rescale", status="failed", error="no slots", created_at=now)
    summaries = {alert.rule_name: alert.summary for alert in evaluator.look()}
    assert summaries == {
        "a": "The savepoint failed: disk full",
        "b": "The job has failed and restarted 2 times within 10 min 00 s: OSError: no space left",
        "c": "The job's recovery took 2 min 40 s, over the rule's limit of 1 min 00 s, after this "
        "failure: OSError: no space left",
    }


def recovered(job: Job, ended: datetime, took_s: float) -> None:
    """Two attempts of a job: the first failed, and the second ran so many seconds later."""
    driver = factories.driver(job)
    began = ended - timedelta(seconds=600)
    factories.attempt(driver, 1, started_at=began, running_at=began, ended_at=ended, end="failed")
    factories.attempt(driver, 2, started_at=ended, running_at=ended + timedelta(seconds=took_s))


def test_a_job_is_judged_by_its_own_recovery_target(evaluator: Evaluators) -> None:
    factories.rule("recovery_time", parameters={"seconds": 60, "window_s": 3_600})
    ended = evaluator.now - timedelta(seconds=120)
    for name, target_s in (("strict", 30.0), ("lenient", 90.0), ("open", None)):
        recovered(factories.job(name, recovery_target_s=target_s), ended, 80)
    alerts = sorted(evaluator.look(), key=lambda alert: alert.job_name)
    assert [(alert.job_name, alert.summary) for alert in alerts] == [
        ("open", "The job's recovery took 1 min 20 s, over the rule's limit of 1 min 00 s."),
        ("strict", "The job's recovery took 1 min 20 s, over the job's target of 30 s."),
    ]
    assert dict(alerts[1].evidence)["job's target"] == "30.0 s"


def test_a_changed_recovery_target_is_judged_anew(evaluator: Evaluators) -> None:
    factories.rule("recovery_time", parameters={"seconds": 60, "window_s": 86_400})
    job = factories.job()
    recovered(job, evaluator.now - timedelta(seconds=50), 40)
    assert evaluator.look() == []
    assert evaluator.look() == []
    services.set_recovery_target(None, job.pk, 10)
    (alert,) = evaluator.look()
    assert alert.summary.endswith("over the job's target of 10 s.")
    services.set_recovery_target(None, job.pk, 40)
    assert evaluator.settle() == []
    alert.refresh_from_db()
    assert alert.resolution == alerting.CLEARED


def test_silent_drivers_and_subtasks_back_pressure_and_late_event_time_fire(
    evaluator: Evaluators,
) -> None:
    factories.rule("driver_silent", name="driver", parameters={"seconds": 60})
    factories.rule("subtask_silent", name="subtask", parameters={"seconds": 60})
    factories.rule("back_pressure", name="pressure", parameters={"share": 0.8})
    factories.rule("event_time_lag", name="lag", parameters={"seconds": 600})
    now = evaluator.now
    silent, busy = factories.job("silent"), factories.job("busy")
    factories.driver(silent, heard_at=now - timedelta(seconds=90))
    factories.driver(busy, heard_at=now)
    factories.subtasks(busy, chains=["hourly"], updated_at=now - timedelta(seconds=70))
    rates = {"busy": 0.1, "idle": 0.0, "back_pressured": 0.9}
    late = clock.to_ms(now - timedelta(hours=2))
    factories.subtasks(busy, chains=["flights"], rates=rates, metrics={"watermark_ms": late})
    rows = [(alert.rule_name, alert.job, alert.subject) for alert in evaluator.look()]
    assert sorted(rows) == [
        ("driver", silent.pk, ""),
        ("lag", busy.pk, ""),
        ("pressure", busy.pk, "flights"),
        ("subtask", busy.pk, "hourly"),
    ]


def test_a_host_short_of_processors_fires_once_it_has_been_for_the_hold_time(
    evaluator: Evaluators,
) -> None:
    factories.rule("host_starved", name="starved", parameters={"share": 0.3}, hold_s=60)
    job, before = factories.job("flights"), factories.job("orders")
    attempt = factories.attempt(factories.driver(job), number=2)
    factories.attempt(attempt.driver, number=1, workers=2)  # Of an earlier attempt, on "slot".
    for slot, host in enumerate(("node-1", "node-2")):
        factories.worker(attempt, slot, host=host)
    factories.subtasks(job, chains=["hourly"], attempt=2, rates={"cpu_wait": 0.1})
    factories.subtasks(job, chains=["flights"], attempt=2, rates={"busy": 0.4})
    factories.subtasks(before, rates={"busy": 0.4, "back_pressured": 0.9})  # None measured.
    assert evaluator.look() == []
    assert not Watch.objects.exists()

    job.subtasks.filter(chain="hourly", index=1).update(rates={"cpu_wait": 0.45})
    assert evaluator.look() == []
    assert Watch.objects.get().phase == "pending"
    (alert,) = evaluator.look(61)
    assert (alert.rule_name, alert.job, alert.subject) == ("starved", job.pk, "node-2")
    assert alert.summary.startswith("Slot 1 on host node-2 waits for a processor for 45% of the")
    job.subtasks.filter(chain="hourly", index=1).update(status="finished")
    assert alert in evaluator.look()  # Until it has been clear for 30 seconds.
    assert evaluator.look(31) == []


def test_a_slot_short_of_memory_fires_until_it_has_room(evaluator: Evaluators) -> None:
    factories.rule("slot_memory", name="memory", hold_s=60)
    job, unlimited = factories.job("flights"), factories.job("orders")
    attempt = factories.attempt(factories.driver(job), number=2)
    without = factories.attempt(factories.driver(unlimited))
    for slot, held in enumerate((300_000_000, 350_000_000)):
        factories.worker(
            attempt, slot, host="node-1", memory_bytes=held, memory_limit_bytes=400_000_000
        )
        factories.worker(without, slot, host="node-1", memory_bytes=held)
    factories.subtasks(job, attempt=2)
    factories.subtasks(unlimited)
    assert evaluator.look() == []
    workers = attempt.workers.filter(slot_index=1)
    workers.update(memory_bytes=389_000_000)
    assert evaluator.look() == []
    (alert,) = evaluator.look(61)
    assert (alert.rule_name, alert.job, alert.subject) == ("memory", job.pk, "")
    assert alert.summary.startswith("Slot 1 on host node-1 holds 97% of the memory that it may")
    workers.update(memory_bytes=300_000_000)
    assert alert in evaluator.look()
    assert evaluator.look(31) == []


def test_bad_records_fire_for_their_operator_until_the_window_is_over(
    evaluator: Evaluators,
) -> None:
    factories.rule("bad_records", parameters={"count": 4, "window_s": 600})
    job = factories.job("flights")
    at = clock.to_ms(evaluator.now)
    factories.subtasks(job, chains=["hourly"], parallelism=3, bad_marks=[[at, 2]])
    factories.subtasks(job, chains=["flights"], parallelism=2, bad_marks=[[at, 2]])
    over = factories.job("over", status=JobStatus.RESTARTING)
    factories.subtasks(over, chains=["hourly"], parallelism=3, bad_marks=[[at, 2]])
    (alert,) = evaluator.look()
    assert (alert.job, alert.subject) == (job.pk, "hourly")
    assert alert.summary.startswith("hourly left out 6 bad records within 10 min 00 s")
    restarted = evaluator.look(300)
    evaluator.restart()
    assert evaluator.look() == restarted == [alert]
    evaluator.look(300)
    assert evaluator.look(SETTLING.total_seconds()) == []


def test_state_that_doubles_within_its_window_fires(evaluator: Evaluators) -> None:
    parameters = {"factor": 2, "window_s": 3_600, "least_bytes": 1_000}
    factories.rule("state_growth", parameters=parameters)
    job = factories.job()
    hour = timedelta(hours=1)
    end_checkpoint(job, 1, evaluator.now - hour, state_bytes=1_000)
    end_checkpoint(job, 2, evaluator.now, state_bytes=2_000)
    assert evaluator.look() == []
    end_checkpoint(job, 3, evaluator.now, state_bytes=2_001)
    (alert,) = evaluator.look()
    assert alert.summary == "The state has grown from 1.00 kB to 2.00 kB within 1 h 00 min."


def test_a_restarted_evaluator_goes_on_where_the_last_one_was(
    evaluator: Evaluators, endpoint: Endpoint
) -> None:
    factories.rule("checkpoint_duration", parameters={"seconds": 10}, hold_s=60)
    job = factories.job()
    evaluator.look()
    end_checkpoint(job, 1, evaluator.now, duration_ms=20_000)
    assert evaluator.look() == []
    assert Watch.objects.get().phase == "pending"
    evaluator.restart()
    assert evaluator.look(55) == []
    evaluator.restart()
    (alert,) = evaluator.look(5)
    evaluator.restart()
    assert evaluator.look() == [alert]
    end_checkpoint(job, 2, evaluator.now, duration_ms=1)
    evaluator.restart()
    evaluator.look()
    evaluator.restart()
    assert evaluator.look(SETTLING.total_seconds()) == []
    assert told(alert) == [(1, "firing"), (2, "resolved")]


def test_two_processes_take_turns(evaluator: Evaluators) -> None:
    factories.rule("checkpoint_failures", parameters={"count": 4})
    job = factories.job()
    other = Evaluation(lambda: evaluator.now)
    evaluator.look()
    for number in range(1, 5):
        end_checkpoint(job, number, evaluator.now, failed=True)
        if number % 2:
            evaluator.look()
        else:
            other.run()
        assert Alert.objects.count() == (number == 4)
    assert Alert.objects.filter(state="firing").count() == 1


def test_a_silence_holds_notices_back_not_alerts(evaluator: Evaluators, endpoint: Endpoint) -> None:
    rule = factories.rule("job_failed", parameters={"window_s": 86_400})
    silence = factories.silence(rule=rule, until_at=evaluator.now + timedelta(hours=1))
    job = factories.job(status=JobStatus.FAILED, ended_at=evaluator.now)
    (alert,) = evaluator.look()
    assert alert.job == job.pk
    assert (alert.is_silenced, alert.silence, told(alert)) == (True, silence, [])
    evaluator.look(3_500)
    assert told(alert) == []
    (alert,) = evaluator.look(100)
    assert (alert.is_silenced, told(alert)) == (False, [(1, "firing")])


def test_a_silenced_alert_that_resolves_or_is_acknowledged_is_never_told(
    evaluator: Evaluators, endpoint: Endpoint
) -> None:
    factories.rule("job_failed", name="a", parameters={"window_s": 600})
    factories.rule("job_failed", name="b", parameters={"window_s": 86_400})
    factories.silence(until_at=evaluator.now + timedelta(hours=1))
    factories.job(status=JobStatus.FAILED, ended_at=evaluator.now)
    short, long = sorted(evaluator.look(), key=lambda alert: alert.rule_name)
    alerting.acknowledge(factories.user("operator"), long.pk)
    evaluator.look(700)
    assert evaluator.look(SETTLING.total_seconds()) == [long]
    assert evaluator.look(7_200) == [long]
    assert (told(short), told(long)) == ([], [])


def test_notices_go_to_the_chosen_endpoints_and_the_end_to_the_same(
    evaluator: Evaluators, endpoint: Endpoint
) -> None:
    chosen = factories.endpoint()
    rule = factories.rule("job_failed", parameters={"window_s": 600}, to_all_endpoints=False)
    rule.endpoints.set([chosen])
    factories.job(status=JobStatus.FAILED, ended_at=evaluator.now)
    (alert,) = evaluator.look()
    rule.endpoints.set([endpoint])
    evaluator.look(600)
    evaluator.look(SETTLING.total_seconds())
    rows = Delivery.objects.filter(alert=str(alert.pk)).values_list("endpoint", "sequence")
    assert sorted(rows) == [(chosen.pk, 1), (chosen.pk, 2)]


def test_a_rule_that_raises_is_set_aside_and_the_others_go_on(
    evaluator: Evaluators, endpoint: Endpoint
) -> None:
    good = factories.rule("job_failed")
    bad = factories.rule("job_failed", parameters={"window_s": "soon"})
    job = factories.job(status=JobStatus.FAILED, ended_at=evaluator.now)
    (alert,) = evaluator.look()
    assert (alert.rule, alert.job) == (good, job.pk)
    bad.refresh_from_db()
    assert bad.state == "set_aside"
    assert "window_s" in bad.problem
    assert Evaluator.objects.get().errors == 1
    rules.change(None, bad.pk, {"parameters": {"window_s": 600}})
    assert len(evaluator.look()) == 2


def test_a_rule_whose_judgement_raises_is_set_aside(
    evaluator: Evaluators, monkeypatch: pytest.MonkeyPatch
) -> None:
    rule = factories.rule("job_failed", parameters={"window_s": 600})
    other = factories.rule("operation_failed")
    job = factories.job(status=JobStatus.FAILED, ended_at=evaluator.now)
    factories.operation(job, status="failed", created_at=evaluator.now)
    (both, _) = evaluator.look()
    # A row that no version of Weir has written.
    Job.objects.filter(pk=job.pk).update(ended_at=datetime.max.replace(tzinfo=evaluator.now.tzinfo))
    (left,) = evaluator.look()
    assert left.rule == other
    rule.refresh_from_db()
    assert rule.problem.startswith("OverflowError")
    assert both.pk == left.pk or Alert.objects.get(pk=both.pk).resolution == alerting.RULE_SET_ASIDE


@pytest.mark.parametrize(
    ("end", "resolution"),
    [
        (lambda pk: rules.change(None, pk, {"is_enabled": False}), alerting.RULE_DISABLED),
        (lambda pk: rules.change(None, pk, {"severity": "info"}), alerting.RULE_CHANGED),
        (lambda pk: rules.delete(None, pk), alerting.RULE_DELETED),
    ],
)
def test_a_rule_that_is_changed_disabled_or_deleted_resolves_its_alerts(
    evaluator: Evaluators, endpoint: Endpoint, end: Callable[[Any], Any], resolution: str
) -> None:
    rule = factories.rule("job_failed")
    factories.job(status=JobStatus.FAILED, ended_at=evaluator.now)
    (alert,) = evaluator.look()
    end(rule.pk)
    alert.refresh_from_db()
    assert (alert.state, alert.resolution) == ("resolved", resolution)
    assert told(alert) == [(1, "firing"), (2, "resolved")]
    assert not Watch.objects.filter(phase="firing").exists()
    again = evaluator.look()
    assert [one.severity for one in again] == (
        ["info"] if resolution == alerting.RULE_CHANGED else []
    )


def test_a_rule_is_about_its_jobs_only(evaluator: Evaluators) -> None:
    for name in ("flights", "flights-2", "orders"):
        factories.job(name, status=JobStatus.FAILED, ended_at=evaluator.now)
    orders = Job.objects.get(name="orders")
    factories.rule("job_failed", name="pattern", job_pattern="flights*")
    factories.rule("job_failed", name="one", job=orders.pk)
    rows = sorted((alert.rule_name, alert.job_name) for alert in evaluator.look())
    assert rows == [("one", "orders"), ("pattern", "flights"), ("pattern", "flights-2")]


def test_the_number_of_queries_grows_neither_with_jobs_nor_with_rules(
    evaluator: Evaluators,
) -> None:
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            evaluator.look()
        return len(queries)

    for kind in KINDS:
        factories.rule(kind)
    few = factories.job()
    evaluator.look()
    end_checkpoint(few, 1, evaluator.now)
    before = count()
    for _ in range(5):
        for kind in KINDS:
            factories.rule(kind)
        factories.attempt(factories.driver(factories.job()))
    evaluator.look()
    for job in Job.objects.all():
        end_checkpoint(job, 2, evaluator.now)
    assert count() == before


def test_an_evaluator_does_not_wait_for_another(evaluator: Evaluators) -> None:
    from django.db import connections

    other = connections["default"].copy()
    try:
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            cursor.execute("SELECT pg_advisory_xact_lock(hashtextextended(%s, 0))", [alerting.LOCK])
            assert Evaluation().run() is None
            cursor.execute("ROLLBACK")
    finally:
        other.close()
    assert Evaluation().run() is not None


def test_odd_rows_keep_no_rule_from_being_evaluated(evaluator: Evaluators) -> None:
    for kind in KINDS:
        factories.rule(kind)
    evaluator.look()
    job = factories.job("odd", checkpoint_config=[1], cause="\n\n")
    factories.checkpoint(job, 1)
    job.checkpoints.update(duration_ms=None)
    facts: tuple[Any, ...] = ({}, [], None, {"checkpoint": "1"}, {"checkpoint": 1, "kind": 7})
    for one in facts:
        factories.event(job, facts={} if one is None else one)
    factories.event(job, facts={"checkpoint": 1, "duration_ms": "long", "state_bytes": None})
    factories.attempt(factories.driver(job, heard_at=None), running_at=None)
    factories.subtasks(job, rates={}, metrics={"watermark_ms": 2**63 - 1})
    failed = factories.job(status=JobStatus.FAILED, ended_at=evaluator.now)
    assert {alert.job for alert in evaluator.look()} == {failed.pk}
    assert set(Rule.objects.values_list("problem", flat=True)) == {""}
    assert Evaluator.objects.get().errors == 0
