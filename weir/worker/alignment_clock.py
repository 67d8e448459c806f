"""The alignment clock: when each barrier arrived, how long each channel was blocked.

The barrier handler decides and knows no time; the alignment clock gets the same events and keeps
all times of alignments: the figures of an acknowledgement, the reports of an alignment that lasts,
and the time-outs that the handler asks for. Barriers of several checkpoints may interleave, also
late ones of an aborted checkpoint, so each checkpoint is measured on its own.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from weir.common.clock import Clock
from weir.ids import AttemptNumber, ChannelId, CheckpointId, SubtaskId
from weir.protocol.alignment import PENDING_MAX
from weir.protocol.elements import CheckpointBarrier
from weir.protocol.messages import (
    AlignmentProgress,
    GateAlignment,
    GateProgress,
    SnapshotMetrics,
)

if TYPE_CHECKING:
    from weir.worker.gates import InputChannel


# An alignment is reported once it lasts this long, and again while it lasts: most alignments are
# over before, and readers poll about twice a second.
PROGRESS_FIRST_NS = 250_000_000
PROGRESS_INTERVAL_NS = 500_000_000
# A report has an entry per channel, and with all-to-all channels every receiver reports: with more
# channels reports are rarer, or they would be most of a large job's traffic.
PROGRESS_CHANNELS = 100


@dataclass(slots=True)
class _Alignment:
    """One checkpoint's barriers, from the first on."""

    first_ns: int
    first_wall_ms: int
    bytes_at_first: dict[ChannelId, int]
    arrived_ns: dict[ChannelId, int] = field(default_factory=dict)
    blocked_ns: dict[ChannelId, int] = field(default_factory=dict)


def timeout_at_ms(clock: Clock, timeout_ms: int, triggered_at_ms: int) -> int:
    """The time, by ``clock.now_ms``, at which an alignment times out, as seen at its trigger.

    The trigger's time is from another process: a clock ahead of this one delays nothing.
    """
    return min(clock.now_ms(), triggered_at_ms) + timeout_ms


class AlignmentClock:
    """Times of the alignments in progress at one subtask."""

    def __init__(self, gates: "Sequence[Sequence[InputChannel]]", clock: Clock) -> None:
        self._gates = gates
        self._upstream = [tuple(channel.upstream for channel in gate) for gate in gates]
        self._clock = clock
        self._alignments: dict[CheckpointId, _Alignment] = {}
        self._current: _Alignment | None = None  # Of the newest barrier.
        self._blocked: dict[ChannelId, tuple[_Alignment, int]] = {}  # By which, since when.
        self._watched_id: CheckpointId | None = None  # Of the alignment in progress.
        self._progress_interval_ns = PROGRESS_INTERVAL_NS * max(
            1, sum(map(len, gates)) // PROGRESS_CHANNELS
        )
        self.progress_due_ns: int | None = None  # When the alignment in progress is reported next.
        self._deadlines_ms: dict[CheckpointId, int] = {}  # By ``Clock.now_ms``.
        self._timed_out: set[CheckpointId] = set()  # The newest.

    def on_trigger(self, barrier: CheckpointBarrier) -> None:
        """The subtask has no channels to wait for: the trigger is its barrier."""
        self._alignment(barrier)

    def on_barrier(self, channel: "InputChannel", barrier: CheckpointBarrier) -> None:
        """A barrier arrived."""
        self._current = self._alignment(barrier)
        self._current.arrived_ns.setdefault(channel.id, self._clock.monotonic_ns())

    def blocked(self, channel: ChannelId) -> None:
        """The channel is blocked from now on, by the newest barrier."""
        assert self._current is not None
        self._blocked[channel] = self._current, self._clock.monotonic_ns()

    def unblocked(self, channels: Iterable[ChannelId]) -> None:
        """The channels are unblocked."""
        now = self._clock.monotonic_ns()
        for channel in channels:
            alignment, since = self._blocked.pop(channel)
            alignment.blocked_ns[channel] = now - since

    def finish(
        self,
        barrier: CheckpointBarrier,
        *,
        unaligned: bool,
        records: int,
        watermark_ms: int | None = None,
    ) -> SnapshotMetrics:
        """The figures of the alignment that ends now, with this barrier's snapshot."""
        alignment = self._alignment(barrier)
        now = self._clock.monotonic_ns()  # It may have begun just now.
        for checkpoint_id in [c for c in self._alignments if c <= barrier.checkpoint_id]:
            del self._alignments[checkpoint_id]
        gates = tuple([self._gate(alignment, index, now) for index in range(len(self._gates))])
        alone = sum(map(len, self._gates)) < 2
        return SnapshotMetrics(
            start_delay_ms=max(0.0, float(alignment.first_wall_ms - barrier.triggered_at_ms)),
            alignment_ms=0.0 if alone else (now - alignment.first_ns) / 1e6,
            bytes_processed_during_alignment=sum([sum(gate.bytes_during) for gate in gates]),
            unaligned=unaligned,
            records=records,
            watermark_ms=watermark_ms,
            gates=gates,
        )

    def watch(self, aligning: CheckpointBarrier | None) -> None:
        """Schedule reports of the alignment in progress; None: there is none."""
        checkpoint_id = None if aligning is None else aligning.checkpoint_id
        if checkpoint_id == self._watched_id and (
            checkpoint_id is None or self.progress_due_ns is not None
        ):
            return  # Else its first barrier is announced only, and was not measured before.
        self._watched_id = checkpoint_id
        # It is not measured where too many newer ones began.
        alignment = None if checkpoint_id is None else self._alignments.get(checkpoint_id)
        self.progress_due_ns = None if alignment is None else alignment.first_ns + PROGRESS_FIRST_NS

    def due_progress(
        self, now_ns: int, attempt: AttemptNumber, chain: SubtaskId
    ) -> AlignmentProgress | None:
        """The report of the alignment in progress, if it is due; None where it is not."""
        if self.progress_due_ns is None or now_ns < self.progress_due_ns:
            return None
        assert self._watched_id is not None
        alignment = self._alignments.get(self._watched_id)
        if alignment is None:
            self.progress_due_ns = None
            return None
        self.progress_due_ns = now_ns + self._progress_interval_ns
        return AlignmentProgress(
            attempt=attempt,
            checkpoint_id=self._watched_id,
            chain=chain,
            since_ms=alignment.first_wall_ms,
            waited_ms=(now_ns - alignment.first_ns) / 1e6,
            gates=tuple(
                self._so_far(alignment, index, now_ns) for index in range(len(self._gates))
            ),
        )

    @property
    def has_timers(self) -> bool:
        """Whether any alignment is to time out."""
        return bool(self._deadlines_ms)

    def start_timer(
        self, checkpoint_id: CheckpointId, timeout_ms: int, triggered_at_ms: int
    ) -> None:
        """The alignment times out so long after the trigger."""
        due_ms = timeout_at_ms(self._clock, timeout_ms, triggered_at_ms)
        self._deadlines_ms[checkpoint_id] = due_ms

    def take_timed_out(self) -> list[CheckpointId]:
        """Take the checkpoints whose alignment has timed out."""
        now_ms = self._clock.now_ms()
        due = [c for c, deadline_ms in self._deadlines_ms.items() if deadline_ms <= now_ms]
        for checkpoint_id in due:
            del self._deadlines_ms[checkpoint_id]
            self._timed_out.add(checkpoint_id)
            if len(self._timed_out) > PENDING_MAX:
                self._timed_out.remove(min(self._timed_out))
        return due

    def has_timed_out(self, checkpoint_id: CheckpointId) -> bool:
        """Whether the time-out of this checkpoint was over at this subtask."""
        return checkpoint_id in self._timed_out

    def since_trigger_ms(self, barrier: CheckpointBarrier) -> float:
        """The time from the trigger until now."""
        return max(0.0, float(self._clock.now_ms() - barrier.triggered_at_ms))

    def next_timeout_ms(self) -> int | None:
        """The time of the next time-out, by ``Clock.now_ms``; None where there is none."""
        return min(self._deadlines_ms.values()) if self._deadlines_ms else None

    def _so_far(self, alignment: _Alignment, index: int, now_ns: int) -> GateProgress:
        gate = self._gate(alignment, index, now_ns)
        return GateProgress(
            gate_index=gate.gate_index,
            upstream=gate.upstream,
            arrived_ms=gate.arrived_ms,
            blocked_ms=gate.blocked_ms,
            bytes_during=gate.bytes_during,
            ended=tuple(channel.ended for channel in self._gates[index]),
        )

    def _alignment(self, barrier: CheckpointBarrier) -> _Alignment:
        """The checkpoint's alignment, which begins with this barrier if there is none yet."""
        known = self._alignments.get(barrier.checkpoint_id)
        if known is not None:
            return known
        if len(self._alignments) == PENDING_MAX:  # All of them were aborted.
            del self._alignments[min(self._alignments)]
        begun = self._alignments[barrier.checkpoint_id] = _Alignment(
            self._clock.monotonic_ns(),
            self._clock.now_ms(),
            {channel.id: channel.bytes_in for gate in self._gates for channel in gate},
        )
        return begun

    def _gate(self, alignment: _Alignment, index: int, now_ns: int) -> GateAlignment:
        first_ns, begun = alignment.first_ns, alignment.bytes_at_first
        # In one pass: there is a gate of each subtask at each checkpoint.
        arrived: list[float | None] = []
        blocked: list[float] = []
        during: list[int] = []
        for channel in self._gates[index]:
            at_ns = alignment.arrived_ns.get(channel.id)
            arrived.append(None if at_ns is None else (at_ns - first_ns) / 1e6)
            blocked.append(self._blocked_ns(alignment, channel.id, now_ns) / 1e6)
            during.append(channel.bytes_in - begun[channel.id])
        return GateAlignment(
            gate_index=index,
            upstream=self._upstream[index],
            arrived_ms=tuple(arrived),
            blocked_ms=tuple(blocked),
            bytes_during=tuple(during),
        )

    def _blocked_ns(self, alignment: _Alignment, channel: ChannelId, now_ns: int) -> int:
        blocked_ns = alignment.blocked_ns.get(channel, 0)
        if channel in self._blocked:
            blocking, since_ns = self._blocked[channel]
            blocked_ns += now_ns - since_ns if blocking is alignment else 0
        return blocked_ns
