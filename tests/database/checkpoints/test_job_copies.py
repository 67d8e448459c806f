"""A copied job against one that the real code brought up: the same rows in all tables."""

import uuid
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db.models import Model
from pytest_django.fixtures import DjangoAssertNumQueries, Settings

from checkpoints import driver_protocol
from controlplane.accounts.models import digest_of
from controlplane.base import clock
from jobs.models import Driver, Job
from tests.database.checkpoints.job_copies import JobRows, token_of
from tests.database.checkpoints.line import Line, planned

pytestmark = pytest.mark.django_db

Rows = dict[str, list[dict[str, Any]]]
SAME_S = 20.0  # Between the rows of a job that is brought up on a busy machine.


def new_rows(make: Callable[[], str]) -> tuple[Rows, list[float]]:
    """The rows that making a job adds to all tables, and how far from then their times lie.

    What differs from job to job has the same name in those of each.
    """
    models = apps.get_models()
    before = {model: set(keys(model)) for model in models}
    job_id, now = make(), clock.now()
    job = Job.objects.get(pk=job_id)
    driver = Driver.objects.get(job=job)
    assert driver.token_digest is not None
    names = {
        job_id: "the job",
        str(job.operations.get().pk): "the operation",
        driver.token_digest: "the digest",
    }
    times: list[float] = []

    def named(value: Any) -> Any:
        match value:
            case datetime():
                times.append((value - now).total_seconds())
                return "a time"
            case dict():
                return {named(key): named(inner) for key, inner in value.items()}
            case list():
                return [named(inner) for inner in value]
            case str() | uuid.UUID():
                return names.get(str(value), names.get(str(value).removeprefix("job/"), value))
        return value

    rows: Rows = {}
    for model in models:
        for row in model._default_manager.order_by("pk").exclude(pk__in=before[model]).values():
            if model is not Job:
                row.pop("id", None)
            if row.get("driver_id") == driver.pk:
                row["driver_id"] = "the driver"
            rows.setdefault(model._meta.label, []).append(named(row))
    return rows, times


def keys(model: type[Model]) -> list[Any]:
    return list(model._default_manager.values_list("pk", flat=True))


@pytest.mark.parametrize("checkpoints", [{}, {"interval_ms": 60_000, "retained_max": 2}])
def test_a_copied_job_has_the_rows_of_one_that_was_brought_up(
    settings: Settings, tmp_path: Path, checkpoints: dict[str, Any]
) -> None:
    copied = JobRows.read(Line.begun().job_id)
    settings.WEIR_CHECKPOINT_ROOT = str(tmp_path / "elsewhere")
    scripts = settings.WEIR_SCRIPT_ROOTS[0].rename(tmp_path / "other scripts")
    settings.WEIR_SCRIPT_ROOTS = [scripts]
    made, made_at = new_rows(lambda: Line.begun(**checkpoints).job_id)
    config = planned(**checkpoints).checkpoints
    inserted, inserted_at = new_rows(lambda: copied.insert(config))
    assert inserted == made
    assert len(made) == 10
    assert inserted_at == pytest.approx(made_at, abs=SAME_S)
    assert max(made_at) > SAME_S


def test_a_copied_job_is_one_of_its_own() -> None:
    original = Line.begun()
    rows = JobRows.read(original.job_id)
    copy = Job.objects.get(pk=rows.insert(planned().checkpoints))
    assert copy.pk != original.job_id
    driver = copy.drivers.get()
    assert driver.token_digest == digest_of(token_of(copy.pk, 1))
    assert driver_protocol.authenticate(copy.pk, token_of(copy.pk, 1)) == driver.pk
    assert copy.attempts.get().driver == driver


def test_lines_after_the_first_begin_with_copies(
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    Line.running()
    original = Line.begun(retained_max=7)
    original.start_checkpoints(retained_max=7)
    with django_assert_max_num_queries(40):
        copied = Line.running(retained_max=7)
    assert copied.batches == original.batches
    assert copied.number == original.number
    assert copied.state == original.state
    assert copied.state.config.retained_max == 7
