"""Stopping with a savepoint: a subtask pauses or ends, and what is told afterwards decides."""

from typing import Any

import pytest

from tests.builders import barrier
from tests.unit.worker.subtask_harness import Counting, SubtaskHarness
from weir.common.watermark import WatermarkStrategy
from weir.config import CheckpointingMode
from weir.ids import CheckpointId
from weir.operators.base import Poll
from weir.operators.watermarks import WatermarkFactory
from weir.protocol.elements import (
    MAX_WATERMARK_MS,
    CancelCheckpoint,
    CheckpointBarrier,
    CheckpointKind,
    EndOfInput,
    Watermark,
)
from weir.protocol.messages import Acknowledged
from weir.worker.subtask import Progress

ONE, TWO = CheckpointId(1), CheckpointId(2)
LAST = Watermark(MAX_WATERMARK_MS)


def suspend(checkpoint_id: int = 1) -> CheckpointBarrier:
    return barrier(checkpoint_id, kind=CheckpointKind.STOP_SUSPEND)


def drain(checkpoint_id: int = 1) -> CheckpointBarrier:
    return barrier(checkpoint_id, kind=CheckpointKind.STOP_DRAIN)


def savepoint(checkpoint_id: int = 1) -> CheckpointBarrier:
    return barrier(checkpoint_id, kind=CheckpointKind.SAVEPOINT)


@pytest.fixture(params=[True, False], ids=["checkpointing", "no checkpointing"])
def checkpointing(request: Any) -> bool:
    return bool(request.param)


class TestSuspend:
    def test_a_source_stops_behind_the_barrier(self, checkpointing: bool) -> None:
        harness = SubtaskHarness(source=Counting(5), checkpointing=checkpointing)
        harness.subtask.step()
        harness.subtask.on_trigger(suspend())
        harness.settle()
        assert harness.emitted() == [0, suspend()]
        assert harness.subtask.step() is Progress.IDLE
        harness.write()
        assert harness.reports.acknowledged == [1]
        assert harness.reports.statuses == ["running"]

    def test_completed_a_subtask_commits_and_finishes_without_its_end(
        self, checkpointing: bool
    ) -> None:
        harness = SubtaskHarness(checkpointing=checkpointing)
        harness.give(0, "a1", suspend())
        harness.give(1, suspend())
        harness.subtask.on_completed(ONE, final=True)
        harness.settle()
        assert harness.operator.calls == [("completed", 1)]
        assert harness.reports.statuses == ["running", "finished"]
        assert harness.emitted() == ["a1", "flushed for 1", suspend()]

    def test_aborted_it_goes_on_where_it_was(self, checkpointing: bool) -> None:
        harness = SubtaskHarness(source=Counting(2), checkpointing=checkpointing)
        harness.subtask.on_trigger(suspend())
        harness.settle()
        harness.subtask.on_aborted(ONE)
        harness.settle()
        assert harness.emitted() == [suspend(), 0, 1, LAST, EndOfInput()]

    def test_what_arrives_meanwhile_waits(self) -> None:
        """Upstream learned of the abort before this subtask did."""
        harness = SubtaskHarness()
        harness.give(0, suspend(), "a1", EndOfInput())
        harness.give(1, suspend(), EndOfInput())
        assert harness.emitted() == ["flushed for 1", suspend()]
        harness.subtask.on_aborted(ONE)
        harness.settle()
        assert harness.emitted() == ["a1", LAST, EndOfInput()]

    def test_timers_wait_and_overdue_ones_fire_when_it_goes_on(self) -> None:
        harness = SubtaskHarness()
        harness.operator.timer_ms = harness.clock.ms + 10
        harness.give(0, suspend())
        harness.give(1, suspend())
        assert harness.subtask.next_timer_ms() is None
        harness.clock.ms += 50
        harness.settle()
        assert harness.operator.calls == []
        harness.subtask.on_aborted(ONE)
        harness.settle()
        assert harness.operator.calls == [("aborted", 1), ("timer", harness.clock.ms)]

    def test_pending_work_waits_as_well(self) -> None:
        harness = SubtaskHarness()
        harness.give(0, suspend())
        harness.give(1, suspend())
        harness.operator.pending = 1
        assert harness.subtask.step() is Progress.IDLE
        harness.subtask.on_aborted(ONE)
        harness.settle()
        assert harness.operator.calls == [("aborted", 1), "advance"]

    def test_until_all_barriers_came_it_works(self) -> None:
        harness = SubtaskHarness()
        harness.operator.timer_ms = harness.clock.ms
        harness.give(0, suspend())
        harness.give(1, "b1")
        assert harness.emitted() == ["b1"]
        assert harness.operator.calls == [("timer", harness.clock.ms)]

    def test_at_least_once_pauses_behind_the_last_barrier(self) -> None:
        harness = SubtaskHarness(mode=CheckpointingMode.AT_LEAST_ONCE)
        harness.give(0, suspend())
        harness.give(1, "b1", suspend())
        assert harness.emitted() == ["b1", "flushed for 1", suspend()]
        assert harness.subtask.step() is Progress.IDLE
        harness.subtask.on_completed(ONE, final=True)
        assert harness.reports.statuses == ["running", "finished"]

    def test_without_credit_the_barrier_still_leaves_in_its_turn(self) -> None:
        harness = SubtaskHarness(source=Counting(0))
        owed = harness.exhaust_credit()
        harness.emitted()
        harness.subtask.on_trigger(suspend())
        assert harness.subtask.step() is Progress.BACK_PRESSURED
        harness.grant(owed)
        harness.settle()
        assert harness.emitted() == ["waits", suspend()]

    def test_given_up_before_its_barrier_came_it_pauses_nothing(self) -> None:
        harness = SubtaskHarness()
        harness.give(0, suspend())
        harness.subtask.on_aborted(ONE)
        harness.give(1, suspend(), "b1")
        assert harness.emitted() == [CancelCheckpoint(ONE), "b1"]

    def test_a_completion_of_an_older_checkpoint_changes_nothing(self) -> None:
        harness = SubtaskHarness(source=Counting(5))
        harness.subtask.on_trigger(barrier(1))
        harness.subtask.on_trigger(suspend(2))
        harness.subtask.on_completed(ONE, final=False)
        harness.settle()
        assert harness.emitted() == [barrier(1), suspend(2)]

    def test_an_ended_subtask_takes_it_by_trigger_and_finishes_with_it(self) -> None:
        harness = SubtaskHarness(source=Counting(0))
        harness.settle()
        harness.subtask.on_trigger(suspend())
        harness.write()
        assert harness.reports.acknowledged == [1]
        harness.subtask.on_completed(ONE, final=True)
        assert harness.reports.statuses == ["running", "ended", "finished"]

    def test_a_source_whose_input_just_ended_does_not_say_so_any_more(self) -> None:
        """Between its last watermark and its end; the next start finds the end again."""
        harness = SubtaskHarness(source=Counting(0))
        harness.subtask.step()
        harness.subtask.on_trigger(suspend())
        harness.settle()
        harness.subtask.on_completed(ONE, final=True)
        harness.settle()
        assert harness.emitted() == [LAST, suspend()]

    def test_a_trigger_that_comes_twice_pauses_nothing_again(self) -> None:
        harness = SubtaskHarness(source=Counting(1))
        harness.subtask.on_trigger(suspend())
        harness.subtask.on_aborted(ONE)
        harness.subtask.on_trigger(suspend())
        harness.settle()
        assert harness.emitted() == [suspend(), 0, LAST, EndOfInput()]


class TestDrain:
    def test_a_source_ends_as_if_its_input_had(self, checkpointing: bool) -> None:
        harness = SubtaskHarness(source=Counting(5), checkpointing=checkpointing)
        harness.subtask.step()
        harness.subtask.on_trigger(drain())
        assert harness.reports.acknowledged == []
        harness.settle()
        harness.write()
        assert harness.emitted() == [0, LAST, EndOfInput()]
        assert harness.reports.acknowledged == [1]
        assert harness.reports.statuses == ["running", "ended"]
        harness.subtask.on_completed(ONE, final=True)
        assert harness.reports.statuses == ["running", "ended", "finished"]

    def test_what_a_source_still_has_to_do_comes_before_its_end(self) -> None:
        class Busy(Counting):
            pending = 0

            @property
            def has_pending(self) -> bool:
                return self.pending > 0

            def advance(self, records_max: int) -> int:
                self.pending -= 1
                self.poll(1)
                return 1

        source = Busy(9)
        harness = SubtaskHarness(source=source)
        source.pending = 2
        harness.subtask.on_trigger(drain())
        harness.settle()
        assert harness.emitted() == [0, 1, LAST, EndOfInput()]

    def test_a_source_that_waits_ends_at_once(self) -> None:
        class Waiting(Counting):
            def poll(self, records_max: int) -> Poll:
                return Poll.WAIT

            def next_timer_ms(self) -> int | None:
                return 10**15

        harness = SubtaskHarness(source=Waiting(9))
        harness.settle()
        harness.subtask.on_trigger(drain())
        harness.settle()
        assert harness.emitted() == [LAST, EndOfInput()]

    def test_downstream_takes_it_when_its_last_input_ended(self, checkpointing: bool) -> None:
        harness = SubtaskHarness(checkpointing=checkpointing)
        harness.subtask.on_trigger(drain())
        harness.give(0, "a1", EndOfInput())
        harness.give(1, "b1")
        harness.write()
        assert harness.reports.acknowledged == []
        harness.give(1, "b2", EndOfInput())
        harness.write()
        (ack,) = [r for r in harness.reports if isinstance(r, Acknowledged)]
        assert ack.operators[0].handles[0].inline == b'["a1","b1","b2"]'
        assert harness.operator.calls == [("watermark", MAX_WATERMARK_MS), "finish"]
        assert harness.reports.statuses == ["running", "ended"]

    def test_windows_close_in_slices_before_the_snapshot(self) -> None:
        harness = SubtaskHarness()
        harness.subtask.on_trigger(drain())
        harness.subtask.inputs.deliver(harness.subtask.inputs.gates[0][0].id, EndOfInput())
        harness.subtask.inputs.deliver(harness.subtask.inputs.gates[0][1].id, EndOfInput())
        assert harness.subtask.step() is Progress.WORKED
        harness.operator.pending = 2  # What the first end made due.
        for _ in range(3):
            assert harness.subtask.step() is Progress.WORKED
            assert "finish" not in harness.operator.calls
        harness.settle()
        assert harness.operator.calls == [
            "advance", "advance", ("watermark", MAX_WATERMARK_MS), "finish",
        ]  # fmt: skip

    def test_the_trigger_may_come_behind_the_end(self) -> None:
        harness = SubtaskHarness()
        for channel in (0, 1):
            harness.give(channel, EndOfInput())
        harness.subtask.on_trigger(drain())
        harness.write()
        assert harness.reports.acknowledged == [1]

    def test_an_older_checkpoint_still_comes_by_its_barriers(self) -> None:
        harness = SubtaskHarness()
        harness.subtask.on_trigger(barrier(1))
        harness.subtask.on_trigger(drain(2))
        harness.give(0, "a1", barrier(1), EndOfInput())
        harness.give(1, "b1", barrier(1), "b2", EndOfInput())
        harness.write()
        assert harness.reports.acknowledged == [1, 2]
        acks = [r for r in harness.reports if isinstance(r, Acknowledged)]
        states = [ack.operators[0].handles[0].inline for ack in acks]
        assert states == [b'["a1","b1"]', b'["a1","b1","b2"]']

    def test_an_older_one_whose_barriers_will_not_come_is_taken_before_it(self) -> None:
        """Its sources had ended; without it a savepoint beside the drain would only expire."""
        harness = SubtaskHarness()
        harness.subtask.on_trigger(savepoint(1))
        harness.subtask.on_trigger(drain(2))
        harness.give(0, EndOfInput())
        harness.give(1, EndOfInput())
        harness.write()
        assert harness.reports.acknowledged == [1, 2]

    def test_given_up_it_takes_nothing(self) -> None:
        harness = SubtaskHarness(source=Counting(5))
        harness.subtask.on_trigger(drain())
        harness.subtask.on_aborted(ONE)
        harness.settle()
        harness.write()
        assert harness.reports.acknowledged == []

    def test_what_a_sink_still_holds_is_confirmed_by_it(self) -> None:
        """Committed at the end, it could not be taken back if the savepoint came to nothing."""
        harness = SubtaskHarness(checkpointing=False)
        harness.subtask.on_trigger(drain())
        assert not harness.operator.ctx.checkpointing
        harness.give(0, EndOfInput())
        harness.give(1, EndOfInput())
        assert harness.operator.ctx.checkpointing


class TestWithoutCheckpointing:
    def test_a_finished_subtask_still_is_part_of_savepoints(self) -> None:
        """The savepoint of the others must say that this one has nothing left to do."""
        harness = SubtaskHarness(source=Counting(0), checkpointing=False)
        harness.settle()
        assert harness.reports.statuses == ["running", "finished"]
        harness.emitted()
        for stop in (savepoint(1), drain(2)):
            harness.subtask.on_trigger(stop)
        harness.write()
        assert harness.reports.acknowledged == [1, 2]
        assert harness.emitted() == []
        harness.subtask.on_completed(TWO, final=True)
        assert harness.reports.statuses == ["running", "finished"]

    def test_one_that_ends_under_a_savepoint_takes_it_and_finishes(self) -> None:
        harness = SubtaskHarness(checkpointing=False)
        harness.subtask.on_trigger(savepoint())
        harness.give(0, EndOfInput())
        harness.give(1, EndOfInput())
        harness.write()
        assert harness.reports.acknowledged == [1]
        assert harness.reports.statuses == ["running", "finished"]

    def test_a_savepoint_flows_as_a_checkpoint_does(self) -> None:
        harness = SubtaskHarness(checkpointing=False)
        harness.give(0, "a1", savepoint())
        harness.give(1, savepoint(), "b2")
        assert harness.emitted() == ["a1", "flushed for 1", savepoint(), "b2"]


def test_a_snapshot_is_written_to_the_directory_that_came_with_the_barrier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = SubtaskHarness(source=Counting(1))
    targets: list[Any] = []
    monkeypatch.setattr(
        harness.subtask._snapshotter, "write", lambda *args, **kwargs: targets.append(args[-1])
    )
    harness.subtask.on_trigger(
        barrier(1, kind=CheckpointKind.SAVEPOINT, target="/savepoints/before-upgrade")
    )
    harness.subtask.on_trigger(barrier(2))
    assert targets == ["/savepoints/before-upgrade", None]


def test_a_snapshot_says_how_far_event_time_was() -> None:
    harness = SubtaskHarness(channels=1)
    harness.give(0, barrier(1), Watermark(7), barrier(2), EndOfInput())
    harness.subtask.on_trigger(barrier(3))
    harness.write()
    acks = [r for r in harness.reports if isinstance(r, Acknowledged)]
    assert [ack.operators[0].metrics.watermark_ms for ack in acks] == [None, 7, MAX_WATERMARK_MS]


def test_a_source_says_how_far_event_time_came_that_its_own_chain_makes() -> None:
    """No watermark ever comes in at its head."""
    strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(
        lambda value, _: 100 * value
    )
    harness = SubtaskHarness(source=Counting(3), behind=WatermarkFactory(strategy)())
    reached = []
    for checkpoint_id in (1, 2):
        harness.subtask.on_trigger(barrier(checkpoint_id))
        reached.append(harness.subtask.metrics(1, 1).watermark_ms)
        harness.subtask.step()
        harness.subtask.step()
    harness.write()
    assert reached == [None, 99]
    acks = [r for r in harness.reports if isinstance(r, Acknowledged)]
    assert [ack.operators[0].metrics.watermark_ms for ack in acks] == reached
