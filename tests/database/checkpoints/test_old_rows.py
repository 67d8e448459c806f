"""Rows of old checkpoints: removed where nothing needs them, and counted for ever."""

from collections.abc import Iterator
from datetime import datetime, timedelta
from threading import Thread
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from pytest_django.fixtures import Settings

from checkpoints.catalog import locations
from checkpoints.models import (
    Checkpoint,
    CoordinatorRow,
    GateAlignment,
    RemovedCheckpoints,
    SubtaskAck,
)
from checkpoints.retention import rows, sweep
from controlplane import metrics
from controlplane.base import clock
from controlplane.base.ticks import Budget
from jobs.models import Attempt, Driver, Job
from tests import factories
from tests.database.api import whole_jobs
from tests.database.checkpoints.line import Line
from tests.database.checkpoints.storage import files, put_state
from tests.database.checkpoints.test_discards import aborted, completed
from tests.database.frontend.all_pages import assert_every_page_opens
from tests.database.jobs import builders as jobs
from weir.storage.manifest import Tombstone, dump

pytestmark = pytest.mark.django_db

PLENTY = 60.0
OLD = timedelta(days=40)


@pytest.fixture(autouse=True)
def fresh_totals() -> Iterator[None]:
    """Forget the totals that an earlier test's jobs left in this process."""
    yield
    for collector in list(metrics.REGISTRY._collector_to_names):
        if isinstance(collector, metrics.Rows):
            collector._totals.clear()


def remove(*, days: float | None = 30.0, most: int | None = None) -> int:
    older = None if days is None else clock.now() - timedelta(days=days)
    return rows.remove(older, most, Budget(PLENTY))


def discarded(job: Job, number: int, **columns: Any) -> Checkpoint:
    columns = {"status": "discarded", "triggered_at": clock.now() - OLD, **columns}
    return factories.checkpoint(job, number, **columns)


def numbers(job: Job) -> list[int]:
    own = Checkpoint.objects.filter(job=job).order_by("number")
    return list(own.values_list("number", flat=True))


# Removal ------------------------------------------------------------------------------------------


def test_old_rows_go_with_their_details_and_young_ones_stay() -> None:
    job = factories.job()
    for number in range(1, 7):
        old = number <= 4
        row = discarded(job, number, **({} if old else {"triggered_at": clock.now()}))
        factories.acknowledge(row, "totals", 0)
        factories.gate_alignment(row, "totals", 0, [1.0, 2.0])
    discarded(job, 7, status="aborted", triggered_at=clock.now() - OLD)
    assert remove() == 5
    assert numbers(job) == [5, 6]
    assert set(SubtaskAck.objects.values_list("checkpoint__number", flat=True)) == {5, 6}
    assert set(GateAlignment.objects.values_list("checkpoint__number", flat=True)) == {5, 6}
    assert remove() == 0


def test_beyond_their_number_the_oldest_go_at_any_age() -> None:
    job, other = factories.job(), factories.job()
    now = clock.now()
    for number in range(1, 11):
        discarded(job, number, triggered_at=now)
    discarded(other, 3, triggered_at=now)
    assert remove(days=None, most=4) == 6
    assert numbers(job) == [7, 8, 9, 10]
    assert numbers(other) == [3]
    assert remove(days=None, most=4) == 0


def test_what_can_be_restored_or_is_not_deleted_yet_stays_at_any_age() -> None:
    job = factories.job()
    old = clock.now() - 100 * OLD
    factories.checkpoint(job, 1, triggered_at=old)  # Completed.
    factories.checkpoint(job, 2, status="subsumed", triggered_at=old)
    factories.checkpoint(job, 3, status="aborted", triggered_at=old, discard_due_at=clock.now())
    factories.checkpoint(job, 4, status="aborted", triggered_at=old, location="/s/x")  # In doubt.
    factories.savepoint(job, "kept", 5)
    factories.savepoint(job, "deleted", 6, status="discarded", deleted_at=old)
    Checkpoint.objects.update(triggered_at=old)
    assert remove(most=1) == 0
    factories.checkpoint(job, 7, status="aborted", triggered_at=old, location="/s/y").save()
    Checkpoint.objects.filter(number=7).update(discarded_at=old)
    assert remove() == 1


def test_none_goes_from_behind_one_that_has_not_settled() -> None:
    """Its number would be missing in the totals that are counted up to the first unsettled one."""
    job = factories.job()
    for number in (1, 2, 4):
        discarded(job, number)
    factories.checkpoint(job, 3, status="finalizing", triggered_at=clock.now() - OLD)
    assert remove() == 2
    assert numbers(job) == [3, 4]


def test_what_a_coordinator_an_attempt_or_another_job_needs_stays(line: Line) -> None:
    completed(line, 1, 2, 3)
    (two,) = line.state.completed[1:2]
    Checkpoint.objects.filter(number__lte=3).update(
        status="discarded", triggered_at=clock.now() - OLD, discard_due_at=None
    )
    # Rows that say discarded, of checkpoints that are needed: the needs win.
    assert {1, 2, 3} == {int(c.checkpoint_id) for c in line.state.completed}
    assert two.checkpoint_id == 2
    assert remove() == 0
    state = CoordinatorRow.objects.get(job=line.job_id)
    state.state["completed"] = []
    state.save()
    Attempt.objects.filter(job=line.job_id).update(restored_checkpoint=1)
    factories.job(restore_job=line.job, restore_number=2, restore_uri="/x")
    assert remove() == 1
    assert numbers(line.job) == [1, 2]


def test_children_that_stay_lose_their_parent_and_nothing_else() -> None:
    job = factories.job()
    parent = discarded(job, 1)
    middle = discarded(job, 2, parent=parent)
    child = factories.checkpoint(job, 3, parent=middle)
    assert remove() == 2
    child.refresh_from_db()
    assert (child.number, child.parent) == (3, None)


def test_a_job_whose_lock_is_taken_does_not_hold_up_the_others(
    transactional_db: None,
) -> None:
    busy, free = factories.job(), factories.job()
    discarded(busy, 1)
    discarded(free, 1)
    counts: list[int] = []

    def beside() -> None:
        try:
            counts.append(remove())
        finally:
            connection.close()

    with transaction.atomic():
        Job.objects.select_for_update().get(pk=busy.pk)
        thread = Thread(target=beside)
        thread.start()
        thread.join(30)
        assert not thread.is_alive(), "the removal waits for the lock"
    assert counts == [1]
    assert (numbers(busy), numbers(free)) == ([1], [])


def test_a_transaction_deletes_so_many_acknowledgements_and_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rows, "DETAILS_BATCH", 5)
    job = factories.job()
    for number in range(1, 5):
        row = discarded(job, number, subtask_count=3, acknowledged_count=3)
        factories.acknowledge_all(row, [factories.ack(row, "totals", i) for i in range(3)])
    deleted: list[int] = []
    real = rows.delete_details

    def counting(keys: Any) -> None:
        deleted.append(SubtaskAck.objects.filter(checkpoint__in=keys).count())
        real(keys)

    monkeypatch.setattr(rows, "delete_details", counting)
    assert remove() == 4
    assert deleted == [3, 3, 3, 3]
    assert not SubtaskAck.objects.exists()


def test_details_of_failures_are_kept_for_the_newest_too(settings: Settings) -> None:
    settings.WEIR_DETAILED_CHECKPOINTS = 2
    job = factories.job()
    for number in range(1, 6):
        status = "aborted" if number % 2 else "discarded"
        factories.acknowledge(
            factories.checkpoint(job, number, status=status, evidence={"a": 1}), "totals", 0
        )
    assert sweep.trim_details() == 1
    kept = Checkpoint.objects.filter(has_details=True).order_by("number")
    assert list(kept.values_list("number", flat=True)) == [2, 3, 4, 5]
    first = Checkpoint.objects.get(number=1)
    assert (first.has_details, first.evidence) == (False, None)
    assert Checkpoint.objects.get(number=3).evidence == {"a": 1}
    assert set(SubtaskAck.objects.values_list("checkpoint__number", flat=True)) == {2, 3, 4, 5}


# Counting -----------------------------------------------------------------------------------------

NAMES = ("weir_checkpoints_total", "weir_checkpoint_duration", "weir_checkpoint_alignment")


def counters(client: Client, settings: Settings) -> list[str]:
    settings.WEIR_METRICS_PUBLIC = True
    text = client.get("/metrics").content.decode()
    return [line for line in text.splitlines() if line.startswith(NAMES)]


def restarted() -> None:
    """Another web process: it has read nothing yet."""
    for collector in list(metrics.REGISTRY._collector_to_names):
        if isinstance(collector, metrics.Rows):
            collector._totals.clear()


def fill(job: Job, first: int, last: int, at: datetime) -> None:
    for number in range(first, last + 1):
        status = "aborted" if number % 3 == 0 else "discarded"
        duration_ms, alignment_ms = 37 * number, 3.5 * number
        discarded(
            job,
            number,
            status=status,
            triggered_at=at,
            duration_ms=duration_ms,
            alignment_ms=alignment_ms,
        )


def test_counters_and_histograms_go_on_as_if_every_row_were_there(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "BATCH", 4)
    job = factories.job()
    fill(job, 1, 20, clock.now() - OLD)
    fill(job, 21, 25, clock.now())
    before = counters(client, settings)
    assert any('result="completed"} 17.0' in line for line in before)
    assert remove() == 20
    assert counters(client, settings) == before, "of a process that had read the rows"
    restarted()
    assert counters(client, settings) == before, "of one that had not"
    fill(job, 26, 28, clock.now())
    assert any('result="completed"} 19.0' in line for line in counters(client, settings))
    after = counters(client, settings)
    restarted()
    assert counters(client, settings) == after


def test_a_process_that_was_not_asked_for_long_reads_the_removed_ones(
    client: Client, settings: Settings
) -> None:
    job = factories.job()
    fill(job, 1, 5, clock.now() - OLD)
    counters(client, settings)
    fill(job, 6, 10, clock.now() - OLD)
    fill(job, 11, 12, clock.now())
    assert remove() == 10  # Of which it had read five.
    late = counters(client, settings)
    assert any('result="completed"} 8.0' in line for line in late)
    restarted()
    assert counters(client, settings) == late


def test_rows_removed_while_they_are_read_count_once(
    client: Client, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = factories.job()
    fill(job, 1, 9, clock.now() - OLD)
    expected = counters(client, settings)
    restarted()
    real, removed = metrics.totals.removed_of, []

    def removing(job_ids: Any) -> Any:
        answer = real(job_ids)
        if not removed:
            removed.append(remove())  # Between the totals of removed rows and those of the rest.
        return answer

    monkeypatch.setattr(metrics.totals, "removed_of", removing)
    assert counters(client, settings) == expected
    assert removed == [9]


# Beside the rest ----------------------------------------------------------------------------------


def test_every_page_of_a_job_opens_without_its_history(client: Client) -> None:
    admin = factories.user("admin")
    client.force_login(admin)
    job = whole_jobs.everything(admin)
    Checkpoint.objects.filter(job=job).exclude(savepoint__deleted_at=None).update(parent=None)
    Checkpoint.objects.filter(job=job).update(triggered_at=clock.now() - OLD)
    Checkpoint.objects.filter(job=job, savepoint=None, status="completed").update(
        status="discarded", discard_due_at=None
    )
    CoordinatorRow.objects.filter(job=job).delete()
    assert remove() > 0
    assert_every_page_opens(client, job)


def test_a_tombstone_goes_with_its_row_once_its_driver_has_ended(line: Line) -> None:
    put_state(line.job, 1, complete=False)
    aborted(line, 1)
    layout = locations.layout_of(line.job)
    tombstone = Tombstone(
        job_id=line.job_id,  # type: ignore[arg-type]
        checkpoint_id=1,  # type: ignore[arg-type]
        attempt=1,  # type: ignore[arg-type]
        given_up_ms=0,
        reason="",
    )
    store = locations.store_of(line.job)
    store.put(layout.manifest(1), dump(tombstone))  # type: ignore[arg-type]
    completed(line, 2)
    put_state(line.job, 2)
    Checkpoint.objects.filter(number=1).update(
        discard_due_at=None, triggered_at=clock.now() - OLD, discarded_at=None
    )
    assert remove() == 1
    sweep.clean_next()
    kept = ["chk-2/1/sink-0/counts", "chk-2/manifest"]
    assert [f for f in files(line.job) if f.startswith("chk-1/")] == ["chk-1/manifest"]
    Driver.objects.update(stopped_at=clock.now())
    jobs.pass_time(CoordinatorRow.objects.get(), sweep.CLEANED_EVERY_S, "swept_at")
    sweep.clean_next()
    assert [f for f in files(line.job) if f.startswith("chk-1/")] == []
    assert len([f for f in files(line.job) if f.startswith("chk-2/")]) == len(kept)
    assert not RemovedCheckpoints.objects.exclude(job=line.job_id).exists()
