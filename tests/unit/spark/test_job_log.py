"""The log of a job that a plain script runs."""

import logging

import pytest

from weir.config import CheckpointConfig, JobConfig
from weir.graph.logical import JobGraph, Operator
from weir.ids import AttemptNumber, CheckpointId, JobId, OperatorId
from weir.protocol.events import AttemptStarted, CheckpointSettled, JobChanged, Notice
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.spark.job_log import JobLog

CAUSE = (
    "numbers-1-0 failed\n'Map' (pipe.py:17) failed on the record 4: ValueError: four\n"
    "Traceback (most recent call last):\n"
    '  File "/env/weir/operators/stateless.py", line 9, in apply\n    made = call(row)\n'
    '  File "/me/pipe.py", line 10, in parse\n    raise ValueError("four")\n'
    "ValueError: four\n"
)


def started(caplog: pytest.LogCaptureFixture) -> JobLog:
    """The log of a job that has just started."""
    caplog.set_level(logging.INFO, "weir")
    graph = JobGraph("Count", (Operator(OperatorId("a"), "A", 2, None, is_source=True),), ())
    config = JobConfig(checkpoints=CheckpointConfig(interval_ms=500, storage="/shared"))
    return JobLog(JobId("Count-1"), graph, config)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    return [(record.levelname, record.getMessage()) for record in caplog.records]


def test_a_restart_is_told_with_its_cause_and_the_users_frames(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = started(caplog)
    log.on_event(JobChanged(1_000, JobStatus.RUNNING))
    log.on_event(JobChanged(2_000, JobStatus.FAILING, CAUSE))
    log.on_event(JobChanged(2_000, JobStatus.RESTARTING))
    log.on_event(AttemptStarted(2_500, AttemptNumber(2), CheckpointId(3)))
    log.on_event(JobChanged(4_500, JobStatus.FINISHED))
    assert said(caplog) == [
        ("INFO", "Count (Count-1) starts: 2 slots, a checkpoint every 0.5 s, kept in /shared"),
        ("INFO", "Count (Count-1) runs"),
        (
            "WARNING",
            "Count (Count-1) restarts: 'Map' (pipe.py:17) failed on the record 4: "
            "ValueError: four\n(in the subtask numbers-1-0)\nTraceback (most recent call last):\n"
            '  File "/me/pipe.py", line 10, in parse\n    raise ValueError("four")\n'
            "ValueError: four",
        ),
        ("INFO", "attempt 2 starts from checkpoint 3"),
        ("INFO", "Count (Count-1) finished after 3.5 s, 0 checkpoints"),
    ]


def test_failing_checkpoints_and_notices_are_warnings(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = started(caplog)
    caplog.clear()
    log.on_event(CheckpointSettled(1, CheckpointId(1), 20))
    expired = FailureReason.CHECKPOINT_EXPIRED
    log.on_event(CheckpointSettled(2, CheckpointId(2), 1_500, expired, "map-1 is silent"))
    log.on_event(Notice(3, "old state stays"))
    assert said(caplog) == [
        ("WARNING", f"checkpoint 2 failed after 1.5 s: {expired}: map-1 is silent"),
        ("WARNING", "old state stays"),
    ]


def test_a_failed_job_is_told_by_the_operators_line(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = started(caplog)
    caplog.clear()
    log.on_event(JobChanged(1_000, JobStatus.RUNNING))
    log.on_event(JobChanged(1_200, JobStatus.FAILED, CAUSE))
    assert said(caplog)[1:] == [
        (
            "ERROR",
            "Count (Count-1) failed after 0.2 s: 'Map' (pipe.py:17) failed on the record 4: "
            "ValueError: four",
        )
    ]
