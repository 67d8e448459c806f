"""Uploaded pipelines: stored by content, never by name."""

from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from pytest_django import Settings
from rest_framework.test import APIClient

from jobs.models import Artifact, Job
from tests.database.api.conftest import API
from tests.database.api.test_jobs import is_problem


def upload(api: APIClient, content: bytes = b"print()", name: str = "orders.py") -> Any:
    form = {"file": SimpleUploadedFile(name, content)}
    return api.post(f"{API}uploads", form, format="multipart")


def test_an_upload_is_submitted_by_its_digest(api: APIClient, settings: Settings) -> None:
    answer = upload(api)
    assert answer.status_code == 201, answer.content
    digest = answer.json()["digest"]
    assert answer.json()["uploaded_by"] == "mara"
    assert (Path(settings.WEIR_UPLOADS) / f"{digest}.py").read_bytes() == b"print()"

    body = {"name": "orders", "pipeline": {"kind": "upload", "upload": digest}}
    assert api.post(f"{API}jobs", body).status_code == 202
    assert Job.objects.get().artifact_id == digest
    job = api.get(f"{API}jobs").json()["results"][0]
    assert job["pipeline"] == {"kind": "upload", "target": "orders.py", "upload": digest}


def test_the_same_content_is_kept_once(api: APIClient, settings: Settings) -> None:
    first, again = upload(api), upload(api, name="copy.py")
    assert first.json()["digest"] == again.json()["digest"]
    assert len(list(Path(settings.WEIR_UPLOADS).iterdir())) == 1
    assert len(api.get(f"{API}uploads").json()["results"]) == 1


@pytest.mark.parametrize("name", ["../../evil.py", "/etc/cron.d/evil.py", "..\\evil.py"])
def test_a_name_that_is_a_path_leads_nowhere(
    api: APIClient, tmp_path: Path, settings: Settings, name: str
) -> None:
    """The name reaches the parser as it is sent; Django keeps its last part."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="file"; filename="'
        + name.encode()
        + b'"\r\nContent-Type: text/x-python\r\n\r\nprint(1)\r\n--b--\r\n'
    )
    answer = api.post(f"{API}uploads", body, content_type="multipart/form-data; boundary=b")
    assert answer.status_code in (201, 400), answer.content
    for artifact in Artifact.objects.all():
        assert artifact.file_name == "evil.py"
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.parent == Path(settings.WEIR_UPLOADS) for path in kept)


@pytest.mark.parametrize("name", ["orders.zip", "orders", ".py", "x" * 300 + ".py"])
def test_only_scripts_are_taken(api: APIClient, name: str) -> None:
    problem = is_problem(upload(api, name=name), 400, "invalid")
    assert list(problem["errors"]) == ["file"]
    assert not Artifact.objects.exists()


def test_an_upload_needs_a_file(api: APIClient) -> None:
    answer = api.post(f"{API}uploads", {"file": "text"}, format="multipart")
    assert list(is_problem(answer, 400, "invalid")["errors"]) == ["file"]
    assert is_problem(upload(api, b""), 400, "invalid")["errors"]
    is_problem(api.post(f"{API}uploads", {}, format="json"), 415, "unsupported_media_type")
    broken = api.post(f"{API}uploads", b"x", content_type="multipart/form-data")
    is_problem(broken, 400, "parse_error")


def test_an_upload_that_is_too_large(api: APIClient, settings: Settings) -> None:
    settings.WEIR_UPLOAD_BYTES_MAX = 1_000
    assert upload(api, b"#" * 1_000).status_code == 201
    is_problem(upload(api, b"#" * 1_001), 413, "too_large")
    assert Artifact.objects.count() == 1
    kept = list(Path(settings.WEIR_UPLOADS).iterdir())
    assert len(kept) == 1  # Nothing half-written is left.
