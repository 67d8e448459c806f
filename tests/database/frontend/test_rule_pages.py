"""The pages of rules: made from their kind's form, tried on the past, switched and deleted."""

import re
from datetime import timedelta

import msgspec
import pytest
from django.test import Client

from controlplane.accounts.models import Role
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.models import Alert, Rule
from controlplane.audit.models import AuditEntry
from controlplane.base import clock
from tests import factories
from tests.database.frontend.reading import words
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db

SLOW = {
    "name": "Too slow",
    "severity": "critical",
    "hold_s": "0",
    "cooldown_s": "60",
    "to_all_endpoints": "on",
    "parameter_seconds": "30",
    "parameter_times_median": "0",
    "parameter_least_s": "1",
}
FAILED = {
    "name": "Failed",
    "severity": "warning",
    "hold_s": "0",
    "cooldown_s": "0",
    "parameter_window_s": "3600",
}


@pytest.fixture
def admin(db: None) -> Client:
    client = Client()
    client.force_login(factories.user(Role.ADMIN, "ada"))
    return client


def test_the_list_has_the_condition_of_each_rule(viewer: Client, admin: Client) -> None:
    factories.rule(
        "checkpoint_duration",
        name="Too slow",
        parameters={"seconds": 30.0, "times_median": 0.0},
        job_pattern="flights-*",
        hold_s=90,
    )
    factories.rule(name="Broken", problem="ZeroDivisionError: division by zero")
    page = viewer.get("/alerts/rules/")
    shown = words(page)
    assert "Slow checkpoints Limit 30.0 s; held for 1 min 30 s jobs named flights-*" in shown
    assert "Broken Set aside ZeroDivisionError" in shown
    assert "/switch" not in page.content.decode()
    assert "/switch" in admin.get("/alerts/rules/").content.decode()


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_the_form_of_each_kind_makes_a_rule_with_its_defaults(admin: Client, kind: str) -> None:
    page = admin.get(f"/alerts/rules/new/{kind}")
    form = page.context["form"]
    sent = {name: form[name].value() for name in form.fields if form[name].value() is not None}
    made = admin.post(f"/alerts/rules/new/{kind}", sent | {"name": "Made here"})
    assert made.status_code == 302, words(made)
    rule = Rule.objects.get(name="Made here")
    defaults = msgspec.json.decode(msgspec.json.encode(KINDS[kind].read({})))
    assert rule.parameters == defaults
    alert = factories.alert(rule)
    assert rule.to_all_endpoints
    # The form of its change says the same: nothing is changed by sending it.
    change = admin.get(f"/alerts/rules/{rule.pk}/change").context["form"]
    same = {name: change[name].value() for name in change.fields}
    again = {name: value for name, value in same.items() if value is not None}
    done = admin.post(f"/alerts/rules/{rule.pk}/change", again)
    assert done.headers.get("Location") == f"/alerts/rules/{rule.pk}", words(done)
    rule.refresh_from_db()
    assert rule.parameters == defaults
    alert.refresh_from_db()
    assert alert.is_firing


def test_an_admin_makes_a_rule_for_chosen_endpoints(admin: Client) -> None:
    one, other = factories.endpoint(name="One"), factories.endpoint(name="Other")
    factories.endpoint(name="Gone", is_enabled=False, deleted_at=clock.now())
    form = admin.get("/alerts/rules/new/checkpoint_duration").content.decode()
    assert "Other" in form
    assert "Gone" not in form
    sent = SLOW | {"to_all_endpoints": "", "endpoints": [str(one.pk)]}
    done = admin.post("/alerts/rules/new/checkpoint_duration", sent, follow=True)
    rule = Rule.objects.get(name="Too slow")
    assert rule.parameters == {"seconds": 30.0, "times_median": 0.0, "least_s": 1.0}
    assert (rule.severity, rule.cooldown_s, rule.to_all_endpoints) == ("critical", 60, False)
    assert [endpoint.pk for endpoint in rule.endpoints.all()] == [one.pk]
    assert "Rule Too slow was made." in words(done)
    assert "Tells One" in words(done)
    assert other.name not in words(done)
    assert AuditEntry.objects.filter(action="rule.create", actor_name="ada").count() == 1


def test_bounds_and_patterns_are_said_beside_their_fields(admin: Client) -> None:
    sent = {"parameter_seconds": "-1", "hold_s": "x"}
    page = admin.post("/alerts/rules/new/checkpoint_duration", SLOW | sent)
    assert page.status_code == 400
    shown = page.content.decode()
    for name in ("parameter_seconds", "hold_s"):
        assert re.search(rf'name="{name}"[^>]*aria-invalid="true"', shown), name
    # A bound that excludes its value is the kind's to check.
    age = SLOW | {"parameter_seconds": "0", "parameter_intervals": "0"}
    page = admin.post("/alerts/rules/new/checkpoint_age", age)
    assert page.status_code == 400
    assert re.search(r'name="parameter_seconds"[^>]*aria-invalid', page.content.decode())
    both = admin.post(
        "/alerts/rules/new/checkpoint_duration", SLOW | {"job": "a", "job_pattern": "b*"}
    )
    assert "Give a job or a pattern of names, not both." in words(both)
    factories.rule(name="Too slow")
    taken = admin.post("/alerts/rules/new/checkpoint_duration", SLOW)
    assert "Another rule is called" in words(taken)
    assert Rule.objects.filter(name="Too slow").count() == 1


def test_a_rule_is_tried_on_the_last_day_before_it_is_made(admin: Client) -> None:
    now = clock.now()
    factories.job("orders", status=JobStatus.FAILED, ended_at=now, cause="out of disk")
    before = Rule.objects.count()
    page = admin.post("/alerts/rules/new/job_failed", FAILED | {"try": "yes"})
    assert page.status_code == 200
    shown = words(page)
    assert "It would have fired 1 time in the last 24 hours" in shown
    assert "The job failed: out of disk" in shown
    none = admin.post(
        "/alerts/rules/new/job_failed", FAILED | {"try": "yes", "job_pattern": "flights*"}
    )
    assert "It would not have fired in the last 24 hours" in words(none)
    assert Rule.objects.count() == before
    assert not Alert.objects.exists()


def test_a_rule_is_tried_by_operators_on_its_page(operator: Client, viewer: Client) -> None:
    factories.job("orders", status=JobStatus.FAILED, ended_at=clock.now(), cause="out of disk")
    rule = factories.rule("job_failed", parameters={"window_s": 3600})
    page = operator.get(f"/alerts/rules/{rule.pk}")
    assert "Try on the last 24 hours" in words(page)
    assert "It would have fired" not in words(page)
    assert "It would have fired 1 time" in words(operator.get(f"/alerts/rules/{rule.pk}?tried"))
    assert "It would" not in words(viewer.get(f"/alerts/rules/{rule.pk}?tried"))
    live = factories.rule("back_pressure")
    assert "Try on" not in words(operator.get(f"/alerts/rules/{live.pk}"))
    odd = factories.rule("job_failed", parameters={"no": "such"})
    assert operator.get(f"/alerts/rules/{odd.pk}?tried").status_code == 200


def test_a_change_keeps_the_alerts_unless_the_condition_changes(admin: Client) -> None:
    rule = factories.rule("job_failed", parameters={"window_s": 3600})
    alert = factories.alert(rule)
    address = f"/alerts/rules/{rule.pk}/change"
    admin.post(address, FAILED | {"description": "Look at the driver's log"})
    alert.refresh_from_db()
    rule.refresh_from_db()
    assert rule.description == "Look at the driver's log"
    assert alert.is_firing
    admin.post(address, FAILED | {"parameter_window_s": "60"})
    alert.refresh_from_db()
    assert not alert.is_firing
    assert "The rule was changed." in words(admin.get(f"/alerts/{alert.pk}"))


def test_a_rule_is_disabled_enabled_and_deleted(admin: Client) -> None:
    rule = factories.rule(name="Noise")
    alert = factories.alert(rule, began_at=clock.now() - timedelta(minutes=5))
    done = admin.post(f"/alerts/rules/{rule.pk}/switch", {"enabled": "no"}, follow=True)
    assert "Rule Noise is disabled." in words(done)
    alert.refresh_from_db()
    assert not alert.is_firing
    admin.post(f"/alerts/rules/{rule.pk}/switch", {"enabled": "yes"})
    rule.refresh_from_db()
    assert rule.is_enabled
    address = f"/alerts/rules/{rule.pk}/delete"
    assert "Delete rule Noise?" in words(admin.get(address))
    assert Rule.objects.filter(pk=rule.pk).exists()
    assert "Rule Noise was deleted." in words(admin.post(address, follow=True))
    assert not Rule.objects.filter(pk=rule.pk).exists()
    assert admin.get(address).status_code == 404
    assert "Noise deleted" in words(admin.get(f"/alerts/{alert.pk}"))
