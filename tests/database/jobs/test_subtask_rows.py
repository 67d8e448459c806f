"""Rows of what subtasks report: rates, alignments in progress, calls that do not end."""

from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest

from controlplane.base import clock
from jobs.models import Job, Subtask
from tests.database.checkpoints.line import Line
from tests.database.jobs.builders import (
    apply,
    attempt_started,
    changed,
    driver_of,
    lose,
    planned,
    running,
    speaking,
    subtask,
    subtask_changed,
)
from weir.ids import AttemptNumber, CheckpointId
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import AlignmentProgress, GateProgress, SubtaskMetrics, SubtaskStalled

pytestmark = pytest.mark.django_db

STACK = '  File "pipeline.py", line 3, in look_up\n    time.sleep(3)\n'
STALL = {"since_ms": ANY, "stalled_ms": 1_250.5, "stack": STACK}
ALIGNING = {
    "checkpoint": 7,
    "since_ms": ANY,
    "waited_ms": 251.5,
    "gates": [
        {
            "gate": 0,
            "upstream": ["source-0", "source-1"],
            "arrived_ms": [0.0, None],
            "blocked_ms": [251.5, 0.0],
            "bytes_during": [0, 4_096],
            "ended": [False, False],
        }
    ],
}


def metrics(name: str, at_s: float, *, busy: float = 0.25, attempt: int = 1) -> SubtaskMetrics:
    """A subtask that takes in a hundred records a second."""
    ms = 1_000 * at_s
    return SubtaskMetrics(
        AttemptNumber(attempt), subtask(name), int(100 * at_s), 0, 0, 0,
        busy_ms=busy * ms, idle_ms=(1 - busy) * ms, back_pressured_ms=0.0, watermark_ms=None,
    )  # fmt: skip


def stalled(name: str, attempt: int = 1, stack: str = STACK) -> SubtaskStalled:
    return SubtaskStalled(AttemptNumber(attempt), subtask(name), 1_700, 1_250.5, stack)


def aligning(name: str, attempt: int = 1) -> AlignmentProgress:
    gate = GateProgress(
        0, ("source-0", "source-1"), (0.0, None), (251.5, 0.0), (0, 4_096), (False, False)
    )
    return AlignmentProgress(
        AttemptNumber(attempt), CheckpointId(7), subtask(name), 1_600, 251.5, (gate,)
    )


def row(job: Job, name: str) -> Subtask:
    place = subtask(name)
    return Subtask.objects.get(job=job, chain=place.operator, index=place.index)


def told(job: Job, name: str) -> tuple[Any, Any, Any]:
    of = row(job, name)
    return of.rates, of.aligning, of.stall


def busy_with(job: Job) -> None:
    """Both sinks have rates; one aligns, and the other is stuck."""
    apply(job, *(metrics(name, at) for at in (1, 2) for name in ("sink-0", "sink-1")))
    apply(job, aligning("sink-0"), stalled("sink-1"))
    assert row(job, "sink-0").rates["busy"] == 0.25
    assert (row(job, "sink-0").aligning, row(job, "sink-1").stall) == (ALIGNING, STALL)


def test_rates_come_with_the_second_measurement_across_batches() -> None:
    job = running()
    apply(job, metrics("sink-0", 1))
    assert told(job, "sink-0") == ({}, None, None)
    apply(job, metrics("sink-0", 1.5), metrics("sink-1", 1.5))
    rates = row(job, "sink-0").rates
    assert (rates["window_ms"], rates["records_in_per_s"]) == (500, 100)
    assert (rates["busy"], rates["idle"], rates["back_pressured"]) == (0.25, 0.75, 0)
    assert row(job, "sink-1").rates == {}
    assert row(job, "sink-0").metrics["records_in"] == 150


def test_an_alignment_in_progress_is_kept_until_the_next() -> None:
    """Whether it is over the reader knows from the acknowledgement: rows need not be written."""
    job = running()
    apply(job, aligning("sink-0"))
    assert told(job, "sink-0") == ({}, ALIGNING, None)
    apply(job, metrics("sink-0", 1))
    assert row(job, "sink-0").aligning == ALIGNING


def test_a_stall_is_told_until_the_loop_comes_round() -> None:
    job = running()
    apply(job, metrics("sink-0", 1), stalled("sink-0"))
    assert row(job, "sink-0").stall == STALL
    apply(job, metrics("sink-1", 2))
    assert row(job, "sink-0").stall == STALL
    apply(job, metrics("sink-0", 2))
    assert row(job, "sink-0").stall is None


def test_reports_come_over_the_wire_and_a_repeated_batch_changes_nothing() -> None:
    """From the bytes that a driver posts to the row."""
    line = Line.running()
    line.post(metrics("sink-0", 1), metrics("sink-0", 2), aligning("sink-0"), stalled("sink-0"))
    rates, *others = told(line.job, "sink-0")
    assert (rates["window_ms"], rates["records_in_per_s"], rates["busy"]) == (1_000, 100, 0.25)
    assert others == [ALIGNING, STALL]
    line.send(line.batches[-1])
    assert told(line.job, "sink-0") == (rates, *others)


def test_a_stack_may_hold_anything() -> None:
    job = running()
    apply(job, stalled("sink-0", stack="in a\0b\ud800\n"))
    stall = row(job, "sink-0").stall
    assert stall is not None
    assert stall["stack"] == "in a\ufffdb?\n"


def test_a_new_attempt_knows_nothing_yet() -> None:
    job = running()
    busy_with(job)
    apply(job, changed(JobStatus.FAILING, "lost"), changed(JobStatus.RESTARTING))
    apply(job, changed(JobStatus.INITIALIZING), attempt_started(2))
    assert told(job, "sink-0") == told(job, "sink-1") == ({}, None, None)
    apply(job, changed(JobStatus.RUNNING), metrics("sink-0", 0.5, attempt=2))
    assert row(job, "sink-0").rates == {}  # Nothing to compare with in this attempt.


def test_what_a_failed_attempt_left_explains_its_checkpoints() -> None:
    """They end after the events that say so; what held them is told until the next attempt."""
    job = running()
    busy_with(job)
    apply(job, changed(JobStatus.FAILING, "the worker in slot 1 is stuck"))
    assert told(job, "sink-0") == ({}, ALIGNING, None)
    assert told(job, "sink-1") == ({}, None, STALL)


def test_so_does_what_a_lost_driver_left() -> None:
    job = running()
    busy_with(job)
    lose(job)
    assert told(job, "sink-0") == ({}, ALIGNING, None)
    speaking(job)
    assert driver_of(job).number == 2


@pytest.mark.parametrize("end", [JobStatus.FINISHED, JobStatus.CANCELED, JobStatus.FAILED])
def test_the_end_of_the_job_clears_everything(end: JobStatus) -> None:
    job = running()
    busy_with(job)
    apply(job, subtask_changed("sink-0", SubtaskStatus.FINISHED))
    before = {
        JobStatus.FINISHED: (),
        JobStatus.CANCELED: (changed(JobStatus.CANCELLING),),
        JobStatus.FAILED: (changed(JobStatus.FAILING, "gone"),),
    }[end]
    apply(job, *before, changed(end, "gone" if end is JobStatus.FAILED else ""))
    assert told(job, "sink-0") == told(job, "sink-1") == ({}, None, None)
    assert row(job, "sink-0").samples == []
    assert row(job, "sink-0").status == "finished"


def test_measurements_of_an_attempt_before_are_passed_over() -> None:
    """A driver with much to report sends them last, and the next attempt may have begun."""
    job = running()
    apply(job, changed(JobStatus.FAILING, "gone"), changed(JobStatus.RESTARTING))
    apply(job, changed(JobStatus.INITIALIZING), attempt_started(2))
    apply(job, metrics("sink-0", 9), aligning("sink-0"), stalled("sink-0"))
    of = row(job, "sink-0")
    assert (of.attempt, of.metrics, of.aligning, of.stall) == (2, {}, None, None)


def test_nothing_aligns_or_stalls_once_the_job_is_over() -> None:
    job = running()
    apply(job, changed(JobStatus.FINISHED))
    apply(job, aligning("sink-0"), stalled("sink-0"), metrics("sink-0", 1), metrics("sink-0", 2))
    assert told(job, "sink-0") == ({}, None, None)
    assert row(job, "sink-0").metrics["records_in"] == 200  # The last counters are kept.


def test_a_batch_reads_the_rows_that_it_tells_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thousand subtasks a hundred measure in a batch, many times a second."""
    job = running(plan=planned(parallelism=20))
    apply(job, *(metrics(f"sink-{index}", 1) for index in range(20)))
    read = []
    production = Subtask.from_db

    def from_db(*row: Any) -> Subtask:
        read.append(production(*row))
        return read[-1]

    monkeypatch.setattr(Subtask, "from_db", from_db)
    apply(job, metrics("sink-7", 2), metrics("sink-9", 2))
    assert sorted(row.index for row in read) == [7, 9]
    assert told(job, "sink-7")[0]["busy"] == 0.25


@pytest.mark.parametrize("ahead_ms", [-3_600_000, 0, 3_600_000])
def test_since_when_is_told_by_this_clock_not_the_workers(ahead_ms: int) -> None:
    """Else a call under way has returned an hour ago, or has yet to begin."""
    job = running()
    sent_ms = clock.now_ms()
    since_ms = sent_ms + ahead_ms - 1_250
    stall = SubtaskStalled(AttemptNumber(1), subtask("sink-1"), since_ms, 1_250.5, STACK)
    aligning = AlignmentProgress(
        AttemptNumber(1), CheckpointId(7), subtask("sink-0"), since_ms, 251.5, ()
    )
    apply(job, stall, aligning)
    applied_ms = clock.now_ms()
    told = row(job, "sink-1").stall["since_ms"] + 1_250.5
    assert sent_ms - 2 <= told <= applied_ms + 2
    told = row(job, "sink-0").aligning["since_ms"] + 251.5
    assert sent_ms - 2 <= told <= applied_ms + 2


def test_times_of_bad_records_outlive_an_attempt() -> None:
    job = running()
    apply(job, replace(metrics("sink-0", 1), bad_records=2))
    apply(job, metrics("sink-1", 1), replace(metrics("sink-0", 2), bad_records=2))
    (first,) = row(job, "sink-0").bad_marks
    assert first[1] == 2
    assert first[0] == pytest.approx(clock.now_ms(), abs=60_000)
    assert row(job, "sink-0").metrics["bad_records"] == 2
    assert row(job, "sink-1").bad_marks == []
    apply(job, changed(JobStatus.RESTARTING), attempt_started(2), changed(JobStatus.RUNNING))
    assert row(job, "sink-0").metrics == {}
    apply(job, replace(metrics("sink-0", 1, attempt=2), bad_records=1))
    assert sum(count for _, count in row(job, "sink-0").bad_marks) == 3
