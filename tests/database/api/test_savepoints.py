"""Savepoints through the API: listed, taken, described, deleted; and jobs sent back."""

from typing import Any

import pytest
from django.utils import timezone
from rest_framework.test import APIClient

from checkpoints.models import Savepoint
from checkpoints.operations import previews, requests, savepoints, upgrades
from controlplane.accounts.models import User
from controlplane.base.errors import Invalid
from jobs.models import Job, Operation
from jobs.submissions import Pipeline
from tests import factories
from tests.database.api.conftest import API
from tests.database.api.test_jobs import is_problem

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture
def job(operator: User) -> Job:
    return factories.job(created_by=operator)


def names(answer: Any) -> set[str]:
    return {one["name"] for one in answer.json()["results"]}


# Reading ------------------------------------------------------------------------------------------


def test_a_savepoint_shows_its_words_and_what_its_checkpoint_says(
    api: APIClient, job: Job, operator: User
) -> None:
    made = factories.savepoint(job, "first", 7, note="why", labels={"a": "b"}, by=operator)
    made.checkpoint.state_bytes = made.checkpoint.watermark_ms = 1_000
    made.checkpoint.save()
    shown = api.get(f"{API}savepoints/{made.pk}").json()
    assert shown["url"].endswith(f"{API}savepoints/{made.pk}")
    assert shown["job_url"].endswith(f"{API}jobs/{job.pk}")
    expected = {
        "name": "first",
        "note": "why",
        "labels": {"a": "b"},
        "number": 7,
        "kind": "savepoint",
        "status": "completed",
        "state_bytes": 1_000,
        "watermark_ms": 1_000,
        "created_by": "mara",
        "claimed_by": None,
        "deleted_at": None,
    }
    assert {name: shown[name] for name in expected} == expected
    (listed,) = api.get(f"{API}jobs/{job.pk}/savepoints").json()["results"]
    assert listed == shown


def test_a_savepoint_that_was_not_triggered_has_no_number(api: APIClient, job: Job) -> None:
    made = factories.savepoint(job, number=None)
    shown = api.get(f"{API}savepoints/{made.pk}").json()
    assert (shown["number"], shown["status"], shown["kind"]) == (None, None, None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", {"first", "second"}),
        ("name=FIR", {"first"}),
        ("label=release", {"first", "second"}),
        ("label=release:2", {"second"}),
        ("label=other", set()),
        ("kind=stop_suspend", {"second"}),
        ("status=completed", {"first", "second"}),
        ("deleted=true", {"third"}),
        ("deleted=false", {"first", "second"}),
        ("created_by=mara", {"first"}),
        ("created_before=2020-01-01T00:00:00Z", set()),
    ],
)
def test_savepoints_are_filtered(
    api: APIClient, job: Job, operator: User, query: str, expected: set[str]
) -> None:
    factories.savepoint(job, "first", 1, labels={"release": "1"}, by=operator)
    factories.savepoint(job, "second", 2, kind="stop_suspend", labels={"release": "2"})
    factories.savepoint(job, "third", 3, deleted_at=timezone.now())
    assert names(api.get(f"{API}jobs/{job.pk}/savepoints?{query}")) == expected
    factories.savepoint(factories.job("other"), "others")
    assert names(api.get(f"{API}savepoints?{query}&job={job.pk}")) == expected


def test_a_job_shows_its_lineage_and_a_checkpoint_its_place(api: APIClient, job: Job) -> None:
    made = factories.savepoint(job, number=7)
    fork = factories.job("fork", origin=job, origin_uri=made.location, restore_uri=made.location)
    shown = api.get(f"{API}jobs/{fork.pk}").json()
    assert (shown["origin"], shown["origin_uri"]) == (job.pk, made.location)
    assert (shown["restore_uri"], shown["forks"]) == (made.location, [])
    assert api.get(f"{API}jobs/{job.pk}").json()["forks"] == [fork.pk]
    assert api.get(f"{API}jobs/{job.pk}/checkpoints/7").json()["location"] == made.location


def test_forks_and_abandoned_checkpoints_are_found(api: APIClient, job: Job) -> None:
    fork = factories.job("fork", origin=job)
    factories.checkpoint(job, 1)
    factories.checkpoint(job, 2, abandoned_at=timezone.now())
    forks = api.get(f"{API}jobs?origin={job.pk}").json()["results"]
    assert [one["id"] for one in forks] == [fork.pk]
    for query, numbers in (("true", [2]), ("false", [1])):
        checkpoints = api.get(f"{API}jobs/{job.pk}/checkpoints?abandoned={query}").json()["results"]
        assert [one["number"] for one in checkpoints] == numbers


def test_an_operation_shows_its_phase_and_what_it_saved(api: APIClient, job: Job) -> None:
    progress = {"kind": "stop", "phase": "ending", "saved": "/s/last"}
    row = factories.operation(job, None, "stop", "running", progress=progress)
    shown = api.get(f"{API}operations/{row.pk}").json()
    assert (shown["phase"], shown["saved"]) == ("ending", "/s/last")
    plain = api.get(f"{API}operations/{factories.operation(job, status='running').pk}").json()
    assert (plain["phase"], plain["saved"]) == (None, None)


# Asking -------------------------------------------------------------------------------------------


class Called:
    """Stands in for a service: keeps what it was called with, and gives an operation."""

    def __init__(self, operation: Operation) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.given: dict[str, Any] = {}
        self._operation = operation

    def __call__(self, actor: User, *arguments: Any, **given: Any) -> Operation:
        self.arguments, self.given = arguments, given
        return self._operation


UPLOAD = "ab" * 32
EVERYTHING = {
    "checkpoint": None,
    "savepoint": None,
    "parameters": None,
    "parallelism": None,
    "pipeline": None,
    "allow_non_restored_state": None,
    "secrets": None,
    "recovery_target_s": None,
}


@pytest.mark.parametrize(
    ("path", "service", "body", "given"),
    [
        (
            "savepoints",
            (savepoints, "take"),
            {"name": "first", "labels": {"a": "b"}},
            {"name": "first", "note": "", "labels": {"a": "b"}, "location": ""},
        ),
        (
            "savepoints",
            (savepoints, "take"),
            {},
            {"name": "", "note": "", "labels": None, "location": ""},
        ),
        (
            "stop",
            (requests, "stop"),
            {"drain": True, "note": "done"},
            {"drain": True, "name": "", "note": "done", "labels": None, "location": ""},
        ),
        (
            "rollback",
            (requests, "rollback"),
            {"checkpoint": 7},
            {
                "checkpoint": 7,
                "savepoint": None,
                "rewind_output": True,
                "allow_non_restored_state": None,
            },
        ),
        (
            "rescale",
            (requests, "rescale"),
            {"parallelism": 4},
            {"parallelism": 4, "wait_for_slots": False},
        ),
        (
            "upgrade",
            (upgrades, "upgrade"),
            {
                "pipeline": {"kind": "upload", "upload": UPLOAD},
                "parameters": {"tariff": "night"},
                "run_within_s": 60,
            },
            {
                "pipeline": Pipeline("upload", "", UPLOAD),
                "parameters": {"tariff": "night"},
                "secrets": None,
                "parallelism": None,
                "allow_non_restored_state": None,
                "run_within_s": 60,
            },
        ),
        ("fork", (requests, "fork"), {"name": "trial"}, {"name": "trial", **EVERYTHING}),
        (
            "fork",
            (requests, "fork"),
            {
                "name": "trial",
                "checkpoint": 7,
                "parameters": {"output": "/x"},
                "recovery_target_s": 30,
                "pipeline": {"kind": "upload", "upload": UPLOAD},
            },
            {
                "name": "trial",
                **EVERYTHING,
                "recovery_target_s": 30,
                "checkpoint": 7,
                "parameters": {"output": "/x"},
                "pipeline": Pipeline("upload", "", UPLOAD),
            },
        ),
        (
            "previews",
            (previews, "rollback"),
            {"kind": "rollback", "checkpoint": 7, "rewind_output": False},
            {"checkpoint": 7, "savepoint": None, "rewind_output": False},
        ),
        (
            "previews",
            (previews, "restore"),
            {"kind": "restore", "uri": "/moved", "pipeline": {"kind": "module", "module": "a.b"}},
            {
                "restore": "/moved",
                "pipeline": Pipeline("module", "a.b"),
                "parameters": None,
                "parallelism": None,
                "allow_non_restored_state": None,
                "secrets": None,
            },
        ),
        (
            "comparisons",
            (previews, "compare"),
            {"other": "fork-1", "keys": ["carrier"], "windows": ["start"]},
            {"other_job_id": "fork-1", "keys": ["carrier"], "windows": ["start"]},
        ),
    ],
)
def test_a_request_becomes_a_call_of_its_service(
    api: APIClient,
    job: Job,
    monkeypatch: pytest.MonkeyPatch,
    path: str,
    service: tuple[Any, str],
    body: dict[str, Any],
    given: dict[str, Any],
) -> None:
    operation = factories.operation(job, status="running")
    called = Called(operation)
    monkeypatch.setattr(*service, called)
    key = {"Idempotency-Key": "once"}
    answer = api.post(f"{API}jobs/{job.pk}/{path}", body, format="json", headers=key)
    assert answer.status_code == 202, answer.content
    assert answer["Location"].endswith(f"{API}operations/{operation.pk}")
    assert answer.json()["id"] == str(operation.pk)
    assert called.arguments == (job.pk,)
    assert called.given == given | {"key": "once"}


@pytest.mark.parametrize(
    ("path", "body", "fields"),
    [
        ("savepoints", {"name": "x" * 81}, {"name"}),
        ("savepoints", {"labels": {"a": 1}}, {"labels.a"}),
        ("savepoints", {"colour": "red"}, {"colour"}),
        ("stop", {"drain": "perhaps"}, {"drain"}),
        ("rollback", {}, {"checkpoint", "savepoint"}),
        ("rollback", {"checkpoint": 1, "savepoint": UNKNOWN}, {"checkpoint", "savepoint"}),
        ("rollback", {"checkpoint": 0}, {"checkpoint"}),
        ("rollback", {"savepoint": "first"}, {"savepoint"}),
        ("rescale", {}, {"parallelism"}),
        ("rescale", {"parallelism": 32_769}, {"parallelism"}),
        ("upgrade", {"pipeline": {"kind": "module"}}, {"pipeline.module"}),
        ("upgrade", {"run_within_s": 0}, {"run_within_s"}),
        ("upgrade", {"restore": "/x"}, {"restore"}),
        ("fork", {}, {"name"}),
        ("fork", {"name": "a", "pipeline": {"kind": "module"}}, {"pipeline.module"}),
        ("previews", {"kind": "rescale", "checkpoint": 1}, {"kind"}),
        ("previews", {"kind": "rollback", "checkpoint": 1, "parallelism": 2}, {"parallelism"}),
        ("previews", {"kind": "rollback", "uri": "/x"}, {"uri"}),
        ("previews", {"kind": "restore"}, {"checkpoint", "savepoint", "uri"}),
        ("comparisons", {"other": "a", "keys": []}, {"keys"}),
    ],
)
def test_a_wrong_request_is_refused_by_field(
    api: APIClient, job: Job, path: str, body: dict[str, Any], fields: set[str]
) -> None:
    answer = api.post(f"{API}jobs/{job.pk}/{path}", body, format="json")
    assert set(is_problem(answer, 400, "invalid")["errors"]) == fields
    assert not job.operations.exists()


def test_a_service_s_words_about_the_pipeline_are_about_the_body_s_fields(
    api: APIClient, job: Job, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise Invalid("no", errors={"pipeline_target": ["no"], "options.parameters": ["no"]})

    monkeypatch.setattr(requests, "fork", refuse)
    body = {"name": "a", "pipeline": {"kind": "script", "script": "x.py"}}
    answer = api.post(f"{API}jobs/{job.pk}/fork", body, format="json")
    assert set(is_problem(answer, 400, "invalid")["errors"]) == {"pipeline.script", "parameters"}


@pytest.mark.parametrize("path", ["savepoints", "stop"])
def test_only_an_admin_chooses_where_a_savepoint_lies(
    api: APIClient, admin_api: APIClient, job: Job, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = Called(factories.operation(job, status="running"))
    for module, name in ((savepoints, "take"), (requests, "stop")):
        monkeypatch.setattr(module, name, called)
    body, url = {"location": "/elsewhere"}, f"{API}jobs/{job.pk}/{path}"
    refused = is_problem(api.post(url, body, format="json"), 403, "permission_denied")
    assert "location" in refused["detail"]
    assert admin_api.post(url, body, format="json").status_code == 202
    assert called.given["location"] == "/elsewhere"


def test_what_a_job_s_state_does_not_allow_is_refused(api: APIClient) -> None:
    job = factories.job(status="initializing")
    factories.checkpoint(job, 7)
    for path, body in (
        ("savepoints", {}),
        ("stop", {}),
        ("rollback", {"checkpoint": 7}),
        ("rescale", {"parallelism": 3}),
        ("upgrade", {}),
        ("fork", {"name": "trial"}),
    ):
        answer = api.post(f"{API}jobs/{job.pk}/{path}", body, format="json")
        assert is_problem(answer, 409, "wrong_state")["state"] == "initializing", path


def test_unknown_and_foreign_targets_are_refused(api: APIClient, job: Job) -> None:
    url = f"{API}jobs/{job.pk}/rollback"
    is_problem(api.post(url, {"checkpoint": 99}, format="json"), 404, "not_found")
    is_problem(api.post(url, {"savepoint": UNKNOWN}, format="json"), 404, "not_found")
    foreign = factories.savepoint(factories.job("other"))
    answer = api.post(url, {"savepoint": str(foreign.pk)}, format="json")
    assert "another job" in is_problem(answer, 400, "invalid")["errors"]["savepoint"][0]


def test_a_submission_may_claim_the_savepoint_that_it_begins_with(api: APIClient, job: Job) -> None:
    made = factories.savepoint(job, number=7)
    body = {"name": "next", "pipeline": {"kind": "module", "module": "a.b"}, "claims": True}
    refused = is_problem(api.post(f"{API}jobs", body, format="json"), 400, "invalid")
    assert set(refused["errors"]) == {"claims"}
    answer = api.post(f"{API}jobs", body | {"restore": made.location}, format="json")
    assert answer.status_code == 202, answer.content
    submitted = Job.objects.get(pk=answer.json()["job"])
    assert (submitted.restore_uri, submitted.restore_claims) == (made.location, True)
    shown = api.get(f"{API}savepoints/{made.pk}").json()
    assert shown["claimed_by"] == submitted.pk


def test_a_description_is_changed_in_part(api: APIClient, job: Job) -> None:
    made = factories.savepoint(job, "first", 7, note="why", labels={"a": "b"})
    answer = api.patch(f"{API}savepoints/{made.pk}", {"name": "second"}, format="json")
    assert answer.status_code == 200
    shown = answer.json()
    assert (shown["name"], shown["note"], shown["labels"]) == ("second", "why", {"a": "b"})
    answer = api.patch(f"{API}savepoints/{made.pk}", {"note": "", "labels": {}}, format="json")
    assert (answer.json()["note"], answer.json()["labels"]) == ("", {})
    answer = api.patch(f"{API}savepoints/{made.pk}", {"location": "/x"}, format="json")
    assert set(is_problem(answer, 400, "invalid")["errors"]) == {"location"}


def test_a_savepoint_is_deleted_by_an_operation_once(api: APIClient, job: Job) -> None:
    made = factories.savepoint(job)
    url, key = f"{API}savepoints/{made.pk}", {"Idempotency-Key": "once"}
    first, again = (api.delete(url, headers=key) for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json()["kind"] == "discard"
    assert first.json()["id"] == again.json()["id"]
    assert Savepoint.objects.get().deleted_at is not None


def test_a_savepoint_that_something_needs_is_not_deleted(api: APIClient, job: Job) -> None:
    made = factories.savepoint(job, number=7)
    factories.job("fork", restore_uri=made.location, restore_job=job, restore_number=7)
    refused = is_problem(api.delete(f"{API}savepoints/{made.pk}"), 409, "wrong_state")
    assert refused["needed_by"]
    assert Savepoint.objects.get().deleted_at is None
