"""Every request has an id, a limited body, a line in the log and a content policy."""

import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client, RequestFactory

from controlplane.accounts.models import Role
from controlplane.base import logs
from controlplane.base.requests import RequestMiddleware
from tests import factories
from tests.process.controlplane.conftest import BODY_BYTES_MAX
from tests.process.controlplane.web import Web


def access_records(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """The log's lines about requests, as fields."""
    return [vars(record) for record in caplog.records if record.name == "controlplane.access"]


# Ids


@pytest.mark.django_db
@pytest.mark.parametrize("given", ["a", "0af7651916cd43dd8448eb211c80319c", "a/b+c=:._-"])
def test_a_request_keeps_the_id_it_came_with(client: Client, given: str) -> None:
    assert client.get("/login/", headers={"X-Request-ID": given}).headers["X-Request-ID"] == given


@pytest.mark.django_db
@pytest.mark.parametrize("given", ["", "x" * 65, "two words", "a\tb", "<script>", "naïve"])
def test_an_id_that_is_not_plain_is_replaced(client: Client, given: str) -> None:
    answered = client.get("/login/", headers={"X-Request-ID": given}).headers["X-Request-ID"]
    assert answered != given
    assert len(answered) == 32


@pytest.mark.django_db
def test_requests_without_an_id_get_different_ones(client: Client) -> None:
    assert len({client.get("/login/").headers["X-Request-ID"] for _ in range(5)}) == 5


def test_routes_beside_django_have_ids_too(web: Web) -> None:
    answer = web.request("GET", "/healthz", X_Request_ID="mine")
    assert answer.headers["x-request-id"] == "mine"
    assert web.request("GET", "/gateway/v1/jobs/x/commands").headers["x-request-id"]


def test_a_view_and_what_it_logs_know_the_request(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[dict[str, Any]] = []

    def view(request: object) -> Any:
        from django.http import HttpResponse

        seen.append(logs.current())
        return HttpResponse("done")

    caplog.handler.addFilter(logs.ContextFilter())
    request = RequestFactory().get("/somewhere", headers={"X-Request-ID": "mine"})
    RequestMiddleware(view)(request)
    assert (seen[0]["request_id"], seen[0]["address"]) == ("mine", "127.0.0.1")
    assert logs.current() == {}
    (record,) = access_records(caplog)
    assert (record["request_id"], record["address"]) == ("mine", "127.0.0.1")


# Bodies


@pytest.mark.django_db
def test_a_body_that_says_it_is_too_large_is_refused(client: Client) -> None:
    body = b"x" * (settings.WEIR_BODY_BYTES_MAX + 1)
    answer = client.post("/login/", body, content_type="application/json")
    assert answer.status_code == 413
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "too_large"
    assert answer.headers["X-Request-ID"]


@pytest.mark.django_db(transaction=True)
def test_a_body_in_chunks_is_limited_as_well(web: Web) -> None:
    def chunks() -> Iterator[bytes]:
        for _ in range(BODY_BYTES_MAX // 1_000 + 1):
            yield b"x" * 1_000

    stranger = web.request("POST", "/api/v1/jobs", chunks(), Content_Type="application/json")
    assert (stranger.status, stranger.json["code"]) == (401, "not_authenticated")
    answer = web.request(
        "POST",
        "/api/v1/jobs",
        chunks(),
        Content_Type="application/json",
        Authorization=f"Bearer {factories.secret_of(factories.user(Role.OPERATOR))}",
    )
    assert (answer.status, answer.json["code"]) == (413, "too_large")
    assert answer.headers["x-request-id"]
    assert answer.headers["connection"] == "close"


@pytest.mark.django_db(transaction=True)
def test_a_body_in_chunks_is_read(web: Web) -> None:
    """Parsers take a body without a length for an empty one: it has one when it reaches them."""
    answer = web.request(
        "POST",
        "/api/v1/jobs",
        iter([b'{"name": ', b"7"]),
        Authorization=f"Bearer {factories.secret_of(factories.user(Role.OPERATOR))}",
        Content_Type="application/json",
    )
    assert answer.status == 400
    assert "JSON" in answer.json["detail"]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("path", ["/api/v1/uploads", "/api/v1/uploads/x", "/jobs/new"])
def test_an_upload_is_not_read_before_its_sender_is_known(web: Web, path: str) -> None:
    """A stranger's upload, and a viewer's, are refused by their headers: nothing is stored."""
    declared = {"Content_Type": "multipart/form-data; boundary=x"}
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer weir_" + "x" * 43}, 401),
        ({"Cookie": "sessionid=madeup"}, 401),
        ({"Authorization": f"Bearer {factories.secret_of(factories.user(Role.VIEWER))}"}, 403),
    ):
        answer = web.request("POST", path, b"x" * (100 << 10), **declared, **headers)
        assert answer.status == status, (headers, answer)
        assert answer.headers["connection"] == "close"
        assert answer.json["request_id"]


@pytest.mark.django_db(transaction=True)
def test_a_small_body_of_a_stranger_reaches_the_view(web: Web) -> None:
    assert web.request("POST", "/api/v1/uploads", iter([b"x" * 1_000])).status == 401
    assert web.request("POST", "/login/", b"x" * 1_000).status == 403  # No CSRF token.


# Log


@pytest.mark.django_db
def test_a_request_is_one_line_in_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    client.force_login(factories.user())
    client.get("/jobs/?q=secret")
    (record,) = access_records(caplog)
    assert (record["method"], record["path"], record["status"]) == ("GET", "/jobs/", 200)
    assert record["duration_ms"] >= 0
    assert "secret" not in record["message"]


def test_lines_of_the_process_are_json_with_the_requests_id(web: Web) -> None:
    web.request("GET", "/nowhere", X_Request_ID="to-be-found")
    lines = [json.loads(line) for line in web.log.read_text().splitlines()]
    (line,) = [line for line in lines if line.get("request_id") == "to-be-found"]
    assert (line["logger"], line["status"]) == ("controlplane.access", 404)
    assert {line["logger"] for line in lines} >= {"uvicorn.error"}  # Uvicorn's own, as JSON too.


def test_what_is_asked_all_the_time_is_not_in_the_log(web: Web) -> None:
    web.request("GET", "/healthz", X_Request_ID="not-to-be-found")
    assert "not-to-be-found" not in web.log.read_text()


# Policy


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("path", "styles"),
    [
        ("/login/", "'self'"),
        ("/admin/login/", "'self'"),
        ("/nowhere", "'self'"),
        ("/api/v1/jobs", "'self'"),
        ("/jobs/", "'self' 'unsafe-inline'"),
        ("/api/v1/docs", "'self' 'unsafe-inline'"),
    ],
)
def test_scripts_come_from_files_of_this_server_only(
    client: Client, path: str, styles: str
) -> None:
    policy = client.get(path).headers["Content-Security-Policy"]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert directives == {
        "default-src": "'self'",
        "script-src": "'self'",
        "style-src": styles,
        "img-src": "'self' data: blob:",
        "object-src": "'none'",
        "base-uri": "'none'",
        "form-action": "'self'",
        "frame-ancestors": "'none'",
    }
