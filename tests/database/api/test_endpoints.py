"""Endpoints and deliveries by the API: made by admins, tested by operators, seen by viewers."""

from typing import Any

import pytest
from rest_framework.test import APIClient

from controlplane.accounts.models import Role
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.deliveries import leases, sealing
from controlplane.deliveries.machine import Meaning
from controlplane.deliveries.models import Delivery, Endpoint
from controlplane.deliveries.sending.outcome import Outcome
from controlplane.deliveries.settlement import Landed, settle
from tests import factories
from tests.database.api.conftest import API, client_of

pytestmark = pytest.mark.django_db

URL = "https://8.8.8.8/hooks/T0/B1/the-secret-part"
AUTHORIZATION = "Bearer the-other-secret"
MADE = {"name": "On call", "kind": "webhook", "url": URL, "authorization": AUTHORIZATION}


def texts(client: APIClient, endpoint: str, delivery: str) -> list[str]:
    paths = ("endpoints", f"endpoints/{endpoint}", "deliveries", f"deliveries/{delivery}")
    answers = [client.get(f"{API}{path}") for path in paths]
    assert {answer.status_code for answer in answers} == {200}
    return [answer.content.decode() for answer in answers]


def test_the_secret_is_shown_once_and_the_url_never(admin_api: APIClient) -> None:
    created = admin_api.post(f"{API}endpoints", MADE)
    assert created.status_code == 201
    made = created.json()
    assert made["secret"].startswith("whsec_")
    assert made["origin"] == "https://8.8.8.8"
    (delivery,) = admin_api.post(f"{API}endpoints/{made['id']}/test").json()
    viewer = client_of(factories.user(Role.VIEWER))
    told = texts(viewer, made["id"], delivery["id"]) + texts(admin_api, made["id"], delivery["id"])
    told.append(admin_api.get(f"{API}audit").content.decode())
    for text in told:
        for secret in (made["secret"], "the-secret-part", "the-other-secret"):
            assert secret not in text
    shown = viewer.get(f"{API}endpoints/{made['id']}").json()
    assert set(made) - set(shown) == {"secret"}


def test_rotation_shows_the_new_secret_once(admin_api: APIClient) -> None:
    made = admin_api.post(f"{API}endpoints", MADE).json()
    path = f"{API}endpoints/{made['id']}/secret"
    rotated = admin_api.post(path, {"keep_previous_s": 60}).json()
    sealed = sealing.unseal(Endpoint.objects.get())
    assert sealed.secrets_at(clock.now()) == (rotated["secret"], made["secret"])
    assert rotated["previous_secret_until"] is not None
    assert "secret" not in admin_api.get(f"{API}endpoints/{made['id']}").json()


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"name": "x", "kind": "webhook", "url": "https://127.0.0.1/"}, "url"),
        ({"name": "x", "kind": "webhook", "url": "https://[::ffff:169.254.169.254]/"}, "url"),
        ({"name": "x", "kind": "webhook"}, "url"),
        ({"name": " ", "kind": "webhook", "url": URL}, "name"),
        ({"name": "x", "kind": "pigeon", "url": URL}, "kind"),
        ({"name": "x", "kind": "webhook", "url": URL, "colour": "red"}, "colour"),
    ],
)
def test_malformed_endpoints_are_refused_by_field(
    admin_api: APIClient, given: dict[str, Any], field: str
) -> None:
    answer = admin_api.post(f"{API}endpoints", given)
    assert answer.status_code == 400
    assert field in answer.json()["errors"]
    assert not Endpoint.objects.exists()


def test_a_taken_name_is_a_conflict(admin_api: APIClient) -> None:
    assert admin_api.post(f"{API}endpoints", MADE).status_code == 201
    answer = admin_api.post(f"{API}endpoints", MADE)
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")


def test_an_endpoint_is_changed_disabled_and_deleted(admin_api: APIClient, api: APIClient) -> None:
    made = admin_api.post(f"{API}endpoints", MADE).json()
    path = f"{API}endpoints/{made['id']}"
    changed = admin_api.patch(path, {"is_enabled": False, "name": "Nights"}).json()
    assert (changed["name"], changed["state"]) == ("Nights", "disabled")
    refused = api.post(f"{path}/test")
    assert (refused.status_code, refused.json()["code"]) == (409, "endpoint_disabled")
    assert admin_api.delete(path).status_code == 204
    for call in (api.get, admin_api.delete):
        assert call(path).status_code == 404
    actions = set(AuditEntry.objects.values_list("action", flat=True))
    assert actions >= {"endpoint.create", "endpoint.change", "endpoint.delete"}


def test_the_log_of_a_delivery(api: APIClient) -> None:
    endpoint = factories.endpoint(
        "https://8.8.8.8/hook", kind="pagerduty", routing_key="the-routing-key"
    )
    factories.delivery(endpoint)
    for status in (503, 202):
        (row,) = leases.take(9)
        assert row.leased_until is not None
        meaning = Meaning.DELIVERED if status == 202 else Meaning.FAILED
        outcome = Outcome(
            meaning=meaning,
            status_code=status,
            address="8.8.8.8",
            error="" if status == 202 else "the endpoint answered 503",
            headers={"retry-after": "0"},
            body="no key of yours: the-routing-key",
        ).without(("the-routing-key",))
        began_at = row.leased_until - leases.LEASE
        settle([Landed(row.pk, row.attempts, endpoint.pk, began_at, 0.125, outcome)])
        Delivery.objects.filter(status="pending").update(next_at=clock.now())
    told = api.get(f"{API}deliveries/{row.pk}").json()
    assert (told["status"], told["attempts"], told["next_at"]) == ("delivered", 2, None)
    assert [attempt["status_code"] for attempt in told["ended_attempts"]] == [202, 503]
    first = told["ended_attempts"][1]
    assert (first["number"], first["outcome"], first["duration_ms"]) == (1, "failed", 125.0)
    assert first["body"] == "no key of yours: ***"
    assert told["notice"]["summary"].startswith("Checkpoint 41 took 48 s")
    request = told["request"]
    assert request["to"] == "https://8.8.8.8"
    assert request["headers"] == {"Content-Type": "application/json"}
    assert '"routing_key":"***"' in request["body"]


def test_deliveries_are_filtered_and_paged(api: APIClient) -> None:
    first, second = factories.endpoint(), factories.endpoint()
    for number in range(3):
        factories.delivery(first, factories.notice("a", number + 1))
    factories.delivery(second, factories.notice("b", job="other"), status="given_up")

    def count(query: str) -> int:
        answer = api.get(f"{API}deliveries?{query}")
        assert answer.status_code == 200, answer.content
        return len(answer.json()["results"])

    assert count("") == 4
    assert count(f"endpoint={first.pk}") == 3
    assert count("status=given_up") == count("job=other") == count("alert=b") == 1
    assert count("severity=critical") == 0
    page = api.get(f"{API}deliveries?page_size=3").json()
    assert len(page["results"]) == 3
    assert len(api.get(page["next"]).json()["results"]) == 1


def test_one_delivery_and_a_range_are_sent_again(api: APIClient) -> None:
    endpoint = factories.endpoint()
    rows = [factories.delivery(endpoint, status="given_up") for _ in range(3)]
    answer = api.post(f"{API}deliveries/{rows[0].pk}/redeliver")
    assert (answer.status_code, answer.json()["status"]) == (200, "pending")
    given = {"after": "2020-01-01T00:00:00Z", "before": "2100-01-01T00:00:00Z"}
    answer = api.post(f"{API}endpoints/{endpoint.pk}/redeliver", given)
    assert answer.json() == {"count": 2, "has_more": False}
    assert not Delivery.objects.exclude(status="pending").exists()


def test_a_delivery_of_a_deleted_endpoint_is_still_in_the_log(api: APIClient) -> None:
    row = factories.delivery(factories.endpoint(), status="given_up")
    Endpoint.objects.update(is_enabled=False, deleted_at=clock.now(), sealed=b"")
    told = api.get(f"{API}deliveries/{row.pk}").json()
    assert told["request"] is None
    assert told["endpoint_name"] == row.endpoint.name
    assert len(api.get(f"{API}deliveries").json()["results"]) == 1
