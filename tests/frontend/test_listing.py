from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from controlplane import clock
from frontend import listing
from jobs.models import Driver
from tests.frontend import rows
from weir.protocol.lifecycle import CheckpointStatus, JobStatus

pytestmark = pytest.mark.django_db
QUERIES = 6


def test_no_jobs_are_an_empty_list() -> None:
    assert listing.of(listing.page(1)) == {"jobs": [], "now": None, "total": "0 jobs"}


def test_what_needs_attention_comes_first() -> None:
    now = clock.now()
    rows.job("done", status=JobStatus.FINISHED, created_at=now)
    well = rows.running("well", created_at=now - timedelta(minutes=1))
    rows.checkpoint(well, 1)
    rows.running("overdue", created_at=now - timedelta(hours=6))
    declining = rows.running("declining", created_at=now - timedelta(hours=3))
    rows.checkpoint(declining, 1)
    rows.checkpoint(declining, 2, status=CheckpointStatus.ABORTED)
    silent = rows.running("silent", created_at=now - timedelta(hours=4))
    Driver.objects.filter(job=silent).update(heard_at=now - timedelta(seconds=9))
    rows.job(
        "broken", status=JobStatus.FAILED, cause="no disk", created_at=now - timedelta(hours=5)
    )
    rows.job(
        "long-gone", status=JobStatus.FAILED, created_at=now - timedelta(days=9),
        ended_at=now - timedelta(days=8),
    )  # fmt: skip
    found = listing.of(listing.page(1))["jobs"]
    assert [row["name"] for row in found] == [
        "silent", "broken", "declining", "overdue", "well", "done", "long-gone",
    ]  # fmt: skip
    said = {row["name"]: [item["text"] for item in row["attention"]] for row in found}
    assert said["broken"] == ["The job failed: no disk"]
    assert said["declining"] == [
        "The last checkpoint failed: timed out before all subtasks acknowledged."
    ]
    assert said["well"] == said["done"] == []


def test_a_row_tells_the_last_completed_checkpoint_and_the_failures() -> None:
    job = rows.running()
    rows.attempt(job.drivers.get(), 2)
    rows.checkpoint(job, 1, duration_ms=240, state_bytes=1_300_000)
    rows.checkpoint(job, 2, status=CheckpointStatus.ABORTED)
    (row,) = listing.of(listing.page(1))["jobs"]
    assert row["attempt"] == "2"
    assert row["completed"]["detail"] == "240 ms, 1.30 MB"
    assert row["completed"]["ago"] == "0 s ago"
    assert (row["recoveries"], row["failed"]) == (
        "1 recovery",
        "1 failed checkpoint in the last hour",
    )
    assert row["url"] == f"/jobs/{job.pk}/"
    assert row["uptime"]["text"] == "2 h 02 min"


def test_pages_are_bounded_and_the_number_of_queries_is_fixed() -> None:
    for number in range(60):
        job = rows.job(f"job-{number}", created_at=clock.now() - timedelta(minutes=number))
        rows.checkpoint(job, 1)
    with CaptureQueriesContext(connection) as queries:
        found = listing.of(listing.page(1))
    assert len(found["jobs"]) == 50
    assert found["total"] == "60 jobs"
    assert len(queries) == QUERIES
    assert len(listing.of(listing.page(2))["jobs"]) == 10
    assert listing.page("nonsense").number == 1
    assert listing.page(99).number == 2
