"""Measures alignments: when each barrier arrived, how long each channel stood blocked.

The barrier handler decides and knows no time; this clock is told of the same events and turns them
into the figures of an acknowledgement.
"""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from weir.ids import ChannelId, CheckpointId
from weir.operators.base import Clock
from weir.protocol.elements import CheckpointBarrier
from weir.protocol.messages import GateAlignment, SnapshotMetrics

if TYPE_CHECKING:
    from weir.runtime.gates import InputChannel


class AlignmentClock:
    """Times of the alignment in progress at one subtask."""

    def __init__(self, gates: "Sequence[Sequence[InputChannel]]", clock: Clock) -> None:
        self._gates = gates
        self._clock = clock
        self._checkpoint_id: CheckpointId | None = None
        self._first_ns = 0
        self._first_wall_ms = 0
        self._arrived_ns: dict[ChannelId, int] = {}
        self._blocked_since_ns: dict[ChannelId, int] = {}
        self._blocked_ns: dict[ChannelId, int] = {}
        self._bytes_at_first: dict[ChannelId, int] = {}

    def on_trigger(self, barrier: CheckpointBarrier) -> None:
        """The subtask has no channels to wait for: the trigger is its barrier."""
        self._begin(barrier)

    def on_barrier(self, channel: "InputChannel", barrier: CheckpointBarrier) -> None:
        """A barrier arrived."""
        if barrier.checkpoint_id != self._checkpoint_id:
            self._begin(barrier)
        self._arrived_ns[channel.id] = self._clock.monotonic_ns()

    def blocked(self, channel: ChannelId) -> None:
        """The channel is blocked from now on."""
        self._blocked_since_ns[channel] = self._clock.monotonic_ns()

    def unblocked(self, channels: Iterable[ChannelId]) -> None:
        """The channels flow again."""
        now = self._clock.monotonic_ns()
        for channel in channels:
            since = self._blocked_since_ns.pop(channel, now)
            self._blocked_ns[channel] = self._blocked_ns.get(channel, 0) + now - since

    def finish(
        self, barrier: CheckpointBarrier, *, unaligned: bool, records: int
    ) -> SnapshotMetrics:
        """The figures of the alignment that ends now, with this barrier's snapshot."""
        now = self._clock.monotonic_ns()
        if barrier.checkpoint_id != self._checkpoint_id:
            self._begin(barrier)
        gates = tuple(self._gate(index, now) for index in range(len(self._gates)))
        return SnapshotMetrics(
            start_delay_ms=max(0.0, float(self._first_wall_ms - barrier.triggered_at_ms)),
            alignment_ms=(now - self._first_ns) / 1e6 if len(self._arrived_ns) > 1 else 0.0,
            bytes_processed_during_alignment=sum(sum(gate.bytes_during) for gate in gates),
            unaligned=unaligned,
            records=records,
            gates=gates,
        )

    def _begin(self, barrier: CheckpointBarrier) -> None:
        self._checkpoint_id = barrier.checkpoint_id
        self._first_ns = self._clock.monotonic_ns()
        self._first_wall_ms = self._clock.now_ms()
        self._arrived_ns.clear()
        self._blocked_ns.clear()
        self._bytes_at_first = {c.id: c.bytes_in for gate in self._gates for c in gate}

    def _gate(self, index: int, now_ns: int) -> GateAlignment:
        channels = self._gates[index]
        return GateAlignment(
            gate_index=index,
            upstream=tuple(c.upstream for c in channels),
            arrived_ms=tuple(
                None if (at := self._arrived_ns.get(c.id)) is None else (at - self._first_ns) / 1e6
                for c in channels
            ),
            blocked_ms=tuple(
                (self._blocked_ns.get(c.id, 0) + now_ns - self._blocked_since_ns.get(c.id, now_ns))
                / 1e6
                for c in channels
            ),
            bytes_during=tuple(c.bytes_in - self._bytes_at_first.get(c.id, 0) for c in channels),
        )
