"""The delivery log: filters, one delivery with its answers, and sending again."""

from datetime import timedelta

import pytest
from django.test import Client

from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from controlplane.base.rest.pagination import PAGE_SIZE
from controlplane.deliveries.models import Delivery
from tests import factories
from tests.database.frontend.reading import words

pytestmark = pytest.mark.django_db

LOG = "/alerts/deliveries/"
HOUR = timedelta(hours=1)


def test_an_empty_log_says_what_to_do(viewer: Client) -> None:
    assert "No deliveries yet" in words(viewer.get(LOG))
    assert "No matching deliveries" in words(viewer.get(LOG, {"alert": "none"}))


def test_the_log_is_filtered_by_endpoint_state_and_alert(viewer: Client) -> None:
    night, day = factories.endpoint(name="Night"), factories.endpoint(name="Day")
    late = factories.delivery(night, factories.notice("one", rule="Slow checkpoints"))
    factories.attempted(late)
    factories.delivery(day, factories.notice("two", rule="Failed checkpoints"), status="given_up")
    everything = words(viewer.get(LOG))
    assert "Slow checkpoints" in everything
    assert "Failed checkpoints" in everything
    assert "Retrying the endpoint answered 503" in everything
    for query in ({"endpoint": night.pk}, {"status": "pending"}, {"alert": "one"}):
        shown = words(viewer.get(LOG, query))
        assert "Slow checkpoints" in shown, query
        assert "Failed checkpoints" not in shown, query
    later = {"created_after": (clock.now() + HOUR).isoformat()}
    assert "No matching deliveries" in words(viewer.get(LOG, later))
    empty = {"endpoint": "", "status": "", "alert": "", "created_after": "", "created_before": ""}
    assert "Failed checkpoints" in words(viewer.get(LOG, empty))
    assert "status: Select a valid choice" in words(viewer.get(LOG, {"status": "lost"}))


def test_pages_of_the_log_keep_the_filters(viewer: Client) -> None:
    night, day = factories.endpoint(), factories.endpoint()
    for number in range(PAGE_SIZE + 2):
        factories.delivery(night, factories.notice(f"alert-{number}", rule=f"rule-{number:03}."))
    factories.delivery(day)
    first = viewer.get(LOG, {"endpoint": night.pk})
    assert len(first.context["rows"]) == PAGE_SIZE
    older = first.context["page"].older
    assert f"endpoint={night.pk}" in older
    second = viewer.get(LOG + older)
    assert {row.endpoint_id for row in second.context["rows"]} == {night.pk}
    assert [row.rule for row in second.context["rows"]] == ["rule-001.", "rule-000."]
    lost = viewer.get(LOG, {"cursor": "nonsense"})
    assert "That link does not fit these filters" in words(lost)


def test_a_delivery_has_its_request_and_the_answers(viewer: Client) -> None:
    endpoint = factories.endpoint("https://203.0.113.7/hook-key", authorization="Bearer hunter2")
    row = factories.delivery(endpoint, factories.notice("one", summary="Checkpoint 41 took 48 s."))
    factories.attempted(row)
    factories.attempted(row, 200)
    page = viewer.get(f"{LOG}{row.pk}")
    shown = words(page)
    assert "Checkpoint 41 took 48 s." in shown
    assert "Authorization: ***" in shown
    assert '"alert": "one"' in shown
    assert "upstream is down" in shown
    assert "84 ms" in shown
    assert [attempt.number for attempt in page.context["attempts"]] == [2, 1]
    for key in ("hunter2", "hook-key", "whsec_"):
        assert key not in page.content.decode()
    assert "Send it" not in shown  # A viewer.


def test_a_notice_of_another_shape_breaks_no_page(viewer: Client) -> None:
    row = factories.delivery(factories.endpoint())
    Delivery.objects.update(notice={"version": 0})
    page = viewer.get(f"{LOG}{row.pk}")
    assert page.status_code == 200
    assert "was written in another shape" in words(page)


def test_an_operator_sends_a_delivery_again(operator: Client) -> None:
    row = factories.delivery(factories.endpoint(), status="given_up", tries=4, error="it is away")
    page = words(operator.get(f"{LOG}{row.pk}"))
    assert "Given up" in page
    assert "Send it again" in page
    done = operator.post(f"{LOG}{row.pk}/redeliver", follow=True)
    assert "The delivery is sent again." in words(done)
    row.refresh_from_db()
    assert (row.status, row.tries) == ("pending", 0)
    assert AuditEntry.objects.filter(action="delivery.redeliver").count() == 1


def test_nothing_is_sent_again_to_a_disabled_endpoint(operator: Client) -> None:
    endpoint = factories.endpoint()
    row = factories.delivery(endpoint, status="given_up")
    endpoint.is_enabled, endpoint.disabled_at = False, clock.now()
    endpoint.save()
    assert "Send it" not in words(operator.get(f"{LOG}{row.pk}"))
    done = operator.post(f"{LOG}{row.pk}/redeliver", follow=True)
    assert "is disabled; an admin can enable it again" in words(done)
    row.refresh_from_db()
    assert row.status == "given_up"


def test_a_range_of_the_filter_is_sent_again(operator: Client) -> None:
    endpoint, now = factories.endpoint(), clock.now()
    inside = factories.delivery(endpoint, status="given_up", created_at=now - 2 * HOUR)
    outside = factories.delivery(endpoint, status="given_up", created_at=now - 9 * HOUR)
    delivered = factories.delivery(endpoint, status="delivered", created_at=now - 2 * HOUR)
    other = factories.delivery(factories.endpoint(), status="given_up", created_at=now - 2 * HOUR)
    query = {
        "endpoint": str(endpoint.pk),
        "created_after": (now - 3 * HOUR).strftime("%Y-%m-%dT%H:%M:%S"),
    }
    log = operator.get(LOG, query)
    assert f"redeliver?endpoint={endpoint.pk}" in log.content.decode()
    form = operator.get(f"{LOG}redeliver", query).context["form"]
    sent = {name: form[name].value() for name in form.fields}
    assert sent["endpoint"] == str(endpoint.pk)
    sent |= {name: sent[name].strftime("%Y-%m-%dT%H:%M:%S") for name in ("after", "before")} | {
        "status": "given_up"
    }
    assert sent["after"] == query["created_after"]
    done = operator.post(f"{LOG}redeliver", sent, follow=True)
    assert "1 delivery is sent again." in words(done)
    states = {row.pk: row.status for row in Delivery.objects.all()}
    assert states == {
        inside.pk: "pending",
        outside.pk: "given_up",
        delivered.pk: "delivered",
        other.pk: "given_up",
    }
    again = operator.post(f"{LOG}redeliver", sent, follow=True)
    assert "none was sent again" in words(again)


def test_a_range_needs_its_times(operator: Client) -> None:
    endpoint = factories.endpoint()
    page = operator.post(f"{LOG}redeliver", {"endpoint": endpoint.pk, "after": "yesterday"})
    assert page.status_code == 400
    assert "Give a date and a time." in words(page)
    assert "Give a time." in words(page)
