"""The page of slots: processes, load and subtasks of each, at a bounded cost."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from controlplane.base import clock
from jobs.models import Job, Subtask, Worker
from tests import factories
from tests.database.frontend import flights
from tests.database.frontend.reading import words
from weir.protocol.lifecycle import JobStatus

SESSION = 2  # Queries of the session and of the user.


@pytest.fixture
def job(db: None) -> Job:
    """Three slots have registered; the third has no worker process yet."""
    job = flights.running(parallelism=3)
    driver = job.drivers.get()
    driver.slots = {str(at): {"host": f"node-{at % 2}", "pid": 50 + at} for at in range(3)}
    driver.load = {"window_ms": 2_000.0, "ran_ms": 300.0, "waited_ms": 100.0, "stood_ms": 0.0}
    driver.save()
    for at, memory in ((0, 2_000_000), (1, 5_000_000)):
        factories.worker(job.attempts.get(), at, host="node", memory_bytes=memory)
    for index, busy, wait in ((0, 0.2, 0.01), (1, 0.1, 0.3)):
        rates = {"busy": busy, "cpu_wait": wait, "records_in_per_s": 40.0}
        job.subtasks.filter(index=index).update(rates=rates)
    return job


def data(client: Client, job: Job, **query: Any) -> Any:
    return client.get(reverse("slots-data", args=[job.pk]), query).json()


def test_a_slot_shows_its_process_its_load_and_its_subtasks(viewer: Client, job: Job) -> None:
    first, second, third = data(viewer, job)["slots"]
    assert (first["name"], first["host"], first["process"]) == ("Slot 0", "node-0", "process 100")
    assert (first["memory"], first["busy"], first["cpu_wait"]) == (
        "2.00 MB",
        "60\u00a0%",
        "1\u00a0%",
    )
    assert (first["records_in"], first["running"]) == ("120/s", "3 subtasks running")
    assert [chain["name"] for chain in first["chains"]] == ["flights-0", "hourly-0", "totals-0"]
    assert first["chains"][1]["url"] == reverse("operator-page", args=[job.pk, "hourly"])
    assert (first["starved"], second["starved"]) == ("", "too few processors")
    assert (third["process"], third["memory"], third["busy"]) == ("no worker process", "–", "–")


def test_the_summary_counts_slots_hosts_and_memory(viewer: Client, job: Job) -> None:
    assert [(one["value"], one["more"]) for one in data(viewer, job)["tiles"]] == [
        ("3", "of 3 that the job needs"),
        ("2", "node-0, node-1"),
        ("7.00 MB", "at most 5.00 MB, in slot 1"),
        ("25\u00a0%", "of the time in which its threads want to run"),
    ]


def limit(slot: int, size: int, source: str) -> None:
    known = Worker.objects.filter(slot_index=slot)
    known.update(memory_limit_bytes=size, memory_limit_source=source)


def test_a_slot_shows_its_limit_of_memory_and_where_that_comes_from(
    viewer: Client, job: Job
) -> None:
    limit(0, 4_000_000, "setting")
    first, second, third = data(viewer, job)["slots"]
    assert (first["memory"], first["limit"]) == ("2.00 MB", "of 4.00 MB (setting)")
    assert (first["memory_share"], first["has_share"], first["is_short"]) == (0.5, True, "")
    assert (second["limit"], second["has_share"]) == ("no limit", False)
    assert (third["limit"], third["has_share"]) == ("", False)
    limit(1, 8_000_000, "cgroup")
    assert data(viewer, job)["slots"][1]["limit"] == "of 8.00 MB (cgroup)"
    assert data(viewer, job)["memory_advice"] == ""


def test_slots_close_to_their_limit_are_told_with_advice(viewer: Client, job: Job) -> None:
    limit(0, 2_250_000, "setting")
    limit(1, 5_600_000, "setting")
    assert data(viewer, job)["memory_advice"] == ""  # Neither has more than nine tenths.
    limit(1, 5_555_000, "cgroup")
    shown = data(viewer, job)
    assert shown["memory_advice"].startswith("Slot 1 holds more than 90\u00a0% of the memory")
    assert [slot["is_short"] for slot in shown["slots"]] == ["", "nearly full", ""]
    limit(0, 2_000_000, "setting")
    assert data(viewer, job)["memory_advice"].startswith("Slots 0, 1 hold more than 90\u00a0%")
    page = viewer.get(reverse("job-slots", args=[job.pk]))
    assert "state.backend.type: rocksdb" in words(page)
    Job.objects.update(status=JobStatus.FINISHED, ended_at=clock.now())
    over = data(viewer, job)
    assert over["memory_advice"] == ""
    assert {slot["is_short"] for slot in over["slots"]} == {""}


def test_slots_are_sorted_and_those_without_a_value_come_last(viewer: Client, job: Job) -> None:
    orders = {
        sort: [slot["key"] for slot in data(viewer, job, sort=sort)["slots"]]
        for sort in ("", "busy", "wait", "memory")
    }
    assert orders == {
        "": ["0", "1", "2"],
        "busy": ["0", "1", "2"],
        "wait": ["1", "0", "2"],
        "memory": ["1", "0", "2"],
    }


def test_a_subtask_that_is_stuck_counts_in_its_slot(viewer: Client, job: Job) -> None:
    stall = {"since_ms": 0, "stalled_ms": 1_500.0, "stack": ""}
    job.subtasks.filter(chain="totals", index=1).update(stall=stall)
    job.subtasks.filter(chain="hourly", index=0).update(status="initializing")
    first, second, _ = data(viewer, job)["slots"]
    assert (first["stuck"], second["stuck"]) == ("", "1 subtask stuck")
    assert first["running"] == "2 of 3 subtasks running"


def test_the_pressure_on_a_host_has_a_column_once_workers_report_it(
    viewer: Client, job: Job
) -> None:
    assert not data(viewer, job)["has_pressure"]
    job.subtasks.filter(index=0).update(rates={"busy": 0.2, "cpu_pressure": 0.5})
    shown = data(viewer, job)
    assert shown["has_pressure"]
    assert [slot["cpu_pressure"] for slot in shown["slots"]] == ["50\u00a0%", "–", "–"]


def test_slots_of_a_job_that_is_over_have_no_load(viewer: Client, job: Job) -> None:
    Job.objects.update(status=JobStatus.FINISHED, ended_at=clock.now())
    shown = data(viewer, job)
    second = shown["slots"][1]
    assert (second["busy"], second["cpu_wait"], second["starved"]) == ("–", "–", "")
    assert (second["running"], second["memory"]) == ("3 subtasks", "5.00 MB")
    assert shown["tiles"][0]["more"] == "of the last attempt"
    assert shown["tiles"][3]["value"] == "–"


def test_slots_of_an_earlier_driver_are_not_shown(viewer: Client, job: Job) -> None:
    job.drivers.update(status="lost")
    factories.driver(job, 2)
    page = viewer.get(reverse("job-slots", args=[job.pk]))
    assert "No slot has registered yet." in words(page)
    assert data(viewer, job)["slots"] == []


def test_operators_alone_are_led_to_the_log(viewer: Client, operator: Client, job: Job) -> None:
    at = reverse("job-slots", args=[job.pk])
    log = f'href="{reverse("job-logs", args=[job.pk])}?driver=1"'
    assert log in operator.get(at).content.decode()
    assert log not in viewer.get(at).content.decode()


def test_many_slots_cost_as_many_queries_and_one_page(
    viewer: Client, db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    job, wide = factories.job(), 3_000
    factories.graph(job, wide)
    attempt = factories.attempt(factories.driver(job))
    fixed = {"attempt": attempt, "host": "node", "pid": 1, "started_at": attempt.started_at}
    Worker.objects.bulk_create(Worker(slot_index=at, **fixed) for at in range(wide))
    factories.subtasks(job, parallelism=wide, rates={"busy": 0.1})
    assert Subtask.objects.count() == 9_000
    for sort in ("slot", "busy"):
        with django_assert_num_queries(SESSION + 6):
            page = viewer.get(reverse("job-slots", args=[job.pk]), {"slot": "1234", "sort": sort})
        assert "Slot 1,234" in words(page)
        assert "Page 25 of 60" in words(page)
        assert len(page.content) < 200_000
        with django_assert_num_queries(SESSION + 6):
            assert len(data(viewer, job, sort=sort, page=61)["slots"]) == 50  # The last page.
