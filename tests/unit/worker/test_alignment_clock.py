"""Figures of an alignment, with a clock that is moved by hand."""

import pytest

from tests.builders import barrier
from tests.unit.operators.operator_harness import ManualClock
from tests.unit.worker.gate_harness import FakeTransport, channel, records
from weir.config import ChannelConfig
from weir.ids import ChannelId
from weir.protocol.alignment import PENDING_MAX
from weir.protocol.elements import CheckpointBarrier
from weir.protocol.messages import SnapshotMetrics
from weir.worker.alignment_clock import AlignmentClock
from weir.worker.gates import InputGates

A, B = ChannelId(0), ChannelId(1)


class Measured:
    """An alignment clock over one gate of some channels."""

    def __init__(self, channels: int = 2) -> None:
        self.time = ManualClock()
        ends = [[channel(i) for i in range(channels)]] if channels else []
        self.inputs = InputGates(ends, FakeTransport(), ChannelConfig())
        self.clock = AlignmentClock(self.inputs.gates, self.time)

    def arrive(self, channel_id: ChannelId, checkpoint_id: int, *, block: bool = False) -> None:
        self.clock.on_barrier(self.inputs.channels[channel_id], self.barrier(checkpoint_id))
        if block:
            self.clock.blocked(channel_id)

    def wait(self, ms: int) -> None:
        self.time.ms += ms

    def finish(self, checkpoint_id: int) -> SnapshotMetrics:
        return self.clock.finish(self.barrier(checkpoint_id), unaligned=False, records=9)

    @staticmethod
    def barrier(checkpoint_id: int) -> CheckpointBarrier:
        return barrier(checkpoint_id, triggered_at_ms=1_000_000)


def test_an_alignment_lasts_from_the_first_barrier_to_the_last() -> None:
    measured = Measured()
    measured.wait(7)
    measured.arrive(A, 1, block=True)
    measured.wait(30)
    measured.arrive(B, 1)
    metrics = measured.finish(1)
    assert (metrics.start_delay_ms, metrics.alignment_ms, metrics.records) == (7, 30, 9)
    (gate,) = metrics.gates
    assert gate.upstream == ("up-0", "up-1")
    assert gate.arrived_ms == (0, 30)
    assert gate.blocked_ms == (30, 0)


def test_bytes_that_come_in_meanwhile_are_counted_per_channel() -> None:
    measured = Measured()
    measured.inputs.deliver(A, records("before"))
    measured.arrive(A, 1, block=True)
    measured.inputs.deliver(A, records("x", size=5))
    measured.inputs.deliver(B, records("y", size=6))
    measured.arrive(B, 1)
    metrics = measured.finish(1)
    assert metrics.gates[0].bytes_during == (5, 6)
    assert metrics.bytes_processed_during_alignment == 11


def test_a_channel_that_ended_has_no_arrival_but_may_have_been_waited_for() -> None:
    measured = Measured()
    measured.arrive(A, 1, block=True)
    measured.wait(4)
    metrics = measured.finish(1)  # B ended now.
    assert metrics.alignment_ms == 4
    assert metrics.gates[0].arrived_ms == (0, None)


class Ticking(ManualClock):
    """Goes on whenever it is read."""

    def monotonic_ns(self) -> int:
        self.ms += 1
        return super().monotonic_ns()


def test_an_alignment_that_begins_with_its_end_takes_no_less_than_no_time() -> None:
    """As where a time-out makes an alignment unaligned before its first barrier was processed."""
    measured = Measured()
    measured.clock = AlignmentClock(measured.inputs.gates, Ticking())
    assert 0 <= measured.finish(1).alignment_ms <= 1


@pytest.mark.parametrize("channels", [0, 1])
def test_with_nothing_to_wait_for_there_is_no_alignment(channels: int) -> None:
    measured = Measured(channels)
    measured.clock.on_trigger(measured.barrier(1))
    measured.wait(3)
    assert measured.finish(1).alignment_ms == 0


def test_time_blocked_for_a_checkpoint_given_up_is_not_the_next_ones() -> None:
    measured = Measured()
    measured.arrive(A, 1, block=True)
    measured.wait(50)
    measured.arrive(B, 2, block=True)
    measured.clock.unblocked([A])
    measured.wait(5)
    measured.arrive(A, 2)
    (gate,) = measured.finish(2).gates
    assert gate.blocked_ms == (0, 5)
    assert gate.arrived_ms == (5, 0)


def test_a_late_barrier_of_an_older_checkpoint_disturbs_nothing() -> None:
    measured = Measured()
    measured.arrive(A, 2, block=True)
    measured.wait(5)
    measured.arrive(B, 1)
    measured.wait(5)
    measured.arrive(B, 2)
    metrics = measured.finish(2)
    assert metrics.alignment_ms == 10
    assert metrics.gates[0].arrived_ms == (0, 10)


def test_checkpoints_side_by_side_are_measured_apart() -> None:
    measured = Measured()
    measured.arrive(A, 1)
    measured.wait(10)
    measured.arrive(A, 2)
    measured.wait(10)
    measured.arrive(B, 1)
    assert measured.finish(1).alignment_ms == 20
    measured.wait(10)
    measured.arrive(B, 2)
    assert measured.finish(2).alignment_ms == 20


def test_checkpoints_given_up_for_ever_do_not_pile_up() -> None:
    measured = Measured()
    for checkpoint_id in range(1, 10 * PENDING_MAX):
        measured.arrive(A, checkpoint_id)
    assert len(measured.clock._alignments) == PENDING_MAX
