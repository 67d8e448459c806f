import json
from datetime import timedelta

import pytest
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from pytest_django import Settings

from checkpoints.catalog.undeleted import TRIES_MIN
from checkpoints.models import Checkpoint
from checkpoints.operations import savepoints
from checkpoints.verdict.diagnosis import LAST
from controlplane.base import clock, server_losses
from controlplane.base.formatting import iso
from frontend.base import verdict_cache
from frontend.job import queries, snapshot
from frontend.overview import listing
from jobs import services
from jobs.models import Attempt, Driver, Job, Subtask
from tests import factories
from tests.database.frontend import flights, rows_graph
from tests.database.frontend.reading import words
from weir.protocol.lifecycle import CheckpointStatus, JobStatus, SubtaskStatus

pytestmark = pytest.mark.django_db
QUERIES = 11
QUERIES_OF_A_VERDICT = 12  # At the most.


def shot(job: Job) -> dict:
    value = snapshot.snapshot(job.pk)
    assert value is not None
    return json.loads(json.dumps(value))  # As it arrives.


def chains(value: dict) -> dict[str, dict]:
    return {item["uid"]: item for item in value["graph"]["chains"]}


@pytest.fixture(autouse=True)
def no_verdict_is_kept() -> None:
    verdict_cache.forget()  # Rows of tests that were rolled back have been given their ids again.


def test_no_job_has_no_snapshot() -> None:
    assert snapshot.snapshot("nothing") is None
    assert snapshot.revisions("nothing") is None


def test_a_job_that_was_just_submitted_says_what_it_waits_for() -> None:
    job = factories.job("orders", status=JobStatus.CREATED)
    factories.driver(job, status="requested", heard_at=None, created_at=clock.now())
    value = shot(job)
    assert value["status"]["text"] == "Starting"
    assert value["progress"] is None
    assert value["progress_empty"].startswith("No checkpoint yet: the pipeline is still building")
    assert value["driver"]["status"]["text"] == "Waiting for a launcher"
    assert value["attempt"]["restored"] == "nothing is deployed yet"
    assert value["attention"] == []


def test_barrier_progress_counts_acknowledgements_per_chain_in_the_order_of_the_stream() -> None:
    job = flights.running()
    savepoints.request_checkpoint(None, job.pk)
    before = shot(job)["progress"]
    assert (before["acknowledged"], before["expected"]) == (0, 18)
    assert before["is_under_way"]

    flights.drive(
        job,
        flights.chain_acknowledged(1, "flights", 0),
        flights.chain_acknowledged(1, "flights", 1),
        flights.chain_acknowledged(1, "hourly", 1),
    )
    value = shot(job)
    assert value["progress"]["text"] == "10 of 18 subtasks acknowledged"
    by_chain = chains(value)
    assert list(by_chain) == ["flights", "hourly", "totals"]
    assert (by_chain["flights"]["count"], by_chain["flights"]["state"]) == ("2/2", "done")
    assert (by_chain["hourly"]["count"], by_chain["hourly"]["missing"]) == (
        "1/2",
        "waiting for hourly-0",
    )
    assert (by_chain["totals"]["count"], by_chain["totals"]["missing"]) == (
        "0/2",
        "waiting for all 2",
    )
    assert [link["barrier"] for link in value["graph"]["links"]] == ["on-its-way", "on-its-way"]


def test_a_completed_checkpoint_is_the_last_one_and_moves_the_revision_on() -> None:
    job = flights.running()
    savepoints.request_checkpoint(None, job.pk)
    revision = shot(job)["revisions"]
    flights.complete(job, 1)
    value = shot(job)
    assert value["progress"]["status"]["text"] == "Completed"
    assert not value["progress"]["is_under_way"]
    assert {item["state"] for item in value["graph"]["chains"]} == {"done"}
    assert {link["barrier"] for link in value["graph"]["links"]} == {"through"}
    assert value["last_completed"]["number"] == "1"
    assert value["last_completed"]["size"] == "720 kB"  # 18 subtasks of 40 kB.
    assert value["revisions"]["checkpoints"] > revision["checkpoints"]
    assert value["revisions"] == snapshot.revisions(job.pk)
    operation = value["operations"][0]
    assert (operation["kind"], operation["status"]["text"]) == ("Checkpoint", "Done")
    assert (operation["result"], operation["deadline_at"]) == ("checkpoint 1", "")


def test_the_subtask_that_was_last_is_kept_with_its_own_phases() -> None:
    job = flights.running()
    savepoints.request_checkpoint(None, job.pk)
    for chain, arrived_ms in (("flights", ()), ("hourly", (90.0, 0.0)), ("totals", (5.0, 0.0))):
        for index in (0, 1):
            ack = flights.chain_acknowledged(1, chain, index, arrived_ms=arrived_ms)
            flights.drive(job, ack)
    row = job.checkpoints.get()
    last = row.acks.filter(operator="hourly", index=0).get()
    assert row.last_subtask == {
        "subtask": "hourly-0",
        "start_delay_ms": last.start_delay_ms,
        "alignment_ms": 90.0,
        "sync_ms": last.sync_ms,
        "async_ms": last.async_ms,
    }


def test_a_failed_checkpoint_says_why_and_who_never_acknowledged() -> None:
    job = flights.running()
    failed = factories.checkpoint(
        job, 1, status=CheckpointStatus.FAILED, cause="slow", acknowledged_count=0
    )
    factories.acknowledge_chain(failed, "flights", 0)
    value = shot(job)
    assert value["progress"]["why"] == "timed out before all subtasks acknowledged: slow"
    assert chains(value)["flights"]["missing"] == "never acknowledged: flights-1"
    assert value["attention"][0]["text"].startswith("The last checkpoint failed")


def test_files_that_cannot_be_deleted_are_told_with_their_number_and_an_error() -> None:
    job, other = flights.running(), flights.running("orders")
    for number in (1, 2, 3):
        factories.undeleted_checkpoint(job, number, tries=TRIES_MIN)
    for each in (job, other):
        factories.checkpoint(each, 4)
    assert [one["text"] for one in shot(job)["attention"]] == [
        "Files of 3 checkpoints that nothing needs cannot be deleted, and the storage grows: the "
        "bucket is away"
    ]
    assert shot(other)["attention"] == []
    Checkpoint.objects.update(discard_due_at=None)
    assert shot(job)["attention"] == []


def test_finished_subtasks_are_not_waited_for() -> None:
    job = flights.running()
    Subtask.objects.filter(job=job, chain="flights", index=1).update(status=SubtaskStatus.FINISHED)
    pending = factories.checkpoint(job, 1, status=CheckpointStatus.PENDING, subtask_count=15)
    factories.acknowledge_chain(pending, "flights", 0)
    by_chain = chains(shot(job))
    assert (by_chain["flights"]["count"], by_chain["flights"]["state"]) == ("1/1", "done")
    assert by_chain["hourly"]["count"] == "0/2"


def test_the_oldest_checkpoint_under_way_is_shown() -> None:
    job = flights.running()
    factories.checkpoint(job, 1)
    factories.checkpoint(job, 2, status=CheckpointStatus.FINALIZING, acknowledged_count=18)
    factories.checkpoint(job, 3, status=CheckpointStatus.PENDING)
    value = shot(job)
    assert value["progress"]["number"] == "2"
    assert value["progress"]["status"]["text"] == "Finalizing"


def test_a_silent_driver_is_shown_as_silent() -> None:
    job = flights.running()
    Driver.objects.filter(job=job).update(heard_at=clock.now() - timedelta(hours=3))
    value = shot(job)
    assert value["driver"]["status"]["text"] == "Silent"
    assert value["driver"]["heard_ago"] == "3 h 00 min ago"
    assert "exactly-once sinks commit nothing" in value["attention"][0]["text"]


def test_a_restart_that_was_asked_for_is_no_trouble() -> None:
    job = factories.job(status=JobStatus.RESTARTING, is_planned=True, cause="restarted by ada")
    value = shot(job)
    assert (value["status"]["tone"], value["cause"]["tone"]) == ("busy", "idle")
    (row,) = listing.job_list(listing.page())["jobs"]
    assert (row["status"]["tone"], row["attention"]) == ("busy", [])
    Job.objects.update(is_planned=False)
    value = shot(job)
    assert (value["status"]["tone"], value["cause"]["tone"]) == ("warn", "bad")


def test_a_silence_across_a_loss_of_the_database_is_not_the_driver_s() -> None:
    job = flights.running(interval_ms=None)
    Driver.objects.filter(job=job).update(heard_at=clock.now() - timedelta(minutes=20))
    try:
        server_losses.note_database_error(OperationalError("the server closed the connection"))
        value = shot(job)
    finally:
        server_losses.forget()
    assert (value["driver"]["status"]["text"], value["attention"]) == ("Running", [])
    assert shot(job)["driver"]["status"]["text"] == "Silent"


def test_redis_is_named_while_it_cannot_be_reached(settings: Settings) -> None:
    job = flights.running(interval_ms=None)
    settings.REDIS_URL = "redis://127.0.0.1:9/7"
    server_losses.note_redis(settings.REDIS_URL, is_away=True)
    try:
        (told,) = shot(job)["attention"]
        assert told["text"].startswith("Redis cannot be reached, so the control plane's workers")
        assert listing.job_list(listing.page())["away"] == told["text"]
        server_losses.note_redis(settings.REDIS_URL, is_away=False)
        assert shot(job)["attention"] == []
        assert listing.job_list(listing.page())["away"] == ""
    finally:
        server_losses.forget()


def test_a_pipeline_that_failed_shows_its_traceback_whole() -> None:
    job = factories.job(
        "orders", status=JobStatus.FAILED, cause=factories.TRACEBACK, started_at=None
    )
    value = shot(job)
    assert value["cause"]["headline"].startswith("weir.errors.UserError: there is no column")
    assert value["cause"]["text"] == factories.TRACEBACK
    assert value["attention"] == []  # The cause says it.
    assert value["actions"]["checkpoint"]
    assert not value["actions"]["restart"]


@pytest.mark.parametrize(
    ("status", "kind", "said"),
    [
        (JobStatus.CANCELED, "cancel", "Cancelled by ada"),
        (JobStatus.FINISHED, "stop", "Stopped with a savepoint by ada"),
        (JobStatus.FINISHED, "checkpoint", "Finished: its sources ended"),
    ],
)
def test_a_job_that_ended_as_planned_opens_with_that_and_without_a_verdict(
    operator: Client, status: JobStatus, kind: str, said: str
) -> None:
    job = flights.running()
    factories.checkpoint(job, 1, status=CheckpointStatus.FAILED)
    aborted = factories.checkpoint(
        job, 2, status=CheckpointStatus.ABORTED, reason="job_canceled", acknowledged_count=3
    )
    factories.acknowledge_chain(aborted, "flights", 0)
    assert shot(job)["verdict"] is not None
    factories.operation(job, factories.user(name="ada"), kind, "succeeded")
    Job.objects.filter(pk=job.pk).update(status=status, ended_at=clock.now())
    value = shot(job)
    assert value["ended"]["text"] == said
    assert (value["verdict"], value["judged"], value["attention"]) == (None, None, [])
    assert (value["progress"]["ended"], value["progress"]["why"]) == (
        "Aborted",
        "the job was cancelled",
    )
    page = words(operator.get(f"/jobs/{job.pk}/"))
    assert f"{said} , " in page
    assert "Aborted : the job was cancelled" in page
    whole = words(operator.get(f"/jobs/{job.pk}/checkpoints/{aborted.number}/"))
    assert "acknowledged before the checkpoint was aborted" in whole
    # A failure opens with its cause instead.
    Job.objects.filter(pk=job.pk).update(status=JobStatus.FAILED, cause="OSError: full")
    value = shot(job)
    assert value["ended"] is None
    assert value["cause"]["headline"] == "OSError: full"


def test_the_memory_of_the_slots_is_told_with_the_largest() -> None:
    job = flights.running()
    attempt = job.attempts.get()
    assert shot(job)["attempt"]["memory"] == ""
    factories.worker(attempt, 0, memory_bytes=400_000_000)
    assert shot(job)["attempt"]["memory"] == "its slots hold 400 MB of memory"
    factories.worker(attempt, 1, memory_bytes=800_000_000)
    factories.worker(attempt, 2)
    told = "its slots hold 1.20 GB of memory, at most 800 MB in slot 1"
    assert shot(job)["attempt"]["memory"] == told
    Job.objects.update(status=JobStatus.FINISHED, ended_at=clock.now())
    assert shot(job)["attempt"]["memory"] == ""


RELAUNCHES = ("rollback", "rescale", "upgrade")
ALWAYS = {"fork", "preview", "compare"}  # They do nothing to the job.


@pytest.mark.parametrize(
    ("status", "allowed"),
    [
        (
            JobStatus.RUNNING,
            {"checkpoint", "cancel", "restart", "savepoint", "stop", *RELAUNCHES},
        ),
        (JobStatus.INITIALIZING, {"cancel", "restart"}),
        (JobStatus.RESTARTING, {"cancel", "restart", *RELAUNCHES}),
        (JobStatus.CANCELLING, set()),
        (JobStatus.FAILED, {"restart", "archive", *RELAUNCHES}),
        (JobStatus.CANCELED, {"restart", "archive", *RELAUNCHES}),
        (JobStatus.FINISHED, {"rollback", "archive"}),
    ],
)
def test_what_can_be_asked_depends_on_the_state(status: JobStatus, allowed: set[str]) -> None:
    actions = snapshot.actions(factories.job(status=status))
    assert {name for name, why_not in actions.items() if not why_not} == allowed | ALWAYS


def test_an_operation_of_several_steps_shows_its_phase_and_keeps_others_waiting() -> None:
    job = flights.running()
    progress = {"kind": "stop", "phase": "ending", "saved": "/s/last"}
    row = factories.operation(job, None, "stop", "running", progress=progress)
    value = shot(job)
    shown = value["operations"][0]
    assert (shown["kind"], shown["phase"]) == ("Stop", "savepoint taken, the job is ending")
    assert shown["url"] == f"/jobs/{job.pk}/operations/{row.pk}"
    # A point in time, which the page shows in the viewer's zone.
    assert (shown["result"], shown["deadline_at"]) == ("", iso(row.deadline_at))
    assert value["actions"]["rescale"] == "Stop under way: wait for its end."
    assert value["actions"]["cancel"] == value["actions"]["preview"] == ""
    for where in ("why_not_act", "why_not_go_back"):  # Beside the buttons, once.
        assert value["actions"][where] == "Stop under way: wait for its end."


def test_what_is_under_way_is_not_hidden_by_what_was_asked_since() -> None:
    job = flights.running()
    started = clock.now() - timedelta(minutes=2)
    factories.operation(
        job, None, "rescale", "running", parameters={"parallelism": 4}, created_at=started
    )
    for _ in range(queries.RECENT_OPERATIONS):
        factories.operation(job, None, "preview", parameters={"kind": "restore"})
    value = shot(job)
    assert value["operations"][0]["kind"] == "Rescale to parallelism 4"
    assert value["operations"][1]["kind"] == "Preview of a restore"
    assert value["actions"]["stop"] == "Rescale under way: wait for its end."


def test_only_time_passing_is_no_change() -> None:
    job = flights.running()
    flights.history(job, 3)
    first, second = shot(job), shot(job)
    assert first["now"] != second["now"]
    assert snapshot.changes(first) == snapshot.changes(second)
    factories.exception(job)
    assert snapshot.changes(shot(job)) != snapshot.changes(first)


def test_a_recovery_moves_the_revision_on() -> None:
    job = flights.running()
    first = snapshot.revisions(job.pk)
    factories.attempt(job.drivers.get(), 2, running_at=None)
    second = snapshot.revisions(job.pk)
    Attempt.objects.filter(job=job, number=2).update(running_at=clock.now())
    third = snapshot.revisions(job.pk)
    services.set_recovery_target(None, job.pk, 5)
    fourth = snapshot.revisions(job.pk)
    assert len({str(revision) for revision in (first, second, third, fourth)}) == 4


def settled_twice(job: Job) -> None:
    for number, late in ((1, 30.0), (2, 900.0)):
        savepoints.request_checkpoint(None, job.pk)
        flights.complete(job, number, arrived_ms=(late, 0.0))


def test_the_verdict_is_about_what_is_shown_or_what_settled_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot, "VERDICT_PATIENCE_MS", 60_000.0)
    job = flights.running(interval_ms=None)
    assert shot(job)["verdict"] is None
    settled_twice(job)
    value = shot(job)
    assert value["judged"]["name"] == "Checkpoint 2"
    assert value["judged"]["url"] == f"/jobs/{job.pk}/checkpoints/2/"
    assert value["verdict"]["channel"]["sender"] == "flights-0"

    savepoints.request_checkpoint(None, job.pk)  # Of a young one there is nothing to say yet.
    value = shot(job)
    assert value["progress"]["number"] == "3"
    assert (value["judged"]["name"], value["judged"]["state"]) == ("Checkpoint 2", "")
    long_ago = clock.now() - timedelta(minutes=3)
    Checkpoint.objects.filter(job=job, number=3).update(triggered_at=long_ago)
    value = shot(job)
    assert (value["judged"]["name"], value["judged"]["state"]) == ("Checkpoint 3", "under way")


def test_a_settled_checkpoint_leaves_its_slow_channel_marked() -> None:
    job = flights.running(interval_ms=None)
    settled_twice(job)
    graph = shot(job)["graph"]
    (marked,) = [link for link in graph["links"] if link["slow"]]
    assert marked["slow"] == "▲ flights-0"
    assert marked["took_ago"] == "900 ms"
    assert graph["slow"].startswith("Slowest channel: flights-0 → ")


def test_a_settled_verdict_is_made_once() -> None:
    job = flights.running(interval_ms=None)
    settled_twice(job)
    first = shot(job)
    with CaptureQueriesContext(connection) as captured:
        assert shot(job)["verdict"] == first["verdict"]
    assert len(captured) == QUERIES


def test_a_verdict_under_way_that_takes_long_is_not_made_all_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = flights.running()
    row = factories.checkpoint(job, 1, status=CheckpointStatus.PENDING)
    clock_s = [0.0]
    made = []

    def slow(checkpoint: Checkpoint) -> dict:
        clock_s[0] += 0.5
        made.append(checkpoint.acknowledged_count)
        return {"made": len(made)}

    monkeypatch.setattr(verdict_cache.time, "monotonic", lambda: clock_s[0])
    monkeypatch.setattr(verdict_cache, "verdict_json", slow)
    seen = []
    for seconds in range(8):
        clock_s[0] = max(clock_s[0], float(seconds))
        row.acknowledged_count = seconds
        seen.append(verdict_cache.cached_verdict(row)["made"])
    assert seen == [1, 1, 1, 1, 1, 1, 2, 2]  # 0.5 s for the first one, then rest for 5 s.
    row.status, row.settled_at = CheckpointStatus.COMPLETED, row.triggered_at
    assert verdict_cache.cached_verdict(row)["made"] == 3  # What it came to is told at once.
    clock_s[0] += 1_000
    assert verdict_cache.cached_verdict(row)["made"] == 3


def test_the_diagnosis_of_the_last_checkpoints_stays_while_the_newest_one_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each settled one is judged once, and the page of a checkpoint shows its own verdict alone."""
    monkeypatch.setattr(verdict_cache, "JUDGING_S", float("inf"))
    job = flights.running()
    rows = [
        factories.checkpoint(job, number, status=CheckpointStatus.FAILED, cause="slot 0 was lost")
        for number in range(1, 4)
    ]
    headline = "3 of the last 3 checkpoints were slow or failed, and no culprit comes back."
    with CaptureQueriesContext(connection) as captured:
        diagnosis = verdict_cache.cached_verdict(rows[-1])["diagnosis"]
    assert diagnosis == {"tone": "bad", "headline": headline}
    newest = factories.checkpoint(job, 4, status=CheckpointStatus.PENDING)
    with CaptureQueriesContext(connection) as again:
        shown = verdict_cache.cached_verdict(newest)
    assert shown["diagnosis"] == diagnosis
    assert shown["headline"] != headline
    assert len(again) < len(captured) / 2
    assert verdict_cache.cached_verdict(newest, is_diagnosed=False)["diagnosis"] is None
    # Of many that are not judged yet some are, with each update.
    verdict_cache.forget()
    monkeypatch.setattr(verdict_cache, "REST_SHARE", 0)
    older = [factories.checkpoint(job, number) for number in range(-9, 1)]
    assert [verdict_cache.cached_verdict(older[-1])["diagnosis"] is None for _ in range(7)] == [
        *[True] * 4, *[False] * 3,
    ]  # fmt: skip
    verdict_cache.forget()
    monkeypatch.setattr(verdict_cache, "JUDGING_S", 0.0)  # Each takes longer: one at a time.
    assert [verdict_cache.cached_verdict(older[-1])["diagnosis"] is None for _ in range(11)] == [
        *[True] * 8, *[False] * 3,
    ]  # fmt: skip


def test_a_page_that_opens_leaves_long_verdicts_of_the_diagnosis_to_its_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    job = flights.running()
    newest = [factories.checkpoint(job, number) for number in range(1, 5)][-1]
    monkeypatch.setattr(verdict_cache, "REST_SHARE", 0)
    monkeypatch.setattr(verdict_cache, "JUDGING_S", 1e-9)  # Each takes longer.

    def opened() -> bool:
        return verdict_cache.cached_verdict(newest, is_opening=True)["diagnosis"] is not None

    assert [opened() for _ in range(6)] == [False] * 6
    updates = [verdict_cache.cached_verdict(newest)["diagnosis"] for _ in range(4)]
    assert updates[0] is None
    assert updates[-1] is not None
    assert opened()
    verdict_cache.forget()
    monkeypatch.setattr(verdict_cache, "JUDGING_S", 600.0)  # Quick ones are judged at once.
    assert [opened() for _ in range(2)] == [False, True]


def test_the_channel_that_is_waited_for_is_marked_while_it_lasts() -> None:
    job = flights.running()
    savepoints.request_checkpoint(None, job.pk)
    flights.drive(job, flights.chain_acknowledged(1, "flights", 1))
    rows_graph.aligning(job, "hourly", 0, 1, [None, 0.0], waited_ms=4_000)
    rows_graph.aligning(job, "totals", 0, 7, [None, 0.0])  # Of another checkpoint: of the past.
    hourly, totals = shot(job)["graph"]["links"]
    assert (hourly["barrier"], hourly["text"]) == ("aligning", "◐ 1/2 aligning")
    assert hourly["slow"] == "▲ flights-0"
    assert hourly["since"].endswith("Z")
    assert (totals["barrier"], totals["slow"]) == ("on-its-way", "")
    first = snapshot.changes(shot(job))
    assert first == snapshot.changes(shot(job))  # That it grows is no change.

    flights.drive(job, flights.chain_acknowledged(1, "hourly", 0, arrived_ms=(4_100.0, 0.0)))
    hourly, _ = shot(job)["graph"]["links"]
    assert (hourly["barrier"], hourly["slow"]) == ("on-its-way", "")


def test_rates_and_load_are_those_of_all_subtasks_of_a_chain() -> None:
    job = flights.running(parallelism=4)
    rows_graph.measured(job, "hourly", busy=0.2, records_per_s=2_500)
    rows_graph.measured(job, "hourly", busy=0.84, records_per_s=500, index=3)
    rows_graph.measured(job, "flights", busy=0.4, back_pressured=0.5)
    by_chain = chains(shot(job))
    assert by_chain["hourly"]["records"] == "in 8.0k/s"  # It has no reader downstream.
    assert by_chain["hourly"]["load"] == "subtask 3 busy 84% · mean 36%"
    assert by_chain["hourly"]["busiest"] == 0.84
    assert by_chain["hourly"]["busy"] == pytest.approx(0.36)
    assert by_chain["hourly"]["rest"] == "idle 64%"
    assert by_chain["flights"]["records"] == "in 40.0k/s · out 4.0k/s"
    assert by_chain["flights"]["load"] == "subtask 0 busy 40% · mean 40%"
    assert by_chain["flights"]["rest"] == "back-pressured 50%"
    assert by_chain["totals"]["records"] == "no recent measurement"
    Subtask.objects.update(updated_at=clock.now() - timedelta(minutes=1))
    assert chains(shot(job))["flights"]["records"] == "no recent measurement"


def test_a_subtask_that_has_finished_counts_neither_for_load_nor_for_the_watermark() -> None:
    job = flights.running(parallelism=4)
    rows_graph.measured(job, "hourly", busy=0.2, records_per_s=2_500)
    finished = {"busy": 0.9, "records_per_s": 500, "watermark_ms": 1_600_000_000_000}
    rows_graph.measured(job, "hourly", index=3, **finished)
    rows_graph.measured(job, "hourly", index=1, busy=0.2, watermark_ms=1_735_600_000_000)
    of_both = queries.chain_subtasks(job.pk)["hourly"]
    assert (of_both.load and of_both.load.busiest, of_both.watermark_ms) == (3, 1_600_000_000_000)
    Subtask.objects.filter(chain="hourly", index=3).update(status=SubtaskStatus.FINISHED)
    running = queries.chain_subtasks(job.pk)["hourly"]
    assert (running.finished, running.watermark_ms) == ({3}, 1_735_600_000_000)
    assert running.load is not None
    assert (running.load.busiest, running.load.busiest_busy) == (0, 0.2)


def test_a_slot_without_a_processor_is_shown_with_its_share() -> None:
    job = flights.running(parallelism=4)
    rows_graph.measured(job, "hourly", busy=0.4, back_pressured=0.5, cpu_wait=0.1)
    hourly = chains(shot(job))["hourly"]
    assert hourly["rest"] == "back-pressured 50%"
    assert hourly["load_title"].endswith(
        ". Slot 0 is ready to run and has no processor for 10% of the time"
    )
    rows_graph.measured(job, "hourly", busy=0.8, cpu_wait=0.62, index=3)
    hourly = chains(shot(job))["hourly"]
    assert hourly["load"] == "subtask 3 busy 80% · mean 50%"
    assert hourly["rest"] == "waits for CPU 62%"
    assert hourly["load_title"].endswith(
        ". Slot 3 is ready to run and has no processor for 62% of the time"
    )


def test_measurements_of_an_earlier_version_have_no_wait_for_a_processor() -> None:
    job = flights.running(parallelism=4)
    rows_graph.measured(job, "hourly", busy=0.4)
    for subtask in Subtask.objects.filter(chain="hourly"):
        del subtask.rates["cpu_wait"]
        subtask.save()
    hourly = chains(shot(job))["hourly"]
    assert hourly["rest"] == "idle 60%"
    assert "processor" not in hourly["load_title"]


def test_bad_records_are_those_of_all_subtasks_of_a_chain() -> None:
    job = flights.running(parallelism=4)
    Subtask.objects.filter(chain="hourly").update(metrics={"bad_records": 3})
    by_chain = chains(shot(job))
    assert (by_chain["hourly"]["bad"], by_chain["flights"]["bad"]) == ("12 bad", "")


def test_a_stalled_call_is_shown_while_the_job_runs() -> None:
    job = flights.running()
    rows_graph.stalled(job, "hourly", 1)
    hourly = chains(shot(job))["hourly"]
    assert hourly["stalled"].startswith("hourly-1 stuck in one call since ")
    assert hourly["records"] == ""  # It measures nothing meanwhile; being stuck says as much.
    Job.objects.update(status=JobStatus.RESTARTING)
    assert chains(shot(job))["hourly"]["stalled"] == ""


def test_the_number_of_queries_does_not_depend_on_the_size_of_the_job(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small, large = flights.running(), flights.running("large", parallelism=50)
    flights.history(large, 40)
    pending = factories.checkpoint(
        large,
        41,
        status=CheckpointStatus.PENDING,
        subtask_count=450,
        # Judged from the first look on: it does not become so between two of them.
        triggered_at=clock.now() - timedelta(minutes=1),
    )
    for index in range(30):
        factories.acknowledge(pending, "flights", index)
        factories.exception(large)
        factories.operation(large, None)
    for job in (small, large):
        with CaptureQueriesContext(connection) as first:
            snapshot.snapshot(job.pk)
        at_once = 1 + verdict_cache.JUDGED_AT_ONCE  # Its own, and some of the diagnosis.
        assert len(first) <= QUERIES + at_once * QUERIES_OF_A_VERDICT
        with monkeypatch.context() as at_once_again:
            at_once_again.setattr(verdict_cache, "REST_SHARE", 0)
            verdict_cache.forget()
            for _ in range(LAST):
                snapshot.snapshot(job.pk)
        with monkeypatch.context() as rests_long:  # Else a slow machine judges once more.
            rests_long.setattr(verdict_cache, "REST_SHARE", 1_000_000)
            snapshot.snapshot(job.pk)
            with CaptureQueriesContext(connection) as again:
                snapshot.snapshot(job.pk)
        assert len(again) == QUERIES


def test_a_snapshot_of_a_thousand_subtasks_is_small() -> None:
    job = flights.running("large", parallelism=1_000)
    factories.checkpoint(job, 1, status=CheckpointStatus.PENDING, subtask_count=9_000)
    assert len(json.dumps(snapshot.snapshot(job.pk))) < 8_000


def test_a_snapshot_of_a_thousand_waiting_subtasks_is_small_and_reads_few_of_them() -> None:
    job = flights.running("large", parallelism=1_000)
    factories.checkpoint(job, 1, status=CheckpointStatus.PENDING, subtask_count=9_000)
    arrived = [0.0] * 999 + [None]
    rows_graph.aligning(job, "hourly", 0, 1, arrived)
    example = Subtask.objects.get(chain="hourly", index=0)
    Subtask.objects.filter(job=job, chain="hourly").update(aligning=example.aligning)
    waiting, _ = queries.held_up(job.pk, 1)
    assert len(waiting) == queries.WAITING_READ
    value = shot(job)
    assert len(json.dumps(value)) < 8_000
    assert value["graph"]["slow"] == "Waiting for flights-999 → hourly-0"


def test_a_gate_whose_arrays_differ_in_length_breaks_no_picture() -> None:
    """A driver may have sent it; what there is of each channel counts."""
    job = flights.running()
    factories.checkpoint(job, 1, status=CheckpointStatus.PENDING)
    rows_graph.aligning(job, "hourly", 0, 1, [0.0, None], ended=[False, False, True])
    (waiting,), _ = queries.held_up(job.pk, 1)
    assert [gate.missing for gate in waiting.gates] == [["flights-1"]]
    assert shot(job)["graph"]["slow"] == "Waiting for flights-1 → hourly-0"


def test_acknowledgements_that_are_not_kept_leave_no_empty_bars() -> None:
    job = flights.running()
    factories.checkpoint(job, 1, has_details=False)
    graph = shot(job)["graph"]
    assert {(chain["state"], chain["count"]) for chain in graph["chains"]} == {("done", "")}
    assert {link["barrier"] for link in graph["links"]} == {"through"}
    assert Checkpoint.objects.get().status == CheckpointStatus.COMPLETED
