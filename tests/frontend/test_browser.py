"""The page in a real browser, over a real web process, PostgreSQL and Redis.

The job's driver is the test itself: what it would report goes through the coordinator.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db.models import F
from pytest_django.plugin import DjangoDbBlocker
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from controlplane import clock, wakeups
from controlplane.accounts.models import Role
from controlplane.embedded.redis import Redis
from jobs.models import Driver, Job
from tests.frontend import documents, rows
from tests.frontend.server import WebProcess, chromium, needs_chromium, wait_for, web_process
from tests.frontend.test_formatting import ROUGH
from tests.services import database_url
from weir.protocol.lifecycle import JobStatus

pytestmark = [pytest.mark.slow, pytest.mark.django_db(transaction=True)]

LIVE_S = 3.0  # From a row to the page.


@pytest.fixture(scope="module")
def process(
    django_db_setup: None,
    django_db_blocker: DjangoDbBlocker,
    redis_server: Redis,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[WebProcess]:
    """One web process for all tests here; it keeps nothing between two requests."""
    needs_chromium()
    home = tmp_path_factory.mktemp("web")
    with django_db_blocker.unblock():
        url = database_url()
    with web_process(home, url, redis_server.url) as process:
        yield process


@pytest.fixture(scope="module")
def window() -> Iterator[Chrome]:
    needs_chromium()
    with chromium() as found:
        yield found


@pytest.fixture
def web(transactional_db: None, redis: Redis, process: WebProcess) -> WebProcess:
    return process


@pytest.fixture
def browser(web: WebProcess, window: Chrome) -> Iterator[Chrome]:
    """The browser, logged out, on an empty page, at its usual size."""
    window.delete_all_cookies()
    window.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    window.get_log("browser")
    yield window
    complaints = [
        line["message"]
        for line in window.get_log("browser")
        if line["level"] in ("SEVERE", "WARNING") and not is_of_a_stopped_server(line["message"])
    ]
    window.get("about:blank")  # Ends the event stream before the tables are emptied.
    assert complaints == []


def is_of_a_stopped_server(complaint: str) -> bool:
    return "ERR_CONNECTION_REFUSED" in complaint or "status of 503" in complaint


def log_in(browser: Chrome, web: WebProcess, role: Role = Role.OPERATOR) -> None:
    user = rows.user(role)
    browser.get(f"{web.url}/login/")
    browser.find_element(By.ID, "id_username").send_keys(user.username)
    browser.find_element(By.ID, "id_password").send_keys(rows.PASSWORD)
    browser.find_element(By.CSS_SELECTOR, "form.stack button").click()
    wait_for(lambda: browser.current_url.endswith("/jobs/"), "the list of jobs after the login")


def open_job(browser: Chrome, web: WebProcess, job: Job) -> None:
    """Open the page and mark it, so that a reload would be noticed."""
    browser.get(f"{web.url}/jobs/{job.pk}/")
    browser.execute_script("document.documentElement.dataset.mark = 'not reloaded'")


def was_reloaded(browser: Chrome) -> bool:
    return browser.execute_script("return document.documentElement.dataset.mark") is None


def text(browser: Chrome, selector: str) -> str:
    """What somebody reads there; empty where it is hidden."""
    found = browser.find_elements(By.CSS_SELECTOR, selector)
    return " ".join(found[0].text.split()) if found else ""


def sees(browser: Chrome, selector: str, words: str, timeout_s: float = LIVE_S) -> None:
    def is_there() -> bool:
        return words in text(browser, selector)

    try:
        wait_for(is_there, words, timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; there is: {text(browser, selector)!r}") from None


def charts(browser: Chrome) -> dict[str, int]:
    """How often each chart has been drawn."""
    return browser.execute_script(
        "return Object.fromEntries([...document.querySelectorAll('[data-figure]')]"
        ".map((e) => [e.dataset.figure, Number(e.dataset.drawn ?? 0)]))"
    )


def button(browser: Chrome, words: str) -> WebElement:
    return browser.find_element(By.XPATH, f"//button[normalize-space()='{words}']")


SAVEPOINTS = "#savepoints"
PROGRESS = "#progress"
OPERATIONS = "[aria-labelledby=operations-title]"
ALIGNMENT = "[aria-labelledby=alignment-title]"


def test_barriers_travel_on_the_page_from_the_button_to_the_charts(
    web: WebProcess, browser: Chrome
) -> None:
    job = rows.running(interval_ms=None)
    log_in(browser, web)
    open_job(browser, web, job)
    sees(browser, PROGRESS, "No checkpoint yet, and none is due")
    sees(browser, ALIGNMENT, "Once a checkpoint has completed")

    button(browser, "Take a checkpoint").click()
    sees(browser, "#action-result", "A checkpoint was asked for.")
    sees(browser, PROGRESS, "Checkpoint 1 In progress")
    sees(browser, PROGRESS, "0 of 18 subtasks acknowledged")
    sees(browser, OPERATIONS, "Checkpoint Under way")

    seen = []
    for chain, index in (("flights", 1), ("flights", 0), ("hourly", 0)):
        rows.drive(job, rows.chain_acknowledged(1, chain, index, arrived_ms=()))
        done = job.checkpoints.get().acknowledged_count
        sees(browser, PROGRESS, f"{done} of 18 subtasks acknowledged")
        seen.append(text(browser, "[data-item=flights] .count"))
    assert seen == ["1/2", "2/2", "2/2"]
    sees(browser, "[data-item=hourly] .missing", "waiting for hourly-1")

    rest = [("hourly", 1), ("totals", 0), ("totals", 1)]
    rows.drive(job, *(rows.chain_acknowledged(1, *one, arrived_ms=(35.0, 0.0)) for one in rest))
    sees(browser, PROGRESS, "Checkpoint 1 Finalizing")
    rows.complete(job, 1)  # What was acknowledged before is known; the manifest is new.
    sees(browser, PROGRESS, "Checkpoint 1 Completed")
    sees(browser, OPERATIONS, "Checkpoint Done")
    sees(browser, ".tiles", "number 1")
    sees(browser, ALIGNMENT, "Slowest channel: flights-0 →")
    wait_for(lambda: min(charts(browser).values()) >= 1, "both charts are drawn")
    bars = browser.find_elements(By.CSS_SELECTOR, "[data-figure=history] .bars .point")
    assert len(bars) >= 4  # One for each phase.

    button(browser, "Take a checkpoint").click()  # The next click is another request.
    sees(browser, PROGRESS, "Checkpoint 2 In progress")
    before = charts(browser)["history"]
    rows.complete(job, 2)
    sees(browser, PROGRESS, "Checkpoint 2 Completed")
    wait_for(lambda: charts(browser)["history"] > before, "the history is drawn again")
    assert not was_reloaded(browser)


def test_the_state_of_the_job_changes_on_the_page(web: WebProcess, browser: Chrome) -> None:
    job = rows.running()
    log_in(browser, web, Role.VIEWER)
    open_job(browser, web, job)
    sees(browser, "h1", "Running")
    cause = f"slot 1 is gone: <b>{'x' * 20}</b>\nTraceback …"
    Job.objects.filter(pk=job.pk).update(status=JobStatus.RESTARTING, cause=cause)
    rows.exception(job, cause)
    wakeups.publish(wakeups.job(job.pk))
    sees(browser, "h1", "Restarting")
    sees(browser, "#announcer", "")  # It is out of sight …
    announced = browser.find_element(By.ID, "announcer").get_attribute("textContent")
    assert announced == "The job is now: Restarting."
    sees(browser, ".cause", "slot 1 is gone: <b>xxx")  # … and markup is text.
    sees(browser, "[aria-labelledby=exceptions-title]", "slot 1 is gone: <b>xxx")
    assert browser.title == "flights · Restarting · Weir"
    assert not browser.find_elements(By.CSS_SELECTOR, ".cause b")
    assert not was_reloaded(browser)


def test_a_silent_driver_is_noticed_while_somebody_looks(web: WebProcess, browser: Chrome) -> None:
    job = rows.running()
    log_in(browser, web)
    open_job(browser, web, job)
    sees(browser, ".tiles", "Running")
    Driver.objects.filter(job=job).update(heard_at=F("created_at"))
    sees(browser, "#job > .attention", "exactly-once sinks commit nothing")  # Without a wake-up.
    sees(browser, ".tiles", "Silent")


def test_without_the_server_the_page_says_so_and_comes_back(
    web: WebProcess, browser: Chrome
) -> None:
    job = rows.running(interval_ms=None)
    log_in(browser, web)
    open_job(browser, web, job)
    sees(browser, PROGRESS, "No checkpoint yet")
    web.stop()
    sees(browser, "#connection", "The control plane has not been reached since", 15)
    assert "sinks commit nothing until it is back" in text(browser, "#connection")
    button(browser, "Take a checkpoint").click()
    sees(browser, "#action-result", "could not be reached")
    web.start()
    wait_for(lambda: text(browser, "#connection") == "", "the page is connected again", 20)
    button(browser, "Take a checkpoint").click()
    sees(browser, PROGRESS, "Checkpoint 1 In progress")
    assert job.operations.count() == 1
    assert not was_reloaded(browser)


def test_cancelling_asks_in_a_dialog_that_the_keyboard_can_leave(
    web: WebProcess, browser: Chrome
) -> None:
    job = rows.running()
    log_in(browser, web)
    open_job(browser, web, job)
    button(browser, "Cancel job").click()
    sees(browser, "#cancel-dialog", "Cancel flights?")
    button(browser, "Keep it").click()
    wait_for(lambda: text(browser, "#cancel-dialog") == "", "the dialog is closed")
    assert not job.operations.exists()

    button(browser, "Cancel job").click()
    button(browser, "Cancel the job").click()
    sees(browser, "#action-result", "The job is being cancelled.")
    sees(browser, OPERATIONS, "Cancel Under way")
    wait_for(lambda: not button(browser, "Take a checkpoint").is_enabled(), "nothing can be asked")
    assert not was_reloaded(browser)


def test_a_savepoint_is_taken_on_a_page_of_its_own_and_becomes_one_before_the_eyes(
    web: WebProcess, browser: Chrome
) -> None:
    job = rows.running(interval_ms=None)
    log_in(browser, web)
    open_job(browser, web, job)
    sees(browser, SAVEPOINTS, "No savepoint yet.")
    button(browser, "Take a savepoint").click()
    sees(browser, "h1", "Take a savepoint of flights?")
    browser.find_element(By.NAME, "name").send_keys("first")
    browser.find_element(By.NAME, "labels").send_keys("release: 1")
    button(browser, "Take a savepoint").click()
    sees(browser, ".messages", "A savepoint is being taken.")
    browser.execute_script("document.documentElement.dataset.mark = 'not reloaded'")
    sees(browser, SAVEPOINTS, "first In progress")
    sees(browser, OPERATIONS, "Savepoint Under way taking a savepoint")
    assert not button(browser, "Rescale").is_enabled()
    assert "Roll back here" not in text(browser, SAVEPOINTS)

    rows.complete(job, 1)
    sees(browser, SAVEPOINTS, "first Completed")
    sees(browser, SAVEPOINTS, "release: 1")
    sees(browser, SAVEPOINTS, "Roll back here Fork from it")
    sees(browser, OPERATIONS, "Savepoint Done")
    wait_for(lambda: button(browser, "Rescale").is_enabled(), "others may be asked for again")
    assert not was_reloaded(browser)

    browser.find_element(By.LINK_TEXT, "Roll back here").click()
    sees(browser, "h1", "Roll back flights?")
    sees(browser, "select option:checked", "first")


def test_a_rollback_is_confirmed_below_its_preview(web: WebProcess, browser: Chrome) -> None:
    job = rows.running()
    rows.history(job, 12)
    asked = rows.operation(
        job,
        None,
        "preview",
        parameters={"kind": "rollback", "checkpoint": 10, "rewind_output": True},
        result={"sentences": ["the job goes back to checkpoint 10: 4 s of work are undone"]},
    )
    log_in(browser, web)
    open_job(browser, web, job)
    browser.find_element(By.LINK_TEXT, "Preview of a rollback to checkpoint 10").click()
    sees(browser, ".operation", "4 s of work are undone.")
    button(browser, "Roll the job back").click()
    sees(browser, ".messages", "The job is being rolled back.")
    sees(browser, OPERATIONS, "Rollback to checkpoint 10 Under way a new driver is taking over")
    sees(browser, SAVEPOINTS, "Goes on from")
    found = job.operations.exclude(pk=asked.pk).get()
    assert (found.kind, found.parameters["checkpoint"]) == ("rollback", 10)


def test_a_viewer_gets_the_live_page_without_buttons(web: WebProcess, browser: Chrome) -> None:
    job = rows.running()
    log_in(browser, web, Role.VIEWER)
    open_job(browser, web, job)
    sees(browser, "h1", "flights")
    assert [item.text for item in browser.find_elements(By.TAG_NAME, "button")] == ["Log out"]


def test_the_list_follows_the_jobs(web: WebProcess, browser: Chrome) -> None:
    log_in(browser, web)
    browser.execute_script("document.documentElement.dataset.mark = 'not reloaded'")
    sees(browser, "#jobs", "No job yet")
    first, second = rows.running("first"), rows.running("second")
    rows.checkpoint(first, 1)
    rows.checkpoint(second, 1)
    sees(browser, "#jobs", "2 jobs", 8)
    order = "return [...document.querySelectorAll('tbody th a')].map((e) => e.textContent)"
    assert set(browser.execute_script(order)) == {"first", "second"}
    Job.objects.filter(pk=first.pk).update(
        status=JobStatus.FAILED, cause="no disk", ended_at=clock.now()
    )
    sees(browser, "#jobs", "The job failed: no disk", 8)
    assert browser.execute_script(order) == ["first", "second"]  # It has come to the top.
    assert not was_reloaded(browser)


def test_browser_and_server_write_times_alike(web: WebProcess, browser: Chrome) -> None:
    browser.get(f"{web.url}/login/")
    found = browser.execute_async_script(
        """
        const [values, done] = arguments;
        import("/static/frontend/format.js")
          .then((format) => done(values.map((value) => format.roughDuration(value))));
        """,
        [value for value, _ in ROUGH],
    )
    assert found == [words for _, words in ROUGH]


SPLIT = ("split", "now", "then")
WIDTH = "return document.documentElement.scrollWidth"


@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_sticks_out_sideways(
    web: WebProcess, browser: Chrome, width: int, tmp_path: Path
) -> None:
    job = rows.running("a-rather-long-name-of-a-job-that-somebody-chose")
    rows.history(job, 20)
    rows.exception(job, "x" * 400)
    made = rows.savepoint(job, "x" * 80, 21, note="x" * 400, labels={"x" * 100: "x" * 100})
    rows.alignment(made.checkpoint, "hourly", 0, [20.0, 0.0])
    found = {"sentences": ["x" * 400], "sources": [{"splits": [dict.fromkeys(SPLIT, "x" * 400)]}]}
    asked = rows.operation(
        job, None, "preview", parameters={"kind": "rollback", "checkpoint": 20}, result=found
    )
    about = {"restore": f"/{'x' * 200}", "parameters": {"x" * 100: "x" * 100}}
    restore = rows.operation(
        job,
        None,
        "preview",
        parameters={"kind": "restore", **about},
        result=documents.refused_restore(tmp_path / "restore"),
    )
    outputs = [documents.comparison(tmp_path / "compare", is_equal=False, operator="x" * 60)]
    compare = rows.operation(
        job,
        None,
        "compare",
        parameters={"other": "y" * 60, "keys": ["carrier"] * 20},
        result={"outputs": outputs},
    )
    log_in(browser, web)
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    page = f"/jobs/{job.pk}/"
    for address in (
        "/jobs/",
        page,
        f"{page}rollback",
        f"{page}fork",
        f"{page}stop",
        f"{page}operations/{asked.pk}",
        f"{page}operations/{restore.pk}",
        f"{page}operations/{compare.pk}",
        f"{page}savepoints/{made.pk}/delete",
    ):
        browser.get(web.url + address)
        wait_for(
            lambda: browser.execute_script("return document.readyState") == "complete", address
        )
        if address == page:
            wait_for(lambda: min(charts(browser).values()) >= 1, "both charts are drawn")
        assert browser.execute_script(WIDTH) <= width, address


def test_a_page_loads_nothing_from_elsewhere(web: WebProcess, browser: Chrome) -> None:
    job = rows.running()
    rows.history(job, 5)
    log_in(browser, web)
    open_job(browser, web, job)
    wait_for(lambda: min(charts(browser).values()) >= 1, "both charts are drawn")
    loaded = browser.execute_script(
        "return JSON.stringify(performance.getEntriesByType('resource').map((e) => e.name))"
    )
    assert json.loads(loaded)
    assert [name for name in json.loads(loaded) if not name.startswith(web.url)] == []
