"""The pages of endpoints: made, changed, tested and deleted, and their secrets shown once."""

import re

import pytest
from django.test import Client

from controlplane.accounts.models import Role
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.deliveries import sealing
from controlplane.deliveries.models import Delivery, Endpoint
from tests import factories
from tests.database.frontend.reading import words

pytestmark = pytest.mark.django_db

URL = "http://127.0.0.1:9/weir-path"
NEW = {"name": "On call", "url": URL, "allow_internal": "on"}


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(factories.user(Role.ADMIN, "ada"))
    return client


def actions() -> list[str]:
    return list(AuditEntry.objects.order_by("id").values_list("action", flat=True))


def test_an_empty_list_says_what_to_do(admin: Client, viewer: Client) -> None:
    assert "No endpoints yet" in words(admin.get("/alerts/endpoints/"))
    assert b'href="/alerts/endpoints/new"' in admin.get("/alerts/endpoints/").content
    shown = viewer.get("/alerts/endpoints/")
    assert "An admin makes one" in words(shown)
    assert b"/alerts/endpoints/new" not in shown.content


def test_the_signing_secret_of_a_new_endpoint_is_shown_once(admin: Client) -> None:
    made = admin.post("/alerts/endpoints/new/webhook", NEW)
    endpoint = Endpoint.objects.get()
    secret = sealing.unseal(endpoint).secret
    assert secret.startswith("whsec_")
    assert secret in made.content.decode()
    assert "no-store" in made.headers["Cache-Control"]
    for address in ("", f"{endpoint.pk}/change", f"{endpoint.pk}/secret"):
        page = admin.get(f"/alerts/endpoints/{address}").content.decode()
        assert "On call" in page
        assert secret not in page
        assert "weir-path" not in page
    assert "http://127.0.0.1:9" in words(admin.get("/alerts/endpoints/"))
    assert actions() == ["endpoint.create"]


def test_a_form_with_errors_names_the_fields_and_holds_no_key(admin: Client) -> None:
    sent = NEW | {"url": "http://203.0.113.7/", "secret": "hunter2", "authorization": "Bearer abc"}
    page = admin.post("/alerts/endpoints/new/webhook", sent)
    assert page.status_code == 400
    shown = page.content.decode()
    assert 'value="On call"' in shown
    assert "Give whsec_ and" in words(page)
    assert "hunter2" not in shown
    assert "Bearer abc" not in shown
    assert not Endpoint.objects.exists()
    refused = admin.post("/alerts/endpoints/new/webhook", NEW | {"allow_internal": ""})
    assert refused.status_code == 400
    assert not Endpoint.objects.exists()


def test_a_name_that_is_taken_is_said_beside_the_name(admin: Client) -> None:
    factories.endpoint(name="On call")
    page = admin.post("/alerts/endpoints/new/webhook", NEW)
    assert page.status_code == 400
    assert "There is an endpoint On call already" in words(page)
    assert re.search(r'name="name"[^>]*aria-invalid="true"', page.content.decode())


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("webhook", {"url", "authorization", "secret", "allow_internal"}),
        ("pagerduty", {"url", "routing_key", "allow_internal"}),
        ("slack", {"url", "allow_internal"}),
        ("email", {"recipients"}),
    ],
)
def test_the_form_of_a_kind_has_its_fields(admin: Client, kind: str, fields: set[str]) -> None:
    page = admin.get(f"/alerts/endpoints/new/{kind}").content.decode()
    shown = set(re.findall(r'(?:input|textarea)[^>]* name="(\w+)"', page))
    assert shown - {"csrfmiddlewaretoken"} == fields | {"name", "description"}
    assert admin.get("/alerts/endpoints/new/fax").status_code == 404


def test_a_change_keeps_the_keys_that_are_not_given(admin: Client) -> None:
    endpoint = factories.endpoint(URL, authorization="Bearer abc", allow_internal=True)
    before = sealing.unseal(endpoint)
    address = f"/alerts/endpoints/{endpoint.pk}/change"
    sent = {"name": "Renamed", "description": "At night", "allow_internal": "on"}
    assert admin.post(address, sent).status_code == 302
    endpoint.refresh_from_db()
    assert (endpoint.name, endpoint.description) == ("Renamed", "At night")
    assert sealing.unseal(endpoint) == before
    admin.post(address, sent | {"without_authorization": "on"})
    endpoint.refresh_from_db()
    assert sealing.unseal(endpoint).authorization == ""
    assert sealing.unseal(endpoint).url == URL
    assert actions() == ["endpoint.change"] * 2


def test_a_secret_is_replaced_once_even_if_its_form_is_sent_twice(admin: Client) -> None:
    endpoint = factories.endpoint(secret_set_at=clock.now())
    first = sealing.unseal(endpoint).secret
    address = f"/alerts/endpoints/{endpoint.pk}/secret"
    version = re.search(r'name="version" value="([^"]+)"', admin.get(address).content.decode())
    assert version is not None
    sent = {"keep_previous_s": "86400", "version": version[1]}
    done = admin.post(address, sent)
    endpoint.refresh_from_db()
    sealed = sealing.unseal(endpoint)
    assert sealed.previous == first
    assert sealed.secret in done.content.decode()
    again = admin.post(address, sent)
    assert again.status_code == 400
    assert "Begin anew" in words(again)
    endpoint.refresh_from_db()
    assert sealing.unseal(endpoint) == sealed
    assert actions() == ["endpoint.rotate"]


def test_an_endpoint_is_disabled_and_enabled_again(admin: Client) -> None:
    endpoint = factories.endpoint(failures=3, failing_since=clock.now())
    assert "Failing 3 failures in a row" in words(admin.get("/alerts/endpoints/"))
    address = f"/alerts/endpoints/{endpoint.pk}/switch"
    shown = admin.post(address, {"enabled": "no"}, follow=True)
    assert "is disabled." in words(shown)
    assert b">Enable</button>" in shown.content
    assert b">Test</button>" not in shown.content
    admin.post(address, {"enabled": "yes"})
    endpoint.refresh_from_db()
    assert (endpoint.state, endpoint.failures) == ("ok", 0)


def test_the_list_says_why_weir_disabled_an_endpoint(viewer: Client) -> None:
    reason = "it answered 410 Gone"
    factories.endpoint(is_enabled=False, disabled_at=clock.now(), disabled_reason=reason)
    shown = viewer.get("/alerts/endpoints/")
    assert f"Disabled {reason}" in words(shown)
    assert b'data-tone="bad"' in shown.content


def test_waiting_deliveries_and_the_next_attempt_are_listed(viewer: Client) -> None:
    later = clock.now().replace(year=2031)
    endpoint = factories.endpoint(held_until=later, failures=1)
    factories.delivery(endpoint)
    factories.delivery(endpoint)
    factories.delivery(endpoint, status="delivered")
    shown = words(viewer.get("/alerts/endpoints/"))
    assert "2 deliveries waiting" in shown
    assert "2031-" in shown


def test_an_operator_sends_a_test_and_sees_its_delivery(operator: Client) -> None:
    endpoint = factories.endpoint(name="On call")
    page = operator.get("/alerts/endpoints/")
    assert b">Test</button>" in page.content
    assert b"/change" not in page.content
    done = operator.post(f"/alerts/endpoints/{endpoint.pk}/test", follow=True)
    delivery = Delivery.objects.get()
    assert done.redirect_chain == [(f"/alerts/deliveries/{delivery.pk}", 302)]
    assert "A test for On call is on its way." in words(done)
    assert "nothing is wrong" in words(done)
    assert actions() == ["endpoint.test"]


def test_a_disabled_endpoint_takes_no_test(operator: Client) -> None:
    endpoint = factories.endpoint(is_enabled=False, disabled_at=clock.now())
    done = operator.post(f"/alerts/endpoints/{endpoint.pk}/test", follow=True)
    assert "is disabled; an admin can enable it again" in words(done)
    assert not Delivery.objects.exists()


def test_an_endpoint_is_deleted_after_a_question(admin: Client) -> None:
    endpoint = factories.endpoint(name="On call")
    delivery = factories.delivery(endpoint)
    address = f"/alerts/endpoints/{endpoint.pk}/delete"
    assert "Delete endpoint On call?" in words(admin.get(address))
    assert Endpoint.objects.filter(deleted_at=None).exists()
    assert "was deleted." in words(admin.post(address, follow=True))
    assert not Endpoint.objects.filter(deleted_at=None).exists()
    assert admin.get(address).status_code == 404
    page = words(admin.get(f"/alerts/deliveries/{delivery.pk}"))
    assert "The endpoint and its keys are deleted." in page
