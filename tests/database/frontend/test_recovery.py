"""The page of a job's attempts."""

from datetime import datetime, timedelta
from typing import Any

import pytest
from django.test import Client

from controlplane.base import clock
from controlplane.base.formatting import iso
from frontend.attempts.rows import percent
from frontend.job import snapshot
from frontend.overview import listing
from jobs import services
from jobs.models import Attempt, Job
from tests import factories
from tests.database.frontend import rows_recovery
from tests.database.frontend.reading import words
from weir.protocol.lifecycle import JobStatus

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture
def job(db: None) -> Job:
    return factories.job()


def address(job: Job, more: str = "") -> str:
    return f"/jobs/{job.pk}/recovery/{more}"


def attempts(client: Client, job: Job, more: str = "") -> list[dict[str, Any]]:
    return client.get(address(job, f"data{more}")).json()["attempts"]


def test_every_role_that_may_look_sees_it(client: Client, viewer: Client, job: Job) -> None:
    for more in ("", "data", "figure"):
        assert client.get(address(job, more)).status_code == 302
    assert viewer.get(address(job)).status_code == 200
    assert viewer.get("/jobs/none/recovery/").status_code == 404
    assert viewer.get("/jobs/none/recovery/data").status_code == 404


def test_before_the_first_attempt_it_says_what_will_be_here(viewer: Client, job: Job) -> None:
    assert "No attempt yet" in words(viewer.get(address(job)))
    assert attempts(viewer, job) == []
    assert viewer.get(address(job, "figure")).status_code == 404


def test_each_attempt_says_what_it_replaced_and_how_it_ended(viewer: Client, job: Job) -> None:
    rows_recovery.eventful(job)
    for number in (3, 4, 6):
        factories.checkpoint(job, number)
    fourth, third, second, first = attempts(viewer, job)
    assert (fourth["end"]["text"], fourth["why"]) == (
        "Running",
        f"Took over as requested: {rows_recovery.ROLLED_BACK}.",
    )
    assert fourth["down"] == "5.00 s"
    assert fourth["driver_is_new"] == third["driver_is_new"] == "new driver"
    assert (third["down"], third["delay"], third["redeploy"]) == ("14.0 s", "11.0 s", "2.00 s")
    assert third["why"] == "Took over after attempt 2 failed."
    assert second["down"] == "3.00 s"
    assert (second["delay"], second["redeploy"], second["restore"]) == (
        "1.80 s",
        "800 ms",
        "400 ms",
    )
    assert second["replayed"] == "48,211"
    assert second["restored_bytes"] == "1.24 MB, 1.20 MB of it from local copies"
    assert second["restored_url"] == f"/jobs/{job.pk}/checkpoints/3/"
    assert second["driver_is_new"] == ""
    assert (first["down"], first["restored"], first["why"]) == (
        "–",
        "the beginning",
        "The first attempt.",
    )
    assert first["cause"].startswith("weir.errors.UserError: there is no column 'amuont'")
    assert first["has_more"]
    assert "Traceback" in first["text"]


def test_the_page_says_how_reliably_the_job_ran(viewer: Client, job: Job) -> None:
    rows_recovery.eventful(job)
    page = words(viewer.get(address(job)))
    assert "Availability 99.4 %" in page
    assert "Downtime 22.0 s 2 failures, 1 planned" in page
    assert "Time to recover 8.50 s median; the longest took 14.0 s" in page
    assert "Mean time between failures 29 min" in page


def test_the_page_knows_whether_there_was_a_takeover(viewer: Client, job: Job) -> None:
    first = factories.attempt(factories.driver(job))
    data = viewer.get(address(job, "data")).json()
    assert data["takeovers"] == "none"
    assert data["summary"][0]["at_text"]  # Of its "since", in the viewer's zone.
    factories.attempt(first.driver, 2)
    assert viewer.get(address(job, "data")).json()["takeovers"] == "shown"


def test_recoveries_beyond_the_target_are_marked(viewer: Client, job: Job) -> None:
    rows_recovery.eventful(job)
    assert [row["beyond"] for row in attempts(viewer, job)] == ["", "", "", ""]
    for target_s, marked in (
        (3, ["", "Recovered in 14.0 s, over the job's target of 3 s.", "", ""]),
        (14, ["", "", "", ""]),
        (
            0.5,
            [
                "",  # Rolled back on request.
                "Recovered in 14.0 s, over the job's target of 500 ms.",
                "Recovered in 3.00 s, over the job's target of 500 ms.",
                "",
            ],
        ),
    ):
        services.set_recovery_target(None, job.pk, target_s)
        assert [row["beyond"] for row in attempts(viewer, job)] == marked
        assert [one for one in marked if one] == [
            one for one in marked if one and one in words(viewer.get(address(job)))
        ]


def test_a_recovery_over_several_attempts_is_measured_as_a_whole(viewer: Client) -> None:
    job = factories.job(recovery_target_s=15)
    driver, now = factories.driver(job), clock.now()

    def at(seconds: float) -> datetime:
        return now + timedelta(seconds=seconds)

    failed = {"end": "failed", "cause": "OSError: full"}
    factories.attempt(driver, 1, started_at=at(-99), running_at=at(-98), ended_at=at(-50), **failed)
    factories.attempt(driver, 2, started_at=at(-49), running_at=None, ended_at=at(-40), **failed)
    factories.attempt(driver, 3, started_at=at(-39), running_at=at(-30))
    third, second, first = attempts(viewer, job)
    assert third["down"] == "10.0 s"
    assert third["beyond"] == "Recovered in 20.0 s, over the job's target of 15 s."
    assert (second["beyond"], first["beyond"]) == ("", "")


def test_the_page_says_the_target_and_operators_change_it(
    viewer: Client, operator: Client, job: Job
) -> None:
    rows_recovery.eventful(job)
    assert "The job has no recovery target" in words(viewer.get(address(job)))
    assert "recovery/target" not in viewer.get(address(job)).content.decode()
    assert f'href="{address(job, "target")}"' in operator.get(address(job)).content.decode()
    answer = operator.post(address(job, "target"), {"recovery_target_s": "2.5"}, follow=True)
    assert answer.redirect_chain == [(address(job), 302)]
    assert "The job's recovery target is 2.5 s." in words(answer)
    assert 'value="2.5"' in operator.get(address(job, "target")).content.decode()
    refused = operator.post(address(job, "target"), {"recovery_target_s": "0"})
    assert refused.status_code == 400
    assert "greater than or equal to 0.001" in words(refused)
    job.refresh_from_db()
    assert job.recovery_target_s == 2.5
    operator.post(address(job, "target"), {"recovery_target_s": ""})
    job.refresh_from_db()
    assert job.recovery_target_s is None


def test_every_page_agrees_on_when_the_job_was_up_down_and_over(
    viewer: Client, standing_clock: datetime
) -> None:
    """It ran for 10 minutes, was down for 6 s, ran for 1, was cancelled for 14, and runs for 5."""
    job = factories.job()

    def ago(minutes: float) -> datetime:
        return standing_clock - timedelta(minutes=minutes)

    first = factories.driver(job, 1, "ended", created_at=ago(31))
    second = factories.driver(job, 2, created_at=ago(5.1))
    ends = {"end": "failed", "cause": "OSError: full"}
    factories.attempt(
        first, 1, started_at=ago(30.2), running_at=ago(30.1), ended_at=ago(20.1), **ends
    )
    factories.attempt(
        first, 2, started_at=ago(20.05), running_at=ago(20), ended_at=ago(19), end="canceled"
    )
    Job.objects.filter(pk=job.pk).update(started_at=ago(30.1))
    factories.checkpoint(job, 1, triggered_at=ago(29))

    # It is being resumed: nothing runs, and that is no downtime either.
    Job.objects.filter(pk=job.pk).update(status=JobStatus.RESTARTING, is_planned=True)
    page = words(viewer.get(address(job)))
    assert "Downtime 6.00 s 1 failure" in page
    assert "up for 11 min 00 s in 2 attempts" in page
    shapes = viewer.get(f"/jobs/{job.pk}/figures/history").json()["layout"]["shapes"]
    assert [(shape["x0"], shape["x1"]) for shape in shapes] == [(iso(ago(20.1)), iso(ago(20)))]
    shown = snapshot.snapshot(job.pk)
    assert shown is not None
    assert (shown["uptime"]["since"], shown["uptime"]["text_ago"]) == (None, "11 min 00 s")

    Job.objects.filter(pk=job.pk).update(status=JobStatus.RUNNING)
    factories.attempt(second, 3, started_at=ago(5.05), running_at=ago(5))
    page = words(viewer.get(address(job)))
    assert "Availability 99.4 %" in page  # Of 16 minutes and 6 seconds.
    assert "up for 16 min 00 s in 3 attempts" in page
    figure = viewer.get(f"/jobs/{job.pk}/figures/history").json()
    assert figure["layout"]["shapes"] == shapes
    assert {trace["name"] for trace in figure["data"]} >= {"Recovery"}
    shown = snapshot.snapshot(job.pk)
    assert shown is not None
    assert (shown["uptime"]["since"], shown["uptime"]["text_ago"]) == (iso(ago(16)), "16 min 00 s")
    (row,) = listing.job_list(listing.page())["jobs"]
    assert (row["uptime"]["text"], row["recoveries"]) == ("16 min 00 s", "1 recovery")
    details = viewer.get(f"/jobs/{job.pk}/details").json()
    assert [
        (one["number"], one["kind"]["text"], one["downtime"], one["cause"])
        for one in details["recoveries"]
    ] == [
        ("3", "Resumed", "The job was over, not down", "Resumed the job after it was over."),
        ("2", "Recovery", "Down for 6.00 s", "OSError: full"),
    ]


def test_a_planned_restart_is_no_recovery(viewer: Client, job: Job) -> None:
    rows_recovery.eventful(job)
    details = viewer.get(f"/jobs/{job.pk}/details").json()
    planned, *others = details["recoveries"]
    assert (planned["kind"]["text"], planned["kind"]["tone"]) == ("Planned", "idle")
    assert planned["cause"] == f"Took over as requested: {rows_recovery.ROLLED_BACK}."
    assert [one["kind"]["text"] for one in others] == ["Recovery", "Recovery"]


@pytest.mark.parametrize(
    ("share", "text"),
    [
        (1.0, "100 %"),
        (0.994, "99.4 %"),
        (0.9998, "99.98 %"),
        (0.999_999, "99.9999 %"),
        (1 - 1e-9, ">99.9999 %"),
    ],
)
def test_availability_is_never_rounded_up_to_all(share: float, text: str) -> None:
    assert percent(share) == text


def test_a_fork_links_to_the_checkpoint_of_its_origin(viewer: Client, job: Job) -> None:
    fork = factories.job("fork", origin=job, origin_uri="/s/chk-7")
    factories.attempt(factories.driver(fork), restored_checkpoint=7)
    (only,) = attempts(viewer, fork)
    assert only["restored_url"] == f"/jobs/{job.pk}/checkpoints/7/"
    assert only["restored_of"] == f"of {job.pk}"


def test_a_restored_checkpoint_of_which_nothing_is_known_is_no_link(
    viewer: Client, job: Job
) -> None:
    factories.attempt(factories.driver(job), restored_checkpoint=7)
    assert attempts(viewer, job)[0]["restored_url"] == ""


def test_causes_are_text(viewer: Client, job: Job) -> None:
    factories.attempt(factories.driver(job), ended_at=clock.now(), end="failed", cause=SCRIPT)
    assert SCRIPT not in viewer.get(address(job)).content.decode()
    assert SCRIPT in words(viewer.get(address(job)))


def test_many_attempts_come_page_by_page(viewer: Client, job: Job) -> None:
    rows_recovery.many(job, 60)
    assert [row["number"] for row in attempts(viewer, job)[:2]] == ["60", "59"]
    assert [len(attempts(viewer, job, f"?page={page}")) for page in (1, 2, 3)] == [25, 25, 10]
    oldest = attempts(viewer, job, "?page=3")[-1]
    assert (oldest["number"], oldest["why"]) == ("1", "The first attempt.")
    # The oldest of a page is held against the one before it, on the next page.
    assert attempts(viewer, job, "?page=1")[-1]["down"] == "1.40 s"
    for beyond in ("?page=9", "?page=x", "?page=0", f"?page={'9' * 30}"):
        assert attempts(viewer, job, beyond)
    page = viewer.get(address(job, "?attempt=12"))
    assert "Page 2 of 3" in words(page)
    assert 'id="attempt-12" data-is-wanted' in page.content.decode()


def test_the_figure_shows_the_attempts_of_its_page(viewer: Client, job: Job) -> None:
    rows_recovery.many(job, 60)
    figure = viewer.get(address(job, "figure?page=2")).json()
    (redeploy,) = [trace for trace in figure["data"] if trace["name"] == "Redeploy"]
    assert (redeploy["x"][0], redeploy["x"][-1]) == ("11", "35")


def test_what_has_not_changed_is_not_sent_again(viewer: Client, job: Job) -> None:
    rows_recovery.eventful(job)
    for more in ("data", "figure", "data?page=1"):
        etag = viewer.get(address(job, more))["ETag"]
        again = viewer.get(address(job, more), headers={"If-None-Match": etag})
        assert again.status_code == 304
        Attempt.objects.filter(number=4).update(replayed_records=7)
        assert viewer.get(address(job, more), headers={"If-None-Match": etag}).status_code == 200
        Attempt.objects.filter(number=4).update(replayed_records=None)
        services.set_recovery_target(None, job.pk, 5)
        assert viewer.get(address(job, more), headers={"If-None-Match": etag}).status_code == 200
        services.set_recovery_target(None, job.pk, None)
    Job.objects.update(status=JobStatus.FAILING)
    assert viewer.get(address(job, "data"), headers={"If-None-Match": etag}).status_code == 200


def test_queries_do_not_grow_with_the_attempts(
    viewer: Client, job: Job, django_assert_max_num_queries: Any
) -> None:
    rows_recovery.many(job, 60)
    services.set_recovery_target(None, job.pk, 1)
    counts = []
    for page in ("", "?page=3"):
        with django_assert_max_num_queries(9) as captured:
            viewer.get(address(job, page))
        counts.append(len(captured))
    assert counts[0] == counts[1]


def test_an_exception_leads_to_its_attempt(viewer: Client, job: Job) -> None:
    rows_recovery.many(job, 30)
    factories.exception(job, attempt_number=3)
    factories.exception(job, "a driver was lost", "driver", driver_number=1)
    of_driver, of_attempt = viewer.get(f"/jobs/{job.pk}/details").json()["exceptions"]
    assert of_driver["attempt_url"] == ""
    page, _, anchor = of_attempt["attempt_url"].partition("#")
    assert f'id="{anchor}" data-is-wanted' in viewer.get(page).content.decode()
