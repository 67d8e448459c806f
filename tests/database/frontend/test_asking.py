"""Pages that ask before something is done to a job, and those of operations."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from checkpoints.models import Savepoint
from checkpoints.operations import previews, requests, upgrades
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.errors import Busy, Invalid
from frontend.confirm import views
from jobs import services
from jobs.models import Job, Operation
from jobs.submissions import Pipeline
from tests import factories
from tests.database.frontend import documents, flights
from tests.database.frontend.reading import words
from weir.protocol.lifecycle import CheckpointStatus, JobStatus

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"
UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def job(db: None) -> Job:
    created = flights.running()
    flights.history(created, 12)
    return created


class Called:
    """Stands in for a service: keeps what it was called with."""

    def __init__(self, job: Job) -> None:
        self.given: dict[str, Any] = {}
        self._job = job

    def __call__(self, actor: Any, job_id: str, **given: Any) -> Operation:
        self.given = {name: value for name, value in given.items() if name != "key"}
        return factories.operation(self._job, actor, "preview", "running")


def asked_by(name: str, act: Callable[..., Operation], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let ``act`` stand in for what a question's form calls."""
    question = replace(views.QUESTIONS[name], act=act)
    monkeypatch.setitem(views.QUESTIONS, name, question)
    return act


def address(name: str, job: Job) -> str:
    return f"/jobs/{job.pk}/{name}"


# Who may what -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*views.QUESTIONS, "rollback/confirmed"])
def test_only_operators_are_asked(viewer: Client, client: Client, job: Job, name: str) -> None:
    for method in ("get", "post") if name in views.QUESTIONS else ("post",):
        assert getattr(viewer, method)(address(name, job)).status_code == 403
        assert getattr(client, method)(address(name, job)).status_code == 302
    assert not job.operations.exists()


@pytest.mark.parametrize("name", ["describe", "delete"])
def test_only_operators_change_savepoints(viewer: Client, job: Job, name: str) -> None:
    made = factories.savepoint(job, "first", 20)
    for method in ("get", "post"):
        answer = getattr(viewer, method)(f"/jobs/{job.pk}/savepoints/{made.pk}/{name}")
        assert answer.status_code == 403
    assert Savepoint.objects.get().deleted_at is None


def test_a_viewer_sees_savepoints_and_operations_without_links_to_act(
    viewer: Client, job: Job
) -> None:
    factories.savepoint(job, "first", 20, note="why")
    row = factories.operation(
        job, None, "preview", parameters={"kind": "rollback", "checkpoint": 7}
    )
    page = viewer.get(f"/jobs/{job.pk}/").content.decode()
    assert "first" in page
    for hidden in ("/rollback", "/fork", "/delete", "/describe"):
        assert hidden not in page
    page = viewer.get(f"/jobs/{job.pk}/operations/{row.pk}")
    assert page.status_code == 200
    assert "Roll flights back" not in page.content.decode()


# Asking -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", views.QUESTIONS)
def test_a_page_asks_and_does_nothing_yet(operator: Client, job: Job, name: str) -> None:
    factories.job("fork", origin=job)
    page = operator.get(address(name, job))
    assert page.status_code == 200
    question = views.QUESTIONS[name]
    for names_the_job in (question.title, question.button):
        assert names_the_job.format(job.name) in words(page)
    assert not job.operations.exists()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("savepoint", "The complete state of all 18 subtasks of flights is written."),
        ("stop", "Then all its subtasks end"),
        ("rescale", "Its parallelism is 2 now."),
        ("upgrade", "The new pipeline is checked against the newest checkpoint of flights first"),
        ("upgrade", "the job goes on with the old pipeline, from the same savepoint"),
        ("fork", "flights goes on untouched, and commits its pending output itself"),
        ("rollback", "flights is not touched yet"),
    ],
)
def test_a_page_says_in_plain_words_what_will_happen(
    operator: Client, job: Job, name: str, said: str
) -> None:
    page = words(operator.get(address(name, job)))
    assert said in page.partition("What will happen")[2]


@pytest.mark.parametrize(
    ("name", "status", "why"),
    [
        ("savepoint", JobStatus.RESTARTING, "while the job is running"),
        ("stop", JobStatus.FAILED, "A restart resumes the job"),
        ("rollback", JobStatus.INITIALIZING, "The job is starting."),
        ("rescale", JobStatus.CANCELLING, "The job is being cancelled."),
        ("upgrade", JobStatus.FINISHED, "The job has finished."),
        ("rollback", JobStatus.RUNNING, "This job has no kept checkpoint or savepoint"),
        ("preview", JobStatus.RUNNING, "This job has no kept checkpoint or savepoint"),
        ("compare", JobStatus.RUNNING, "This job has no fork and is not one"),
    ],
)
def test_a_page_says_why_something_cannot_be_asked(
    operator: Client, name: str, status: JobStatus, why: str
) -> None:
    page = operator.get(address(name, factories.job(status=status)))
    assert why in words(page)
    assert '<form method="post" class="stack">' not in page.content.decode()


def test_targets_are_savepoints_checkpoints_and_what_was_left_behind(
    operator: Client, job: Job
) -> None:
    made = factories.savepoint(job, "first", 20)
    job.checkpoints.filter(number=12).update(abandoned_at=clock.now())
    job.checkpoints.filter(number=11).update(discard_due_at=clock.now())
    page = operator.get(f"{address('rollback', job)}?savepoint={made.pk}").content.decode()
    groups = dict(re.findall(r'<optgroup label="([^"]+)">(.*?)</optgroup>', page, re.DOTALL))
    assert list(groups) == ["Savepoints", "Checkpoints", "Left behind"]
    assert f'value="savepoint:{made.pk}" selected' in groups["Savepoints"]
    assert "first (" in groups["Savepoints"]
    assert "checkpoint:12" in groups["Left behind"]
    assert "checkpoint:10" in groups["Checkpoints"]
    assert "checkpoint:11" not in page
    assert f"checkpoint:{1}" + '"' not in page  # Its files are gone.


def test_a_savepoint_is_taken_by_form_once(operator: Client) -> None:
    job = flights.running()
    page = operator.get(address("savepoint", job)).content.decode()
    key = re.search(r'name="key" value="([^"]+)"', page).group(1)
    given = {"key": key, "name": "first", "note": "why", "labels": "a: b\n\n c : d:e "}
    for _ in range(2):
        answer = operator.post(address("savepoint", job), given, follow=True)
        operation = job.operations.get()
        assert answer.redirect_chain == [(f"/jobs/{job.pk}/operations/{operation.pk}", 302)]
    assert "A savepoint is being taken." in words(answer)
    assert "under way A savepoint is taken" in words(answer)
    assert "0 of 18 subtasks acknowledged" in words(answer)
    made = job.savepoints.get()
    assert (made.name, made.note, made.labels) == ("first", "why", {"a": "b", "c": "d:e"})
    assert job.checkpoints.get().kind == "savepoint"


def test_a_job_is_stopped_by_form(operator: Client) -> None:
    job = flights.running()
    answer = operator.post(address("stop", job), {"drain": "yes"}, follow=True)
    assert "The job is being stopped." in words(answer)
    operation = job.operations.get()
    assert (operation.kind, operation.parameters["drain"]) == ("stop", True)


@pytest.mark.parametrize(
    ("name", "service", "form", "given"),
    [
        (
            "rescale",
            (requests, "rescale"),
            {"parallelism": "4"},
            {"parallelism": 4, "wait_for_slots": False},
        ),
        (
            "rollback",
            (previews, "rollback"),
            {"target": "checkpoint:10"},
            {"checkpoint": 10, "rewind_output": False},
        ),
        (
            "fork",
            (requests, "fork"),
            {
                "name": "trial",
                "target": "",
                "parameters": "output=/x=y",
                "secrets": "A, B",
                "recovery_target_s": "2.5",
                "pipeline_kind": "module",
                "pipeline_target": "a.b",
            },
            {
                "name": "trial",
                "parameters": {"output": "/x=y"},
                "secrets": ["A", "B"],
                "parallelism": None,
                "recovery_target_s": 2.5,
                "pipeline": Pipeline("module", "a.b"),
                "allow_non_restored_state": None,
            },
        ),
        (
            "upgrade",
            (upgrades, "upgrade"),
            {"pipeline_kind": "module", "pipeline_target": "a.b", "run_within_s": "90"},
            {
                "pipeline": Pipeline("module", "a.b"),
                "parameters": None,
                "secrets": None,
                "parallelism": None,
                "allow_non_restored_state": None,
                "run_within_s": 90,
            },
        ),
        (
            "preview",
            (previews, "restore"),
            {"target": "checkpoint:10", "parallelism": "3", "allow_non_restored_state": "on"},
            {
                "restore": 10,
                "parameters": None,
                "secrets": None,
                "parallelism": 3,
                "pipeline": None,
                "allow_non_restored_state": True,
            },
        ),
    ],
)
def test_a_form_becomes_a_call_of_its_service(
    operator: Client,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    service: tuple[Any, str],
    form: dict[str, str],
    given: dict[str, Any],
) -> None:
    assert views.QUESTIONS[name].act is getattr(*service)
    called = asked_by(name, Called(job), monkeypatch)
    answer = operator.post(address(name, job), form)
    assert answer.status_code == 302, words(answer)
    assert called.given == given
    assert answer["Location"] == f"/jobs/{job.pk}/operations/{job.operations.get().pk}"


def test_a_fork_says_which_recovery_target_it_takes_over(operator: Client, job: Job) -> None:
    assert "Left empty: none, as the job." in words(operator.get(address("fork", job)))
    services.set_recovery_target(None, job.pk, 90)
    assert "Left empty: 1 min 30 s, unchanged." in words(operator.get(address("fork", job)))


def test_two_jobs_are_compared_only_where_they_are_related(
    operator: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = asked_by("compare", Called(job), monkeypatch)
    fork, other = factories.job("fork", origin=job), factories.job("other")
    given = {"keys": "carrier, hour,", "windows": ""}
    refused = operator.post(address("compare", job), given | {"other_job_id": other.pk})
    assert refused.status_code == 400
    operator.post(address("compare", job), given | {"other_job_id": fork.pk})
    assert called.given == {"other_job_id": fork.pk, "keys": ["carrier", "hour"], "windows": []}


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("savepoint", {"labels": "no colon"}),
        ("rescale", {"parallelism": "0"}),
        ("fork", {"name": "trial", "pipeline_target": "a.b"}),
        ("upgrade", {"pipeline_kind": "script"}),
        ("upgrade", {"run_within_s": "0"}),
        ("preview", {"target": "checkpoint:10", "pipeline_kind": "module"}),
        ("rollback", {"target": "checkpoint:999"}),
        ("fork", {"name": ""}),
        ("fork", {"name": "trial", "target": "", "recovery_target_s": "0"}),
        ("stop", {"drain": "perhaps"}),
    ],
)
def test_what_a_form_cannot_hold_is_said_beside_the_field(
    operator: Client, job: Job, name: str, form: dict[str, str]
) -> None:
    answer = operator.post(address(name, job), form)
    assert answer.status_code == 400
    assert 'data-tone="bad"' in answer.content.decode()
    assert not job.operations.exists()


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (Busy("rollback 1 of this job is under way"), "rollback 1 of this job is under way"),
        (Invalid("see location", errors={"location": ["It is taken."]}), "location: It is taken."),
    ],
)
def test_a_refusal_is_said_in_its_own_words_and_the_form_kept(
    operator: Client, job: Job, monkeypatch: pytest.MonkeyPatch, refusal: Any, said: str
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise refusal

    asked_by("stop", refuse, monkeypatch)
    answer = operator.post(address("stop", job), {"drain": "no", "name": "kept"})
    assert answer.status_code == refusal.status
    assert said in words(answer)
    assert 'value="kept"' in answer.content.decode()


@pytest.mark.parametrize(
    ("name", "form", "errors", "field"),
    [
        ("savepoint", {}, {"labels": ["Too many."]}, "labels"),
        ("rescale", {"parallelism": "4"}, {"parallelism": ["It is above 2."]}, "parallelism"),
        ("rollback", {"target": "checkpoint:10"}, {"checkpoint": ["It is gone."]}, "target"),
        ("fork", {"name": "a", "target": ""}, {"options.parameters": ["No."]}, "parameters"),
        ("fork", {"name": "a", "target": ""}, {"artifact_digest": ["None."]}, "pipeline_target"),
    ],
)
def test_a_refusal_of_a_field_is_said_beside_it_and_the_page_begins_there(
    operator: Client,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    form: dict[str, str],
    errors: dict[str, list[str]],
    field: str,
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise Invalid("it cannot be asked like this", errors=errors)

    asked_by(name, refuse, monkeypatch)
    page = operator.post(address(name, job), form).content.decode()
    (said,) = next(iter(errors.values()))
    assert re.search(rf'id="id_{field}_error">{said}', page)
    shown = re.search(rf'<(?:input|select|textarea)[^>]* id="id_{field}"[^>]*>', page).group(0)
    assert 'aria-invalid="true"' in shown
    assert f"id_{field}_error" in shown
    assert " autofocus" in shown
    alert = re.search(r'<div class="note"[^>]*role="alert">(.*?)</div>', page).group(1)
    assert alert == "it cannot be asked like this"


def test_unknown_jobs_operations_and_savepoints_are_404(operator: Client, job: Job) -> None:
    other = factories.job("other")
    made, row = factories.savepoint(job, "first", 20), factories.operation(job, None)
    for where in (
        *(f"/jobs/none/{name}" for name in views.QUESTIONS),
        f"/jobs/{job.pk}/operations/{UNKNOWN}",
        f"/jobs/{other.pk}/operations/{row.pk}",
        f"/jobs/{other.pk}/savepoints/{made.pk}/delete",
        f"/jobs/{job.pk}/savepoints/{UNKNOWN}/describe",
    ):
        assert operator.get(where).status_code == 404, where


# The archive --------------------------------------------------------------------------------------


def test_a_job_that_is_over_is_archived_and_brought_back(operator: Client) -> None:
    job = factories.job("old", status=JobStatus.FINISHED)
    page = words(operator.get(f"/jobs/{job.pk}/archive"))
    assert "Archive old?" in page
    assert "Its checkpoints, savepoints, output and history stay" in page
    for _ in range(2):  # Sending the form again changes nothing.
        answer = operator.post(f"/jobs/{job.pk}/archive", {"key": "k"}, follow=True)
        assert answer.redirect_chain == [(f"/jobs/{job.pk}/", 302)]
    assert "old is archived." in words(answer)
    assert "the job is left out of lists" in words(answer)
    assert "The job is archived." in words(operator.get(f"/jobs/{job.pk}/archive"))
    job.refresh_from_db()
    assert job.archived_at is not None
    assert f"/jobs/{job.pk}/" not in operator.get("/jobs/").content.decode()
    assert f"/jobs/{job.pk}/" in operator.get("/jobs/?state=archived").content.decode()
    assert AuditEntry.objects.filter(action="job.archive", target=f"job/{job.pk}").count() == 1

    assert "Show old in lists again?" in words(operator.get(f"/jobs/{job.pk}/unarchive"))
    answer = operator.post(f"/jobs/{job.pk}/unarchive", {"key": "k"}, follow=True)
    assert "old is in lists again." in words(answer)
    assert "left out of lists" not in words(answer)
    assert f"/jobs/{job.pk}/" in operator.get("/jobs/").content.decode()
    assert AuditEntry.objects.filter(action="job.unarchive").count() == 1


def test_a_job_that_is_not_over_is_not_archived(operator: Client, job: Job) -> None:
    page = operator.get(f"/jobs/{job.pk}/archive")
    assert "Only a job that is over is archived" in words(page)
    assert '<form method="post" class="stack">' not in page.content.decode()
    answer = operator.post(f"/jobs/{job.pk}/archive", {"key": "k"})
    assert answer.status_code == 409
    assert "the job is running; cancel or stop it, then archive it" in words(answer)
    job.refresh_from_db()
    assert job.archived_at is None
    assert not AuditEntry.objects.filter(action="job.archive").exists()


@pytest.mark.parametrize("name", ["archive", "unarchive"])
def test_only_operators_archive(viewer: Client, name: str) -> None:
    job = factories.job(status=JobStatus.FINISHED)
    assert viewer.get(f"/jobs/{job.pk}/{name}").status_code == 403
    assert viewer.post(f"/jobs/{job.pk}/{name}").status_code == 403
    job.refresh_from_db()
    assert job.archived_at is None
    assert f"/jobs/{job.pk}/archive" not in viewer.get(f"/jobs/{job.pk}/").content.decode()


# Savepoints ---------------------------------------------------------------------------------------


def test_a_savepoint_is_described_by_form(operator: Client, job: Job) -> None:
    made = factories.savepoint(job, "first", 20, note="why", labels={"a": "b"})
    where = reverse("savepoint-describe", args=[job.pk, made.pk])
    page = operator.get(where).content.decode()
    assert 'value="first"' in page
    assert "a: b" in page
    answer = operator.post(where, {"name": "second", "note": "", "labels": ""}, follow=True)
    assert "Savepoint second was changed." in words(answer)
    made.refresh_from_db()
    assert (made.name, made.note, made.labels) == ("second", "", {})
    answer = operator.post(where, {"name": "a/b"})
    assert answer.status_code == 400
    assert 'id="id_name_error">A name has 1 to 80' in answer.content.decode()


def test_a_savepoint_is_deleted_after_a_question(operator: Client, job: Job) -> None:
    made = factories.savepoint(job, "first", 20)
    where = reverse("savepoint-delete", args=[job.pk, made.pk])
    page = words(operator.get(where))
    assert "Delete savepoint first of flights?" in page
    assert "This cannot be undone." in page
    assert "Delete savepoint first of flights for good" in page
    assert Savepoint.objects.get().deleted_at is None
    answer = operator.post(where, follow=True)
    assert "Savepoint first is being deleted." in words(answer)
    assert "under way The savepoint’s files are deleted" in words(answer)
    assert job.operations.get().kind == "discard"
    assert "is being deleted already" in words(operator.get(where))


def test_a_savepoint_deleted_meanwhile_is_said_to_be_on_the_forms_own_page(
    operator: Client, job: Job
) -> None:
    made = factories.savepoint(job, "first", 20)
    operator.post(reverse("savepoint-delete", args=[job.pk, made.pk]))
    sent = {"name": "second", "note": "", "labels": ""}
    for name, said in (
        ("savepoint-delete", "savepoint first was deleted already"),
        ("savepoint-describe", "savepoint first was deleted"),
    ):
        answer = operator.post(reverse(name, args=[job.pk, made.pk]), sent)
        assert answer.status_code == 404
        assert said in words(answer)


def test_a_savepoint_that_is_needed_is_kept_and_the_page_says_why(
    operator: Client, job: Job
) -> None:
    made = factories.savepoint(job, "first", 20)
    factories.job("fork", restore_uri=made.location, restore_job=job, restore_number=20)
    where = reverse("savepoint-delete", args=[job.pk, made.pk])
    page = operator.get(where)
    assert "Savepoint first is needed, so it cannot be deleted now." in words(page)
    assert "begins with it until it has a checkpoint of its own from there." in words(page)
    assert '<form method="post" class="stack">' not in page.content.decode()
    answer = operator.post(where)
    assert answer.status_code == 409
    assert "savepoint first is needed" in words(answer)


# Operations ---------------------------------------------------------------------------------------

ROLLBACK = {
    "sentences": ["the job goes back to checkpoint 10", f"output {SCRIPT}: no file moves"],
    "sources": [{"name": "flights", "splits": [{"split": "a", "now": "9", "then": "start"}]}],
}


def preview(job: Job, status: str = "succeeded", **columns: Any) -> Operation:
    parameters = {"kind": "rollback", "checkpoint": 10, "savepoint": None, "rewind_output": True}
    return factories.operation(job, None, "preview", status, parameters=parameters, **columns)


def test_an_operation_under_way_says_what_it_waits_for_and_looks_again(
    operator: Client, job: Job
) -> None:
    row = factories.operation(job, None, "rescale", "running", progress={"phase": "saving"})
    taken = factories.checkpoint(job, 20, status=CheckpointStatus.PENDING, request_id=str(row.pk))
    factories.acknowledge_chain(taken, "hourly", 0)
    page = operator.get(f"/jobs/{job.pk}/operations/{row.pk}")
    assert "under way A checkpoint is taken to come The old driver ends" in words(page)
    assert "4 of 18 subtasks acknowledged" in words(page)
    assert '<noscript><meta http-equiv="refresh"' in page.content.decode()
    assert f'<a href="/jobs/{job.pk}/operations/{row.pk}">Reload now</a>' in page.content.decode()


def test_who_is_logged_out_sees_no_operation(client: Client, job: Job) -> None:
    where = f"/jobs/{job.pk}/operations/{factories.operation(job, None).pk}"
    for address in (where, f"{where}/data"):
        assert client.get(address).status_code == 302
        assert client.post(address).status_code in (302, 405)


def test_an_operation_is_followed_as_json_until_its_end(viewer: Client, job: Job) -> None:
    row = factories.operation(job, None, "rollback", "running", progress={"phase": "relaunching"})
    where = f"/jobs/{job.pk}/operations/{row.pk}/data"
    job.status = JobStatus.RESTARTING
    job.save()
    states = []
    for status in (JobStatus.RESTARTING, JobStatus.INITIALIZING):
        Job.objects.update(status=status)
        answer = viewer.get(where).json()
        states.append([step["state"] for step in answer["steps"]])
        assert answer["job_status"]["value"] == status
        assert not answer["is_over"]
    assert states == [["current", "ahead"], ["done", "current"]]
    Operation.objects.update(status="succeeded", ended_at=clock.now(), result={"job": job.pk})
    answer = viewer.get(where).json()
    assert answer["is_over"]
    assert {step["state"] for step in answer["steps"]} == {"done"}
    assert answer["said"].startswith("The job is running again")


def test_the_queries_of_an_operation_do_not_grow_with_the_job(
    viewer: Client, job: Job, django_assert_max_num_queries: Any
) -> None:
    row = factories.operation(job, None, "savepoint", "running", progress={"phase": "saving"})
    where = f"/jobs/{job.pk}/operations/{row.pk}"
    with django_assert_max_num_queries(5):  # With session and user.
        viewer.get(where)
    with django_assert_max_num_queries(5):
        viewer.get(f"{where}/data")


def test_an_operation_that_failed_says_why_and_what_it_saved(operator: Client, job: Job) -> None:
    progress = {"phase": "done", "saved": "/s/last"}
    row = factories.operation(job, None, "stop", "failed", error="no disk", progress=progress)
    page = operator.get(f"/jobs/{job.pk}/operations/{row.pk}")
    assert "no disk" in words(page)
    assert "done A savepoint is taken failed The job ends" in words(page)
    assert "/s/last" in words(page)
    assert 'http-equiv="refresh"' not in page.content.decode()


def test_a_fork_begins_with_what_its_preview_was_about(
    operator: Client, job: Job, tmp_path: Path
) -> None:
    asked = {
        "kind": "restore",
        "of": "10",
        "restore": f"/s/{job.pk}/chk-10",
        "pipeline": {"kind": "module", "target": "pipelines.next", "artifact_digest": None},
        "parallelism": 3,
        "parameters": {"output": "/data/trial", "password": "hunter2"},
        "allow_non_restored_state": True,
    }
    row = factories.operation(
        job, None, "preview", parameters=asked, result=documents.restore(tmp_path)
    )
    page = operator.get(f"/jobs/{job.pk}/operations/{row.pk}")
    for said in ("The restore would work.", "module pipelines.next", "output=/data/trial"):
        assert said in words(page)
    address = f"/jobs/{job.pk}/fork?preview={row.pk}"
    assert f'href="{address}"' in page.content.decode()
    page = operator.get(address)
    assert "Parameters that hold secrets are not filled in. Enter again: password." in words(page)
    assert "hunter2" not in page.content.decode()
    form = page.context["form"]
    assert {name: form[name].value() for name in asked.keys() & form.fields.keys()} == {
        "parameters": "output=/data/trial",
        "parallelism": 3,
        "allow_non_restored_state": True,
    }
    assert form["target"].value() == "checkpoint:10"
    assert (form["pipeline_kind"].value(), form["pipeline_target"].value()) == (
        "module",
        "pipelines.next",
    )


def test_a_restore_that_would_be_refused_is_not_offered_as_a_fork(
    operator: Client, viewer: Client, job: Job, tmp_path: Path
) -> None:
    result = documents.refused_restore(tmp_path)
    row = factories.operation(job, None, "preview", parameters={"kind": "restore"}, result=result)
    page = operator.get(f"/jobs/{job.pk}/operations/{row.pk}")
    assert "Change it and preview again" in words(page)
    assert "Fork the job with this change" not in words(page)
    seen = viewer.get(f"/jobs/{job.pk}/operations/{row.pk}")
    assert "cannot be mapped" in words(seen)
    assert "Change it" not in words(seen)


@pytest.mark.parametrize("asked", ["checkpoint=999", f"savepoint={UNKNOWN}", "preview=none"])
def test_a_target_that_is_gone_is_said_rather_than_replaced_in_silence(
    operator: Client, job: Job, asked: str
) -> None:
    page = operator.get(f"/jobs/{job.pk}/fork?{asked}")
    assert page.status_code == 200
    assert ("choose another" in words(page)) == (asked != "preview=none")


def test_a_savepoint_that_is_being_deleted_is_no_target(operator: Client, job: Job) -> None:
    factories.savepoint(job, "going", 20, deleted_at=clock.now())
    assert "going" not in operator.get(address("rollback", job)).content.decode()


def test_a_comparison_and_going_forward_have_words_of_their_own(
    operator: Client, job: Job, tmp_path: Path
) -> None:
    forward = preview(job, result=documents.rollback(tmp_path / "out", to=6))
    page = words(operator.get(f"/jobs/{job.pk}/operations/{forward.pk}"))
    assert "Nothing has been done yet" in page
    assert "Send flights forward to checkpoint" in page
    assert "Roll flights back" not in page
    result = {"outputs": [documents.comparison(tmp_path / "c", is_equal=False)]}
    row = factories.operation(
        job, None, "compare", parameters={"other": "trial-1", "keys": ["carrier"]}, result=result
    )
    page = words(operator.get(f"/jobs/{job.pk}/operations/{row.pk}"))
    assert "Comparison with trial-1" in page
    assert "Key carrier" in page
    assert "The outputs differ." in page


def test_a_rollback_is_done_from_the_page_of_its_preview(
    operator: Client, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Called(job)
    monkeypatch.setattr(requests, "rollback", called)
    page = operator.get(f"/jobs/{job.pk}/operations/{preview(job, result=ROLLBACK).pk}")
    assert "The job goes back to checkpoint 10." in words(page)
    assert "flights a 9 start" in words(page)
    assert SCRIPT not in page.content.decode()
    pattern = r'<form method="post" action="([^"]+)" class="stack confirm"[^>]*>(.*?)</form>'
    form = re.search(pattern, page.content.decode(), re.DOTALL)
    given = dict(re.findall(r'name="(\w+)" value="([^"]*)"', form.group(2)))
    answer = operator.post(form.group(1), given, follow=True)
    assert "The job is being rolled back." in words(answer)
    assert called.given == {"checkpoint": 10, "rewind_output": True}


def test_a_rollback_whose_preview_failed_can_be_done_all_the_same(
    operator: Client, job: Job
) -> None:
    page = operator.get(f"/jobs/{job.pk}/operations/{preview(job, 'failed', error='gone').pk}")
    assert "Roll flights back" in words(page)
    row = preview(job, "running")
    page = operator.get(f"/jobs/{job.pk}/operations/{row.pk}")
    assert "Roll flights back" not in words(page)


def test_what_is_not_kept_any_more_is_not_rolled_back_to(operator: Client, job: Job) -> None:
    job.checkpoints.update(status=CheckpointStatus.DISCARDED)
    answer = operator.post(
        f"/jobs/{job.pk}/rollback/confirmed", {"target": "checkpoint:10"}, follow=True
    )
    assert "only one that is kept can be restored" in words(answer)
    for target in ("", "checkpoint:x", "savepoint:first"):
        answer = operator.post(
            f"/jobs/{job.pk}/rollback/confirmed", {"target": target}, follow=True
        )
        assert 'data-tone="bad"' in answer.content.decode()
    assert not job.operations.exists()


def test_a_fork_leads_to_the_new_job(operator: Client, job: Job) -> None:
    fork = factories.job("fork", origin=job)
    row = factories.operation(job, None, "fork", result={"job": fork.pk})
    page = operator.get(f"/jobs/{job.pk}/operations/{row.pk}").content.decode()
    assert f'href="/jobs/{fork.pk}/"' in page


@pytest.mark.parametrize(
    ("name", "crumbs"),
    [
        ("archive", ["Jobs", "flights"]),
        ("cancel", ["Jobs", "flights"]),
        ("rescale", ["Jobs", "flights"]),
        ("stop", ["Jobs", "flights"]),
        ("recovery/target", ["Jobs", "flights", "Recovery"]),
        ("savepoint", ["Jobs", "flights", "Savepoints"]),
        ("rollback", ["Jobs", "flights", "Savepoints"]),
    ],
)
def test_each_question_stands_below_the_page_it_belongs_to(
    operator: Client, name: str, crumbs: list[str]
) -> None:
    page = operator.get(address(name, flights.running())).content.decode()
    (line,) = re.findall(r'<p class="crumbs">(.*?)</p>', page)
    assert re.findall(r">([^<]+)</a>", line) == crumbs
