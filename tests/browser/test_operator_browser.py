"""Pages at work in a browser: lists, slots and operators, uploads, accounts, a verdict."""

from datetime import timedelta
from pathlib import Path

import pytest
from django.test import Client, override_settings

from controlplane.accounts.models import Role, Session, User
from controlplane.base import wakeups
from frontend.models import SavedFilter
from jobs import uploads
from jobs.models import Job, JobEventKind, Worker
from tests import factories
from tests.browser.browser import Window
from tests.browser.test_accessibility import COLOURS, EVERYTHING, violations
from tests.database.frontend import flights, rows_operator, rows_pictures
from tests.database.frontend.logging_in import log_in
from tests.waiting import wait_until
from weir.protocol.lifecycle import JobStatus

pytestmark = [pytest.mark.django_db(transaction=True)]
NAMES = "table.jobs tbody th > a"


def test_filters_by_label_are_saved_and_an_archived_job_leaves_the_list(window: Window) -> None:
    ours = factories.job("ours", status=JobStatus.FINISHED, labels={"team": "prices"})
    factories.job("theirs", status=JobStatus.FINISHED, labels={"team": "stock"})
    log_in(window)
    window.open("/jobs/?label=team:prices")
    assert window.texts(NAMES) == ["ours"]
    window.fill("name", "Prices")
    window.click("Save")
    window.sees(".saved a[aria-current=page]", "Prices")
    window.follow("Show all")
    wait_until(lambda: len(window.texts(NAMES)) == 2, "all jobs are shown")
    window.follow("Prices", within=".saved")
    wait_until(lambda: window.texts(NAMES) == ["ours"], "the saved filter holds")
    window.click("Delete the saved filter Prices")
    wait_until(lambda: not SavedFilter.objects.exists(), "the saved filter is deleted")

    window.open(f"/jobs/{ours.pk}/archive")
    window.sees("h1", "Archive ours?")
    window.do(lambda page: page.click("form.stack button"))
    window.sees("main", "the job is left out of lists")
    window.open("/jobs/")
    assert window.texts(NAMES) == ["theirs"]
    window.open("/jobs/?state=archived")
    assert window.texts(NAMES) == ["ours"]


def test_two_uploads_are_compared_and_one_is_submitted_with_its_settings(
    window: Window, home: Path
) -> None:
    user = factories.user(Role.OPERATOR)
    with override_settings(WEIR_UPLOADS=home / "uploads"):
        uploads.store(user, "flights.py", [b"a = 1\nb = 2\n"])
        late = uploads.store(user, "flights.py", [b"a = 1\nb = '<b>3</b>'\n"])
    window.log_in(user.username, factories.PASSWORD)
    window.open(f"/uploads/{late.pk}")
    assert window.texts(".source .text") == ["a = 1", "b = '<b>3</b>'"]
    window.click("Compare")
    window.sees("#difference-title", "1 line added, 1 removed")
    assert window.texts("tr[data-kind=old] .text") == ["b = 2"]
    assert window.texts("tr[data-kind=new] .text") == ["b = '<b>3</b>'"]

    window.open(f"/jobs/new?upload={late.pk}")
    window.fill("name", "night")
    given = {
        "checkpoint_timeout_ms": 60_000,
        "checkpoint_min_pause_ms": 500,
        "retained_checkpoints": 3,
    }
    window.do(
        lambda page: page.evaluate(
            "document.querySelectorAll('form details').forEach((one) => { one.open = true })"
        )
    )
    for name, value in given.items():
        window.fill(name, str(value))
    window.choose("restart_kind", value="none")
    window.click("Submit the job")
    window.sees(".messages", "The job was submitted")
    options = Job.objects.get().options
    assert (options["timeout_ms"], options["min_pause_ms"]) == (60_000, 500)
    assert (options["retained_max"], options["restart"]) == (3, {"kind": "none"})


def test_from_a_slot_to_its_operator_and_the_charts_of_its_day(window: Window) -> None:
    job = flights.running()
    job.subtasks.update(status="running")
    rows_operator.workers(job)
    rows_operator.series(job, timedelta(hours=3))
    log_in(window)
    window.open(f"/jobs/{job.pk}/slots/")
    window.sees("table.slots", "node-4.cluster")
    window.sees("#slot-1", "too few processors")
    Worker.objects.update(memory_bytes=536_000_000)
    wakeups.publish(wakeups.job(job.pk))
    window.sees("#slot-1", "536 MB")
    window.follow("hourly-1", within="#slot-1")
    window.sees("h2", "hourly")
    window.await_figures()
    # No figure in a page that is still on its way, no data in one that is not drawn yet.
    begins = "(document.querySelector('[data-figure]')?.data ?? [{x: ['~']}])[0].x[0]"
    of_the_hour = window.evaluate(begins)
    window.follow("6 hours")
    wait_until(lambda: window.evaluate(begins) < of_the_hour, "three hours are drawn")
    window.sees("main", "A day is kept: every 10 seconds of the last hour")
    window.resize(390)
    wait_until(lambda: window.count(".chart-legend") == 1, "the chart is drawn for a phone")
    edges = """[document.querySelector(".chart-legend").getBoundingClientRect().bottom,
        document.querySelector(".annotation").getBoundingClientRect().top]"""
    ends, begins = window.evaluate(edges)
    assert ends <= begins, "the legend is above the title of the first panel"


def test_what_happened_is_listed_and_filtered(window: Window) -> None:
    job = factories.job("flights")
    factories.event(job, 7)
    factories.event(job, 8, kind=JobEventKind.CHECKPOINT_FAILED, reason="checkpoint_expired")
    log_in(window)
    window.open("/activity/")
    assert window.count("table.audit tbody tr") == 1, "those that completed are left out"
    window.sees("table.audit", "8")
    window.choose("kind", value=JobEventKind.CHECKPOINT_COMPLETED.value)
    window.click("Filter")
    window.sees("table.audit tbody tr", "7")
    window.follow("flights", within="table.audit")
    window.sees("h1", "flights")


def test_an_administrator_makes_an_account_and_ends_its_logins(window: Window) -> None:
    log_in(window, Role.ADMIN)
    window.open("/accounts/")
    window.follow("New account")
    window.fill("username", "grace")
    window.choose("role", value=Role.OPERATOR.value)
    window.do(lambda page: page.click("form.stack button.primary"))
    window.sees("main", "grace")
    made = User.objects.get(username="grace")
    assert made.role == Role.OPERATOR
    Client().force_login(made)
    assert Session.objects.filter(user=made).exists()
    window.open(f"/accounts/{made.pk}/")
    window.do(lambda page: page.click("form[action$='/logins/end'] button"))
    wait_until(lambda: not Session.objects.filter(user=made).exists(), "its logins have ended")


def test_an_account_makes_a_token_and_changes_its_password(window: Window) -> None:
    user = factories.user(Role.OPERATOR)
    window.log_in(user.username, factories.PASSWORD)
    window.open("/account/")
    window.sees("table", "this one")
    window.follow("New token")
    window.fill("name", "wallboard")
    window.do(lambda page: page.click("form.stack button.primary"))
    window.sees("#secret", "weir_")
    window.open("/account/password")
    window.fill("old", factories.PASSWORD)
    for name in ("password", "again"):
        window.fill(name, "a sentence of some length")
    window.do(lambda page: page.click("form.stack button.primary"))
    window.sees(".messages", "Your password was changed")
    window.sees("main", "wallboard")
    user.refresh_from_db()
    assert user.check_password("a sentence of some length")


def test_threads_that_keep_the_interpreter_lock_are_named_on_the_checkpoint(window: Window) -> None:
    user = factories.user(Role.OPERATOR)
    late = rows_pictures.late(user)
    threads = {"lock_wait_ms": 38.0, "cpu_share": 0.93, "loop_share": 0.07}
    frame = {"function": "prefetch", "file": "/srv/orders.py", "line": 77}
    slots = range(rows_pictures.PARALLELISM)
    late.evidence = {**late.evidence, "beside": {str(slot): threads | frame for slot in slots}}
    late.save()
    window.log_in(user.username, factories.PASSWORD)
    window.resize(390)
    window.open(f"/jobs/{late.job_id}/checkpoints/{late.number}/")
    window.await_figures()
    assert window.hides_sideways() == 0
    window.sees(".verdict-headline", "Threads of the job's own code kept the interpreter lock")
    window.sees(".verdict-headline", "most of it in prefetch (orders.py:77)")
    assert list(violations(window, EVERYTHING)) == []
    window.show_dark()
    assert list(violations(window, COLOURS)) == []
