import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.db import transaction
from pytest_django.fixtures import Settings

from checkpoints import job_hooks
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from jobs import due_jobs, services, set_aside
from jobs.drivers import drivers, restart_policy
from jobs.models import (
    ControlPlanePulse,
    Driver,
    DriverStatus,
    Job,
    JobException,
    SetAsideStep,
)
from tests.database.jobs.builders import (
    apply,
    at_once,
    changed,
    coming_up,
    driver_of,
    hook_calls,
    lose,
    pass_time,
    planned,
    reload,
    running,
    speaking,
    started,
    statuses,
    submitted,
)
from weir.config import RestartConfig, RestartStrategyKind
from weir.protocol.lifecycle import FailureReason, JobStatus

pytestmark = pytest.mark.django_db

FIXED = RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=2, delay_ms=60_000)


class _Healthy(http.server.BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Requests are no news."""


@contextmanager
def gateway(status: int = 200) -> Iterator[str]:
    """A server that answers ``/healthz``."""
    handler = type("_Handler", (_Healthy,), {"status": status})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture(autouse=True)
def answering_gateway(settings: Settings) -> Iterator[None]:
    with gateway() as url:
        settings.WEIR_GATEWAY_URL = url
        yield


def watched_for(seconds: float) -> None:
    """As if ticks had checked the drivers every second for so long."""
    due_jobs.lose_silent()
    ControlPlanePulse.objects.update(resumed_at=clock.now() - timedelta(seconds=seconds))


def silent(job: Job, seconds: float = 60) -> Driver:
    driver = driver_of(job)
    pass_time(driver, seconds, "heard_at", "heartbeat_due_at")
    return driver


def test_lost_driver_is_replaced_at_once_the_first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    job = running()
    before = driver_of(job)
    told = hook_calls(monkeypatch, "driver_lost")
    job = lose(job, "its JVM was killed\nlast words")
    assert told == [("running", FailureReason.JOB_FAILOVER)]
    before = reload(before)
    assert (before.status, before.cause) == ("lost", "its JVM was killed\nlast words")
    assert before.stop_requested_at is not None
    assert (job.status, job.restart_at) == ("restarting", None)
    assert driver_of(job).number == 2
    exception = JobException.objects.get(job=job)
    assert (exception.kind, exception.driver_number) == ("driver", 1)
    assert set(AuditEntry.objects.values_list("action", flat=True)) == {
        "job.submit",
        "job.relaunch",
        "driver.lost",
    }


def test_restart_delay_is_waited_for() -> None:
    job = running(plan=planned(restart=FIXED))
    before = clock.now()
    job = lose(job)
    assert drivers.live(job) is None
    assert job.restart_at is not None
    assert before <= job.restart_at - timedelta(seconds=60) <= clock.now()
    assert due_jobs.relaunch_due() == 0
    pass_time(job, 61, "restart_at")
    assert due_jobs.relaunch_due() == 1
    assert due_jobs.relaunch_due() == 0
    assert driver_of(job).number == 2


def test_exhausted_strategy_fails_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    job = running(plan=planned(restart=FIXED))
    ended = hook_calls(monkeypatch, "job_ended")
    for attempt in (2, 3):
        job = lose(job)
        pass_time(job, 61, "restart_at")
        due_jobs.relaunch_due()
        speaking(job)
        apply(job, planned(restart=FIXED), *coming_up(attempt))
    job = lose(job, "once too often")
    assert (job.status, job.cause, job.restart_at) == ("failed", "once too often", None)
    assert ended == [("failed",)]
    assert drivers.live(job) is None


def test_job_without_checkpoints_fails_with_its_driver() -> None:
    job = running(plan=planned(interval_ms=None))
    assert lose(job).status == "failed"


def test_driver_that_never_comes_up_is_given_up_after_three_launches() -> None:
    job = submitted()
    for launch in range(1, restart_policy.LAUNCH_FAILURES_MAX + 1):
        assert driver_of(job).number == launch
        assert job.status == "created"
        job = lose(job, f"launch {launch} failed\nJAVA_HOME is not set")
        if launch < restart_policy.LAUNCH_FAILURES_MAX:
            pass_time(job, 2, "restart_at")
            assert due_jobs.relaunch_due() == 1
    assert (job.status, job.cause) == ("failed", "launch 3 failed\nJAVA_HOME is not set")
    assert statuses(job) == [("submit", "failed")]


def test_reopened_job_gets_all_its_launches_again() -> None:
    job = submitted()
    for _ in range(restart_policy.LAUNCH_FAILURES_MAX):
        job = lose(job)
        pass_time(job, 2, "restart_at")
        due_jobs.relaunch_due()
    assert job.status == "failed"
    services.restart(None, job.pk)
    job = lose(job)
    assert job.status == "restarting"
    assert job.restart_at is not None


def test_loss_of_a_driver_that_is_done_already_changes_nothing() -> None:
    job = running()
    apply(job, changed(JobStatus.FINISHED))
    assert lose(job).status == "finished"
    assert driver_of(job).status == DriverStatus.ENDED
    assert not JobException.objects.exists()


def test_checkpoints_hold_the_next_driver_back(monkeypatch: pytest.MonkeyPatch) -> None:
    job = running()
    with monkeypatch.context() as patch:
        patch.setattr(job_hooks, "may_launch", lambda _: False)
        job = lose(job)
        assert drivers.live(job) is None
        assert due_jobs.relaunch_due() == 0
        assert reload(job).restart_at is not None
    assert due_jobs.relaunch_due() == 1


def test_silent_driver_is_lost() -> None:
    job = running()
    watched_for(3_600)
    driver = reload(silent(job))
    assert driver.heard_at is not None
    before = clock.now()
    assert due_jobs.lose_silent() == 1
    after, driver = clock.now(), reload(driver)
    assert driver.status == "lost"
    told = re.search(r"silent for (\d+\.\d) s", driver.cause)
    assert told is not None
    least, most = ((at - driver.heard_at).total_seconds() for at in (before, after))
    assert 60 <= least <= most
    assert round(least, 1) <= float(told[1]) <= round(most, 1)
    assert driver_of(job).number == 2


def test_driver_that_never_spoke_is_lost_and_the_cause_says_where_to_look() -> None:
    job = submitted()
    driver = started(job)
    Driver.objects.filter(pk=driver.pk).update(heartbeat_due_at=clock.now())
    pass_time(driver, 1, "heartbeat_due_at")
    watched_for(3_600)
    assert due_jobs.lose_silent() == 1
    assert "its log may say why" in reload(driver).cause


def test_drivers_that_speak_are_left_alone() -> None:
    job = running()
    watched_for(3_600)
    assert due_jobs.lose_silent() == 0
    assert driver_of(job).status == "running"


def test_no_driver_is_lost_while_the_control_plane_was_away() -> None:
    """Database, broker or workers were away: the drivers could not be heard."""
    job = running()
    watched_for(3_600)
    driver = silent(job)
    pass_time(ControlPlanePulse.objects.get(), 60, "ticked_at")
    assert due_jobs.lose_silent() == 0
    assert reload(driver).status == "running"
    assert due_jobs.lose_silent() == 0  # They get a whole timeout, not one tick.
    ControlPlanePulse.objects.update(resumed_at=clock.now() - timedelta(seconds=3_600))
    assert due_jobs.lose_silent() == 1


@pytest.mark.parametrize("answer", [None, 502])
def test_no_driver_is_lost_while_the_gateway_does_not_answer(
    settings: Settings, answer: int | None
) -> None:
    job = running()
    watched_for(3_600)
    driver, before = silent(job), clock.now()
    with gateway(answer or 200) as url:
        settings.WEIR_GATEWAY_URL = url
        if answer is not None:
            assert due_jobs.lose_silent() == 0
    if answer is None:  # Nothing listens on the port now.
        assert due_jobs.lose_silent() == 0
    assert reload(driver).status == "running"
    resumed_at = ControlPlanePulse.objects.get().resumed_at
    assert before <= resumed_at <= clock.now()


def test_a_gateway_that_is_back_answers_before_the_drivers_could(settings: Settings) -> None:
    """The look before it was back counts: its first answer would lose every driver otherwise."""
    settings.WEIR_DRIVER_TIMEOUT_MS = 300_000
    job = running()
    watched_for(3_600)
    most_of_it_s = 0.6 * settings.WEIR_DRIVER_TIMEOUT_MS / 1000  # It is looked at from half on.
    driver = silent(job, most_of_it_s)
    due_at = driver_of(job).heartbeat_due_at
    assert due_at is not None
    assert due_at > clock.now()  # Not overdue yet.
    open_gateway, settings.WEIR_GATEWAY_URL = settings.WEIR_GATEWAY_URL, "http://127.0.0.1:9"
    assert due_jobs.lose_silent() == 0
    pass_time(driver, most_of_it_s, "heartbeat_due_at")
    settings.WEIR_GATEWAY_URL = open_gateway
    assert due_jobs.lose_silent() == 0
    assert reload(driver).status == "running"
    ControlPlanePulse.objects.update(resumed_at=clock.now() - timedelta(seconds=3_600))
    assert due_jobs.lose_silent() == 1  # Overdue it was.


@pytest.mark.django_db(transaction=True)
def test_one_job_that_raises_holds_up_no_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (running(plan=planned(restart=FIXED)) for _ in range(2))
    for job in (first, second):
        pass_time(lose(job), 61, "restart_at")

    def refuse(job: Job) -> bool:
        if job.pk == first.pk:
            raise RuntimeError("boom")
        return True

    with monkeypatch.context() as patch:
        patch.setattr(job_hooks, "may_launch", refuse)
        assert due_jobs.relaunch_due() == 1
    assert (driver_of(first).number, driver_of(second).number) == (1, 2)
    assert "the step relaunch failed and is set aside" in caplog.text
    assert due_jobs.relaunch_due() == 0
    pass_time(SetAsideStep.objects.get(), set_aside.BACKOFF_MAX_S, "retry_at")
    assert due_jobs.relaunch_due() == 1


@pytest.mark.django_db(transaction=True)
def test_tick_passes_over_a_locked_job() -> None:
    held, free = (running(plan=planned(restart=FIXED)) for _ in range(2))
    for job in (held, free):
        pass_time(lose(job), 61, "restart_at")
    with transaction.atomic():
        services.locked(held.pk)
        (count,) = at_once(due_jobs.relaunch_due)
    assert count == 1
    assert (driver_of(held).number, driver_of(free).number) == (1, 2)
    assert due_jobs.relaunch_due() == 1


@pytest.mark.django_db(transaction=True)
def test_ticks_at_once_relaunch_each_job_once() -> None:
    jobs = [running(plan=planned(restart=FIXED)) for _ in range(6)]
    for job in jobs:
        pass_time(lose(job), 61, "restart_at")
    results = at_once(*[due_jobs.relaunch_due] * 4)
    assert sum(results) == len(jobs)
    assert [driver_of(job).number for job in jobs] == [2] * len(jobs)


@pytest.mark.django_db(transaction=True)
def test_loss_reported_twice_counts_once() -> None:
    """The launcher sees the process gone while a tick finds the driver silent."""
    job = running(plan=planned(restart=FIXED))
    driver = driver_of(job)

    def report() -> None:
        with transaction.atomic():
            locked = services.locked(job.pk)
            drivers.lost(locked, Driver.objects.get(pk=driver.pk), "gone")

    assert at_once(report, report, report) == [None] * 3
    assert JobException.objects.filter(job=job).count() == 1
    assert reload(job).restart_state["restart_count"] == 1


def test_driver_of_a_cancelled_job_that_is_lost_is_no_exception_but_a_notice() -> None:
    job = running(plan=planned(restart=FIXED))
    Job.objects.filter(pk=job.pk).update(desired="canceled")
    job = lose(job)
    assert (job.status, job.attempts.get().end) == ("canceled", "canceled")
    assert [row.kind for row in job.exceptions.all()] == ["notice"]


def test_relaunch_of_a_job_that_is_no_longer_wanted_ends_it() -> None:
    job = running(plan=planned(restart=FIXED))
    job = lose(job)
    Job.objects.filter(pk=job.pk).update(desired="canceled")
    pass_time(job, 61, "restart_at")
    due_jobs.relaunch_due()
    assert reload(job).status == "canceled"
    assert drivers.live(job) is None


@pytest.mark.django_db(transaction=True)
def test_stranded_job_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    """No transaction leaves a job like this; should one, the log has to say it."""
    job, other = running(), running()
    Driver.objects.filter(job=job).update(status="lost")
    assert due_jobs.resume_stranded() == 1
    assert "has neither a driver nor a restart due" in caplog.text
    assert due_jobs.relaunch_due() == 1
    assert driver_of(job).number == 2
    assert driver_of(other).number == 1
    assert due_jobs.resume_stranded() == 0


def test_beat_finds_the_tasks_it_sends() -> None:
    from controlplane.celery import app

    app.loader.import_default_modules()
    sent = {entry["task"] for entry in app.conf.beat_schedule.values()}
    mine = {name for name in sent if name.startswith("jobs.")}
    assert mine == {"jobs.tasks.tick", "jobs.tasks.launch_tick", "jobs.tasks.sweep"}
    assert mine <= set(app.tasks)
    for name in mine:
        app.tasks[name]()
