"""Uploaded pipelines: stored by content, never by name."""

from pathlib import Path
from typing import Any

import pytest
from django.core.files.uploadedfile import SimpleUploadedFile
from pytest_django import Settings
from rest_framework.test import APIClient

from controlplane.audit.models import AuditEntry
from jobs.models import Artifact, Job
from tests import factories
from tests.database.api.conftest import API
from tests.database.api.test_jobs import is_problem
from tests.database.hung_files import hung


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


def test_an_upload_is_found_read_and_renamed(api: APIClient) -> None:
    digest = upload(api, b"print('a')", "orders.py").json()["digest"]
    upload(api, b"print('b')", "flights.py")
    shown = api.get(f"{API}uploads?file_name=ORD").json()["results"]
    assert [one["digest"] for one in shown] == [digest]
    url = f"{API}uploads/{digest}"
    assert api.get(url).json()["file_name"] == "orders.py"
    script = api.get(f"{url}/file", headers={"Accept": "text/x-python"})
    assert b"".join(script.streaming_content) == b"print('a')"
    assert script["Content-Disposition"] == 'attachment; filename="orders.py"'
    renamed = api.patch(url, {"file_name": "orders_v2.py"}, format="json")
    assert renamed.json()["file_name"] == "orders_v2.py"
    wrong = api.patch(url, {"file_name": "../orders.py"}, format="json")
    assert list(is_problem(wrong, 400, "invalid")["errors"]) == ["file_name"]
    entry = AuditEntry.objects.get(action="upload.rename")
    assert (entry.before, entry.after) == (
        {"file_name": "orders.py"},
        {"file_name": "orders_v2.py"},
    )


def test_an_upload_is_deleted_once_nothing_has_it(api: APIClient, settings: Settings) -> None:
    digest = upload(api).json()["digest"]
    url, path = f"{API}uploads/{digest}", Path(settings.WEIR_UPLOADS) / f"{digest}.py"
    body = {"name": "orders", "pipeline": {"kind": "upload", "upload": digest}}
    assert api.post(f"{API}jobs", body).status_code == 202
    job = Job.objects.get()
    assert is_problem(api.delete(url), 409, "upload_in_use")["needed_by"] == [job.pk]
    assert path.exists()
    assert api.get(f"{API}uploads?used=true").json()["results"]
    assert not api.get(f"{API}uploads?used=false").json()["results"]
    unused = upload(api, b"print('unused')").json()["digest"]
    assert api.delete(f"{API}uploads/{unused}").status_code == 204
    assert sorted(one.name for one in Path(settings.WEIR_UPLOADS).iterdir()) == [path.name]
    assert AuditEntry.objects.filter(action="upload.delete", target=f"upload/{unused}").exists()
    is_problem(api.get(f"{API}uploads/{unused}"), 404, "not_found")


def test_an_upload_that_an_operation_under_way_names_is_kept(api: APIClient) -> None:
    digest = upload(api).json()["digest"]
    factories.operation(factories.job(), status="running", parameters={"artifact_digest": digest})
    is_problem(api.delete(f"{API}uploads/{digest}"), 409, "upload_in_use")
    assert Artifact.objects.filter(pk=digest).exists()


def test_a_file_server_that_hangs_holds_no_request(
    api: APIClient, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = upload(api).json()["digest"]
    settings.WEIR_SCRIPT_ROOTS = [tmp_path]
    (tmp_path / "orders.py").write_text("pass")
    by_script = {"name": "orders", "pipeline": {"kind": "script", "script": "orders.py"}}
    with hung(monkeypatch):
        for answer in (
            upload(api, b"print(2)"),
            api.get(f"{API}uploads/{digest}/file"),
            api.delete(f"{API}uploads/{digest}"),
            api.post(f"{API}jobs", by_script),
        ):
            problem = is_problem(answer, 503, "unavailable")
            assert "The files of pipelines cannot be reached" in problem["detail"]
        assert [row["digest"] for row in api.get(f"{API}uploads").json()["results"]] == [digest]
    assert not Job.objects.exists()
    assert [path.name for path in Path(settings.WEIR_UPLOADS).iterdir()] == [f"{digest}.py"]
    assert api.post(f"{API}jobs", by_script).status_code == 202
    assert api.delete(f"{API}uploads/{digest}").status_code == 204
