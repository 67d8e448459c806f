"""Reports of counters: at every interval while they change, now and then while they rest."""

from dataclasses import replace

from tests.builders import subtask
from tests.unit.worker.subtask_harness import ATTEMPT, Reports
from weir.protocol.messages import SubtaskMetrics
from weir.worker.metrics_reports import (
    INTERVAL_NS,
    RESTING_INTERVAL_NS,
    SETTLING_NS,
    MetricsReports,
    interval_ns,
)

RESTING = SubtaskMetrics(ATTEMPT, subtask("a-0"), 0, 0, 0, 0, 0.0, 0.0, 0.0, None)


def reported_at(offers: list[SubtaskMetrics]) -> list[int]:
    """The intervals, of one offer each, at which there was a report."""
    reports = Reports()
    metrics = MetricsReports(reports)
    at = []
    for n, offer in enumerate(offers):
        metrics.offer(offer, n * INTERVAL_NS)
        at += [n] * len(reports)
        reports.clear()
    return at


def test_a_subtask_that_works_is_reported_each_time() -> None:
    assert reported_at([replace(RESTING, records_in=n) for n in range(30)]) == list(range(30))


def test_each_counter_of_work_counts_as_a_change() -> None:
    for name in ("records_in", "records_out", "bytes_in", "bytes_out", "busy_ms", "watermark_ms"):
        changing = [replace(RESTING, **{name: n}) for n in range(30)]  # type: ignore[arg-type]
        assert reported_at(changing) == list(range(30)), name


def test_one_that_rests_is_reported_until_its_rates_are_zero_and_rarely_then() -> None:
    resting = [replace(RESTING, idle_ms=500.0 * n) for n in range(40)]
    settled = SETTLING_NS // INTERVAL_NS
    every = RESTING_INTERVAL_NS // INTERVAL_NS
    assert reported_at(resting) == [*range(settled + 1), *range(settled + every, 40, every)]


def test_work_after_a_rest_is_reported_at_once() -> None:
    offers = [RESTING] * 18 + [replace(RESTING, records_in=1)] * 2
    assert reported_at(offers)[-2:] == [18, 19]


def test_each_subtask_rests_by_itself() -> None:
    reports = Reports()
    metrics = MetricsReports(reports)
    for n in range(20):
        metrics.offer(RESTING, n * INTERVAL_NS)
        metrics.offer(replace(RESTING, chain=subtask("b-0"), records_in=n), n * INTERVAL_NS)
    counts = [sum(r.chain == subtask(name) for r in reports) for name in ("a-0", "b-0")]
    assert counts == [7, 20]


def test_a_slot_of_many_subtasks_reports_more_rarely() -> None:
    """However many there are: a report more still follows the last change."""
    assert interval_ns(1) == interval_ns(100) == INTERVAL_NS
    assert interval_ns(200) == 2 * INTERVAL_NS
    assert interval_ns(10_000) == SETTLING_NS // 2
    for count in (1, 150, 10_000):
        reports = Reports()
        metrics = MetricsReports(reports)
        for n in range(100):
            metrics.offer(RESTING, n * interval_ns(count))
            if n * interval_ns(count) == SETTLING_NS // interval_ns(count) * interval_ns(count):
                assert len(reports) == n + 1 >= 3
