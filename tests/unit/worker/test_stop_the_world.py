"""Checkpoints that stop the world: a subtask pauses behind the barrier until they are settled."""

import pytest

from tests.builders import barrier
from tests.unit.worker.subtask_harness import Counting, SubtaskHarness
from weir.config import CheckpointConfig, CheckpointingMode
from weir.errors import ConfigError
from weir.ids import CheckpointId
from weir.protocol.elements import (
    MAX_WATERMARK_MS,
    Alignment,
    CheckpointBarrier,
    CheckpointKind,
    EndOfInput,
    Watermark,
)
from weir.worker.subtask import Progress

ONE, TWO = CheckpointId(1), CheckpointId(2)
LAST = Watermark(MAX_WATERMARK_MS)


def stopping(checkpoint_id: int = 1) -> CheckpointBarrier:
    return barrier(checkpoint_id, alignment=Alignment.STOP_THE_WORLD)


def paused_source(end: int = 2) -> SubtaskHarness:
    """A source that has emitted one number and the barrier."""
    harness = SubtaskHarness(source=Counting(end))
    harness.subtask.step()
    harness.subtask.on_trigger(stopping())
    harness.settle()
    assert harness.emitted() == [0, stopping()]
    assert harness.subtask.step() is Progress.IDLE
    return harness


def paused_receiver() -> SubtaskHarness:
    """A subtask that has forwarded the barrier, with a record behind it in its input."""
    harness = SubtaskHarness()
    harness.give(0, stopping(), "a1")
    harness.give(1, stopping())
    assert harness.emitted() == ["flushed for 1", stopping()]
    return harness


def test_written_is_not_settled() -> None:
    harness = paused_source()
    harness.write()
    assert harness.reports.acknowledged == [1]
    assert harness.subtask.step() is Progress.IDLE


@pytest.mark.parametrize("completes", [True, False])
def test_settled_a_source_goes_on_where_it_was(completes: bool) -> None:
    harness = paused_source()
    if completes:
        harness.subtask.on_completed(ONE, final=False)
    else:
        harness.subtask.on_aborted(ONE)
    harness.settle()
    assert harness.emitted() == [1, LAST, EndOfInput()]
    assert harness.reports.statuses == ["running", "ended"]


@pytest.mark.parametrize("completes", [True, False])
def test_settled_a_receiver_takes_what_came_meanwhile(completes: bool) -> None:
    harness = paused_receiver()
    if completes:
        harness.subtask.on_completed(ONE, final=False)
    else:
        harness.subtask.on_aborted(ONE)
    harness.settle()
    assert harness.emitted() == ["a1"]


def test_timers_wait() -> None:
    harness = paused_receiver()
    harness.operator.timer_ms = harness.clock.ms
    assert harness.subtask.next_timer_ms() is None
    harness.settle()
    assert harness.operator.calls == []
    harness.subtask.on_completed(ONE, final=False)
    harness.settle()
    assert harness.operator.calls == [("completed", 1), ("timer", harness.clock.ms)]


def test_an_older_checkpoint_that_is_settled_changes_nothing() -> None:
    harness = SubtaskHarness(source=Counting(5))
    harness.subtask.on_trigger(barrier(1, kind=CheckpointKind.SAVEPOINT))
    harness.subtask.on_trigger(stopping(2))
    harness.subtask.on_completed(ONE, final=False)
    harness.settle()
    assert harness.subtask.step() is Progress.IDLE
    harness.subtask.on_aborted(ONE)
    assert harness.subtask.step() is Progress.IDLE
    harness.subtask.on_completed(TWO, final=False)
    assert harness.subtask.step() is Progress.WORKED


def test_given_up_before_its_barrier_came_it_pauses_nothing() -> None:
    harness = SubtaskHarness()
    harness.give(0, stopping())
    harness.subtask.on_aborted(ONE)
    harness.give(1, stopping(), "b1")
    harness.settle()
    assert harness.emitted()[-1] == "b1"


def test_an_ended_subtask_takes_it_by_trigger() -> None:
    harness = SubtaskHarness(source=Counting(0))
    harness.settle()
    harness.subtask.on_trigger(stopping())
    harness.write()
    assert harness.reports.acknowledged == [1]
    harness.subtask.on_completed(ONE, final=False)
    assert harness.reports.statuses == ["running", "ended"]


def test_it_excludes_what_cannot_go_with_it() -> None:
    mode = CheckpointingMode.STOP_THE_WORLD
    with pytest.raises(ConfigError, match=r"cannot be unaligned: .* Disable unaligned"):
        CheckpointConfig(mode=mode, alignment_timeout_ms=500)
    with pytest.raises(ConfigError, match="need concurrent_max=1"):
        CheckpointConfig(mode=mode, concurrent_max=2)
