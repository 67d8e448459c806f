"""Rules as rows: those that Weir comes with, and what each kind says of itself."""

from importlib import import_module

import msgspec
import pytest

from controlplane.alerts import defaults, rules
from controlplane.alerts.judging import ReadyRule
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.models import Rule
from controlplane.base.errors import Invalid
from tests import factories

pytestmark = pytest.mark.django_db


def install() -> None:
    defaults.install(Rule.objects)


def test_the_rules_that_weir_comes_with_can_be_read_and_are_about_all_jobs() -> None:
    Rule.objects.all().delete()
    install()
    rows = list(Rule.objects.all())
    assert len(rows) == len(defaults.DEFAULT_RULES)
    assert {row.kind for row in rows} == set(KINDS)
    for row in rows:
        ready = ReadyRule.read(row)
        assert msgspec.to_builtins(ready.parameters) == row.parameters
        assert (row.job, row.job_pattern, row.to_all_endpoints, row.is_builtin) == (
            *("", "", True, True),
        )


def test_they_are_stored_once_and_what_admins_changed_stays() -> None:
    Rule.objects.all().delete()
    install()
    admin = factories.user("admin")
    kept = Rule.objects.get(name="Job failed")
    rules.change(admin, kept.pk, {"is_enabled": False})
    install()
    assert Rule.objects.count() == len(defaults.DEFAULT_RULES)
    assert not Rule.objects.get(name="Job failed").is_enabled


def test_a_migration_stores_them(django_user_model: object) -> None:
    migration = import_module("controlplane.alerts.migrations.0002_default_rules").Migration
    (operation,) = migration.operations
    Rule.objects.all().delete()
    operation.code(Apps(), None)
    assert Rule.objects.filter(is_builtin=True).count() == len(defaults.DEFAULT_RULES)


class Apps:
    """The models of now, where a migration has those of its time."""

    def get_model(self, app: str, name: str) -> type[Rule]:
        assert (app, name) == ("alerts", "Rule")
        return Rule


def test_new_kinds_bring_their_rules_and_none_that_was_deleted() -> None:
    name = "controlplane.alerts.migrations.0003_hosts_and_bad_records"
    migration = import_module(name).Migration
    Rule.objects.all().delete()
    migration.operations[-1].code(Apps(), None)
    bad, starved = Rule.objects.order_by("kind")
    assert (bad.kind, bad.is_builtin, bad.is_enabled) == ("bad_records", True, True)
    assert bad.parameters == {"count": 0, "window_s": 600}
    assert (starved.kind, starved.is_builtin, starved.is_enabled) == ("host_starved", True, False)
    assert (starved.parameters, starved.hold_s) == ({"share": 0.3}, 300)


def test_the_memory_of_slots_brings_its_rule() -> None:
    name = "controlplane.alerts.migrations.0004_memory_of_slots"
    Rule.objects.all().delete()
    import_module(name).Migration.operations[-1].code(Apps(), None)
    (rule,) = Rule.objects.all()
    assert (rule.kind, rule.is_builtin, rule.is_enabled) == ("slot_memory", True, True)
    assert (rule.parameters, rule.hold_s) == ({"share": 0.9}, 60)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rule_of_each_kind_can_be_made_with_its_defaults(kind: str) -> None:
    rule = rules.create(None, kind, {"name": f"of {kind}", "severity": "info"})
    rule.refresh_from_db()
    assert rule.parameters == msgspec.to_builtins(KINDS[kind].read({}))
    assert rule.state == "active"


@pytest.mark.parametrize(
    "parameters",
    [{"seconds": float("nan")}, {"seconds": "30"}, {"seconds": 1e12}, {"more": 1}, [], None],
)
def test_bad_parameters_are_refused(parameters: object) -> None:
    with pytest.raises(Invalid) as refused:
        rules.create(
            None,
            "checkpoint_duration",
            {"name": "x", "severity": "info", "parameters": parameters},
        )
    assert list(refused.value.extra["errors"]) == ["parameters"]
    assert not Rule.objects.filter(name="x").exists()
