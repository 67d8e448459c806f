"""A subtask's reports of an alignment that lasts, with a clock that is moved by hand."""

import pytest

from tests.builders import barrier, edge, graph, node, subtask
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.gate_harness import FakeTransport, records
from tests.unit.worker.subtask_harness import (
    ATTEMPT,
    JOB,
    Counting,
    Passing,
    Reports,
    SnapshotQueue,
    SubtaskHarness,
)
from weir.config import CheckpointConfig, CheckpointingMode, JobConfig
from weir.graph.logical import Partitioning
from weir.ids import ChannelId, CheckpointId, OperatorId
from weir.protocol.deployment import Address, Deploy
from weir.protocol.elements import CancelCheckpoint, EndOfInput
from weir.protocol.messages import AlignmentProgress, CheckpointAborted, GateProgress
from weir.worker.ports import CommandArrived, ElementArrived
from weir.worker.worker import Worker

UIDS = ("source-l", "source-r", "sink")
AT_LEAST_ONCE = CheckpointingMode.AT_LEAST_ONCE


class Aligning(SubtaskHarness):
    """A subtask of some channels whose clock runs a millisecond at a time."""

    def wait(self, ms: int) -> list[AlignmentProgress]:
        """Let time pass; what was reported meanwhile."""
        self.reports.clear()
        for _ in range(ms):
            self.clock.ms += 1
            self.subtask.report_progress(self.clock.monotonic_ns())
        return [r for r in self.reports if isinstance(r, AlignmentProgress)]


def test_an_alignment_is_reported_once_it_lasts_and_twice_a_second_from_then_on() -> None:
    harness = Aligning()
    began = harness.clock.now_ms()
    harness.give(0, barrier(1))
    assert harness.wait(249) == []
    assert [(p.since_ms, p.waited_ms) for p in harness.wait(1_300)] == [
        (began, 250),
        (began, 750),
        (began, 1_250),
    ]


def test_an_alignment_of_many_channels_is_reported_more_rarely() -> None:
    """A report is as long as there are channels, and there are as many that report."""
    harness = Aligning(channels=400)
    harness.give(0, barrier(1))
    assert [p.waited_ms for p in harness.wait(5_000)] == [250, 2_250, 4_250]


def test_a_report_names_who_is_awaited_and_what_came_meanwhile() -> None:
    harness = Aligning(channels=3)
    harness.give(0, barrier(1))
    harness.wait(40)
    harness.give(2, "late", barrier(1))
    harness.give(1, "more")
    size = records("more").size
    (progress,) = harness.wait(250)
    assert progress == AlignmentProgress(
        attempt=ATTEMPT,
        checkpoint_id=CheckpointId(1),
        chain=harness.subtask.chain,
        since_ms=harness.clock.now_ms() - 290,
        waited_ms=250.0,
        gates=(
            GateProgress(
                gate_index=0,
                upstream=("up-0", "up-1", "up-2"),
                arrived_ms=(0.0, None, 40.0),
                blocked_ms=(250.0, 0.0, 210.0),
                bytes_during=(0, size, size),
                ended=(False, False, False),
            ),
        ),
    )


def test_a_channel_that_ended_is_not_awaited() -> None:
    harness = Aligning(channels=3)
    harness.give(1, EndOfInput())
    harness.give(0, barrier(1))
    (progress,) = harness.wait(300)
    assert progress.gates[0].arrived_ms == (0, None, None)
    assert progress.gates[0].ended == (False, True, False)


@pytest.mark.parametrize("end", ["barrier", "end of input", "cancel", "aborted"])
def test_an_alignment_that_is_over_is_reported_no_more(end: str) -> None:
    harness = Aligning()
    harness.give(0, barrier(1))
    assert len(harness.wait(300)) == 1
    match end:
        case "barrier":
            harness.give(1, barrier(1))
        case "end of input":
            harness.give(1, EndOfInput())
        case "cancel":
            harness.give(1, CancelCheckpoint(CheckpointId(1)))
        case "aborted":
            harness.subtask.on_aborted(CheckpointId(1))
    assert harness.subtask.alignment_clock.progress_due_ns is None
    assert harness.wait(2_000) == []


def test_the_next_alignment_is_measured_from_its_own_first_barrier() -> None:
    harness = Aligning()
    harness.give(0, barrier(1))
    harness.wait(240)
    harness.give(1, barrier(1), barrier(2))
    assert harness.wait(249) == []
    (progress,) = harness.wait(1)
    assert (progress.checkpoint_id, progress.waited_ms) == (2, 250)


def test_of_several_alignments_the_oldest_is_reported() -> None:
    """Without blocking, barriers of the next checkpoint come before the last of this one."""
    harness = Aligning(mode=AT_LEAST_ONCE)
    harness.give(0, barrier(1))
    harness.wait(100)
    harness.give(0, barrier(2))
    (progress,) = harness.wait(150)
    assert (progress.checkpoint_id, progress.waited_ms) == (1, 250)
    assert progress.gates[0].blocked_ms == (0, 0)
    harness.give(1, barrier(1))
    (progress,) = harness.wait(100)
    assert (progress.checkpoint_id, progress.waited_ms) == (2, 250)


def test_a_single_channel_never_aligns() -> None:
    harness = Aligning(channels=1)
    harness.give(0, barrier(1))
    assert harness.subtask.alignment_clock.progress_due_ns is None
    assert harness.wait(1_000) == []


class TwoInputs:
    """A worker of the only slot of two sources and a sink, which has two gates of one channel."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.reports, self.snapshots = Reports(), SnapshotQueue()
        job = graph(
            [
                node("source-l", factory=lambda: Counting(0)),
                node("source-r", factory=lambda: Counting(0)),
                node("sink", factory=Passing),
            ],
            [
                edge("source-l", "sink", Partitioning.REBALANCE),
                edge("source-r", "sink", Partitioning.REBALANCE, input_index=1),
            ],
        )
        config = JobConfig(checkpoints=CheckpointConfig(interval_ms=1_000))
        self.worker = Worker(
            job, config, ATTEMPT, JOB, 0,
            inbox=self.snapshots, transport=FakeTransport(), reporter=self.reports,
            snapshot_thread=self.snapshots, clock=self.clock,
        )  # fmt: skip
        deploy = Deploy(
            attempt=ATTEMPT, job_id=JOB, slot_addresses=(Address("here", 1),), storage=None,
            restored_checkpoint=None, restored_storage=None, restored_directory="", restores=(),
            max_parallelism=tuple((OperatorId(uid), 128) for uid in UIDS),
        )  # fmt: skip
        self.worker.handle(CommandArrived(deploy))
        self.sleep()

    def sleep(self) -> float | None:
        """Let the loop come round until it sleeps; for how long, in seconds."""
        for _ in range(100):
            if (pause := self.worker.run_once()) != 0:
                return pause
        raise AssertionError("the loop never rests")

    @property
    def progress(self) -> list[AlignmentProgress]:
        return [r for r in self.reports if isinstance(r, AlignmentProgress)]


def test_a_loop_without_work_wakes_for_the_report_and_for_nothing_else() -> None:
    harness = TwoInputs()
    assert harness.sleep() is None
    harness.worker.handle(ElementArrived(ChannelId(0), barrier(1)))
    pauses = []
    while len(harness.progress) < 3:
        pause = harness.sleep()
        assert pause is not None
        pauses.append(pause)
        harness.clock.ms += round(pause * 1_000)
        harness.worker.run_once()
    assert pauses == [0.25, 0.5, 0.5]
    assert harness.progress[-1].chain == subtask("sink-0")
    assert [(g.gate_index, g.upstream, g.arrived_ms) for g in harness.progress[-1].gates] == [
        (0, ("source-l-0",), (0,)),
        (1, ("source-r-0",), (None,)),
    ]
    harness.worker.handle(CommandArrived(CheckpointAborted(ATTEMPT, CheckpointId(1))))
    assert harness.sleep() is None


def test_a_loop_that_is_never_without_work_reports_as_well() -> None:
    harness = TwoInputs()
    harness.worker.handle(ElementArrived(ChannelId(0), barrier(1)))
    for _ in range(800):
        harness.worker.handle(ElementArrived(ChannelId(1), records("a")))
        harness.worker.run_once()
        harness.clock.ms += 1
    assert [250 <= p.waited_ms <= 300 for p in harness.progress[:1]] == [True]
    assert len(harness.progress) == 2
    assert harness.progress[0].gates[1].bytes_during[0] > 0
