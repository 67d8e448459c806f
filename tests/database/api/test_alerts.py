"""Rules, alerts and silences by the API: made by admins, looked after by operators."""

from datetime import timedelta
from typing import Any

import pytest
from rest_framework.test import APIClient

from controlplane.accounts.models import Role
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.models import Alert, Rule, Silence
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from tests import factories
from tests.database.api.conftest import API, client_of

pytestmark = pytest.mark.django_db

MADE = {
    "name": "Slow flights",
    "kind": "checkpoint_duration",
    "parameters": {"seconds": 30},
    "job_pattern": "flights*",
    "severity": "warning",
}


def test_a_rule_is_made_changed_and_deleted_by_an_admin_and_all_is_audited(
    admin_api: APIClient,
) -> None:
    endpoint = factories.endpoint()
    chosen = {"to_all_endpoints": False, "endpoints": [str(endpoint.pk)]}
    created = admin_api.post(f"{API}rules", MADE | chosen)
    assert created.status_code == 201, created.content
    rule = created.json()
    assert rule["parameters"] == {"seconds": 30.0, "times_median": 0.0, "least_s": 1.0}
    assert (rule["state"], rule["is_builtin"], rule["created_by"]) == ("active", False, "root")
    assert rule["endpoints"] == [str(endpoint.pk)]
    path = f"{API}rules/{rule['id']}"
    changed = admin_api.patch(path, {"is_enabled": False, "hold_s": 60}).json()
    assert (changed["state"], changed["hold_s"], changed["name"]) == ("disabled", 60, rule["name"])
    assert client_of(factories.user(Role.VIEWER)).get(path).json() == changed
    assert admin_api.delete(path).status_code == 204
    assert admin_api.get(path).status_code == 404
    actions = AuditEntry.objects.filter(target="rule/Slow flights").order_by("pk")
    assert list(actions.values_list("action", flat=True)) == [
        "rule.create",
        "rule.change",
        "rule.delete",
    ]
    change = actions[1]
    assert (change.before or {})["is_enabled"] is True
    assert (change.after or {})["is_enabled"] is False


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"parameters": {"seconds": -1}}, "parameters"),
        ({"parameters": {"second": 1}}, "parameters"),
        ({"parameters": {"seconds": 0}}, "parameters"),
        ({"kind": "checkpoint_alignment", "parameters": {"share": 0}}, "parameters"),
        ({"job": "flights-1"}, "job_pattern"),
        ({"endpoints": ["00000000-0000-4000-8000-000000000000"]}, "endpoints"),
        ({"hold_s": -1}, "hold_s"),
        ({"kind": "weather"}, "kind"),
        ({"name": "\n"}, "name"),
        ({"colour": "red"}, "colour"),
        ({"is_enabled": "yes"}, "is_enabled"),
        ({"description": 1}, "description"),
        ({"hold_s": "5"}, "hold_s"),
    ],
)
def test_what_is_wrong_with_a_rule_is_said_by_field(
    admin_api: APIClient, given: dict[str, Any], field: str
) -> None:
    answer = admin_api.post(f"{API}rules", MADE | given)
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field]
    assert not Rule.objects.filter(is_builtin=False).exists()


def test_a_rule_without_a_limit_is_refused_and_one_that_is_stored_can_be_disabled(
    admin_api: APIClient,
) -> None:
    rule = factories.rule("checkpoint_duration", parameters={"seconds": 0.0})
    path = f"{API}rules/{rule.pk}"
    assert admin_api.patch(path, {"is_enabled": False}).status_code == 200
    refused = admin_api.patch(path, {"parameters": {"seconds": 0}})
    assert refused.status_code == 400
    assert "Give seconds or times_median a limit above 0" in refused.content.decode()
    assert admin_api.patch(path, {"parameters": {"times_median": 3}}).status_code == 200


def test_two_rules_do_not_share_a_name(admin_api: APIClient) -> None:
    assert admin_api.post(f"{API}rules", MADE).status_code == 201
    answer = admin_api.post(f"{API}rules", MADE)
    assert (answer.status_code, answer.json()["code"]) == (409, "name_taken")


def test_the_kinds_say_their_parameters(api: APIClient) -> None:
    kinds = {kind["name"]: kind for kind in api.get(f"{API}rules/kinds").json()}
    assert kinds.keys() == KINDS.keys()
    for kind in kinds.values():
        assert kind["parameters"]["properties"].keys() == KINDS[kind["name"]].texts.keys()
        for shape in kind["parameters"]["properties"].values():
            assert shape["description"]
            assert "default" in shape


def test_alerts_are_listed_filtered_and_acknowledged(api: APIClient) -> None:
    rule = factories.rule("job_failed", severity="critical")
    firing = factories.alert(rule)
    old = factories.alert(rule, state="resolved", subject="old", sequence=2)
    listed = api.get(f"{API}alerts").json()["results"]
    assert {one["id"] for one in listed} == {str(firing.pk), str(old.pk)}
    (one,) = api.get(f"{API}alerts?state=firing&is_acknowledged=false").json()["results"]
    assert one["evidence"] == [{"name": "duration", "value": "48 s"}]
    assert one["links"][0]["text"] == "Job"
    path = f"{API}alerts/{firing.pk}/acknowledge"
    acknowledged = api.post(path).json()
    assert acknowledged["acknowledged_by"] == "mara"
    assert api.post(path).json()["acknowledged_at"] == acknowledged["acknowledged_at"]
    assert AuditEntry.objects.filter(action="alert.acknowledge").count() == 1
    assert api.get(f"{API}alerts?is_acknowledged=false").json()["results"][0]["id"] == str(old.pk)
    (again,) = api.get(f"{API}alerts?is_acknowledged=true").json()["results"]
    assert again["id"] == str(firing.pk)
    over = api.post(f"{API}alerts/{old.pk}/acknowledge")
    assert (over.status_code, over.json()["code"]) == (409, "alert_over")


def test_a_silence_is_made_and_ended_early(api: APIClient) -> None:
    until = (clock.now() + timedelta(hours=8)).isoformat()
    given = {"job_pattern": "flights*", "until_at": until, "reason": "The cluster is upgraded."}
    made = api.post(f"{API}silences", given)
    assert made.status_code == 201, made.content
    silence = made.json()
    assert (silence["is_over"], silence["created_by"]) == (False, "mara")
    assert [one["id"] for one in api.get(f"{API}silences?is_over=false").json()["results"]] == [
        silence["id"]
    ]
    ended = api.post(f"{API}silences/{silence['id']}/end").json()
    assert (ended["is_over"], ended["ended_by"]) == (True, "mara")
    again = api.post(f"{API}silences/{silence['id']}/end")
    assert (again.status_code, again.json()["code"]) == (409, "silence_over")
    actions = AuditEntry.objects.filter(action__startswith="silence.").order_by("pk")
    assert list(actions.values_list("action", flat=True)) == ["silence.create", "silence.end"]


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({"until_at": "2020-01-01T00:00:00Z"}, "until_at"),
        ({"until_at": "9999-01-01T00:00:00Z"}, "until_at"),
        ({"reason": " "}, "reason"),
        ({"rule": "00000000-0000-4000-8000-000000000000"}, "rule"),
        ({"job": "flights-1", "job_pattern": "flights*"}, "job_pattern"),
    ],
)
def test_what_is_wrong_with_a_silence_is_said_by_field(
    api: APIClient, given: dict[str, Any], field: str
) -> None:
    until = (clock.now() + timedelta(hours=8)).isoformat()
    answer = api.post(f"{API}silences", {"until_at": until, "reason": "Because."} | given)
    assert answer.status_code == 400
    assert list(answer.json()["errors"]) == [field]
    assert not Silence.objects.exists()


def test_a_rule_is_tried_on_the_past_without_a_trace(api: APIClient) -> None:
    job = factories.job()
    for number in range(1, 4):
        facts = {"checkpoint": number, "kind": "checkpoint", "duration_ms": number * 10_000}
        factories.event(job, at=clock.now() - timedelta(minutes=10 - number), facts=facts)
    given = {"kind": "checkpoint_duration", "parameters": {"seconds": 15}, "hours": 1}
    tried = api.post(f"{API}rules/try", given)
    assert tried.status_code == 200, tried.content
    body = tried.json()
    assert (body["is_stored"], body["is_complete"], body["count"]) == (True, True, 1)
    (alert,) = body["alerts"]
    assert (alert["job"], alert["summary"], alert["ended_at"]) == (
        job.pk,
        "Checkpoint 2 took 20.0 s.",
        None,
    )
    assert not Alert.objects.exists()
    assert api.post(f"{API}rules/try", {"kind": "back_pressure"}).json()["is_stored"] is False
    assert api.post(f"{API}rules/try", {}).status_code == 400
    rule = factories.rule("checkpoint_duration", parameters={"seconds": 25})
    stored = api.post(f"{API}rules/try", {"rule": str(rule.pk)}).json()
    assert [one["checkpoint"] for one in stored["alerts"]] == [3]
