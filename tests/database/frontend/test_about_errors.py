"""Login and error pages: what happened, and what to do."""

from typing import Any

import pytest
from django.db import OperationalError
from django.template.loader import render_to_string
from django.test import Client

from controlplane.accounts.models import Role
from controlplane.base import server_losses
from frontend.job import views as job_views
from frontend.overview import listing
from tests import factories

pytestmark = pytest.mark.django_db


SCRIPT = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("address", "role", "needs"),
    [
        ("/jobs/new", Role.VIEWER, "operator"),
        ("/audit/", Role.VIEWER, "admin"),
        ("/audit/", Role.OPERATOR, "admin"),
    ],
)
def test_a_refusal_says_which_role_is_needed_and_which_one_the_user_has(
    client: Client, address: str, role: Role, needs: str
) -> None:
    client.force_login(factories.user(role, "mara"))
    response = client.get(address)
    assert response.status_code == 403
    page = response.content.decode()
    assert (
        f"This page needs the role {needs}. You are logged in as mara, with the role {role}."
        in page
    )


def test_names_are_escaped_in_a_refusal(client: Client) -> None:
    client.force_login(factories.user(name=SCRIPT))
    page = client.get("/audit/").content.decode()
    assert SCRIPT not in page
    assert "&lt;script&gt;" in page


def test_a_form_without_its_token_says_what_to_do() -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(factories.user(Role.OPERATOR))
    page = client.post("/jobs/new", {}).content.decode()
    assert "reload the page and send the form again" in page


def test_nothing_at_an_address_is_said_to_everybody(client: Client, viewer: Client) -> None:
    for browser in (client, viewer):
        response = browser.get("/nothing")
        assert response.status_code == 404
        assert "There is nothing at this address" in response.content.decode()


def test_without_the_database_a_page_names_it_and_waits_for_it(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewer.raise_request_exception = False

    def fail(error: Exception) -> Any:
        def raised(*_: object) -> None:
            raise error

        monkeypatch.setattr(listing, "job_list", raised)
        return viewer.get("/jobs/")

    broken = OperationalError("connection to server failed: Connection refused")
    response = fail(broken)
    assert (response.status_code, response["Retry-After"]) == (503, "2")
    page = response.content.decode()
    assert "PostgreSQL cannot be reached" in page
    assert "data-database-away" in page
    assert "frontend/error_page.js" in page
    assert "data-is-sent" not in page
    assert server_losses.database_lost_ms_ago() is not None
    # A form is not sent again by itself.
    monkeypatch.setattr(job_views, "_act", listing.job_list)
    job = factories.job()
    viewer.force_login(factories.user(Role.OPERATOR))
    assert "data-is-sent" in viewer.post(f"/jobs/{job.pk}/checkpoint").content.decode()
    # A lock that was not had in time and a bug of the server are other errors.
    locked = OperationalError("canceling statement due to lock timeout")
    locked.__cause__ = type("LockNotAvailable", (Exception,), {"pgcode": "55P03"})()
    for error in (locked, KeyError("x")):
        server_losses.forget()
        response = fail(error)
        status = 503 if error is locked else 500
        assert (response.status_code, server_losses.database_lost_ms_ago()) == (status, None)
        assert "data-database-away" not in response.content.decode()


@pytest.mark.parametrize("name", ["400.html", "500.html", "503.html"])
def test_pages_of_a_server_in_trouble_need_neither_request_nor_database(
    name: str, django_assert_num_queries: object
) -> None:
    with django_assert_num_queries(0):  # type: ignore[operator]
        page = render_to_string(name)
    assert "<nav" not in page
    assert 'href="/"' in page


def test_the_login_says_where_it_leads_and_what_was_wrong(client: Client) -> None:
    factories.user(Role.VIEWER, "eve")
    assert (
        "you get to the page that you opened"
        in client.get("/login/?next=/jobs/a/").content.decode()
    )
    page = client.post(
        "/login/?next=/jobs/a/", {"username": SCRIPT, "password": "x"}
    ).content.decode()
    assert "Wrong username or password" in page
    assert 'aria-describedby="login-error"' in page
    assert SCRIPT not in page
    assert '<input type="hidden" name="next" value="/jobs/a/">' in page
