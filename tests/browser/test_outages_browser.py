"""Outages as a page that is open tells them, and the relaunch after one, phase by phase."""

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import transaction
from pytest_django.fixtures import Settings

from controlplane.base import clock, wakeups
from controlplane.embedded.redis import Redis
from jobs import services
from jobs.drivers import child_processes, driver_watch, drivers, processes
from jobs.models import Attempt, Driver, DriverStatus, Job, Subtask
from tests import factories
from tests.browser.browser import Chromium, Window
from tests.browser.server import web_process
from tests.database.frontend import flights, rows_graph
from tests.database.frontend.logging_in import log_in
from tests.services import database_url, running_redis
from tests.waiting import wait_until
from weir.protocol.lifecycle import JobStatus, SubtaskStatus

pytestmark = [pytest.mark.django_db(transaction=True)]

RELAUNCH = "[aria-labelledby=relaunch-title]"
CURRENT = f"{RELAUNCH} li[data-state=current]"
ATTENTION = "#job > .attention"
REDIS_AWAY = "Redis cannot be reached, so the control plane's workers get no tasks."


@pytest.fixture
def driven() -> Iterator[subprocess.Popen[bytes]]:
    """A process in a session of its own, as a driver's is."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as running:
        yield running
        running.kill()


def change(job: Job, to: JobStatus, **driver: object) -> None:
    """Let the newest driver and the job be in another state, as reports would."""
    Driver.objects.filter(pk=drivers.newest(job).pk).update(**driver)
    Job.objects.filter(pk=job.pk).update(status=to, status_changed_at=clock.now())
    wakeups.publish(wakeups.job(job.pk))


def test_a_killed_driver_is_told_by_its_signal_and_its_relaunch_by_each_phase(
    window: Window, driven: subprocess.Popen[bytes]
) -> None:
    job = flights.running(slot_count=2)
    known = processes.find(driven.pid)
    assert known is not None
    child_processes.adopt(driven, known.started_at)
    Driver.objects.filter(job=job).update(
        pid=driven.pid,
        process_started_at=known.started_at,
        launched_by=processes.host_name(),
        boot_id=processes.boot_id(),
    )
    log_in(window)
    window.open(f"/jobs/{job.pk}/")
    window.sees("h1", "Running")
    assert driver_watch.watch() == 0, "a driver that runs is not lost"
    window.sees_nothing(RELAUNCH)

    driven.send_signal(signal.SIGKILL)
    driven.wait()
    assert driver_watch.watch() == 1
    window.sees("h1", "Restarting")
    window.sees(".cause", f"the driver's process {driven.pid} ended, killed by SIGKILL")
    window.sees(CURRENT, "The restart delay passes")
    with transaction.atomic():
        assert drivers.relaunch(services.locked(job.pk), "the restart delay has passed")
    window.sees(CURRENT, "Driver 2 waits for a launcher")
    change(job, JobStatus.RESTARTING, status=DriverStatus.STARTING)
    window.sees(CURRENT, "Driver 2 is launched, and its Spark application starts")
    change(job, JobStatus.INITIALIZING, status=DriverStatus.RUNNING, slots={"0": {}})
    window.sees(CURRENT, "Slots register: 1 of 2")

    newest = drivers.newest(job)
    assert newest is not None
    factories.attempt(newest, 2, running_at=None, restored_checkpoint=41)
    Subtask.objects.filter(job=job).update(status=SubtaskStatus.DEPLOYING)
    change(job, JobStatus.INITIALIZING, slots={"0": {}, "1": {}})
    window.sees(CURRENT, "Subtasks are deployed and restore checkpoint 41: 0 of 6 subtasks running")
    Subtask.objects.filter(job=job, chain="flights").update(status=SubtaskStatus.RUNNING)
    change(job, JobStatus.INITIALIZING)
    window.sees(CURRENT, "2 of 6 subtasks running")

    Attempt.objects.filter(job=job, number=2).update(running_at=clock.now())
    Subtask.objects.filter(job=job).update(status=SubtaskStatus.RUNNING)
    change(job, JobStatus.RUNNING, heard_at=clock.now() + clock.milliseconds(600_000))
    window.sees("h1", "Running")
    window.sees_nothing(RELAUNCH)
    assert not window.was_reloaded()


def test_redis_is_named_while_it_is_away(
    browser: Chromium, settings: Settings, tmp_path: Path
) -> None:
    with running_redis() as mortal, web_process(tmp_path, database_url(), mortal.url) as web:
        settings.REDIS_URL = mortal.url
        with browser.window(web.url) as window:
            _without_redis(window, mortal)


def _without_redis(window: Window, mortal: Redis) -> None:
    job = flights.running()
    log_in(window)
    window.open(f"/jobs/{job.pk}/")
    window.sees("h1", "Running")
    assert REDIS_AWAY not in window.text("main")
    mortal.kill()
    window.sees(ATTENTION, REDIS_AWAY)
    window.open("/jobs/")
    window.sees("main", REDIS_AWAY)
    window.open(f"/jobs/{job.pk}/")
    window.sees(ATTENTION, REDIS_AWAY)
    mortal.start()
    wait_until(lambda: REDIS_AWAY not in window.text("main"), "Redis is back")
    assert not window.was_reloaded()


def test_the_graph_scrolls_within_its_card_on_a_phone_and_tells_the_viewers_time(
    window: Window,
) -> None:
    job = flights.running()
    rows_graph.measured(job, "hourly", watermark_ms=1_735_700_400_000)  # 03:00 in UTC.
    log_in(window)
    window.open(f"/jobs/{job.pk}/")
    told = "document.querySelector('#graph [data-chain=hourly] [data-part=watermark]').textContent"
    wait_until(
        lambda: window.evaluate(told) == "watermark 2025-01-01 08:30:00",
        lambda: f"the viewer's time is told: {window.evaluate(told)}",
    )
    assert window.hides_sideways(".graph-scroll") == 0
    window.resize(390)
    assert window.hides_sideways() == 0
    hidden = window.hides_sideways(".graph-scroll")
    assert hidden > 200
    window.evaluate("document.querySelector('.graph-scroll').scrollTo(10_000, 0)")
    at_the_end = "document.querySelector('.graph-scroll').scrollLeft"
    assert window.evaluate(at_the_end) == hidden
