"""An operator's rounds in a real browser: filters, uploads, a job's settings, archive, account."""

from pathlib import Path

import pytest
from django.test import override_settings

from controlplane.accounts.models import Role
from frontend.models import SavedFilter
from jobs import uploads
from jobs.models import Job
from tests import factories
from tests.browser.browser import Window
from tests.browser.test_accessibility import COLOURS, EVERYTHING, violations
from tests.database.frontend import rows_pictures
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
    window.open(f"/jobs/{late.job_id}/checkpoints/{late.number}/")
    window.sees(".verdict-headline", "Threads of the job's own code kept the interpreter lock")
    window.sees(".verdict-headline", "most of it in prefetch (orders.py:77)")
    window.await_figures()
    assert list(violations(window, EVERYTHING)) == []
    window.show_dark()
    assert list(violations(window, COLOURS)) == []
