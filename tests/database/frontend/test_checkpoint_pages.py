"""The pages of checkpoints: the list, one checkpoint in every state, its drill-downs, who may."""

import json
import re
from datetime import timedelta
from html import unescape
from pathlib import Path

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from checkpoints.models import Checkpoint, SubtaskAck
from checkpoints.operations import savepoints
from controlplane.base import clock
from frontend.base import verdict_cache
from frontend.checkpoint import queries as checkpoint_queries
from frontend.checkpoint import sections
from jobs.models import Job
from tests import factories
from tests.database.frontend import flights, rows_checkpoint
from weir.protocol.lifecycle import CheckpointStatus, SubtaskStatus

pytestmark = pytest.mark.django_db
SCRIPT = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def no_verdict_is_kept() -> None:
    verdict_cache.forget()  # Rows of tests that were rolled back have been given their ids again.


@pytest.fixture
def job(tmp_path: Path) -> Job:
    """A job that keeps its checkpoints where nothing is yet."""
    return rows_checkpoint.keep_in(flights.running(), tmp_path)


def text(page: str) -> str:
    """The text of a page."""
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", page)).split())


def numbers(page: str) -> list[int]:
    """The checkpoints that a page of the list names."""
    return [int(number) for number in re.findall(r'<tr data-item="(\d+)"', page)]


def addresses(of: Job, number: int) -> list[str]:
    one = f"/jobs/{of.pk}/checkpoints/{number}/"
    return [
        f"/jobs/{of.pk}/checkpoints/",
        f"/jobs/{of.pk}/checkpoints/data",
        one,
        f"{one}data",
        f"{one}alignment",
        f"{one}storage",
        *(f"{one}figures/{name}" for name in ("timeline", "alignment", "state")),
    ]


# The list -----------------------------------------------------------------------------------------


def test_the_list_is_newest_first_and_each_row_leads_to_its_page(viewer: Client, job: Job) -> None:
    flights.history(job, 12)
    page = viewer.get(f"/jobs/{job.pk}/checkpoints/").content.decode()
    assert numbers(page) == list(range(12, 0, -1))
    assert f'href="/jobs/{job.pk}/checkpoints/12/"' in page


def test_the_list_is_paged_by_number_in_both_directions(viewer: Client, job: Job) -> None:
    for number in range(1, 121):
        factories.checkpoint(job, number)
    base = f"/jobs/{job.pk}/checkpoints/"
    first = viewer.get(base).content.decode()
    assert numbers(first) == list(range(120, 70, -1))
    assert 'rel="next" data-bind="href:older;show:older" href="?before=71"' in first
    second = viewer.get(f"{base}?before=71").content.decode()
    assert numbers(second) == list(range(70, 20, -1))
    assert 'href="?after=70"' in second
    # Right above, not the newest of all.
    assert numbers(viewer.get(f"{base}?after=21").content.decode()) == list(range(71, 21, -1))
    last = viewer.get(f"{base}?before=21").content.decode()
    assert numbers(last) == list(range(20, 0, -1))
    assert 'show:older" href="" hidden' in last


def test_the_list_is_filtered_by_status_and_kind(viewer: Client, job: Job) -> None:
    factories.checkpoint(job, 1)
    factories.checkpoint(job, 2, status=CheckpointStatus.FAILED)
    factories.checkpoint(job, 3, status=CheckpointStatus.DISCARDED)
    factories.savepoint(job, "first", 4)
    factories.checkpoint(job, 5, kind="savepoint", status=CheckpointStatus.FAILED)
    factories.checkpoint(job, 6, status=CheckpointStatus.PENDING)
    factories.checkpoint(job, 7, status=CheckpointStatus.ABORTED)
    for query, expected in (
        ("status=completed", [4, 3, 1]),
        ("status=failed", [5, 2]),
        ("status=aborted", [7]),
        ("status=pending", [6]),
        ("kind=savepoint", [5, 4]),
        ("kind=checkpoint", [7, 6, 3, 2, 1]),
        ("status=failed&kind=savepoint", [5]),
        ("status=none&kind=none&before=x&after=", [7, 6, 5, 4, 3, 2, 1]),
    ):
        page = viewer.get(f"/jobs/{job.pk}/checkpoints/?{query}").content.decode()
        assert numbers(page) == expected, query
    page = viewer.get(f"/jobs/{job.pk}/checkpoints/?status=failed&kind=checkpoint&before=2")
    assert "No matching checkpoint" in page.content.decode()


def test_a_row_says_what_is_special_about_it(viewer: Client, job: Job) -> None:
    factories.savepoint(job, "before the upgrade", 1)
    factories.checkpoint(job, 2, abandoned_at=clock.now())
    factories.checkpoint(job, 3, status=CheckpointStatus.FAILED, cause="OSError: disk full")
    factories.checkpoint(job, 4, status=CheckpointStatus.PENDING)
    factories.checkpoint(job, 5, status=CheckpointStatus.ABORTED)
    page = viewer.get(f"/jobs/{job.pk}/checkpoints/").content.decode()
    first, second, third, fourth, fifth = (
        text(row) for row in reversed(re.findall(r'<tr data-item="\d.*?</tr>', page, re.DOTALL))
    )
    assert first.startswith("1 savepoint before the upgrade Completed")
    assert second.startswith("2 left behind Completed")
    assert "timed out before all subtasks acknowledged: OSError: disk full" in third
    assert "under way" in fourth
    assert fifth.startswith("5 Aborted the job was restarted")


def test_an_empty_list_says_what_will_be_there(viewer: Client, job: Job) -> None:
    page = viewer.get(f"/jobs/{job.pk}/checkpoints/").content.decode()
    assert "No checkpoint has been triggered yet" in page


def test_a_list_that_has_not_changed_is_not_sent_again(viewer: Client, job: Job) -> None:
    factories.checkpoint(job, 1)
    address = f"/jobs/{job.pk}/checkpoints/data"
    first = viewer.get(address)
    assert first.json()["rows"][0]["duration"] == "212 ms"
    again = {"If-None-Match": first["ETag"]}
    assert viewer.get(address, headers=again).status_code == 304
    factories.checkpoint(job, 2)
    assert viewer.get(address, headers=again).status_code == 200


# One checkpoint -----------------------------------------------------------------------------------


def one(client: Client, of: Job, number: int, query: str = "") -> str:
    """The page of one checkpoint."""
    response = client.get(f"/jobs/{of.pk}/checkpoints/{number}/{query}")
    assert response.status_code == 200
    return str(response.content.decode())


def test_a_completed_checkpoint_says_what_it_is(operator: Client, job: Job) -> None:
    parent = factories.checkpoint(job, 6)
    factories.checkpoint(job, 9)
    row = factories.checkpoint(
        job, 7, parent=parent, state_bytes=1_240_000, watermark_ms=1_704_103_200_000
    )
    rows_checkpoint.acknowledged(row)
    page = one(operator, job, 7)
    said = text(page)
    for words in (
        "Checkpoint 7",
        "Completed",
        "18/18",
        "1.24 MB",
        "Requested by the schedule",
        "Parent checkpoint 6",
        "Event time 2024-01-01 10:00:00 UTC",
        "← 6",
        "9 →",
        "Roll back to it",
        "Verdict",
    ):
        assert words in said, words
    for name in ("rollback", "fork", "preview"):
        assert f"/jobs/{job.pk}/{name}?checkpoint=7" in page
    assert "data-under-way" not in page


def test_a_savepoint_says_its_name_and_who_asked(operator: Client, job: Job) -> None:
    savepoint = factories.savepoint(job, "before the upgrade", 3, by=factories.user(name="ada"))
    page = one(operator, job, 3)
    assert "Savepoint 3 before the upgrade" in text(page)
    assert "Requested by ada" in text(page)
    assert f"/jobs/{job.pk}/rollback?savepoint={savepoint.pk}" in page
    savepoint.deleted_at = clock.now()
    savepoint.save()
    page = one(operator, job, 3)
    assert "Its files are being deleted" in page
    assert f"/jobs/{job.pk}/fork?savepoint" not in page


def test_who_asked_is_the_operation_where_there_is_one(viewer: Client, job: Job) -> None:
    asked = factories.operation(job, factories.user(name="ada"))
    factories.checkpoint(job, 1, request_id=str(asked.pk))
    factories.checkpoint(job, 2, request_id="nightly")
    factories.checkpoint(job, 3, kind="savepoint")
    page = one(viewer, job, 1)
    assert "ada (checkpoint)" in page
    assert f"/jobs/{job.pk}/operations/{asked.pk}" in page
    assert "request nightly" in one(viewer, job, 2)
    assert "the job&#x27;s driver" in one(viewer, job, 3)


@pytest.mark.parametrize(
    ("status", "columns", "words"),
    [
        (CheckpointStatus.PENDING, {}, "It can be restored once it has completed."),
        (CheckpointStatus.FAILED, {}, "It failed and cannot be restored."),
        (CheckpointStatus.ABORTED, {}, "It was aborted and cannot be restored."),
        (CheckpointStatus.SUBSUMED, {}, "Its files are being deleted"),
        (CheckpointStatus.DISCARDED, {}, "Its files have been deleted"),
        (CheckpointStatus.COMPLETED, {"discard_due_at": clock.from_ms(0)}, "being deleted"),
        (
            CheckpointStatus.SUBSUMED,
            {"discard_due_at": clock.from_ms(0), "discard_error": "the bucket is away"},
            "cannot be deleted so far, and are tried again: the bucket is away",
        ),
    ],
)
def test_nothing_is_offered_that_cannot_be_done(
    operator: Client, viewer: Client, job: Job, status: str, columns: dict, words: str
) -> None:
    factories.checkpoint(job, 1, status=status, **columns)
    for client in (operator, viewer):
        page = one(client, job, 1)
        assert words in page
        assert f"/jobs/{job.pk}/rollback?" not in page
        assert f"/jobs/{job.pk}/fork?" not in page


def test_a_rollback_that_has_to_wait_says_why(operator: Client, job: Job) -> None:
    factories.checkpoint(job, 1)
    factories.operation(job, None, kind="rollback", status="running")
    page = one(operator, job, 1)
    assert f"/jobs/{job.pk}/rollback?" not in page
    assert f"/jobs/{job.pk}/fork?checkpoint=1" in page
    assert "No rollback now: Rollback under way" in page


def test_a_failed_checkpoint_says_who_never_acknowledged(viewer: Client, job: Job) -> None:
    row = factories.checkpoint(job, 1, status=CheckpointStatus.FAILED, acknowledged_count=0)
    rows_checkpoint.acknowledged(row, chains=("flights", "totals"))
    said = text(one(viewer, job, 1))
    assert "Missing acknowledgements" in said
    assert "never acknowledged: all 2" in said
    assert "10 of 18 subtasks acknowledged" in said


def test_subtasks_that_had_finished_are_not_missed(viewer: Client, job: Job) -> None:
    job.subtasks.filter(chain="hourly").update(status=SubtaskStatus.FINISHED)
    row = factories.checkpoint(job, 1, status=CheckpointStatus.PENDING, subtask_count=10)
    rows_checkpoint.acknowledged(row, chains=("flights",))
    said = text(one(viewer, job, 1))
    assert "waiting for all 2" in said  # Those of totals alone.
    assert said.count("waiting for all") == 1


def test_no_subtask_is_named_where_the_graph_was_another(viewer: Client, job: Job) -> None:
    row = factories.checkpoint(job, 1, status=CheckpointStatus.FAILED, subtask_count=90)
    row.acknowledged_count = 0
    rows_checkpoint.acknowledged(row, chains=("flights",))
    assert "never acknowledged:" not in one(viewer, job, 1)


def test_details_that_are_not_kept_are_said_to_be_gone(viewer: Client, job: Job) -> None:
    factories.checkpoint(job, 1, has_details=False)
    page = one(viewer, job, 1)
    assert "Details no longer kept" in page
    assert 'id="timeline"' not in page
    assert 'id="storage"' in page


def test_other_numbers_and_jobs_are_404(viewer: Client, job: Job) -> None:
    factories.checkpoint(flights.running("other"), 5)
    for number in (5, 10**30):
        for address in addresses(job, number)[2:]:
            assert viewer.get(address).status_code == 404, address
    assert viewer.get("/jobs/none/checkpoints/").status_code == 404
    factories.checkpoint(job, 6)
    assert viewer.get(f"/jobs/{job.pk}/checkpoints/6/figures/none").status_code == 404


# Its sections -------------------------------------------------------------------------------------


def wide(of: Job, number: int = 1, parallelism: int = 60) -> Checkpoint:
    """A checkpoint that is too wide to be shown at once."""
    return rows_checkpoint.acknowledged(factories.checkpoint(of, number), parallelism)


def test_few_subtasks_are_shown_at_once(viewer: Client, job: Job) -> None:
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    page = one(viewer, job, 1)
    assert "Each row is a subtask" in page
    figure = viewer.get(f"/jobs/{job.pk}/checkpoints/1/figures/timeline").json()
    assert figure["data"][0]["y"] == [
        f"{chain}-{index}" for chain in factories.CHAINS for index in range(2)
    ]


def test_many_subtasks_are_shown_by_chain_and_then_the_slowest(viewer: Client, job: Job) -> None:
    wide(job)
    page = one(viewer, job, 1)
    assert "Each row is an operator chain" in page
    assert f"/jobs/{job.pk}/checkpoints/1/?chain=hourly#timeline" in page
    base = f"/jobs/{job.pk}/checkpoints/1/figures/timeline"
    by_chain = viewer.get(base).json()
    assert by_chain["data"][0]["y"] == list(factories.CHAINS)
    assert by_chain["layout"]["meta"]["links"]["hourly"].endswith("?chain=hourly#timeline")

    said = text(one(viewer, job, 1, "?chain=hourly"))
    assert f"The {sections.SUBTASKS_SLOWEST} slowest of 60 subtasks" in said
    slowest = viewer.get(f"{base}?chain=hourly").json()["data"][0]["y"]
    assert slowest[:2] == ["hourly-59", "hourly-58"]
    assert len(slowest) == sections.SUBTASKS_SLOWEST
    everybody = viewer.get(f"{base}?chain=hourly&all=1").json()["data"][0]["x"]
    assert len(everybody) == 60


def test_the_table_of_chains_says_least_most_and_whose(viewer: Client, job: Job) -> None:
    wide(job)
    said = text(one(viewer, job, 1))
    match = re.search(r"hourly 60 hourly-59 (.*?) totals 60", said)
    assert match is not None
    assert "300 ms to 359 ms hourly-59" in match.group(1)


def test_a_chain_that_is_not_there_is_said_to_be_unknown(viewer: Client, job: Job) -> None:
    wide(job)
    page = one(viewer, job, 1, f"?chain={SCRIPT}&sort=none&page=-3")
    assert "No subtask of a chain" in page
    assert SCRIPT not in page
    assert (
        viewer.get(f"/jobs/{job.pk}/checkpoints/1/figures/timeline?chain=none").status_code == 200
    )


def test_state_is_compared_with_the_last_that_completed(viewer: Client, job: Job) -> None:
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1), state_bytes=30_000)
    factories.checkpoint(job, 2, status=CheckpointStatus.FAILED)
    rows_checkpoint.acknowledged(factories.checkpoint(job, 3), state_bytes=40_000)
    left = factories.checkpoint(job, 4, abandoned_at=clock.now())
    rows_checkpoint.acknowledged(left, state_bytes=1)
    rows_checkpoint.acknowledged(factories.checkpoint(job, 5), state_bytes=20_000)
    said = text(one(viewer, job, 3))
    assert "Compared with checkpoint 1" in said
    assert "hourly 2 80.0 kB 60.0 kB +20.0 kB (+33%) 40.0 kB 40.0 kB shared" in said
    assert "flights 2 0 B 0 B no change" in said
    said = text(one(viewer, job, 5))  # Not against the one that was left behind.
    assert "Compared with checkpoint 3" in said
    assert "−40.0 kB (−50%)" in said
    assert "no checkpoint completed before this one" in text(one(viewer, job, 1))
    Checkpoint.objects.filter(number=3).update(has_details=False)
    assert "No comparison: details of checkpoint" in text(one(viewer, job, 5))


def test_shared_state_is_told_where_there_is_some(viewer: Client, job: Job) -> None:
    factories.checkpoint(job, 1, state_bytes=80_000, written_bytes=80_000)
    factories.checkpoint(job, 2, state_bytes=80_000, written_bytes=5_000)
    assert "Written 5.00 kB Shared 75.0 kB" in text(one(viewer, job, 2))
    assert "Shared" not in text(one(viewer, job, 1))


def test_an_operator_s_state_differs_once_all_of_it_is_there(viewer: Client, job: Job) -> None:
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1), state_bytes=30_000)
    under_way = factories.checkpoint(job, 2, status=CheckpointStatus.PENDING)
    factories.acknowledge(under_way, "hourly", 0, state_bytes=40_000)
    said = text(one(viewer, job, 2))
    assert "Of the subtasks that have acknowledged so far." in said
    assert "hourly 1 40.0 kB 60.0 kB –" in said
    assert "totals 0 – 60.0 kB –" in said
    assert "%)" not in said
    factories.acknowledge(under_way, "hourly", 1, state_bytes=40_000)
    assert "hourly 2 80.0 kB 60.0 kB +20.0 kB (+33%)" in text(one(viewer, job, 2))


def test_acknowledgements_are_sorted_filtered_and_paged(viewer: Client, job: Job) -> None:
    wide(job)

    def listed(query: str) -> list[str]:
        page = one(viewer, job, 1, query)
        table = page[page.index('class="sortable"') :]
        return re.findall(r'<th scope="row">([\w-]+)', table)

    size = checkpoint_queries.ACKS_LISTED
    assert listed("?sort=subtask")[:3] == ["flights-0", "flights-1", "flights-2"]
    assert listed("?sort=-alignment&operator=totals")[:2] == ["totals-59", "totals-58"]
    assert listed("?sort=sync&operator=totals&page=2")[0] == f"totals-{size}"
    assert len(listed("?sort=subtask")) == size
    page = one(viewer, job, 1, "?sort=-state&operator=hourly&chain=hourly")
    assert '<th scope="col" class="n" aria-sort="descending"><a data-swap' in page
    assert page.count("aria-sort") == 1
    # What is chosen elsewhere stays chosen.
    assert "?chain=hourly&amp;sort=state&amp;operator=hourly#acknowledgements" in page
    assert f"1 to {size} of 60 acknowledgements" in page
    assert "No acknowledgements on this page" in one(viewer, job, 1, "?page=900")


def test_few_channels_are_shown_at_once(viewer: Client, job: Job) -> None:
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    address = f"/jobs/{job.pk}/checkpoints/1/alignment"
    part = viewer.get(f"{address}?part=1").content.decode()
    assert "<html" not in part
    assert "Each row is a receiving subtask" in part
    assert "8 channels" in part
    assert "<html" in viewer.get(address).content.decode()
    heat = viewer.get(f"/jobs/{job.pk}/checkpoints/1/figures/alignment").json()["data"][0]
    assert heat["x"] == ["flights-0", "flights-1"]
    assert heat["y"] == ["hourly-0", "hourly-1", "totals-0", "totals-1"]


def test_an_unaligned_checkpoint_says_when_and_where_and_shows_its_data_in_flight(
    viewer: Client,
) -> None:
    job = flights.running("slow-sink", interval_ms=None)
    for number, timed_out_ms in ((1, None), (2, 512.0)):
        savepoints.request_checkpoint(None, job.pk)
        flights.complete_unaligned(job, number, timed_out_ms)
    savepoints.request_checkpoint(None, job.pk)
    flights.complete(job, 3)
    page = viewer.get(f"/jobs/{job.pk}/checkpoints/").content.decode()
    rows = [text(row) for row in re.findall(r'<tr data-item="\d.*?</tr>', page, re.DOTALL)]
    assert ["unaligned" in row for row in rows] == [False, True, True]
    assert "Completed unaligned after 512 ms" in rows[1]
    assert "720 kB 720 kB 420 kB 18/18" in rows[2]
    said = text(one(viewer, job, 2))
    assert "Alignment unaligned after 512 ms Persisted in-flight data 420 kB" in said
    assert "hourly-0 unaligned after 512 ms" in said
    assert "hourly-1 unaligned after 514 ms" in said
    assert "100 kB 10.0 kB at outputs" in said
    page = one(viewer, job, 2)
    assert "over while its own barrier waited behind records at an output" in page
    assert "over before all of its barriers had arrived" in page
    assert "had overtaken records upstream" in page
    assert "Alignment unaligned Persisted" in text(one(viewer, job, 1))
    assert "Persisted in-flight data" not in text(one(viewer, job, 3))

    base = f"/jobs/{job.pk}/checkpoints"
    part = text(viewer.get(f"{base}/2/alignment?by=in_flight&part=1").content.decode())
    assert "the largest are on top" in part
    assert "flights-0 hourly-0 30 ms 0 ms 156 kB 90.0 kB" in part
    assert "hourly flights 4 30 ms 30 ms hourly-0 30 ms 30 ms 180 kB" in part
    heat = viewer.get(f"{base}/2/figures/alignment?by=in_flight").json()["data"][0]
    assert heat["z"] == [[90_000, 0]] * 4
    part = text(viewer.get(f"{base}/3/alignment?part=1").content.decode())
    assert "in-flight" not in part


def test_many_channels_are_shown_by_pair_and_the_one_with_most_data_in_flight(
    viewer: Client, job: Job
) -> None:
    row = factories.checkpoint(job, 1, in_flight_bytes=5_000, unaligned_count=1)
    for index in range(200):
        in_flight = [0] * 150 + [5_000] + [0] * 49 if index == 9 else None
        factories.gate_alignment(row, "hourly", index, [1.0] * 200, in_flight=in_flight)
    base = f"/jobs/{job.pk}/checkpoints/1"
    part = text(viewer.get(f"{base}/alignment?by=in_flight&part=1").content.decode())
    assert "with the sum over its channels" in part
    assert viewer.get(f"{base}/figures/alignment?by=in_flight").json()["data"][0]["z"] == [[5_000]]
    chosen = "receiver=hourly&by=in_flight"
    heat = viewer.get(f"{base}/figures/alignment?{chosen}").json()["data"][0]
    assert (heat["y"][0], heat["z"][0][150], heat["z"][1][150]) == ("hourly-9", 5_000, 0)
    part = text(viewer.get(f"{base}/alignment?{chosen}&part=1").content.decode())
    assert "The 50 largest of 40,000 channels" in part
    assert "flights-150 hourly-9 1 ms 0 ms 5.20 kB 5.00 kB" in part


def test_many_channels_are_shown_by_pair_and_then_the_slowest_subtasks(
    viewer: Client, job: Job
) -> None:
    row = factories.checkpoint(job, 1)
    for index in range(200):
        arrived = [1.0 + index / 10] * 199 + [3_000.0 if index == 7 else 20.0]
        factories.gate_alignment(row, "hourly", index, arrived)
    base = f"/jobs/{job.pk}/checkpoints/1"
    part = text(viewer.get(f"{base}/alignment?part=1").content.decode())
    assert "Each cell is a pair of operators" in part
    # The most, what 95 % of the receiving subtasks kept within, and whose the most was.
    assert "hourly flights 40,000 3.00 s 20.0 ms hourly-7" in part.replace("20 ms", "20.0 ms")
    by_pair = viewer.get(f"{base}/figures/alignment").json()
    assert by_pair["data"][0]["z"] == [[3.0]]
    link = by_pair["layout"]["meta"]["links"]["hourly"]
    assert link == f"{base}/alignment?receiver=hourly"

    part = text(viewer.get(f"{link}&part=1").content.decode())
    assert "flights → hourly" in part
    assert "The picture shows 50 of 200 receiving subtasks." in part
    assert "The 50 slowest of 40,000 channels" in part
    heat = viewer.get(f"{base}/figures/alignment?receiver=hourly").json()["data"][0]
    assert heat["y"][0] == "hourly-7"
    assert (len(heat["y"]), len(heat["x"])) == (50, 200)
    blocked = viewer.get(f"{base}/figures/alignment?receiver=hourly&by=blocked").json()["data"][0]
    assert blocked["z"][0][0] == pytest.approx(2.9983)
    part = text(viewer.get(f"{base}/alignment?receiver=hourly&by=blocked&part=1").content.decode())
    assert "flights-0 hourly-7 1.7 ms 3.00 s" in part


def test_an_input_that_is_not_there_is_said_to_be_unknown(viewer: Client, job: Job) -> None:
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    base = f"/jobs/{job.pk}/checkpoints/1"
    for query in (f"receiver={SCRIPT}", "receiver=hourly&gate=9"):
        page = viewer.get(f"{base}/alignment?{query}").content.decode()
        assert "aligned this checkpoint on that input" in page
        assert SCRIPT not in page
        assert viewer.get(f"{base}/figures/alignment?{query}").status_code == 200
    factories.checkpoint(job, 2)
    page = viewer.get(f"/jobs/{job.pk}/checkpoints/2/alignment").content.decode()
    assert "No acknowledged subtask had channels to align" in page


def test_the_manifest_the_positions_and_the_files_are_shown(viewer: Client, job: Job) -> None:
    row = rows_checkpoint.acknowledged(factories.checkpoint(job, 7))
    splits = {0: [{"split": rows_checkpoint.PARQUET, "position": [3, 12_400]}]}
    rows_checkpoint.stored(job, row, splits)
    address = f"/jobs/{job.pk}/checkpoints/7/storage"
    said = text(viewer.get(f"{address}?part=1").content.decode())
    for words in (
        f"{job.storage}/{job.pk}/chk-7/manifest",
        "flights , 38,200 records emitted since the job began. 1 split being read, 0 not begun.",
        "/data/flights-2024-01.parquet, row group 3 next is row 12,400 of row group 3 flights-0",
        "4 files, 160 kB in all",
        "chk-7/1/hourly-0-state%2Esum 40.0 kB hourly-0 0000000000000000000000000000000",
    ):
        assert words in said, words


def test_a_storage_that_cannot_be_read_is_said_and_the_rest_is_shown(
    viewer: Client, job: Job
) -> None:
    rows_checkpoint.acknowledged(factories.checkpoint(job, 7))
    part = viewer.get(f"/jobs/{job.pk}/checkpoints/7/storage?part=1").content.decode()
    assert "The manifest cannot be read" in part
    assert "Try again" in part
    assert "4 files, 160 kB in all" in part
    factories.checkpoint(job, 8, status=CheckpointStatus.DISCARDED)
    part = viewer.get(f"/jobs/{job.pk}/checkpoints/8/storage?part=1").content.decode()
    assert "Its files have been deleted" in part
    assert "Try again" not in part


# Live ---------------------------------------------------------------------------------------------


def test_one_that_is_under_way_says_how_far_it_is(viewer: Client, job: Job) -> None:
    row = factories.checkpoint(
        job, 1, status=CheckpointStatus.PENDING, triggered_at=clock.now() - timedelta(seconds=5)
    )
    page = one(viewer, job, 1)
    assert "data-under-way" in page
    assert "No subtask has acknowledged yet" in page
    address = f"/jobs/{job.pk}/checkpoints/1/data"
    first = viewer.get(address)
    assert first.json()["acknowledged"] == "0/18"
    again = {"If-None-Match": first["ETag"]}
    factories.acknowledge_chain(row, "flights", 0)
    second = viewer.get(address, headers=again).json()
    assert second["chains"][0]["text"] == "1/2"
    assert second["chains"][0]["missing"] == "waiting for flights-1"
    assert second["revision"] != first.json()["revision"]
    row.status, row.settled_at, row.duration_ms = CheckpointStatus.COMPLETED, clock.now(), 5_100
    row.save()
    third = viewer.get(address).json()
    assert third["is_under_way"] is False
    assert third["took_ago"] == "5.10 s"
    assert third["chains"] == []


def test_pictures_of_a_settled_checkpoint_are_not_sent_again(viewer: Client, job: Job) -> None:
    row = rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    base = f"/jobs/{job.pk}/checkpoints/1"
    for name in ("figures/timeline", "figures/state", "figures/alignment", "alignment?part=1"):
        first = viewer.get(f"{base}/{name}")
        again = {"If-None-Match": first["ETag"]}
        assert viewer.get(f"{base}/{name}", headers=again).status_code == 304, name
    Checkpoint.objects.filter(pk=row.pk).update(has_details=False)
    assert viewer.get(f"{base}/alignment?part=1", headers=again).status_code == 200


# Who may, and what it costs -----------------------------------------------------------------------


def test_who_is_not_logged_in_is_led_to_the_login(client: Client, job: Job) -> None:
    factories.checkpoint(job, 1)
    for address in addresses(job, 1):
        response = client.get(address)
        assert response.status_code == 302
        assert response["Location"].startswith("/login/?next=")


def test_a_viewer_sees_everything_but_what_it_may_not_use(viewer: Client, job: Job) -> None:
    factories.checkpoint(job, 1)
    for address in addresses(job, 1):
        assert viewer.get(address).status_code == 200, address
        assert viewer.post(address).status_code == 405, address
    page = one(viewer, job, 1)
    for words in ("Roll back", "Fork from it", "Preview a change"):
        assert words not in page


def test_text_of_others_is_escaped(operator: Client, job: Job) -> None:
    row = factories.checkpoint(job, 1, status=CheckpointStatus.FAILED, cause=f"{SCRIPT}\n{SCRIPT}")
    rows_checkpoint.acknowledged(row)
    row.acks.filter(operator="flights").update(operator=SCRIPT, chain=SCRIPT)
    row.alignments.filter(operator="hourly").update(operator='"><i>')
    job.operators.update(name=SCRIPT)
    savepoint = factories.savepoint(job, "x", 2)
    savepoint.name = SCRIPT
    savepoint.save()
    Checkpoint.objects.update(location=SCRIPT)
    for number in (1, 2):
        for address in addresses(job, number):
            if "figures" in address or address.endswith("data"):
                continue
            page = operator.get(address).content.decode()
            assert SCRIPT not in page, address
            assert '"><i>' not in page, address
    for name in ("timeline", "alignment", "state"):
        figure = operator.get(f"/jobs/{job.pk}/checkpoints/1/figures/{name}").json()
        shown = json.dumps({**figure, "layout": {**figure["layout"], "meta": None}})
        assert SCRIPT not in shown
        assert "<i>" not in shown


def test_tables_have_captions_and_pages_no_inline_script(operator: Client, job: Job) -> None:
    row = rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    rows_checkpoint.stored(job, row)
    for address in addresses(job, 1):
        if "figures" in address or address.endswith("data"):
            continue
        page = operator.get(address).content.decode()
        for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
            assert "<caption" in table
            assert '<th scope="col"' in table
        assert not re.search(r"<[^>]+ style=", page)
        assert not re.search(r"<[^>]+ on\w+=", page)
        assert not re.search(r"<script(?![^>]*src=)", page)
        ids = re.findall(r' id="([^"]+)"', page)
        assert len(set(ids)) == len(ids), address


def test_pages_cost_the_same_number_of_queries_for_any_number_of_rows(
    operator: Client, job: Job
) -> None:
    rows_checkpoint.acknowledged(factories.checkpoint(job, 1))
    rows_checkpoint.acknowledged(factories.checkpoint(job, 2))
    wide(job, 3, 40)
    wide(job, 4, 80)
    for number in range(5, 60):
        factories.checkpoint(job, number)
    SubtaskAck.objects.filter(operator="hourly").update(records=1)

    def cost(address: str) -> int:
        with CaptureQueriesContext(connection) as queries:
            assert operator.get(f"/jobs/{job.pk}/checkpoints/{address}").status_code == 200
        return len(queries)

    assert cost("") == cost("?before=20&kind=checkpoint") <= 6
    assert cost("3/") == cost("4/") <= 24
    assert cost("3/?chain=hourly") == cost("4/?chain=totals&sort=state") <= 25
    assert cost("3/alignment") == cost("4/alignment") <= 8
    assert cost("3/alignment?receiver=hourly") == cost("4/alignment?receiver=hourly") <= 8
    assert cost("2/storage") == cost("4/storage") <= 6
    for name in ("timeline", "alignment", "state"):
        assert cost(f"3/figures/{name}") == cost(f"4/figures/{name}") <= 8
