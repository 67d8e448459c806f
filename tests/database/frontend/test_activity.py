"""The page of activity: every kind of event in words, filters, and its cost."""

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from controlplane.accounts.models import Role
from controlplane.base import clock
from jobs.models import JobEventKind
from tests import factories
from weir.protocol.lifecycle import FailureReason

pytestmark = pytest.mark.django_db

OPERATION = "00000000-0000-4000-8000-000000000001"
EXPIRED = FailureReason.CHECKPOINT_EXPIRED
# Kind, reason, facts, planned; then tone and text.
SAID: tuple[tuple[JobEventKind, str, dict[str, Any], bool, str, str], ...] = (
    (
        JobEventKind.CHECKPOINT_COMPLETED,
        "",
        {"checkpoint": 7},
        False,
        "good",
        "Checkpoint 7 completed",
    ),
    (
        JobEventKind.CHECKPOINT_EXPIRED,
        EXPIRED,
        {"checkpoint": 8},
        False,
        "bad",
        "Checkpoint 8 timed out",
    ),
    (
        JobEventKind.CHECKPOINT_ABORTED,
        FailureReason.JOB_FINISHED,
        {"checkpoint": 9, "kind": "savepoint"},
        True,
        "idle",
        "Savepoint 9 was aborted: the job finished",
    ),
    (
        JobEventKind.CHECKPOINT_FAILED,
        FailureReason.IO_EXCEPTION,
        {"checkpoint": 10, "cause": "disk full"},
        False,
        "bad",
        "Checkpoint 10 failed: reading or writing failed",
    ),
    (JobEventKind.ATTEMPT_BEGAN, "", {"attempt": 2, "driver": 3}, False, "busy", "Attempt 2 began"),
    (
        JobEventKind.ATTEMPT_ENDED,
        "failed",
        {"attempt": 2, "cause": "boom"},
        False,
        "bad",
        "Attempt 2 failed",
    ),
    (
        JobEventKind.ATTEMPT_ENDED,
        "canceled",
        {"attempt": 4},
        True,
        "idle",
        "Attempt 4 ended as requested",
    ),
    (
        JobEventKind.JOB_CHANGED,
        "running",
        {"before": "restarting"},
        False,
        "good",
        "Job is running, was restarting",
    ),
    (JobEventKind.JOB_CHANGED, "restarting", {}, True, "busy", "Job is restarting"),
    (
        JobEventKind.OPERATION_ENDED,
        "failed",
        {"operation": OPERATION, "kind": "rescale", "error": "no slots"},
        False,
        "bad",
        "Rescale: failed",
    ),
    (
        JobEventKind.DRIVER_LOST,
        "",
        {"driver": 5, "cause": "signal 9"},
        False,
        "bad",
        "Driver 5 was lost",
    ),
    (JobEventKind.DRIVER_LOST, "", {"driver": 6}, True, "idle", "Driver 6 was lost"),
)


@pytest.fixture
def viewer() -> Client:
    client = Client()
    client.force_login(factories.user(Role.VIEWER))
    return client


@pytest.mark.parametrize(
    ("kind", "reason", "facts", "planned", "tone", "text"), SAID, ids=lambda one: str(one)[:30]
)
def test_an_event_is_told_with_its_tone(
    viewer: Client,
    kind: JobEventKind,
    reason: str,
    facts: dict[str, Any],
    planned: bool,
    tone: str,
    text: str,
) -> None:
    factories.event(
        factories.job("flights"), kind=kind, reason=reason, facts=facts, planned=planned
    )
    (row,) = viewer.get("/activity/", {"kind": kind.value}).context["rows"]
    assert (row.tone, row.text, row.job_name) == (tone, text, "flights")
    assert row.about in (*map(str, facts.values()), "driver 3", "")


def test_every_kind_of_event_is_told() -> None:
    assert {kind for kind, *_ in SAID} == set(JobEventKind)


def test_completed_checkpoints_are_left_out_unless_they_are_asked_for(viewer: Client) -> None:
    job = factories.job()
    factories.event(job)
    factories.event(job, kind=JobEventKind.DRIVER_LOST, facts={"driver": 1})
    assert [row.text for row in viewer.get("/activity/").context["rows"]] == ["Driver 1 was lost"]
    asked = viewer.get("/activity/", {"kind": "checkpoint.completed"}).context["rows"]
    assert [row.text for row in asked] == ["Checkpoint 1 completed"]


def test_events_are_filtered_by_job_and_plan_and_paged_from_the_newest(viewer: Client) -> None:
    one, other = factories.job("one"), factories.job("other")
    now = clock.now()
    for number in range(60):
        at = now - timedelta(seconds=number)
        factories.event(one, kind=JobEventKind.DRIVER_LOST, at=at, facts={"driver": number})
    factories.event(other, kind=JobEventKind.DRIVER_LOST, planned=True, facts={"driver": 99})
    first = viewer.get("/activity/", {"job": one.pk}).context
    second = viewer.get(f"/activity/{first['page'].older}").context
    told = [row.text for row in (*first["rows"], *second["rows"])]
    assert told == [f"Driver {number} was lost" for number in range(60)]
    planned = viewer.get("/activity/", {"planned": "true"}).context["rows"]
    assert [row.job_name for row in planned] == ["other"]
    assert "No matching events" in viewer.get("/activity/", {"job": "none"}).content.decode()
    assert "planned" in viewer.get("/activity/", {"planned": "maybe"}).context["page"].errors


def test_the_page_costs_the_same_for_any_number_of_jobs(
    viewer: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    for number in range(20):
        factories.event(factories.job(), kind=JobEventKind.DRIVER_LOST, facts={"driver": number})
    with django_assert_num_queries(2 + 1):  # Session and user; the events with their jobs.
        assert len(viewer.get("/activity/").context["rows"]) == 20
