"""A blue/green upgrade in two calls: fork the job with the new script, then end the old job."""

import json
from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from pytest_django import Settings
from rest_framework.test import APIClient

from checkpoints.operations import returns
from jobs.models import Artifact, Job, Operation
from tests.database.api.conftest import API
from tests.database.api.test_jobs import is_problem
from tests.database.checkpoints.line import Line
from tests.database.jobs import builders as jobs
from weir.protocol.lifecycle import JobStatus

SCRIPT = b"print('green')\n"


@pytest.fixture
def blue(db: None, settings: Settings) -> Line:
    """The job that is to be upgraded; it runs."""
    (scripts,) = settings.WEIR_SCRIPT_ROOTS
    scripts.mkdir()
    (scripts / "pipeline.py").write_text("print('blue')\n")
    return Line.running()


def form(fields: dict[str, Any], script: bytes = SCRIPT, name: str = "green.py") -> dict[str, Any]:
    return {"file": SimpleUploadedFile(name, script), "request": json.dumps(fields)}


def forked(api: APIClient, blue: Line, body: dict[str, Any], **headers: str) -> Any:
    return api.post(f"{API}jobs/{blue.job_id}/fork", body, format="multipart", headers=headers)


def shown(api: APIClient, operation: Any) -> Any:
    return api.get(f"{API}operations/{operation['id']}").json()


def test_green_takes_over_from_blue_in_two_calls(api: APIClient, blue: Line) -> None:
    fields = {"name": "green", "parameters": {"output": "/data/green", "rate": 5}}
    answer = forked(api, blue, form(fields))
    assert answer.status_code == 202, answer.content
    fork = answer.json()
    blue.complete(1)
    assert (shown(api, fork)["status"], shown(api, fork)["phase"]) == ("running", "forking")
    green_id = shown(api, fork)["result"]["job"]
    green = Line.for_job(Job.objects.get(pk=green_id))
    green.come_up(1, restored=1)
    returns.forks_launched()
    ended = shown(api, fork)
    assert (ended["status"], ended["result"]["job"]) == ("succeeded", green_id)
    assert api.get(f"{API}jobs/{blue.job_id}").json()["status"] == "running"

    cancelled = api.post(f"{API}jobs/{blue.job_id}/cancel").json()
    blue.post(jobs.changed(JobStatus.CANCELLING), jobs.changed(JobStatus.CANCELED))
    assert shown(api, cancelled)["status"] == "succeeded"
    job = api.get(f"{API}jobs/{green_id}").json()
    assert (job["status"], job["origin"]) == ("running", blue.job_id)
    assert job["pipeline"]["target"] == "green.py"
    assert job["options"]["parameters"] == {"output": "/data/green", "rate": "5"}


def test_the_script_of_an_upgrade_is_stored_as_an_upload(
    api: APIClient, blue: Line, settings: Settings
) -> None:
    api.post(f"{API}jobs/{blue.job_id}/checkpoint")
    blue.complete(1)
    url = f"{API}jobs/{blue.job_id}/upgrade"
    answer = api.post(url, form({"run_within_s": 60}), format="multipart")
    assert answer.status_code == 202, answer.content
    artifact = Artifact.objects.get()
    assert (Path(settings.WEIR_UPLOADS) / f"{artifact.digest}.py").read_bytes() == SCRIPT
    runs = Operation.objects.get(kind="upgrade").parameters["runs"]
    assert runs["artifact_digest"] == artifact.digest


def test_a_repeated_request_with_its_script_is_one_operation(api: APIClient, blue: Line) -> None:
    key, fields = {"Idempotency-Key": "green-1"}, {"name": "green"}
    first, again = (forked(api, blue, form(fields), **key).json() for _ in range(2))
    assert first["id"] == again["id"]
    other = forked(api, blue, form(fields, b"print('other')\n"), **key)
    is_problem(other, 422, "idempotency_key_reused")


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ({"request": '{"name": "green"}'}, {"file"}),
        (form({}), {"name"}),
        (form({"name": "green", "pipeline": {"kind": "module", "module": "a"}}), {"pipeline"}),
        (form({"name": "green", "nmae": "x"}), {"nmae"}),
        (form({"name": "green"}, name="green.zip"), {"file"}),
        (form({"name": "green"}) | {"more": "x"}, {"more"}),
    ],
)
def test_a_wrong_form_is_refused_and_stores_nothing(
    api: APIClient, blue: Line, body: dict[str, Any], fields: set[str]
) -> None:
    assert set(is_problem(forked(api, blue, body), 400, "invalid")["errors"]) == fields
    assert not Artifact.objects.exists()


@pytest.mark.parametrize("text", ["{", "[]", '{"name": "\\u0000"}'])
def test_a_request_that_is_no_json_object_is_refused(api: APIClient, blue: Line, text: str) -> None:
    body = form({}) | {"request": text}
    is_problem(forked(api, blue, body), 400, "parse_error")
    assert not Artifact.objects.exists()
