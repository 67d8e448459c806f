import gzip
import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from controlplane.accounts.models import Role
from controlplane.base import clock
from frontend.confirm.views import QUESTIONS
from frontend.graph import picture
from frontend.job import snapshot
from jobs.models import Job
from tests import factories
from tests.database.frontend import flights
from weir.protocol.lifecycle import CheckpointStatus, JobStatus

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"

READS = ["job-page", "job-details"]
ACTS = ["job-checkpoint", "job-cancel", "job-restart"]


@pytest.fixture
def job(db: None) -> Job:
    created = flights.running()
    flights.history(created, 12)
    return created


def pages(of: Job) -> list[str]:
    """Every page that is HTML."""
    job = f"/jobs/{of.pk}"
    asked = [f"{job}/{name}" for name in ("cancel", *QUESTIONS)]
    operations = [f"{job}/operations/{row.pk}" for row in of.operations.all()]
    savepoints = [f"{job}/savepoints/{row.pk}/delete" for row in of.savepoints.all()]
    fixed = ["/login/", "/jobs/", "/jobs/none/", "/none"]
    return [*fixed, f"{job}/", *asked, *operations, *savepoints]


# Who may what -------------------------------------------------------------------------------------


def test_who_is_not_logged_in_is_led_to_the_login_and_back(client: Client, job: Job) -> None:
    addresses = ["/jobs/", "/jobs/data", *(reverse(name, args=[job.pk]) for name in READS)]
    for address in [*addresses, f"/jobs/{job.pk}/figures/history"]:
        response = client.get(address)
        assert response.status_code == 302
        assert response["Location"] == f"/login/?next={address}"
    for name in ACTS:
        assert client.post(reverse(name, args=[job.pk])).status_code == 302
    assert not job.operations.exists()


def test_a_viewer_sees_no_button_and_is_refused(viewer: Client, job: Job) -> None:
    page = viewer.get(f"/jobs/{job.pk}/")
    assert page.status_code == 200
    for words in ("Take a checkpoint", "Cancel job", "data-action"):
        assert words not in page.content.decode()
    for name in ACTS:
        response = viewer.post(reverse(name, args=[job.pk]))
        assert response.status_code == 403
        assert "Not allowed" in response.content.decode()
    assert viewer.get(f"/jobs/{job.pk}/cancel").status_code == 403
    assert not job.operations.exists()


@pytest.mark.parametrize("role", [Role.OPERATOR, Role.ADMIN])
def test_an_operator_and_an_admin_see_the_buttons(client: Client, job: Job, role: Role) -> None:
    client.force_login(factories.user(role))
    page = client.get(f"/jobs/{job.pk}/").content.decode()
    assert "Take a checkpoint" in page
    assert "Cancel job" in page


def test_an_operator_is_led_to_the_newest_driver_s_log(
    operator: Client, viewer: Client, job: Job
) -> None:
    address = f"/api/v1/jobs/{job.pk}/drivers/1/log"
    assert address not in operator.get(f"/jobs/{job.pk}/").content.decode()  # Not launched here.
    job.drivers.update(directory="/var/lib/weir/drivers/1")
    assert address in operator.get(f"/jobs/{job.pk}/").content.decode()
    assert address not in viewer.get(f"/jobs/{job.pk}/").content.decode()


def test_navigation_leads_to_the_admin_site_only_who_may_use_it(viewer: Client) -> None:
    assert "/admin/" not in viewer.get("/jobs/").content.decode()
    staff = Client()
    staff.force_login(factories.user(Role.ADMIN))
    assert "/admin/" in staff.get("/jobs/").content.decode()


def test_login_and_logout_by_form(client: Client) -> None:
    user = factories.user(Role.VIEWER, "eve")
    response = client.post("/login/", {"username": "eve", "password": "wrong"})
    assert "Wrong username or password" in response.content.decode()
    response = client.post(
        "/login/?next=/jobs/", {"username": "eve", "password": factories.PASSWORD}
    )
    assert response["Location"] == "/jobs/"
    assert client.session["_auth_user_id"] == str(user.pk)
    assert client.get("/logout/").status_code == 405  # A link cannot log a user out.
    assert client.post("/logout/")["Location"] == "/login/"
    assert client.get("/jobs/").status_code == 302


def test_login_does_not_lead_to_another_site(client: Client) -> None:
    factories.user(Role.VIEWER, "eve")
    given = {"username": "eve", "password": factories.PASSWORD, "next": "https://example.org/"}
    assert client.post("/login/", given)["Location"] == "/jobs/"


# Pages --------------------------------------------------------------------------------------------


def test_the_root_is_the_list_of_jobs(viewer: Client) -> None:
    assert viewer.get("/")["Location"] == "/jobs/"


def test_an_empty_list_says_how_to_submit(viewer: Client, operator: Client) -> None:
    assert "An operator can submit one" in viewer.get("/jobs/").content.decode()
    page = operator.get("/jobs/").content.decode()
    assert "curl -X POST http://testserver/api/v1/jobs" in page


def test_unknown_things_are_404_everywhere(operator: Client, job: Job) -> None:
    for address in (
        "/jobs/none/",
        "/jobs/none/details",
        "/jobs/none/figures/history",
        f"/jobs/{job.pk}/figures/none",
        "/jobs/none/cancel",
        "/jobs/%00/",
        "/jobs/..%2f..%2fetc/",
    ):
        assert operator.get(address).status_code == 404, address
    for name in ACTS:
        assert operator.post(reverse(name, args=["none"])).status_code == 404
    assert "There is nothing at this address" in operator.get("/jobs/none/").content.decode()


@pytest.mark.parametrize("status", list(JobStatus))
def test_the_page_shows_a_job_in_every_state(operator: Client, status: JobStatus) -> None:
    job = factories.job(status=status)
    page = operator.get(f"/jobs/{job.pk}/")
    assert page.status_code == 200
    assert '<span class="big">none</span>' in page.content.decode()


def test_the_page_works_without_javascript(operator: Client, job: Job) -> None:
    pending = factories.checkpoint(job, 13, status=CheckpointStatus.PENDING)
    factories.acknowledge_chain(pending, "flights", 0)
    page = operator.get(f"/jobs/{job.pk}/").content.decode()
    for words in (
        "Running",
        "3 of 18 subtasks acknowledged",
        "waiting for flights-1",
        "Slowest channel: flights-0",
        "12 checkpoints, none failed",
        'id="graph"',
        "on its way",
    ):
        assert words in page


def test_a_page_is_made_by_a_fixed_number_of_queries(operator: Client, job: Job) -> None:
    flights.history(flights.running("other"), 60)
    operator.get(f"/jobs/{job.pk}/")  # The verdict of what has settled is made once.
    with CaptureQueriesContext(connection) as queries:
        operator.get(f"/jobs/{job.pk}/")
    # Session and user, the job, the snapshot's eleven, the details' six.
    assert len(queries) == 2 + 1 + 11 + 6


def test_data_that_has_not_changed_is_not_sent_again(viewer: Client, job: Job) -> None:
    for address in (f"/jobs/{job.pk}/details", f"/jobs/{job.pk}/figures/alignment"):
        first = viewer.get(address)
        assert first.status_code == 200
        again = {"If-None-Match": first["ETag"]}
        assert viewer.get(address, headers=again).status_code == 304
        factories.checkpoint(job, 100 + Job.objects.count() + len(address))
        assert viewer.get(address, headers=again).status_code == 200


def test_an_attempt_may_end_in_any_words(viewer: Client, job: Job) -> None:
    assert job.attempts.update(end="\n\u202e") > 0
    for address in (f"/jobs/{job.pk}/details", f"/jobs/{job.pk}/figures/history"):
        answer = viewer.get(address)
        assert answer.status_code == 200
        again = viewer.get(address, headers={"If-None-Match": answer["ETag"]})
        assert again.status_code == 304


def test_a_window_of_time_moves_on_though_nothing_happens(
    viewer: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = clock.now().replace(second=0)
    for address in (f"/jobs/{job.pk}/details", f"/jobs/{job.pk}/figures/history"):
        for window, after_a_minute in (("50", 304), ("hour", 200)):
            monkeypatch.setattr(clock, "now", lambda: now)
            asked = f"{address}?window={window}"
            again = {"If-None-Match": viewer.get(asked)["ETag"]}
            assert viewer.get(asked, headers=again).status_code == 304
            monkeypatch.setattr(clock, "now", lambda: now + timedelta(minutes=1))
            assert viewer.get(asked, headers=again).status_code == after_a_minute


def test_the_window_of_the_history_is_part_of_the_address(viewer: Client, job: Job) -> None:
    flights.history(flights.running("other"), 1)
    page = viewer.get(f"/jobs/{job.pk}/?window=50").content.decode()
    assert re.search(r'data-window="50" aria-current="true">Last 50<', page)
    assert page.count('aria-current="true"') == 1
    hour = viewer.get(f"/jobs/{job.pk}/details?window=hour").json()
    assert (hour["window"], hour["percentiles"][0]["name"]) == ("hour", "p50")
    day = viewer.get(f"/jobs/{job.pk}/figures/history?window=day").json()
    assert len(day["data"][0]["x"]) == 12


def test_the_picture_shows_what_the_stream_would(viewer: Client, job: Job) -> None:
    pending = factories.checkpoint(job, 13, status=CheckpointStatus.PENDING)
    factories.acknowledge_chain(pending, "flights", 0)
    page = viewer.get(f"/jobs/{job.pk}/").content.decode()
    state = snapshot.snapshot(job.pk)["graph"]
    assert re.findall(r'data-chain="(\w+)" data-state="(\w+)"', page) == [
        (chain["uid"], chain["state"]) for chain in state["chains"]
    ]
    assert re.findall(r'class="link".*?data-barrier="([\w-]*)" data-slow', page)[:2] == [
        link["barrier"] for link in state["links"]
    ]
    width = float(re.search(r'class="fill" width="([\d.]+)"', page).group(1))
    assert width == pytest.approx(state["chains"][0]["fraction"] * picture.WIDTH)


def test_why_an_action_cannot_be_asked_for_stands_beside_it(operator: Client, job: Job) -> None:
    Job.objects.filter(pk=job.pk).update(status=JobStatus.CANCELLING)
    page = operator.get(f"/jobs/{job.pk}/").content.decode()
    menu = page[page.index("menu-items") : page.index("</details>")]
    # Rollback, rescale, upgrade, restart, cancel; and archive, for a reason of its own.
    assert menu.count("The job is being cancelled.") == menu.count("disabled>") - 1 == 5
    assert "Only a job that is over is archived" in menu


def test_figures_come_as_json(viewer: Client, job: Job) -> None:
    figure = viewer.get(f"/jobs/{job.pk}/figures/history").json()
    assert len(figure["data"][0]["x"]) == 12
    figure = viewer.get(f"/jobs/{job.pk}/figures/alignment").json()
    assert len(figure["data"][0]["y"]) == 8


# Safety -------------------------------------------------------------------------------------------


def test_text_of_others_is_escaped_on_every_page(operator: Client) -> None:
    job = flights.running(name="flights")
    flights.history(job, 3)
    Job.objects.filter(pk=job.pk).update(name=SCRIPT, cause=f"ValueError: {SCRIPT}\n{SCRIPT}")
    factories.exception(job, f"{SCRIPT}\n{SCRIPT}")
    factories.operation(
        job, factories.user(Role.ADMIN, "<img onerror=x>"), status="failed", error=SCRIPT
    )
    job.operators.filter(uid="flights").update(uid=SCRIPT, name='"><i>')
    factories.checkpoint(job, 4, status=CheckpointStatus.FAILED, cause=SCRIPT)
    for address in (f"/jobs/{job.pk}/", "/jobs/", f"/jobs/{job.pk}/cancel"):
        page = operator.get(address).content.decode()
        assert SCRIPT not in page
        assert "&lt;script&gt;alert(1)" in page
        assert "<img onerror" not in page
        assert '"><i>' not in page


class _Scan(HTMLParser):
    """Finds what a strict content policy would not run, and what is not from this server."""

    def __init__(self) -> None:
        super().__init__()
        self.violations: list[str] = []
        self.ids: list[str] = []
        self._script: dict[str, str | None] | None = None

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.ids += [given["id"]] if given.get("id") else []
        if tag == "style" or "style" in given:
            self.violations.append(f"style in {tag}")
        self.violations += [f"{name} in {tag}" for name in given if name.startswith("on")]
        if tag == "script":
            self._script = given
            if not given.get("src"):
                self.violations.append("script without src")
        for name in ("src", "href", "action"):
            value = given.get(name) or ""
            if value.lower().startswith(("javascript:", "data:", "http:", "https:", "//")):
                self.violations.append(f"{name}={value}")

    def handle_data(self, data: str) -> None:
        if self._script is not None and data.strip():
            self.violations.append("inline script")

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._script = None


def test_no_page_has_inline_script_handler_or_style_or_leads_elsewhere(
    operator: Client, client: Client, job: Job
) -> None:
    factories.exception(job)
    factories.operation(job, None)
    factories.savepoint(job, "first", 20)
    factories.job("fork", origin=job)
    for browser in (operator, client):
        for address in pages(job):
            scan = _Scan()
            scan.feed(browser.get(address, follow=True).content.decode())
            assert scan.violations == [], address
            assert len(set(scan.ids)) == len(scan.ids), address


def test_pages_carry_a_policy_that_runs_scripts_of_this_server_only(
    operator: Client, job: Job
) -> None:
    for address in pages(job):
        policy = operator.get(address).headers["Content-Security-Policy"]
        assert re.search(r"script-src 'self'(;|$)", policy), address
        assert "object-src 'none'" in policy


def test_pages_are_not_kept_by_anybody_else(operator: Client, job: Job) -> None:
    assert "no-store" in operator.get(f"/jobs/{job.pk}/")["Cache-Control"]
    assert "private" in operator.get(f"/jobs/{job.pk}/details")["Cache-Control"]


def test_tables_have_captions_and_header_cells(operator: Client, job: Job) -> None:
    for address in ("/jobs/", f"/jobs/{job.pk}/"):
        page = operator.get(address).content.decode()
        tables = re.findall(r"<table.*?</table>", page, re.DOTALL)
        assert tables
        for table in tables:
            assert "<caption" in table
            assert '<th scope="col"' in table


# Forms --------------------------------------------------------------------------------------------

JSON = {"Accept": "application/json"}


def key_in(page: str, action: str) -> str:
    form = re.search(rf'action="[^"]*/{action}".*?name="key" value="([^"]+)"', page, re.DOTALL)
    assert form is not None
    return form.group(1)


def test_taking_a_checkpoint_by_form_leads_back_to_the_page(operator: Client) -> None:
    job = flights.running()
    page = operator.get(f"/jobs/{job.pk}/").content.decode()
    given = {"key": key_in(page, "checkpoint")}
    response = operator.post(f"/jobs/{job.pk}/checkpoint", given, follow=True)
    assert response.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
    assert "Checkpoint requested." in response.content.decode()
    assert "Checkpoint 1" in re.sub(r"<[^>]+>", "", response.content.decode())
    assert job.operations.get().kind == "checkpoint"
    assert job.checkpoints.get().status == CheckpointStatus.PENDING


def test_the_same_form_sent_twice_asks_once(operator: Client) -> None:
    job = flights.running()
    page = operator.get(f"/jobs/{job.pk}/").content.decode()
    given = {"key": key_in(page, "checkpoint")}
    answers = [operator.post(f"/jobs/{job.pk}/checkpoint", given, headers=JSON) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [202, 202]
    assert len({answer.json()["operation"]["id"] for answer in answers}) == 1
    assert answers[0].json()["key"] != given["key"]
    assert job.operations.count() == 1


def test_a_refusal_says_what_the_state_is(operator: Client) -> None:
    job = factories.job(status=JobStatus.FINISHED)
    for name in ACTS:
        address = reverse(name, args=[job.pk])
        answer = operator.post(address, headers=JSON)
        assert answer.status_code == 409
        assert answer.json()["code"] == "wrong_state"
        assert "finished" in answer.json()["detail"]
        page = operator.post(address, follow=True).content.decode()
        assert 'data-tone="bad"' in page
        assert "finished" in page


def test_cancelling_asks_first_and_then_cancels(operator: Client) -> None:
    job = flights.running()
    page = operator.get(f"/jobs/{job.pk}/cancel").content.decode()
    assert "Cancel flights?" in page
    assert not job.operations.exists()
    given = {"key": re.search(r'name="key" value="([^"]+)"', page).group(1)}
    response = operator.post(f"/jobs/{job.pk}/cancel", given, follow=True)
    assert "The job is being cancelled." in response.content.decode()
    assert job.operations.get().kind == "cancel"
    job.refresh_from_db()
    assert job.desired == "canceled"


def test_the_question_says_why_a_job_cannot_be_cancelled(operator: Client) -> None:
    job = factories.job(status=JobStatus.FINISHED)
    page = operator.get(f"/jobs/{job.pk}/cancel").content.decode()
    assert "The job has finished" in page
    assert "Back to the job" in page


def test_restarting_asks_for_a_new_driver(operator: Client) -> None:
    job = flights.running()
    answer = operator.post(f"/jobs/{job.pk}/restart", headers=JSON)
    assert answer.status_code == 202
    assert answer.json()["operation"]["kind"] == "Restart"
    assert answer.json()["detail"] == "The job is being restarted."


def test_a_form_without_its_token_is_refused(job: Job) -> None:
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(factories.user(Role.OPERATOR, "ada"))
    response = strict.post(f"/jobs/{job.pk}/checkpoint")
    assert response.status_code == 403
    assert "expired or came from another site" in response.content.decode()
    assert not job.operations.exists()


# On the way ---------------------------------------------------------------------------------------


def test_a_page_is_sent_compressed_to_who_takes_that(viewer: Client, job: Job) -> None:
    taken = {"Accept-Encoding": "gzip, br"}
    page = viewer.get(f"/jobs/{job.pk}/", headers=taken)
    assert page["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in page["Vary"]
    assert b"<h1" in gzip.decompress(page.content)
    plain = viewer.get(f"/jobs/{job.pk}/")
    assert not plain.has_header("Content-Encoding")
    assert len(page.content) < len(plain.content) / 2


def test_compressed_data_that_has_not_changed_is_not_sent_again(viewer: Client, job: Job) -> None:
    taken = {"Accept-Encoding": "gzip"}
    for address in (
        f"/jobs/{job.pk}/details",
        f"/jobs/{job.pk}/figures/history",
        f"/jobs/{job.pk}/checkpoints/data",
        f"/jobs/{job.pk}/savepoints/lineage",
    ):
        first = viewer.get(address, headers=taken)
        assert first["Content-Encoding"] == "gzip"
        again = viewer.get(address, headers=taken | {"If-None-Match": first["ETag"]})
        assert (again.status_code, again.content) == (304, b"")
