"""Records under way at an unaligned snapshot: kept as they pass by, and handed over to be written.

At the freeze these are the records that wait for credit at the outputs, which the barrier
overtakes, and those that are queued at the inputs before the missing barriers; afterwards all that
comes in before each of these. They are processed as ever and kept beside, as references: a batch is
never changed (``Batch.copied`` sees to rows that could be). Where their barrier is long in coming
they are handed over in pieces, so that memory holds one piece and what waits to be written; a
storage that falls behind what comes in has the snapshot declined. However much was there at the
freeze, it is no sign of that: many channels and records restored onto few subtasks hold a lot.

A barrier that may still wait to align is not to wait for credit for ever either: where it has not
left an output by the time-out since its trigger, it overtakes there, and the snapshot, though all
else of it is written, is acknowledged only then.

The acknowledgement says how many bytes of which input channel were kept, as they came. Restored
records that were not processed yet count to no channel, since theirs is not known any more.

All of this belongs to the loop thread.

Source: Flink, ChannelStateWriter and the alignment time-out of output buffers (since 1.16).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from weir.config import ChannelConfig
from weir.errors import StorageError
from weir.graph.exchanges import Exchange, input_name, output_name
from weir.ids import ChannelId, CheckpointId, SubtaskId
from weir.protocol.elements import Alignment, CheckpointBarrier, Records
from weir.protocol.messages import GateAlignment, SnapshotMetrics, Switch
from weir.state.channel_state import ChannelPart
from weir.worker.alignment_clock import AlignmentClock
from weir.worker.gates import InputGates, OutputGate
from weir.worker.snapshotter import Snapshotter

PIECE_BYTES = 4 << 20  # Of one gate, kept before they are handed over: a file of some size.
UNWRITTEN_BYTES_MAX = 64 << 20  # Come in since the freeze and not written yet.


@dataclass(slots=True)
class _Open:
    """The snapshot that is not complete yet."""

    barrier: CheckpointBarrier
    metrics: SnapshotMetrics  # Without those of its alignment while that lasts.
    is_recording: bool
    waiting: list[OutputGate]  # The gates that the barrier has not left.
    recorded: set[ChannelId] = field(default_factory=set)  # Whose barrier is missing.
    of_channel: Counter[ChannelId] = field(default_factory=Counter)  # Bytes kept of each.
    kept: dict[int, list[Records]] = field(default_factory=lambda: defaultdict(list))
    kept_bytes: Counter[int] = field(default_factory=Counter)  # By input gate, as ``kept``.
    parts: Counter[int] = field(default_factory=Counter)
    came_bytes: int = 0  # Since the freeze.


class InFlight:
    """The records under way that one subtask keeps for its newest snapshot."""

    def __init__(
        self,
        chain: SubtaskId,
        inputs: InputGates,
        outputs: Sequence[OutputGate],
        alignment_clock: AlignmentClock,
        snapshotter: Snapshotter,
        config: ChannelConfig,
        *,
        pickles: bool,
    ) -> None:
        self._chain = chain
        self._inputs = inputs
        self._outputs = outputs
        self._clock = alignment_clock
        self._snapshotter = snapshotter
        self._frame_bytes_max = config.frame_bytes_max
        self._pickles = pickles
        self._open: _Open | None = None
        self._left_ms = 0.0  # From the trigger until the newest barrier left.

    @property
    def is_open(self) -> bool:
        """Whether the newest snapshot is not complete yet."""
        return self._open is not None

    # The barrier leaves.

    def forward(self, barrier: CheckpointBarrier) -> list[tuple[ChannelPart, int]]:
        """Send a barrier to all outputs; the records that it overtook there, with their size."""
        self._left_ms = self._clock.since_trigger_ms(barrier)
        overtakes = barrier.options.alignment is Alignment.UNALIGNED  # No savepoint's is.
        passed: list[tuple[ChannelPart, int]] = []
        for gate in self._outputs:
            if overtakes and gate.may_be_overtaken:
                passed += self._overtake(gate, barrier)
            else:
                gate.broadcast(barrier)
        return passed

    def gates_waiting(self, barrier: CheckpointBarrier) -> list[OutputGate]:
        """The outputs on which the barrier, just sent, is to overtake when it times out."""
        if barrier.options.alignment_timeout_ms is None:
            return []  # As of each savepoint.
        return [
            gate
            for gate in self._outputs
            if gate.may_be_overtaken and gate.is_waiting(barrier.checkpoint_id)
        ]

    # A snapshot that is not complete at its freeze.

    def begin(
        self,
        barrier: CheckpointBarrier,
        metrics: SnapshotMetrics,
        passed: Iterable[tuple[ChannelPart, int]],
        waiting: list[OutputGate],
        *,
        is_recording: bool,
    ) -> None:
        """Go on with a snapshot that the snapshotter holds open.

        ``is_recording``: records at the inputs are to follow, from ``start`` to ``finish``.
        """
        if self._open is not None:  # Another barrier proves that the older one is given up.
            self.abort(self._open.barrier.checkpoint_id)
        passed = list(passed)
        if is_recording or passed:
            metrics = self._switched(barrier, metrics)
        self._open = _Open(barrier, metrics, is_recording, waiting)
        self._add(barrier.checkpoint_id, passed)
        self._complete_if_whole()

    def start(self, checkpoint_id: CheckpointId, channels: Iterable[ChannelId]) -> None:
        """Keep what these channels bring before their barrier, and what was restored before it."""
        snapshot = self._current(checkpoint_id)
        if snapshot is None:
            return
        for gate_index in range(len(self._inputs.gates)):
            for records in self._inputs.backlog_of(gate_index):
                self._keep(snapshot, gate_index, records)
        for channel_id in channels:
            gate_index = self._inputs.channels[channel_id].gate_index
            for records in self._inputs.queued_before(channel_id, checkpoint_id):
                snapshot.of_channel[channel_id] += records.size
                self._keep(snapshot, gate_index, records)
            snapshot.recorded.add(channel_id)

    def on_delivered(self, channel_id: ChannelId, records: Records) -> None:
        """Keep a batch that came in, if its channel's barrier is missing."""
        snapshot = self._open
        if snapshot is not None and channel_id in snapshot.recorded:
            snapshot.of_channel[channel_id] += records.size
            snapshot.came_bytes += records.size
            self._keep(snapshot, self._inputs.channels[channel_id].gate_index, records)

    def stop(self, checkpoint_id: CheckpointId, channel_id: ChannelId) -> None:
        """The barrier of this channel has arrived, or its end."""
        snapshot = self._current(checkpoint_id)
        if snapshot is not None:
            snapshot.recorded.discard(channel_id)
            if self._inputs.holds_barrier(channel_id, checkpoint_id):
                # It counts from now on, though it may have waited for the time-out.
                channel = self._inputs.channels[channel_id]
                self._clock.on_barrier(channel, snapshot.barrier)

    def finish(self, checkpoint_id: CheckpointId) -> None:
        """All barriers have arrived: the alignment is over, and nothing more is kept."""
        snapshot = self._current(checkpoint_id)
        if snapshot is None:
            return
        for gate_index in sorted(snapshot.kept):
            self._hand_over(snapshot, gate_index)
        frozen = snapshot.metrics
        metrics = self._clock.finish(
            snapshot.barrier,
            unaligned=True,
            records=frozen.records,
            watermark_ms=frozen.watermark_ms,
        )
        snapshot.metrics = replace(
            metrics,
            gates=tuple(self._with_bytes(gate, snapshot.of_channel) for gate in metrics.gates),
            switched=frozen.switched,
            switched_ms=frozen.switched_ms,
        )
        snapshot.is_recording = False
        self._complete_if_whole()

    def abort(self, checkpoint_id: CheckpointId) -> None:
        """Drop what was kept, and the snapshot with it."""
        if self._current(checkpoint_id) is not None:
            self._open = None
            self._snapshotter.cancel(self._chain, checkpoint_id)

    def time_out(self, checkpoint_id: CheckpointId) -> None:
        """Let the barrier overtake where it still waits for credit."""
        snapshot = self._current(checkpoint_id)
        if snapshot is None or not snapshot.waiting:
            return
        options = replace(snapshot.barrier.options, alignment=Alignment.UNALIGNED)
        barrier = replace(snapshot.barrier, options=options)
        for gate in snapshot.waiting:
            if gate.is_waiting(checkpoint_id):
                self._add(checkpoint_id, self._overtake(gate, barrier))
                snapshot.metrics = replace(
                    snapshot.metrics,
                    unaligned=True,
                    switched=Switch.OUTPUT,
                    switched_ms=self._clock.since_trigger_ms(barrier),
                )
        snapshot.waiting = []
        self._complete_if_whole()

    def look_at_outputs(self) -> None:
        """Complete the snapshot if its barrier has left the last output that it waited at."""
        snapshot = self._open
        if snapshot is not None and snapshot.waiting:
            checkpoint_id = snapshot.barrier.checkpoint_id
            snapshot.waiting = [g for g in snapshot.waiting if g.is_waiting(checkpoint_id)]
            self._complete_if_whole()

    def _switched(self, barrier: CheckpointBarrier, metrics: SnapshotMetrics) -> SnapshotMetrics:
        """The figures of a snapshot that became unaligned; the same if it was from the start."""
        if barrier.options.alignment_timeout_ms is None:
            return metrics
        has_timed_out = self._clock.has_timed_out(barrier.checkpoint_id)
        switched = Switch.INPUT if has_timed_out else Switch.UPSTREAM
        return replace(metrics, switched=switched, switched_ms=self._left_ms)

    def _with_bytes(self, gate: GateAlignment, kept: Counter[ChannelId]) -> GateAlignment:
        sizes = tuple(kept[channel.id] for channel in self._inputs.gates[gate.gate_index])
        return replace(gate, in_flight=sizes) if any(sizes) else gate

    def _current(self, checkpoint_id: CheckpointId) -> _Open | None:
        snapshot = self._open
        if snapshot is None or snapshot.barrier.checkpoint_id != checkpoint_id:
            return None
        return snapshot

    def _keep(self, snapshot: _Open, gate_index: int, records: Records) -> None:
        snapshot.kept[gate_index].append(_own(records))
        snapshot.kept_bytes[gate_index] += records.size
        if snapshot.kept_bytes[gate_index] >= PIECE_BYTES:
            self._hand_over(snapshot, gate_index)

    def _hand_over(self, snapshot: _Open, gate_index: int) -> None:
        exchange = self._inputs.exchanges[gate_index]
        name = input_name(exchange, snapshot.parts[gate_index])
        snapshot.parts[gate_index] += 1
        records, size = snapshot.kept.pop(gate_index), snapshot.kept_bytes.pop(gate_index)
        part = self._part(name, exchange, records)
        self._add(snapshot.barrier.checkpoint_id, [(part, size)])
        self._check_storage(snapshot)

    def _add(self, checkpoint_id: CheckpointId, parts: Iterable[tuple[ChannelPart, int]]) -> None:
        for part, size in parts:
            self._snapshotter.add(self._chain, checkpoint_id, part, size)

    def _check_storage(self, snapshot: _Open) -> None:
        """Decline the snapshot if too much of what came in since the freeze is not written."""
        checkpoint_id = snapshot.barrier.checkpoint_id
        # What was there at the freeze is written first.
        unwritten = min(
            snapshot.came_bytes, self._snapshotter.unwritten_bytes(self._chain, checkpoint_id)
        )
        if unwritten > UNWRITTEN_BYTES_MAX:
            error = StorageError(
                f"{unwritten} bytes of records under way wait to be written, more than "
                f"{UNWRITTEN_BYTES_MAX}: the storage is slower than the input of {self._chain}. "
                "Give checkpoints a faster storage, or a longer alignment time-out"
            )
            self._open = None
            self._snapshotter.fail(self._chain, checkpoint_id, error)

    def _overtake(
        self, gate: OutputGate, barrier: CheckpointBarrier
    ) -> Iterable[tuple[ChannelPart, int]]:
        assert gate.exchange is not None, "the gate may be overtaken"
        made = []
        for receiver, passed in enumerate(gate.overtake(barrier)):
            if passed:
                name = output_name(gate.exchange, receiver)
                part = self._part(name, gate.exchange, [_own(records) for records in passed])
                made.append((part, sum(records.size for records in passed)))
        return made

    def _part(self, name: str, exchange: Exchange, records: Sequence[Records]) -> ChannelPart:
        return ChannelPart(
            name, exchange, records, frame_bytes_max=self._frame_bytes_max, pickles=self._pickles
        )

    def _complete_if_whole(self) -> None:
        snapshot = self._open
        if snapshot is None or snapshot.is_recording or snapshot.waiting:
            return
        self._open = None
        checkpoint_id = snapshot.barrier.checkpoint_id
        self._snapshotter.complete(self._chain, checkpoint_id, snapshot.metrics)


def _own(records: Records) -> Records:
    """The records for the snapshot, which no change by their receiver reaches."""
    return replace(records, payload=records.payload.copied())
