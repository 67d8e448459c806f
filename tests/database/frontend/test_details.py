import json
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from checkpoints.operations import savepoints
from controlplane.base import clock
from frontend.job import details, history
from jobs import services
from jobs.models import Job
from tests import factories
from tests.database.frontend import flights
from weir.protocol.lifecycle import CheckpointStatus, JobStatus

pytestmark = pytest.mark.django_db
QUERIES = 6


def details_of(job: Job, window: str = "200") -> dict:
    return details.job_details(job, history.window(window))


def test_a_new_job_has_no_past() -> None:
    value = details_of(factories.job(status=JobStatus.CREATED))
    assert value == {
        "history": [],
        "history_summary": "",
        "history_empty": details._EMPTY,
        "percentiles": [],
        "window": "200",
        "alignment": None,
        "recoveries": [],
        "exceptions": [],
        "firing": [],
    }


def test_history_is_newest_first_and_says_why_a_checkpoint_failed() -> None:
    job = flights.running()
    flights.history(job, 40)
    value = json.loads(json.dumps(details_of(job)))
    assert [row["number"] for row in value["history"]][:3] == ["40", "39", "38"]
    assert len(value["history"]) == 20
    failed = next(row for row in value["history"] if row["number"] == "28")
    assert failed["status"]["text"] == "Failed"
    assert failed["why"] == "a subtask declined it: OSError: [Errno 28] No space left on device"
    assert failed["state"] == "–"
    assert failed["acknowledged"] == "11/18"
    assert failed["url"] == f"/jobs/{job.pk}/checkpoints/28/"
    assert value["history_summary"] == "40 checkpoints, 2 failed, within 39 s."


def test_planned_ends_are_told_from_failures_in_the_history() -> None:
    job = flights.running()
    now = clock.now()
    for number, status in enumerate(["completed", "failed", "aborted", "aborted"], 1):
        at = now - timedelta(seconds=5 - number)
        factories.checkpoint(job, number, status=status, triggered_at=at)
    value = details_of(job)
    newest = value["history"][0]
    assert (newest["status"]["text"], newest["status"]["tone"]) == ("Aborted", "idle")
    assert (newest["why"], newest["state"]) == ("the job was restarted", "–")
    assert value["history_summary"] == "4 checkpoints, 1 failed, 2 aborted, within 3 s."


def test_percentiles_are_those_of_the_window_that_is_shown() -> None:
    job = flights.running()
    now = clock.now()
    for number in range(1, 101):
        at = now - timedelta(minutes=100 - number, seconds=1)
        factories.checkpoint(job, number, duration_ms=number * 10, triggered_at=at)
    failed = CheckpointStatus.FAILED
    factories.checkpoint(job, 101, status=failed, duration_ms=60_000, triggered_at=now)

    def shown(window: str) -> list[str]:
        value = details_of(job, window)
        assert value["window"] == window
        return [item["text"] for item in value["percentiles"]]

    assert shown("200") == ["500 ms", "950 ms", "990 ms", "1.00 s"]
    assert shown("50") == ["760 ms", "980 ms", "1.00 s", "1.00 s"]  # The 49 that did not fail.
    assert shown("hour") == ["700 ms", "970 ms", "1.00 s", "1.00 s"]
    assert (
        details_of(job, "hour")["history_summary"]
        == "61 checkpoints, 1 failed, within 59 min 01 s."
    )


def test_a_time_without_checkpoints_is_not_a_job_without_them() -> None:
    job = flights.running()
    factories.checkpoint(job, 1, triggered_at=clock.now() - timedelta(hours=3))
    hour = details_of(job, "hour")
    assert (hour["history"], hour["percentiles"]) == ([], [])
    assert (
        hour["history_empty"] == "No completed or failed checkpoint was triggered in this period."
    )
    assert len(details_of(job, "day")["history"]) == 1


def test_an_unknown_window_is_the_usual_one() -> None:
    assert details_of(factories.job(), "<script>")["window"] == history.DEFAULT.key


def test_a_percentile_is_a_duration_that_some_checkpoint_took() -> None:
    assert history.percentile([], 0.5) is None
    assert history.percentile([7.0], 0.99) == 7.0
    assert [history.percentile([4, 1, 3, 2], share) for share in (0.25, 0.26, 0.5, 1.0)] == [
        1, 2, 2, 4,
    ]  # fmt: skip


def test_alignment_is_that_of_the_latest_completed_checkpoint() -> None:
    job = flights.running()
    for number, late in ((1, 90.0), (2, 33.0)):
        savepoints.request_checkpoint(None, job.pk)
        flights.complete(job, number, arrived_ms=(late, 0.0))
    alignment = details_of(job)["alignment"]
    assert alignment["number"] == "2"
    assert alignment["caption"] == "Checkpoint 2: 8 channels"
    assert alignment["sentence"].startswith(
        "Slowest channel: flights-0 → hourly-0. Its barrier arrived 33"
    )
    first = alignment["channels"][0]
    assert (first["arrived_ms"], first["blocked_ms"]) == ("33 ms", "0 ms")
    assert alignment["channels"][-1]["blocked_ms"] == "33 ms"


def test_a_recovery_says_how_long_it_took_and_what_was_replayed() -> None:
    job = flights.running()
    factories.attempt(
        job.drivers.get(),
        2,
        started_at=clock.now(),
        restored_checkpoint=41,
        recovery_cause="slot 1: killed by SIGKILL",
        backoff_ms=0,
        redeploy_ms=188,
        restore_ms=96,
        catch_up_ms=1_210,
        restored_bytes=1_044_000,
        replayed_records=38_200,
    )
    (recovery,) = details_of(job)["recoveries"]
    assert (recovery["downtime"], recovery["kind"]["text"]) == ("Down for 284 ms", "Recovery")
    assert recovery["restored"] == "checkpoint 41"
    assert recovery["replayed"] == "38,200"
    assert recovery["restored_bytes"] == "1.04 MB"
    job.attempts.filter(number=2).update(restored_local_bytes=0)
    (recovery,) = details_of(job)["recoveries"]
    assert recovery["restored_bytes"] == "1.04 MB, none of it from local copies"
    assert recovery["catch_up"] == "1.21 s"
    assert not recovery["has_more"]
    assert recovery["beyond"] == ""


def test_a_recovery_beyond_the_job_s_target_is_marked() -> None:
    job = flights.running()
    now = clock.now()
    job.attempts.update(
        running_at=now - timedelta(minutes=5), ended_at=now - timedelta(seconds=9), end="failed"
    )
    factories.attempt(job.drivers.get(), 2, running_at=now - timedelta(seconds=4))
    for target_s, said in (
        (5, ""),
        (4, "Recovered in 5.00 s, over the job's target of 4 s."),
        (None, ""),
    ):
        services.set_recovery_target(None, job.pk, target_s)
        job.refresh_from_db()
        (recovery,) = details_of(job)["recoveries"]
        assert recovery["beyond"] == said


def test_exceptions_come_with_headline_and_traceback_and_only_so_many() -> None:
    job, now = flights.running(), clock.now()
    for minutes in range(15):
        factories.exception(job, at=now - timedelta(minutes=minutes), attempt_number=minutes)
    factories.exception(job, "x" * 20_000, kind="notice", at=now - timedelta(seconds=1))
    exceptions = details_of(job)["exceptions"]
    assert len(exceptions) == 10
    assert exceptions[0]["where"] == "attempt 0"
    assert exceptions[0]["headline"].startswith("weir.errors.UserError")
    assert exceptions[0]["text"] == factories.TRACEBACK
    assert len(exceptions[1]["text"]) < 9_000
    assert exceptions[1]["tone"] == "idle"


def test_the_number_of_queries_is_fixed() -> None:
    small, large = flights.running(), flights.running("large")
    flights.history(large, 120)
    for number in range(2, 20):
        factories.attempt(large.drivers.get(), number)
        factories.exception(large)
    for job in (small, large):
        with CaptureQueriesContext(connection) as queries:
            details_of(job)
        # Without an aligned checkpoint there are no channels to look for.
        assert len(queries) == (QUERIES if job is large else QUERIES - 1)
