"""Samples of chains: the newest counters that drivers reported, of all jobs that are not over."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from checkpoints.chain_samples import sample
from jobs import chain_series
from jobs.models import ChainSample, Job, Subtask
from tests import factories
from tests.database.frontend import flights
from tests.database.jobs import builders
from tests.database.jobs.test_subtask_rows import metrics
from weir.protocol.lifecycle import JobStatus, SubtaskStatus

pytestmark = pytest.mark.django_db

AT = datetime(2026, 3, 1, 12, 0, 5, tzinfo=UTC)


def report(job: Job, chain: str, index: int, at: datetime, **columns: Any) -> None:
    """A subtask that takes in a record for each millisecond of its minute."""
    ms = (at - AT.replace(second=0)).total_seconds() * 1_000
    counters = {"records_in": ms, "records_out": 0, "busy_ms": ms / 4, "idle_ms": ms * 3 / 4}
    more = {"back_pressured_ms": 0.0, "watermark_ms": round(at.timestamp() * 1_000) - index}
    columns = {"metrics": counters | more, "updated_at": at, **columns}
    Subtask.objects.filter(job=job, chain=chain, index=index).update(**columns)


def job_of(*chains: str, status: str = JobStatus.RUNNING) -> Job:
    job = factories.job(status=status)
    factories.subtasks(job, chains=chains)
    return job


def test_what_a_driver_reports_becomes_points() -> None:
    job, run = builders.running(), SubtaskStatus.RUNNING
    builders.apply(job, *(builders.subtask_changed(f"sink-{index}", run) for index in (0, 1)))
    builders.apply(job, *(metrics(f"sink-{index}", 1) for index in (0, 1)))
    assert sample() == 1  # The source has reported nothing.
    builders.apply(job, *(metrics(f"sink-{index}", 11, busy=0.5) for index in (0, 1)))
    Subtask.objects.update(updated_at=ChainSample.objects.get().at + timedelta(seconds=10))
    assert sample() == 1
    rows = list(ChainSample.objects.order_by("at"))
    _, point = chain_series.points(rows, "sink")
    assert (point.attempt, point.running) == (1, 2)
    assert (point.records_in_per_s, point.records_out_per_s) == (200, 0)
    assert point.busy == pytest.approx((2 * 5_500 - 2 * 250) / (2 * 10_000))
    assert point.busiest == pytest.approx(rows[1].busiest)


def test_a_sample_is_a_sum_over_the_subtasks_at_their_newest_report() -> None:
    job = job_of("totals")
    report(job, "totals", 0, AT, rates={"busy": 0.25})
    later = AT + timedelta(seconds=1)
    report(job, "totals", 1, later, rates={"busy": 0.75})
    assert sample() == 1
    row = ChainSample.objects.get()
    assert (row.at, row.running, row.busiest) == (later, 2, 0.75)
    assert row.records_in == (5 + 6) * 1_000
    assert row.watermark_ms == round(AT.timestamp() * 1_000)


def test_a_subtask_that_has_finished_counts_with_what_it_did_but_not_with_its_watermark() -> None:
    job = job_of("totals")
    report(job, "totals", 0, AT, status=SubtaskStatus.FINISHED, rates={})
    report(job, "totals", 1, AT + timedelta(seconds=1))
    sample()
    row = ChainSample.objects.get()
    assert (row.running, row.records_in) == (1, 11_000)
    assert row.watermark_ms == round(AT.timestamp() * 1_000) + 999


def test_a_chain_that_reported_nothing_since_gets_no_sample() -> None:
    job = job_of("hourly", "totals")
    report(job, "hourly", 0, AT)
    report(job, "totals", 0, AT)
    assert (sample(), sample()) == (2, 0)
    report(job, "totals", 0, AT + timedelta(seconds=10))
    assert sample() == 1
    assert ChainSample.objects.filter(chain="hourly").count() == 1


def test_the_first_sample_of_each_minute_is_the_one_that_stays_for_the_day() -> None:
    job = job_of("totals")
    for seconds in (0, 30, 54.9, 55, 65, 200):
        report(job, "totals", 0, AT + timedelta(seconds=seconds))
        sample()
    kept = ChainSample.objects.filter(is_first_of_minute=True).order_by("at")
    assert [(row.at - AT).total_seconds() for row in kept] == [0, 55, 200]
    assert ChainSample.objects.count() == 6


def test_jobs_that_are_over_get_no_sample_and_all_others_cost_one_statement(
    django_assert_num_queries: DjangoAssertNumQueries,
) -> None:
    for status in JobStatus:
        report(job_of("totals", status=status), "totals", 0, AT)
    with django_assert_num_queries(1):
        assert sample() == len(JobStatus) - 3
    assert not ChainSample.objects.filter(job__ended_at__isnull=False).exists()


def test_a_sample_has_the_state_of_the_newest_completed_checkpoint_by_operator() -> None:
    job = flights.running()
    for chain in factories.CHAINS:
        report(job, chain, 0, AT)
    for number, status, state in ((1, "completed", 1), (2, "completed", 40), (3, "failed", 9)):
        taken = factories.checkpoint(job, number, status=status)
        for index in (0, 1):
            factories.acknowledge(taken, "totals", index, chain="totals", state_bytes=state)
        factories.acknowledge(taken, "totals-sink", 0, chain="totals", state_bytes=2 * state)
    factories.checkpoint(job, 4, has_details=False)  # Taken without this control plane.
    sample()
    states = dict(ChainSample.objects.values_list("chain", "state_bytes"))
    assert states == {"flights": {}, "hourly": {}, "totals": {"totals": 80, "totals-sink": 80}}
