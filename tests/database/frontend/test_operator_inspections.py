"""Inspections on the operator page: who is offered them, what is asked, and what is shown."""

from collections.abc import Iterator
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role, User
from controlplane.base import clock
from jobs.inspections import store
from jobs.models import Job, OutboxCommand
from tests import factories
from tests.database.frontend import flights, rows_operator
from weir.ids import AttemptNumber
from weir.protocol.inspection import Inspected
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db


@pytest.fixture
def olga(db: None) -> User:
    return factories.user(Role.OPERATOR, "olga")


@pytest.fixture
def job(db: None) -> Job:
    job = flights.running()
    job.subtasks.update(status="running")
    return job


@pytest.fixture(autouse=True)
def no_cache() -> Iterator[None]:
    yield
    cache.clear()


def page(client: Client, job: Job, uid: str = "hourly") -> str:
    response = client.get(f"/jobs/{job.pk}/operators/{uid}/")
    assert response.status_code == 200
    return response.content.decode()


def ask(client: Client, job: Job, kind: str, uid: str = "hourly", **form: str) -> Any:
    return client.post(f"/jobs/{job.pk}/operators/{uid}/{kind}", form)


def asked(job: Job) -> list[dict[str, Any]]:
    return [row.message for row in OutboxCommand.objects.filter(job=job).order_by("pk")]


def answer(job: Job, **shown: Any) -> None:
    """The driver answers the last request."""
    last = asked(job)[-1]
    one = Inspected(AttemptNumber(1), last["request_id"], last["index"], **shown)
    store.answer(job.pk, [one])


def test_a_viewer_is_offered_stacks_and_an_operator_records_too(
    client: Client, job: Job, olga: User
) -> None:
    client.force_login(factories.user(Role.VIEWER))
    viewed = page(client, job)
    assert "Show where the time goes" in viewed
    assert "Show records" not in viewed
    assert ask(client, job, "records").status_code == 403
    client.force_login(olga)
    assert "Show records" in page(client, job)


def test_where_nothing_can_be_shown_the_page_says_why(
    client: Client, job: Job, olga: User, settings: Settings
) -> None:
    client.force_login(olga)
    assert "hourly-sink is a sink" in page(client, job, "hourly-sink")
    settings.WEIR_TAP = False
    assert "taps are switched off" in page(client, job)
    settings.WEIR_TAP = True
    Job.objects.filter(pk=job.pk).update(settings={"allow_tap": False})
    assert "this job forbids" in page(client, job)
    Job.objects.filter(pk=job.pk).update(status=JobStatus.FAILED, ended_at=clock.now())
    over = page(client, job)
    assert "The job is over (failed)" in over
    assert "Show where the time goes" not in over


def test_stacks_are_shown_as_a_sentence_a_picture_and_a_table(client: Client, job: Job) -> None:
    client.force_login(factories.user(Role.VIEWER))
    response = ask(client, job, "stacks", subtask="1")
    assert response.status_code == 202
    assert [(command["kind"], command["index"]) for command in asked(job)] == [("stacks", 1)]
    urls = response.json()
    assert client.get(urls["url"]).json() == {"is_over": False, "notes": []}
    answer(job, stacks=rows_operator.stacks())
    shown = client.get(urls["url"]).json()
    assert shown["is_over"]
    assert shown["summary"].startswith(
        "1,180 samples of the last 59 seconds: 29\u00a0% at work, 60"
    )
    assert shown["calls"][0] == {
        "function": "loads",
        "place": "json/__init__.py:346",
        "operator": "mean-delay",
        "own": "43\u00a0%",
        "total": "43\u00a0%",
    }
    (trace,) = client.get(urls["figure"]).json()["data"]
    assert "mean_delay  jobs/flights.py:58" in trace["text"]


def test_records_are_shown_as_a_table_with_their_event_time(
    client: Client, job: Job, olga: User
) -> None:
    client.force_login(olga)
    url = ask(client, job, "records", subtask="0").json()["url"]
    answer(job, records=rows_operator.records())
    shown = client.get(url).json()
    (table,) = shown["tables"]
    assert table["caption"] == "hourly-0: 2 records; what is too long, or too many, was cut"
    assert table["columns"] == ["Event time", "origin", "window_start", "n", "mean_delay"]
    assert table["rows"][1][1] == "LGA & <b>Newark</b>"
    client.force_login(factories.user(Role.ADMIN))
    assert client.get(url).status_code == 404


def test_the_reason_for_no_record_is_shown_with_the_subtask(
    client: Client, job: Job, olga: User
) -> None:
    client.force_login(olga)
    url = ask(client, job, "records", subtask="0").json()["url"]
    answer(job, cause="no record passed within 3 seconds")
    assert client.get(url).json() == {
        "is_over": True,
        "notes": ["hourly-0: no record passed within 3 seconds."],
        "tables": [],
    }


def test_a_refusal_is_a_sentence(client: Client, job: Job, olga: User) -> None:
    client.force_login(olga)
    refused = ask(client, job, "stacks", subtask="2")
    assert (refused.status_code, refused.json()["detail"]) == (
        400,
        "There is no such subtask: hourly has 2, counted from 0.",
    )
    assert ask(client, job, "stacks", subtask="-1").status_code == 400
    Job.objects.filter(pk=job.pk).update(status=JobStatus.RESTARTING)
    refused = ask(client, job, "stacks")
    assert refused.status_code == 409
    assert refused.json()["detail"].startswith("The job is restarting; ")
    assert asked(job) == []
