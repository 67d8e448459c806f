"""Login and error pages: what happened, and what to do."""

import pytest
from django.template.loader import render_to_string
from django.test import Client

from controlplane.accounts.models import Role
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


@pytest.mark.parametrize("name", ["400.html", "500.html"])
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
