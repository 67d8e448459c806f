"""The pages a user sees after logging in, on a control plane that really runs jobs."""

import re
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, build_opener

from tests.e2e.plane import Plane, PlaneJob
from weir.own_frames import OWN_FRAME


class Visitor:
    """Logs in as the operator and reads pages."""

    def __init__(self, plane: Plane) -> None:
        self._url = plane.stack.url
        self._opener = build_opener(HTTPCookieProcessor(CookieJar()))
        form = self.page("/login/")
        match = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', form)
        assert match is not None, form
        fields = {
            "csrfmiddlewaretoken": match[1],
            "username": "operator",
            "password": (plane.stack.home / "operator").read_text().strip(),
        }
        with self._opener.open(f"{self._url}/login/", urlencode(fields).encode()) as answer:
            assert "Log out" in answer.read().decode()

    def page(self, path: str) -> str:
        """A page's HTML."""
        with self._opener.open(self._url + path) as answer:
            text: str = answer.read().decode()
            return text


def test_a_pipeline_that_cannot_be_built_fails_and_its_page_says_why(
    plane: Plane, tmp_path: Path
) -> None:
    operation = plane.client.post(
        "jobs", {"name": "broken", "pipeline": {"kind": "module", "module": "tests.e2e.broken"}}
    )
    job = PlaneJob(plane, operation["job"], tmp_path)
    job.await_status("failed")
    told = job.get()
    assert "KeyError: '<night>'" in told["cause"]
    assert "tests/e2e/broken.py" in told["cause"]
    files = re.findall(r'File "([^"]+)"', told["cause"])
    assert not list(filter(OWN_FRAME.search, files)), "frames of Weir's own hide the user's"
    operation = plane.client.get(f"operations/{operation['id']}")
    assert operation["status"] == "failed"
    assert "KeyError" in operation["error"]
    html = Visitor(plane).page(f"/jobs/{job.id}")
    assert "KeyError: '<night>'" in unescape(html)
    assert "<night>" not in html, "the cause is not escaped"
    assert "Failed" in html
