"""A day of a busy job with retention between: the benchmark's month, made small."""

from datetime import timedelta

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from checkpoints.models import Checkpoint, GateAlignment, SubtaskAck
from controlplane.accounts.models import Role
from controlplane.audit import chain
from jobs.models import JobException, Operation
from tests import factories
from tests.benchmarks import retention_month
from tests.factories import CHAINS, FLIGHTS

PER_DAY, KEPT, DETAILED = 8_000, 1_500, 50


@pytest.fixture
def month(db: None, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> retention_month.Month:
    monkeypatch.setattr(retention_month, "DETAILED", 12 * DETAILED)
    # Not within a test's transaction.
    monkeypatch.setattr(retention_month, "with_vacuum", lambda: None)
    settings.WEIR_KEEP_CHECKPOINTS_MAX = KEPT
    settings.WEIR_KEEP_OPERATIONS_MAX = settings.WEIR_KEEP_EXCEPTIONS_MAX = 50
    settings.WEIR_DETAILED_CHECKPOINTS = DETAILED
    settings.WEIR_METRICS_PUBLIC = True
    return retention_month.begin(PER_DAY)


def counts() -> dict[str, int]:
    models = (Checkpoint, SubtaskAck, GateAlignment, Operation, JobException)
    return {model.__name__: model._default_manager.count() for model in models}


@pytest.mark.whole
def test_tables_are_flat_after_a_day_and_after_the_next(
    month: retention_month.Month, client: Client
) -> None:
    retention_month.set_clock(timedelta(days=-1))
    retention_month.live_a_day(month)
    first = counts()
    retention_month.set_clock(timedelta())
    retention_month.live_a_day(month)
    assert month.written == 2 * PER_DAY
    assert counts() == first
    # Completed checkpoints of two parts lie within the newest, none of those before.
    assert first["Checkpoint"] == KEPT
    detailed = 2 * DETAILED
    assert first["SubtaskAck"] == detailed * len(FLIGHTS) * retention_month.PARALLELISM
    assert first["GateAlignment"] == detailed * len(CHAINS[1:]) * retention_month.PARALLELISM
    assert first["Operation"] == first["JobException"] == 50
    assert Checkpoint.objects.filter(evidence__isnull=False).count() <= detailed
    assert chain.verify().problems == []
    client.force_login(factories.user(Role.ADMIN))
    text = client.get("/metrics").content.decode()
    settled = f'weir_checkpoints_total{{job="{month.job.pk}",result='
    assert f'{settled}"completed"}} {2 * PER_DAY * 0.9:.1f}' in text
    assert f'{settled}"failed"}} {2 * PER_DAY * 0.1:.1f}' in text
    for page in ("", "checkpoints/", "recovery/", f"checkpoints/{month.written - 1}/"):
        assert client.get(f"/jobs/{month.job.pk}/{page}").status_code == 200
