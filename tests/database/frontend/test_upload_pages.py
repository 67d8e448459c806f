"""The pages of uploaded pipelines."""

import re
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django.fixtures import Settings

from frontend.uploads import sources
from frontend.uploads.difference import LINES_MAX
from jobs import uploads
from jobs.models import Artifact, Job
from tests import factories
from tests.database.hung_files import hung
from weir.protocol.operations import OperationKind

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def directory(settings: Settings, tmp_path: Path) -> Path:
    settings.WEIR_UPLOADS = tmp_path / "uploads"
    return tmp_path / "uploads"


def stored(text: str, name: str = "orders.py") -> Artifact:
    return uploads.store(None, name, [text.encode()])


def lines(page: str) -> list[str]:
    return re.findall(r'<td class="text">(.*?)</td>', page, re.DOTALL)


def difference(client: Client, old: Artifact, new: Artifact) -> str:
    response = client.get(f"/uploads/{new.pk}/difference", {"from": old.pk})
    assert response.status_code == 200
    return response.content.decode()


def test_the_list_has_the_uploads_with_their_jobs(viewer: Client, operator: Client) -> None:
    assert "No uploads yet" in viewer.get("/uploads/").content.decode()
    first, second = stored("print(1)\n"), stored("print(2)\n", f"{SCRIPT[:8]}.py")
    for name in ("a", "b"):
        factories.job(name, pipeline_kind="upload", pipeline_target="orders.py", artifact=first)
    page = viewer.get("/uploads/").content.decode()
    assert page.index(second.digest) < page.index(first.digest)
    newest = Job.objects.order_by("-created_at", "id").first()
    assert newest is not None
    assert f'<a href="/jobs/{newest.pk}/">{newest.name}</a> <span class="sub">and 1 more' in page
    assert "&lt;script&gt;.py" in page
    # A source may hold anything, so only operators are led to it.
    assert f'href="/uploads/{first.digest}"' not in page
    assert f'href="/uploads/{first.digest}"' in operator.get("/uploads/").content.decode()
    assert first.digest not in viewer.get("/uploads/?used=false").content.decode()
    assert "No matching uploads" in viewer.get("/uploads/?file_name=none").content.decode()


def test_the_list_is_paged_at_a_fixed_cost(viewer: Client) -> None:
    for number in range(5):
        stored(f"print({number})\n")
    seen, query = [], "?page_size=2"
    costs = set()
    while query:
        with CaptureQueriesContext(connection) as asked:
            page = viewer.get(f"/uploads/{query}").content.decode()
        costs.add(len(asked))
        seen += re.findall(r'title="([0-9a-f]{64})"', page)
        older = re.search(r'rel="next" href="([^"]+)"', page)
        query = older[1].replace("&amp;", "&") + "&page_size=2" if older else ""
    assert seen == list(Artifact.objects.order_by("-uploaded_at").values_list("pk", flat=True))
    assert len(costs) == 1


def test_a_source_whose_file_server_hangs_is_not_waited_for(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = f"/uploads/{stored('print(1)').digest}"
    with hung(monkeypatch):
        shown = operator.get(page)
        assert shown.status_code == 200
        assert "The files of pipelines cannot be reached" in shown.content.decode()
    assert "The files of pipelines" not in operator.get(page).content.decode()


def test_a_source_is_shown_as_it_is_with_what_is_invisible(operator: Client) -> None:
    artifact = stored(f"# {SCRIPT}\n\n\tx = 1\r\n# \u202eevil\n")
    job = factories.job("a", pipeline_kind="upload", pipeline_target="orders.py", artifact=artifact)
    page = operator.get(f"/uploads/{artifact.digest}").content.decode()
    assert lines(page) == [
        "# &lt;script&gt;alert(1)&lt;/script&gt;",
        "",
        "\tx = 1\\r",
        "# \\u202eevil",
    ]
    assert f'<a href="/jobs/{job.pk}/">a</a>' in page
    assert f'href="/uploads/{artifact.digest}"' in (
        operator.get(f"/jobs/{job.pk}/configuration/").content.decode()
    )


def test_a_large_source_is_cut_and_one_that_is_gone_says_why(
    operator: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "SOURCE_BYTES_MAX", 1_000)
    artifact = stored("x = 1\n" * 1_000)
    page = operator.get(f"/uploads/{artifact.digest}").content.decode()
    assert "Only the first 1.00 kB are shown" in page
    assert len(lines(page)) == 167
    uploads.path_of(artifact).unlink()
    page = operator.get(f"/uploads/{artifact.digest}").content.decode()
    assert "The file is not on this server." in page
    assert "The file is not on this server." in difference(operator, artifact, artifact)


@pytest.mark.parametrize("digest", ["0" * 64, "x", "A" * 64, "%00", "0" * 65])
def test_an_upload_that_there_is_not_is_404(operator: Client, digest: str) -> None:
    there = stored("print(1)\n").digest
    assert operator.get(f"/uploads/{digest}").status_code == 404
    assert operator.get(f"/uploads/{there}/difference?from={digest}").status_code == 404
    assert operator.get(f"/uploads/{digest}/difference?from={there}").status_code == 404


def test_the_difference_of_two_uploads(operator: Client) -> None:
    old = stored("a = 1\nb = 2\nc = 3\n")
    new = stored(f"a = 1\nb = '{SCRIPT}'\nc = 3\n")
    page = difference(operator, old, new)
    assert "1 line added, 1 removed" in page
    assert lines(page) == [
        *("a = 1", "b = 2", "b = &#x27;&lt;script&gt;alert(1)&lt;/script&gt;&#x27;", "c = 3"),
    ]
    assert re.findall(r'<tr data-kind="(\w+)">', page) == ["same", "old", "new", "same"]
    offered = operator.get(f"/uploads/{new.digest}").content.decode()
    assert f'<option value="{old.digest}">orders.py' in offered
    without = operator.get(f"/uploads/{new.digest}/difference").content.decode()
    assert lines(without) == lines(page)  # From the one before it.
    first = operator.get(f"/uploads/{old.digest}/difference").content.decode()
    assert "They are the same upload." in first
    large = stored("\n".join(f"x{n}" for n in range(LINES_MAX + 9)))
    assert f"more than {LINES_MAX} lines" in difference(operator, old, large)


def test_an_upgrade_leads_to_what_it_changed(operator: Client, viewer: Client) -> None:
    old, new = stored("a = 1\n"), stored("a = 2\n")
    job = factories.job()
    parameters = {"runs": {"artifact_digest": new.digest}, "was": {"artifact_digest": old.digest}}
    operation = factories.operation(job, None, OperationKind.UPGRADE, parameters=parameters)
    address = f"/jobs/{job.pk}/operations/{operation.pk}"
    link = f'href="/uploads/{new.digest}/difference?from={old.digest}"'
    assert link in operator.get(address).content.decode()
    assert "/uploads/" not in viewer.get(address).content.decode()
    assert 'href="/uploads/"' in operator.get(f"/jobs/{job.pk}/fork").content.decode()
