from datetime import timedelta

import pytest
from django.db import connection
from django.http import QueryDict
from django.test import Client
from django.test.utils import CaptureQueriesContext

from checkpoints.catalog.undeleted import TRIES_MIN
from controlplane.base import clock
from frontend.models import SavedFilter
from frontend.overview import listing, saved
from frontend.overview.filters import Wanted
from jobs.models import Attempt, Driver, Job, Subtask
from tests import factories
from tests.database.frontend import flights
from weir.protocol.elements import MAX_WATERMARK_MS, MIN_WATERMARK_MS
from weir.protocol.lifecycle import CheckpointStatus, JobStatus

pytestmark = pytest.mark.django_db
# Jobs and their number, the newest completed checkpoints, failures, those that settled last, the
# load of subtasks and their operators, how many jobs are in each group and need attention.
QUERIES = 9


def shown(**query: str) -> list[str]:
    """The names of the jobs that an address shows, in order."""
    wanted = Wanted.read(query)
    return [row["name"] for row in listing.job_list(listing.page(wanted), wanted)["jobs"]]


def test_no_jobs_are_an_empty_list() -> None:
    listed = listing.job_list(listing.page())
    assert (listed["jobs"], listed["now"], listed["shown"]) == ([], None, "0 jobs")
    assert listed["is_empty"]
    assert {group["count"] for group in listed["groups"]} == {"0"}


def test_what_needs_attention_comes_first() -> None:
    now = clock.now()
    factories.job("done", status=JobStatus.FINISHED, created_at=now)
    well = flights.running("well", interval_ms=60_000, created_at=now - timedelta(minutes=1))
    factories.checkpoint(well, 1)
    flights.running("overdue", created_at=now - timedelta(hours=6))
    declining = flights.running(
        "declining", interval_ms=60_000, created_at=now - timedelta(hours=3)
    )
    factories.checkpoint(declining, 1)
    factories.checkpoint(declining, 2, status=CheckpointStatus.FAILED)
    silent = flights.running("silent", created_at=now - timedelta(hours=4))
    Driver.objects.filter(job=silent).update(heard_at=now - timedelta(minutes=20))
    factories.job(
        "broken", status=JobStatus.FAILED, cause="no disk", created_at=now - timedelta(hours=5)
    )
    factories.job(
        "long-gone", status=JobStatus.FAILED, created_at=now - timedelta(days=9),
        ended_at=now - timedelta(days=8),
    )  # fmt: skip
    listed = listing.job_list(listing.page())["jobs"]
    assert [row["name"] for row in listed] == [
        "silent", "broken", "declining", "overdue", "well", "done", "long-gone",
    ]  # fmt: skip
    said = {row["name"]: [item["text"] for item in row["attention"]] for row in listed}
    assert said["broken"] == ["The job failed: no disk"]
    assert said["declining"] == [
        "The last checkpoint failed: timed out before all subtasks acknowledged."
    ]
    assert said["well"] == said["done"] == []


def test_a_row_tells_the_last_completed_checkpoint_and_the_failures() -> None:
    job = flights.running(interval_ms=3_600_000)
    now, driver = clock.now(), job.drivers.get()

    def ran(minutes: float, end: str) -> dict[str, object]:
        return {"running_at": now - timedelta(minutes=minutes), "ended_at": now, "end": end}

    Attempt.objects.filter(job=job).update(**ran(60, "failed"))
    factories.attempt(driver, 2, **ran(30, "canceled"))
    factories.attempt(driver, 3, running_at=None, ended_at=now, end="failed")
    factories.attempt(driver, 4, running_at=now - timedelta(minutes=5))
    settled_at = now - timedelta(hours=3)
    factories.checkpoint(job, 1, settled_at=settled_at, duration_ms=240, state_bytes=1_300_000)
    factories.checkpoint(job, 2, status=CheckpointStatus.FAILED)
    for number in (3, 4, 5):
        factories.checkpoint(job, number, status=CheckpointStatus.ABORTED)
    (row,) = listing.job_list(listing.page())["jobs"]
    assert row["attempt"] == "4"
    assert row["completed"]["detail"] == "240 ms, 1.30 MB"
    assert row["completed"]["ago"] == "3 h 00 min ago"
    assert (row["recoveries"], row["failed"]) == (
        "1 recovery",
        "1 failed checkpoint in the last hour",
    )
    assert [one["text"] for one in row["attention"]] == [
        "The last checkpoint failed: timed out before all subtasks acknowledged."
    ]
    assert row["url"] == f"/jobs/{job.pk}/"
    assert row["uptime"]["text"] == "1 h 35 min"  # Without the time between attempts.


def test_pages_are_bounded_and_the_number_of_queries_is_fixed() -> None:
    asked = []
    for more in (2, 58):
        for number in range(more):
            at = clock.now() - timedelta(minutes=number)
            job = factories.job(f"job-{more}-{number}", created_at=at)
            factories.checkpoint(job, 1)
            factories.subtasks(job)
        Subtask.objects.update(rates={"back_pressured": 0.2})
        with CaptureQueriesContext(connection) as queries:
            listed = listing.job_list(listing.page())
        asked.append(len(queries))
    assert len(listed["jobs"]) == 50
    assert listed["shown"] == "60 jobs"
    assert asked == [QUERIES, QUERIES]
    assert len(listing.job_list(listing.page(Wanted(page="2")))["jobs"]) == 10
    assert listing.page(Wanted(page="nonsense")).number == 1
    assert listing.page(Wanted(page="99")).number == 2


def every_state() -> None:
    """One job in each state, and each thing that attention can say of one that runs."""
    now = clock.now()
    for status in JobStatus:
        job = factories.job(f"is-{status}", status=status)
        if status not in (JobStatus.RUNNING, JobStatus.CREATED):
            factories.driver(job)
    gone = now - timedelta(days=8)
    factories.job("failed-long-ago", status=JobStatus.FAILED, ended_at=gone)
    waiting = factories.job("waiting-for-a-launcher", status=JobStatus.CREATED)
    factories.driver(waiting, status="requested", created_at=now - timedelta(minutes=20))
    for name in (
        *("well", "overdue", "no-periodic-ones", "slow", "silent", "declined", "long-ones"),
        *("undeleted", "deleted-late"),
    ):
        job = flights.running(name, interval_ms=None if name == "no-periodic-ones" else 60_000)
        settled = {"overdue": 60, "slow": 20, "long-ones": 20}.get(name, 1)
        factories.checkpoint(
            job,
            1,
            triggered_at=now - timedelta(minutes=settled + 9),
            settled_at=now - timedelta(minutes=settled),
            duration_ms=540_000 if name == "long-ones" else 300,
        )
    Driver.objects.filter(job__name="silent").update(heard_at=now - timedelta(minutes=20))
    factories.checkpoint(Job.objects.get(name="declined"), 2, status=CheckpointStatus.FAILED)
    for name in ("well", "declined"):
        factories.checkpoint(Job.objects.get(name=name), 3, status=CheckpointStatus.ABORTED)
    for name, tries in (("undeleted", TRIES_MIN), ("deleted-late", TRIES_MIN - 1)):
        of = Job.objects.get(name=name)
        factories.undeleted_checkpoint(of, 4, tries=tries)
        factories.undeleted_checkpoint(of, 5, tries=tries)
    factories.job("restarted", status=JobStatus.RESTARTING, is_planned=True)
    # It has come back a moment ago: what completed before that does not count against it.
    back = flights.running("just-back", interval_ms=60_000)
    factories.checkpoint(back, 1, triggered_at=gone, settled_at=gone)
    Attempt.objects.filter(job=back).update(running_at=now)
    asked = factories.job("asked-just-now", status=JobStatus.CREATED)
    factories.driver(asked, status="requested", created_at=clock.now())


@pytest.mark.usefixtures("standing_clock")
def test_the_database_finds_what_attention_speaks_of() -> None:
    """Both decide who needs attention: one for the order and the count, one for the words."""
    every_state()
    wanted = Wanted()
    said = {
        row["name"]
        for row in listing.job_list(listing.page(wanted), wanted)["jobs"]
        if row["attention"] and row["name"] != "failed-long-ago"
    }
    assert set(shown(state="attention")) == said
    assert said == {
        "is-failed", "is-failing", "is-restarting", "waiting-for-a-launcher", "overdue", "slow",
        "silent", "declined", "undeleted",
    }  # fmt: skip


@pytest.mark.usefixtures("standing_clock")
def test_groups_and_search_narrow_the_list_and_are_counted() -> None:
    every_state()
    everything = listing.job_list(listing.page())
    counted = {group["name"]: int(group["count"]) for group in everything["groups"]}
    assert counted["all"] == len(everything["jobs"]) == sum(counted.values()) - counted["all"] - 9
    for name, count in counted.items():
        assert len(shown(state=name)) == count
    assert set(shown(state="failed")) == {"is-failed", "failed-long-ago"}
    assert shown(q="LONG-ONES") == ["long-ones"]
    assert shown(q=Job.objects.get(name="slow").pk) == ["slow"]
    assert shown(q="long", state="failed") == ["failed-long-ago"]
    assert shown(q="100%_") == []
    wanted = Wanted.read({"q": "long", "state": "failed"})
    listed = listing.job_list(listing.page(wanted), wanted)
    assert listed["shown"] == "1 job with “long” in name or id"
    by_name = {group["name"]: group for group in listed["groups"]}
    assert (by_name["all"]["count"], by_name["failed"]["current"]) == ("2", "page")
    assert by_name["running"]["url"] == "/jobs/?state=running&q=long"


def test_a_row_draws_the_recent_checkpoints() -> None:
    job = flights.running()
    factories.checkpoint(job, 1, duration_ms=500)
    factories.checkpoint(job, 2, status=CheckpointStatus.FAILED)
    factories.checkpoint(job, 3, duration_ms=250)
    factories.checkpoint(job, 4, status=CheckpointStatus.ABORTED, reason="job_rescaled")
    factories.checkpoint(job, 5, status=CheckpointStatus.PENDING)
    flights.running("other")
    spark = {row["name"]: row["spark"] for row in listing.job_list(listing.page())["jobs"]}
    assert spark["flights"]["text"] == (
        "Durations of the last 4 checkpoints: 250 ms to 500 ms; 1 failed (timed out before all "
        "subtasks acknowledged); 1 aborted (the job was rescaled); the newest was aborted."
    )
    assert spark["flights"]["bars"].count("M") == 2
    assert spark["flights"]["aborted"].count("M") == 1
    assert spark["other"] == {
        "bars": "",
        "failed": "",
        "aborted": "",
        "text": "No checkpoint has completed or failed yet.",
    }


def pressure(job: Job) -> dict[str, str]:
    """The back pressure in the row of a job."""
    return next(row for row in listing.job_list(listing.page())["jobs"] if row["id"] == job.pk)[
        "pressure"
    ]


def test_a_row_names_the_most_back_pressured_operator() -> None:
    job = flights.running()
    assert (pressure(job)["text"], pressure(job)["operator"]) == ("–", "")
    Subtask.objects.update(rates={"back_pressured": 0.004, "busy": 0.9})
    assert (pressure(job)["text"], pressure(job)["tone"]) == ("none", "good")
    Subtask.objects.filter(chain="flights", index=1).update(rates={"back_pressured": 0.31})
    assert (pressure(job)["text"], pressure(job)["tone"]) == ("31 %", "warn")
    Subtask.objects.filter(chain="hourly", index=0).update(rates={"back_pressured": 0.734})
    most = pressure(job)
    assert (most["text"], most["operator"], most["tone"]) == ("73 %", "Window Aggregate", "bad")
    assert "waited 73 % of the time for subtasks downstream" in most["title"]


def load(job: Job) -> dict[str, str]:
    """The throughput in the row of a job, and how far its event time is behind."""
    return next(row for row in listing.job_list(listing.page())["jobs"] if row["id"] == job.pk)[
        "load"
    ]


def test_a_row_tells_what_the_sources_emit_and_how_far_event_time_is_behind() -> None:
    job = flights.running()
    assert (load(job)["text"], load(job)["lag"], load(job)["state"]) == ("–", "", "none")
    Subtask.objects.update(rates={"records_in_per_s": 900.0})  # Other chains' are no throughput.
    Subtask.objects.filter(chain="flights").update(rates={"records_in_per_s": 6_200.0})
    assert load(job)["text"] == "12.4k/s"
    behind = {"watermark_ms": clock.now_ms() - 90 * 60_000}
    Subtask.objects.update(metrics={"watermark_ms": clock.now_ms() + 60_000})
    assert load(job)["lag"] == "lag 0 s"
    Subtask.objects.filter(chain="hourly", index=1).update(metrics=behind)
    assert load(job)["lag"] == "lag 1 h 30 min"
    for no_time in (MIN_WATERMARK_MS, MAX_WATERMARK_MS):
        Subtask.objects.update(metrics={"watermark_ms": no_time})
        assert (load(job)["lag"], load(job)["state"]) == ("", "some")


def test_a_row_tells_the_parallelism_of_its_graph_or_the_submitted_one() -> None:
    job = factories.job(options={"parallelism": 3}, settings={})
    assert listing.job_list(listing.page())["jobs"][0]["parallelism"] == "parallelism 3"
    Job.objects.filter(pk=job.pk).update(settings={"parallelism": 7})
    assert listing.job_list(listing.page())["jobs"][0]["parallelism"] == "parallelism 7"


def test_labels_narrow_the_list_and_lead_to_the_jobs_that_have_them() -> None:
    factories.job("a", labels={"team": "prices", "tier": "1"})
    factories.job("b", labels={"team": "prices", "x": "&?"})
    factories.job("c", labels={f"l{n}": "x" * 60 for n in range(7)})
    assert set(shown(label="team")) == set(shown(label="team:prices")) == {"a", "b"}
    assert shown(label="team:fares") == []
    wanted = Wanted.read(QueryDict("label=team:prices&label=x:%26%3F&label=&label=team:prices"))
    listed = listing.job_list(listing.page(wanted), wanted)
    assert listed["shown"] == "1 job with the labels “team:prices” and “x:&?”"
    assert {group["name"]: group["count"] for group in listed["groups"]}["all"] == "1"
    assert Wanted.read(QueryDict(wanted.query()[1:])) == wanted
    rows = {row["name"]: row["labels"] for row in listing.job_list(listing.page())["jobs"]}
    assert [label["text"] for label in rows["a"]] == ["team:prices", "tier:1"]
    assert rows["a"][0]["url"] == "/jobs/?label=team%3Aprices"
    assert [label["text"][-4:] for label in rows["c"]] == ["xxx…"] * 4 + ["+3"]
    assert rows["c"][4]["title"].startswith("l4:xxx")


def test_a_saved_filter_is_the_account_s_own(viewer: Client, operator: Client) -> None:
    factories.job("a", labels={"team": "prices"})
    given = {
        "name": " my  prices ",
        "label": ["team:prices", "tier"],
        "q": "a&b",
        "state": "failed",
    }
    address = "/jobs/?state=failed&q=a%26b&label=team%3Aprices&label=tier"
    assert viewer.post("/jobs/filters", given)["Location"] == address
    page = viewer.get("/jobs/").content.decode()
    assert f'<a href="{address.replace("&", "&amp;")}">my prices</a>' in page
    assert 'aria-current="page">my prices' in viewer.get(address).content.decode()
    assert "my prices" not in operator.get("/jobs/").content.decode()
    viewer.post("/jobs/filters", {"name": "my prices", "q": "other"})
    kept = SavedFilter.objects.get()
    assert kept.query == "q=other"
    operator.post("/jobs/filters/delete", {"id": kept.pk})
    assert SavedFilter.objects.exists()
    assert viewer.post("/jobs/filters/delete", {"id": kept.pk, "q": "x"})["Location"] == (
        "/jobs/?q=x"
    )
    assert not SavedFilter.objects.exists()


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"name": " ", "q": "x"}, "Give the filter a name"),
        ({"name": "a\tb\0", "q": "x"}, "Give the filter a name"),
        ({"name": "x" * 61, "q": "x"}, "Give the filter a name"),
        ({"name": "all", "q": ""}, "Choose a state, a label or a text"),
        ({"name": "one more", "q": "x"}, "You have 20 saved filters"),
    ],
)
def test_a_filter_that_cannot_be_saved_says_why(
    viewer: Client, given: dict[str, str], problem: str
) -> None:
    for number in range(saved.FILTERS_MAX):
        viewer.post("/jobs/filters", {"name": f"f{number}", "q": "x"})
    page = viewer.post("/jobs/filters", given, follow=True).content.decode()
    assert problem in page
    assert SavedFilter.objects.count() == saved.FILTERS_MAX
    viewer.post("/jobs/filters", {"name": "f3", "q": "y"})  # Its place is there.
    assert SavedFilter.objects.get(name="f3").query == "q=y"


def test_a_row_says_which_of_its_cells_hold_nothing() -> None:
    """A narrow page leaves those out."""
    factories.job("new", status=JobStatus.CREATED, started_at=None)
    (new,) = listing.job_list(listing.page())["jobs"]
    states = [new[name] for name in ("attempt_state", "spark_state", "failures_state")]
    assert {*states, new["pressure"]["state"]} == {"none"}
    job = flights.running()
    factories.checkpoint(job, 1, status=CheckpointStatus.FAILED)
    row = next(row for row in listing.job_list(listing.page())["jobs"] if row["id"] == job.pk)
    states = [row[name] for name in ("attempt_state", "spark_state", "failures_state")]
    assert {*states, row["uptime"]["state"]} == {"some"}


def test_what_does_not_run_has_no_back_pressure() -> None:
    job = flights.running()
    Subtask.objects.update(rates={"back_pressured": 0.9})
    Subtask.objects.filter(job=job).update(status="finished")
    assert pressure(job)["text"] == "–"
    Subtask.objects.filter(job=job).update(status="running")
    Job.objects.filter(pk=job.pk).update(status=JobStatus.RESTARTING)
    assert pressure(job)["text"] == "–"
