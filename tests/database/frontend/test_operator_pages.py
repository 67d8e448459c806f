"""The page of an operator: its figures, its subtasks and its neighbours, at a bounded cost."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from pytest_django import DjangoAssertNumQueries

from controlplane.base import clock
from jobs.models import ChainSample, Job, Operator, Subtask
from tests import factories
from tests.database.frontend import flights, rows_operator
from tests.database.frontend.reading import words
from weir.protocol.elements import MAX_WATERMARK_MS
from weir.protocol.lifecycle import JobStatus

SESSION = 2  # Queries of the session and of the user.
RATES = {
    "window_ms": 2_000.0,
    "records_in_per_s": 120.0,
    "records_out_per_s": 30.0,
    "busy": 0.25,
    "idle": 0.7,
    "back_pressured": 0.05,
}


@pytest.fixture
def job(db: None) -> Job:
    return flights.running()


def address(job: Job, uid: str = "totals", name: str = "operator-page") -> str:
    return reverse(name, args=[job.pk, uid])


def data(client: Client, job: Job, uid: str = "totals", **query: Any) -> Any:
    return client.get(address(job, uid, "operator-data"), query).json()


def tiles(
    client: Client, job: Job, uid: str = "totals", **query: Any
) -> dict[str, tuple[str, str]]:
    return {
        one["name"]: (one["value"].replace("\u00a0", " "), one["more"].replace("\u00a0", " "))
        for one in data(client, job, uid, **query)["tiles"]
    }


def test_the_newest_figures_are_those_of_the_last_seconds(viewer: Client, job: Job) -> None:
    now = clock.now()
    for ago_s, records in ((15, 0.0), (5, 1_000.0)):
        at = now - timedelta(seconds=ago_s)
        counters = {
            "records_in": records,
            "busy_ms": 5 * records,
            "watermark_ms": clock.to_ms(at) - 1_500,
        }
        fixed = {"idle_ms": 15 * records, "back_pressured_ms": 0, "is_first_of_minute": ago_s == 15}
        factories.chain_sample(job, at=at, **counters, **fixed)
    shown = tiles(viewer, job)
    assert tiles(viewer, job, window="24h") == shown  # In which each point is a minute.
    assert shown == {
        "Records in": ("100/s", "out 0/s"),
        "Busy": ("25 %", "busiest subtask 40 %, back-pressured 0 %"),
        "Event-time lag": ("1.50 s", "behind the clock"),
        "State": ("80.0 kB", "in 2 subtasks"),
    }
    assert tiles(viewer, job, "totals-sink")["State"] == ("–", "in 2 subtasks")  # Has none.
    old = now - timedelta(minutes=2)
    ChainSample.objects.order_by("at").last().delete()  # type: ignore[union-attr]
    ChainSample.objects.update(at=old)
    assert tiles(viewer, job)["Busy"][0] == "–"  # Nothing is reported now.
    assert tiles(viewer, job)["State"][0] == "80.0 kB"


def test_a_subtask_shows_its_load_its_place_and_its_state(viewer: Client, job: Job) -> None:
    now = clock.now()
    metrics = {"watermark_ms": clock.to_ms(now) - 90 * 60_000, "bad_records": 3}
    job.subtasks.filter(chain="totals", index=1).update(metrics=metrics, rates=RATES)
    factories.worker(job.attempts.get(), 1, host="node-7")
    taken = factories.checkpoint(job, 1)
    factories.acknowledge(taken, "totals", 1, chain="totals", state_bytes=4_000)
    factories.acknowledge(taken, "totals-sink", 1, chain="totals", state_bytes=70)
    shown = data(viewer, job)
    quiet, busy = shown["subtasks"]
    assert (quiet["records_in"], quiet["busy"], quiet["lag"], quiet["state"]) == ("–",) * 4
    assert (busy["name"], busy["slot"], busy["host"]) == ("totals-1", "slot 1", "node-7")
    assert (busy["records_in"], busy["records_out"]) == ("120/s", "30/s")
    assert (busy["busy"], busy["busy_share"]) == ("25\u00a0%", 0.25)
    assert busy["lag"] == "1 h 30 min"
    assert (busy["state"], busy["bad"]) == ("4.00 kB", "3")
    assert data(viewer, job, "totals-sink")["subtasks"][1]["state"] == "70 B"
    assert "totals-1" in words(viewer.get(address(job)))


def test_a_subtask_that_is_stuck_says_so_until_the_job_is_over(viewer: Client, job: Job) -> None:
    since_ms = clock.to_ms(clock.now()) - 3 * 3_600_000
    stall = {"since_ms": since_ms, "stalled_ms": 5_000.0, "stack": "f()"}
    metrics = {"watermark_ms": MAX_WATERMARK_MS}
    job.subtasks.filter(chain="totals", index=0).update(stall=stall, metrics=metrics, rates=RATES)
    first = data(viewer, job)["subtasks"][0]
    assert (first["stuck"], first["stack"]) == ("in one call for 3 h 00 min", "f()")
    assert first["lag"] == "at the end"
    Job.objects.update(status=JobStatus.FAILED, ended_at=clock.now())
    first = data(viewer, job)["subtasks"][0]
    assert (first["stuck"], first["stack"], first["records_in"]) == ("", "", "–")


def test_subtasks_are_sorted_and_those_without_a_value_come_last(viewer: Client, db: None) -> None:
    job = flights.running(parallelism=4)
    for index, (busy, held, watermark) in {1: (0.9, 0.0, 300), 2: (0.2, 0.5, 100)}.items():
        rates = RATES | {"busy": busy, "back_pressured": held}
        metrics = {"watermark_ms": watermark}
        job.subtasks.filter(chain="totals", index=index).update(rates=rates, metrics=metrics)
    orders = {
        sort: [row["key"] for row in data(viewer, job, sort=sort)["subtasks"]]
        for sort in ("", "busy", "pressed", "lag")
    }
    assert orders == {
        "": ["0", "1", "2", "3"],
        "busy": ["1", "2", "0", "3"],
        "pressed": ["2", "1", "0", "3"],
        "lag": ["2", "1", "0", "3"],
    }


def test_an_operator_leads_to_those_around_it(viewer: Client, job: Job) -> None:
    page = viewer.get(address(job, "mean-delay"))
    assert "Chain hourly → mean-delay → hourly-sink → late-sink" in words(page)
    assert "Reads from hourly (forward) Sends to hourly-sink (forward)" in words(page)
    assert "those of the whole chain" in words(page)
    assert "those of the whole chain" not in words(viewer.get(address(job, "hourly")))
    assert address(job, "hourly-sink") in page.content.decode()


def test_the_page_of_the_job_leads_to_each_operator(viewer: Client, job: Job) -> None:
    page = viewer.get(reverse("job-page", args=[job.pk])).content.decode()
    picture, _, listed = page.partition('class="operators"')
    for uid, *_ in factories.FLIGHTS:
        assert f'href="{address(job, uid)}"' in picture
    for chain in factories.CHAINS:
        assert f'href="{address(job, chain)}"' in listed


@pytest.mark.parametrize("uid", ["a/b", "a/data", "100 %", "ä?#\n&<b>", ""])
def test_any_uid_has_a_page(viewer: Client, uid: str, db: None) -> None:
    job = factories.job()
    factories.graph(job, operators=[(uid, "Map", uid, True, False, False)], edges=[])
    factories.subtasks(job, chains=[uid])
    assert data(viewer, job, uid)["subtasks"][1]["name"] == f"{uid}-1"
    assert viewer.get(address(job, uid)).status_code == 200
    assert viewer.get(reverse("job-page", args=[job.pk])).status_code == 200


def test_there_is_no_page_of_an_operator_that_the_job_has_not(viewer: Client, job: Job) -> None:
    for name in ("operator-page", "operator-data", "operator-figure"):
        assert viewer.get(address(job, "unheard", name)).status_code == 404
    assert viewer.get(f"/jobs/{job.pk}/operators/a%00b/").status_code == 404


def test_the_charts_cover_the_window_and_change_with_the_newest_sample(
    viewer: Client, job: Job, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    rows_operator.series(job, timedelta(hours=3), chains=("totals",))
    at = address(job, name="operator-figure")

    def spanned_min(window: str) -> int:
        answer = viewer.get(at, {"window": window}).json()
        times = next(trace["x"] for trace in answer["data"] if trace["name"] == "State")
        first, last = (datetime.fromisoformat(time) for time in (times[0], times[-1]))
        return round((last - first) / timedelta(minutes=1))

    assert [spanned_min(w) for w in ("15m", "1h", "6h", "24h", "odd")] == [15, 60, 180, 180, 60]
    etag = viewer.get(at)["ETag"]
    with django_assert_num_queries(SESSION + 1):
        assert viewer.get(at, headers={"If-None-Match": etag}).status_code == 304
    factories.chain_sample(job)
    assert viewer.get(at, headers={"If-None-Match": etag}).status_code == 200


def test_a_wide_operator_of_a_wide_job_costs_as_many_queries_and_one_page(
    viewer: Client, db: None, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    job, wide = factories.job(), 3_000
    factories.graph(job, wide)
    factories.attempt(factories.driver(job))
    factories.subtasks(job, parallelism=wide, metrics={"watermark_ms": 1}, rates=RATES)
    assert Subtask.objects.count() == 9_000
    taken = factories.checkpoint(job, 1, subtask_count=wide)
    factories.acknowledge_all(taken, [factories.ack(taken, "totals", n) for n in range(wide)])
    rows_operator.series(job, timedelta(hours=1), chains=("totals",))
    with django_assert_num_queries(SESSION + 10):
        page = viewer.get(address(job), {"sort": "busy", "page": "60"})
    assert "totals-2950" in words(page)
    assert len(page.content) < 200_000
    with django_assert_num_queries(SESSION + 9):
        assert len(data(viewer, job, page=61)["subtasks"]) == 50  # The last page.
    with django_assert_num_queries(SESSION + 4):
        viewer.get(address(job, name="operator-figure"))
    assert Operator.objects.count() == len(factories.FLIGHTS)
