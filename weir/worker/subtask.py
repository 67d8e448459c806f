"""The subtask: an operator chain between its input and output gates, and a barrier handler.

``step`` does one slice of work and never blocks. The first of these that applies is done:

1. output waits for credit: no work (back pressure);
2. an operator has pending timers or windows to fire: it fires a slice of them, the last operator of
   the chain first, so that no operator gets more input from those before it meanwhile;
3. a timer of processing time is due: it fires;
4. the source is polled, or the next element of an input is processed.

A snapshot is one uninterrupted step on the loop: pending output is flushed, the barrier is
forwarded, every operator's state is frozen. Records behind the barrier cannot slip in between,
because the loop does no other work meanwhile. The snapshotter writes the frozen state.

The barrier of an unaligned checkpoint acts when it is delivered, not when it reaches the head of
its channel, also while back pressure holds the subtask or work is pending: a snapshot may be taken
between any two steps. Records that it overtakes at inputs and outputs become part of the snapshot
(``in_flight``).

At the end of all input the operators see the last watermark and ``finish``, from the head on, each
after the pending work of all of them is done. The subtask then stays (ENDED) and takes part in
checkpoints until one that was taken after every subtask ended has completed, so that sinks commit
their tail. It receives no barriers any more, so the coordinator's trigger takes their place.
Without periodic checkpoints it is FINISHED at once, and the trigger of a savepoint still takes the
place of a barrier.

A stop has two forms. *Suspend*: a subtask pauses behind the barrier as it is, without timers or end
of input, until the checkpoint completes (commit and finish) or is aborted (go on). *Drain*: sources
end as if their input had, and all subtasks end as described above; the snapshot is that of ended
subtasks. A checkpoint that stops the world pauses each subtask in the same way, and lets it go on
when it completes as well: sources send nothing behind its barrier, so that the channels are empty
when the last subtask has its barriers.

Source: Flink's StreamTask and SubtaskCheckpointCoordinatorImpl; FLIP-147 for the end of input;
FLIP-34 for the two ways to stop.
"""

from collections.abc import Callable, Sequence
from enum import Enum, auto

from weir.common.batch import Batch
from weir.common.clock import Clock
from weir.config import JobConfig
from weir.fault_points import reach
from weir.ids import AttemptNumber, ChannelId, CheckpointId, SubtaskId
from weir.operators.base import Operator, Poll, SourceOperator
from weir.operators.user_code import RAISED
from weir.protocol.alignment import (
    AbortRecording,
    Action,
    BarrierHandler,
    BlockChannel,
    CompleteRecording,
    DeclineCheckpoint,
    ForwardCancel,
    StartAlignmentTimer,
    StartRecording,
    StopRecording,
    TakeSnapshot,
    UnblockChannels,
)
from weir.protocol.elements import (
    MAX_WATERMARK_MS,
    MIN_WATERMARK_MS,
    CancelCheckpoint,
    CheckpointBarrier,
    CheckpointKind,
    Element,
    EndOfInput,
    Records,
    Watermark,
    WatermarkIdle,
)
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import Declined, SnapshotMetrics, SubtaskChanged, SubtaskMetrics
from weir.worker.alignment_clock import AlignmentClock
from weir.worker.chain_output import ChainedOperator, ChainOutput
from weir.worker.gates import InputChannel, InputGates, OutputGate
from weir.worker.in_flight import InFlight
from weir.worker.metrics_reports import HeldTime, SlotFigures
from weir.worker.ports import Reporter
from weir.worker.slice_size import SliceSize
from weir.worker.snapshotter import Snapshotter


class Progress(Enum):
    """The outcome of a step."""

    WORKED = auto()
    IDLE = auto()  # No work until an element arrives or a timer is due.
    BACK_PRESSURED = auto()  # Output waits for credit.


class Subtask:
    """One parallel instance of a chain."""

    def __init__(
        self,
        chain: SubtaskId,
        attempt: AttemptNumber,
        operators: Sequence[ChainedOperator],
        inputs: InputGates,
        input_indexes: Sequence[int],
        outputs: Sequence[OutputGate],
        head_output: ChainOutput,
        handler: BarrierHandler | None,
        *,
        config: JobConfig,
        clock: Clock,
        reporter: Reporter,
        snapshotter: Snapshotter,
    ) -> None:
        self.chain = chain
        self.status = SubtaskStatus.INITIALIZING
        self.inputs = inputs
        self.outputs = outputs
        self._label = str(chain)
        self._attempt = attempt
        self.operators = operators  # With their state; the head first, then in topological order.
        self._head = operators[0].operator
        self.position = self._head.ctx.position
        self._source = self._head if isinstance(self._head, SourceOperator) else None
        self._input_indexes = input_indexes  # Gate index -> the head's input index.
        self._head_output = head_output
        self._handler = handler
        self._checkpointing = config.checkpoints.interval_ms is not None
        self._clock = clock
        self._reporter = reporter
        self._snapshotter = snapshotter
        self.alignment_clock = AlignmentClock(inputs.gates, clock)
        self._in_flight = InFlight(
            chain, inputs, outputs, self.alignment_clock, snapshotter, config.channels,
            pickles=config.allow_pickled_state,
        )  # fmt: skip
        self._slice = SliceSize(config.channels.batch_rows_max, config.channels.slice_target_ms)
        # Most operators never have pending work, or a timer. The last of the chain comes first: its
        # work makes room. Timers and window rows have a cost of their own, so a size of their own.
        chained = [one.operator for one in operators]
        self._pending_slices = [
            (one, SliceSize(config.channels.batch_rows_max, config.channels.slice_target_ms))
            for one in reversed(chained)
            if _overrides(one, "has_pending")
        ]
        self._timed = [one for one in chained if _overrides(one, "next_timer_ms")]
        self._confirming = [one for one in chained if _overrides(one, "on_checkpoint_completed")]
        self._keyed_states = [one.state for one in operators if one.state.is_keyed]
        self._finished_count = 0  # Operators of the chain that were told to finish.
        self._stays = self._checkpointing  # ENDED after the input, for a confirming checkpoint.
        self._watermark_ms = MIN_WATERMARK_MS
        self._was_idle = False
        self._input_done = False  # The last watermark was processed; the operators finish.
        self._is_draining = False  # A source that is to end as if its input had.
        self._suspended_by: CheckpointId | None = None  # It pauses behind the barrier of this one.
        # Triggered, without a snapshot yet; used when inputs have ended. Oldest first.
        self._triggers: dict[CheckpointId, CheckpointBarrier] = {}
        self._snapshot_id = 0  # Of the newest snapshot taken.
        self._completed_id = 0
        self._records_in = 0
        self.began_ns = clock.monotonic_ns()  # The worker's own begin, once the worker has it.
        self.busy_ns = 0
        self.of_slot = SlotFigures()  # As last measured by the worker.
        self.held = HeldTime()

    @property
    def records_in(self) -> int:
        """Records taken in; for a source, emitted."""
        return self._records_in if self._source is None else self._head_output.records

    # Input.

    @property
    def is_overtaken(self) -> bool:
        """Whether barriers may overtake its input, so that those that arrive are announced."""
        return self._handler is not None and self._handler.overtakes

    def deliver(self, channel_id: ChannelId, element: Element) -> None:
        """Queue an element that arrived."""
        self.inputs.deliver(channel_id, element)
        if type(element) is Records:
            self._in_flight.on_delivered(channel_id, element)

    def announce(self, channel_id: ChannelId, element: Element) -> None:
        """A barrier or end was just delivered: it may act before all that is queued before it.

        Raises:
            Exception: Raised by user code in a snapshot; the attempt cannot go on.
        """
        handler = self._handler
        assert handler is not None
        match element:
            case CheckpointBarrier():
                self._act(handler.on_announced(channel_id, element))
            case EndOfInput():
                self._act(handler.on_end_announced(channel_id))
                for barrier in list(self._triggers.values()):
                    self._act(handler.on_trigger(barrier))

    # Work.

    def step(self, *, is_brief: bool = False) -> Progress:
        """Do one slice of work; a brief one where other work of the loop cannot wait.

        Raises:
            Exception: Raised by user code; the attempt cannot go on.
        """
        self._in_flight.look_at_outputs()
        if self.alignment_clock.has_timers and self._time_out_alignments():
            return Progress.WORKED
        for state in self._keyed_states:
            state.tidy()
        if self._is_held:
            return Progress.BACK_PRESSURED
        if self.status is not SubtaskStatus.RUNNING or self._suspended_by is not None:
            return Progress.IDLE
        if self._advance(is_brief):
            return Progress.WORKED
        if self._input_done:
            self._finish()
            return Progress.WORKED
        if self._timed and self._fire_timers():
            return Progress.WORKED
        if self._is_draining:
            self._end_input()
            return Progress.WORKED
        if self._source is not None:
            return self._poll_source(self._source, is_brief)
        return self._poll_inputs(is_brief)

    @property
    def waits(self) -> bool:
        """Whether a step would do nothing before an element, credit, a command or a timer comes.

        False as well where only a step can tell.
        """
        return not (
            self._source or self.inputs.has_ready or self._input_done or self._in_flight.is_open
            or self._is_held or (self._pending_slices and self._has_pending)
        )  # fmt: skip

    @property
    def _has_pending(self) -> bool:
        for one, _ in self._pending_slices:  # noqa: SIM110 - cheaper
            if one.has_pending:
                return True
        return False

    @property
    def _is_held(self) -> bool:
        for gate in self.outputs:  # noqa: SIM110 - cheaper
            if gate.has_overdraft:
                return True
        return False

    def _advance(self, is_brief: bool) -> bool:
        """Do a slice of pending work; returns whether there was any."""
        for operator, size in self._pending_slices:
            if operator.has_pending:
                clock = self._clock
                worked, started = clock.thread_ns(), clock.monotonic_ns()
                if done := operator.advance(size.brief_rows if is_brief else size.rows):
                    size.measured(done, clock.thread_ns() - worked, clock.monotonic_ns() - started)
                return True
        return False

    def next_timer_ms(self) -> int | None:
        """The time of the next due timer, by ``Clock.now_ms``; None where there is none."""
        has_any = self._timed or self._keyed_states or self.alignment_clock.has_timers
        if not has_any or self.status is not SubtaskStatus.RUNNING:
            return None
        # By hand rather than by min of a generator: it is asked for after every step.
        next_ms = self.alignment_clock.next_timeout_ms()
        for state in self._keyed_states:
            due_ms = state.sweep_due_ms()
            if due_ms is not None and (next_ms is None or due_ms < next_ms):
                next_ms = due_ms
        if self._timed and self._suspended_by is None and not self._is_held:
            for operator in self._timed:
                due_ms = operator.next_timer_ms()
                if due_ms is not None and (next_ms is None or due_ms < next_ms):
                    next_ms = due_ms
        return next_ms

    def _time_out_alignments(self) -> bool:
        due = self.alignment_clock.take_timed_out()
        for checkpoint_id in due:
            if self._handler is not None:
                self._act(self._handler.on_alignment_timeout(checkpoint_id))
            self._in_flight.time_out(checkpoint_id)
        return bool(due)

    def _fire_timers(self) -> bool:
        due = self.next_timer_ms()
        if due is None or due > (now := self._clock.now_ms()):
            return False
        fired = False
        for operator in self._timed:
            if operator is self._source:
                continue  # Polled anyway.
            timer = operator.next_timer_ms()
            if timer is not None and timer <= now:
                operator.on_processing_time(now)
                fired = True
        return fired

    def _poll_source(self, source: SourceOperator, is_brief: bool) -> Progress:
        wakes = source.next_timer_ms()
        if wakes is not None and wakes > self._clock.now_ms():
            return Progress.IDLE
        clock, before = self._clock, self._head_output.records
        worked, started = clock.thread_ns(), clock.monotonic_ns()
        outcome = source.poll(self._slice.brief_rows if is_brief else self._slice.rows)
        emitted = self._head_output.records - before
        if emitted:
            work_ns, elapsed_ns = clock.thread_ns() - worked, clock.monotonic_ns() - started
            self._slice.measured(emitted, work_ns, elapsed_ns)
        if outcome is Poll.END:
            self._end_input()
            return Progress.WORKED
        return Progress.WORKED if outcome is Poll.MORE or emitted else Progress.IDLE

    def _poll_inputs(self, is_brief: bool) -> Progress:
        polled = self.inputs.poll(self._slice.brief_rows if is_brief else self._slice.rows)
        if polled is None:
            return Progress.IDLE
        channel, element = polled
        if type(element) is Records:
            at, clock = self.position, self._clock
            at.first = self._records_in
            at.behind = self._records_in = at.first + element.count
            is_measured = self._slice.is_to_measure(element.count)
            worked, started = clock.thread_ns() if is_measured else 0, clock.monotonic_ns()
            batch = self._combined(channel, element.payload)
            self._head.on_batch(batch, self._input_indexes[channel.gate_index])
            elapsed_ns = clock.monotonic_ns() - started
            if is_measured:
                self._slice.measured(element.count, clock.thread_ns() - worked, elapsed_ns)
            else:
                self._slice.passed(elapsed_ns)
            channel.idle = False
        else:
            self._on_control(channel, element)
        return Progress.WORKED

    def _combined(self, channel: InputChannel, batch: Batch) -> Batch:
        """The batch with the watermarks of all inputs in place of the channel's own."""
        if batch.watermarks is None:
            return batch
        combined = self.inputs.combined(channel, batch.watermarks, self._watermark_ms)
        self._was_idle = False
        if combined is not None:
            self._watermark_ms = combined.last_ms
        return batch.marked(combined)

    def _on_control(self, channel: InputChannel, element: Element) -> None:
        assert self._handler is not None
        match element:
            case CheckpointBarrier():
                if element.checkpoint_id > self._snapshot_id:  # Else it has overtaken.
                    self.alignment_clock.on_barrier(channel, element)
                reach("barrier.arrived", subtask=self._label, id=element.checkpoint_id)
                self._act(self._handler.on_barrier(channel.id, element))
            case Watermark(timestamp_ms):
                channel.idle = False
                channel.watermark_ms = max(channel.watermark_ms, timestamp_ms)
                self._advance_watermark()
            case WatermarkIdle():
                channel.idle = True
                self._advance_watermark()
            case CancelCheckpoint():
                self._act(self._handler.on_cancel(channel.id, element))
            case EndOfInput():
                self.inputs.end(channel)
                self._act(self._handler.on_end_of_input(channel.id))
                if self.inputs.all_ended:
                    self._end_input()
                else:
                    self._advance_watermark()
            case _:
                raise AssertionError(f"{element} is no element of a channel")

    def _advance_watermark(self) -> None:
        combined = self.inputs.watermark()
        if combined is None:
            if not self._was_idle:
                self._was_idle = True
                self._head.on_idle()
            return
        self._was_idle = False
        if combined > self._watermark_ms:
            self._watermark_ms = combined
            self._head.on_watermark(combined)

    # The end.

    def _end_input(self) -> None:
        self._input_done = True
        if self._watermark_ms < MAX_WATERMARK_MS:
            self._watermark_ms = MAX_WATERMARK_MS
            self._head.on_watermark(MAX_WATERMARK_MS)

    def _finish(self) -> None:
        """Finish the next operators, until one has pending work; after the last, end the output.

        Pending work is done in steps of its own, which back pressure can hold up as any other.
        """
        kinds = [barrier.options.kind for barrier in self._triggers.values()]
        # Never reset: an operator that has finished waits for a checkpoint that the others must not
        # give up.
        self._stays |= CheckpointKind.STOP_DRAIN in kinds
        while self._finished_count < len(self.operators):
            operator = self.operators[self._finished_count].operator
            self._finished_count += 1
            # Though checkpointing may be off, the drain's savepoint confirms the final output.
            operator.ctx.checkpointing = self._stays
            operator.finish()
            if self._has_pending:
                return
        for gate in self.outputs:
            gate.broadcast(EndOfInput())
        if any(chained.operator.ctx.bad_records for chained in self.operators):
            # Periodic reports end with a job that may have lasted less than their interval.
            now_ns = self._clock.monotonic_ns()
            self._reporter.report(self.metrics(now_ns, now_ns - self.began_ns))
        self._change(SubtaskStatus.ENDED if self._stays else SubtaskStatus.FINISHED)
        for barrier in list(self._triggers.values()):
            self._take_snapshot(barrier, unaligned=False)

    def finish_stop(self) -> None:
        """Finish: the restored state is the savepoint of a stop, and no work is left.

        Opening the operators has committed the output that the savepoint covers.
        """
        self._change(SubtaskStatus.FINISHED)

    # Checkpoints.

    @property
    def waits_for_barriers(self) -> bool:
        """Whether checkpoints come with their barriers alone: a trigger is only noted."""
        return not (self._source or self._has_ended or self.is_overtaken)

    def on_trigger(self, barrier: CheckpointBarrier) -> None:
        """A checkpoint was triggered: a source injects its barrier, an ended subtask takes it."""
        if barrier.checkpoint_id <= self._snapshot_id:
            return
        if self._has_ended:
            self._take_trigger(barrier)
            return
        self._triggers[barrier.checkpoint_id] = barrier
        if self._handler is not None and self._handler.overtakes:
            self._act(self._handler.on_trigger(barrier))
        if self._source is None or self.status is not SubtaskStatus.RUNNING:
            return
        if barrier.options.kind is CheckpointKind.STOP_DRAIN:
            self._is_draining = True  # The snapshot is taken when the subtask has ended.
        else:
            self._take_trigger(barrier)

    @property
    def awaits_completion(self) -> bool:
        """Whether it does anything once a checkpoint is durable."""
        is_paused = self.status is SubtaskStatus.ENDED or self._suspended_by is not None
        return is_paused or bool(self._confirming)

    def on_completed(self, checkpoint_id: CheckpointId, *, final: bool) -> None:
        """A checkpoint is durable: commit up to it. An older one than the last is ignored."""
        if checkpoint_id <= self._completed_id:
            return
        self._completed_id = checkpoint_id
        for operator in self._confirming:
            operator.on_checkpoint_completed(checkpoint_id)
        was_suspended = self._suspended_by is not None and self._suspended_by <= checkpoint_id
        if was_suspended:
            self._suspended_by = None
        if final and (self.status is SubtaskStatus.ENDED or was_suspended):
            self._change(SubtaskStatus.FINISHED)

    def on_aborted(self, checkpoint_id: CheckpointId) -> None:
        """A checkpoint was aborted: stop writing it, and release channels that wait for it."""
        self._snapshotter.cancel(self.chain, checkpoint_id)
        self._in_flight.abort(checkpoint_id)
        self._triggers.pop(checkpoint_id, None)
        if self._handler is not None:
            self._act(self._handler.on_aborted(checkpoint_id))
        for chained in self.operators:
            chained.operator.on_checkpoint_aborted(checkpoint_id)
        if checkpoint_id == self._suspended_by:
            self._suspended_by = None

    @property
    def _has_ended(self) -> bool:
        """Whether no barriers arrive or leave any more, so that triggers take their place."""
        if self.status is SubtaskStatus.FINISHED:
            # Finished by a final checkpoint, it takes no part; finished without checkpointing, a
            # savepoint of the others still needs its snapshot.
            return not self._checkpointing
        return self.status is SubtaskStatus.ENDED

    def _take_trigger(self, barrier: CheckpointBarrier) -> None:
        self.alignment_clock.on_trigger(barrier)
        self._take_snapshot(barrier, unaligned=False)

    def _act(self, actions: Sequence[Action]) -> None:
        for action in actions:
            match action:
                case BlockChannel(channel):
                    self.inputs.block(channel)
                    self.alignment_clock.blocked(channel)
                case UnblockChannels(channels):
                    self.alignment_clock.unblocked(channels)
                    self.inputs.unblock(channels)
                case TakeSnapshot(barrier, unaligned):
                    self._take_snapshot(barrier, unaligned=unaligned)
                case ForwardCancel(checkpoint_id):
                    for gate in self.outputs:
                        gate.broadcast(CancelCheckpoint(checkpoint_id))
                case DeclineCheckpoint(checkpoint_id, reason):
                    self._reporter.report(
                        Declined(self._attempt, checkpoint_id, self.chain, reason)
                    )
                case StartAlignmentTimer(checkpoint_id, timeout_ms, triggered_at_ms):
                    self.alignment_clock.start_timer(checkpoint_id, timeout_ms, triggered_at_ms)
                case StartRecording(checkpoint_id, channels):
                    self._in_flight.start(checkpoint_id, channels)
                case StopRecording(checkpoint_id, channel):
                    self._in_flight.stop(checkpoint_id, channel)
                case CompleteRecording(checkpoint_id):
                    self._in_flight.finish(checkpoint_id)
                case AbortRecording(checkpoint_id):
                    self._in_flight.abort(checkpoint_id)
        if self._handler is not None:  # A source has no alignments.
            self.alignment_clock.watch(self._handler.aligning)

    def _take_snapshot(self, barrier: CheckpointBarrier, *, unaligned: bool) -> None:
        checkpoint_id = barrier.checkpoint_id
        started = self._clock.monotonic_ns()
        reach("snapshot.before", subtask=self._label, id=checkpoint_id)
        for chained in self.operators:
            chained.operator.prepare_snapshot(checkpoint_id)
        is_running = self.status is SubtaskStatus.RUNNING
        # No element follows the end of a channel.
        passed = self._in_flight.forward(barrier) if is_running else []
        waiting = self._in_flight.gates_waiting(barrier) if is_running else []
        base_id = barrier.options.base_id
        frozen = [one.freeze(checkpoint_id, base_id) for one in self.operators]
        self._snapshot_id = checkpoint_id
        self._triggers = {c: b for c, b in self._triggers.items() if c > checkpoint_id}
        if is_running and barrier.options.pauses:
            self._suspended_by = checkpoint_id
        records, watermark_ms = self.records_in, self._reached_watermark_ms
        if unaligned:  # Its alignment lasts until the last barrier.
            metrics = SnapshotMetrics(records=records, watermark_ms=watermark_ms)
        else:
            overtakes = bool(passed)
            metrics = self.alignment_clock.finish(
                barrier, unaligned=overtakes, records=records, watermark_ms=watermark_ms
            )
        sync_ns = self._clock.monotonic_ns() - started
        reach("snapshot.frozen", subtask=self._label, id=checkpoint_id, attempt=self._attempt)
        is_open = unaligned or bool(passed) or bool(waiting)
        self._snapshotter.write(
            self.chain, checkpoint_id, frozen, metrics, sync_ns, barrier.options.target,
            is_open=is_open,
        )  # fmt: skip
        timeout_ms = barrier.options.alignment_timeout_ms
        if waiting and timeout_ms is not None:
            self.alignment_clock.start_timer(checkpoint_id, timeout_ms, barrier.triggered_at_ms)
        if is_open:
            self._in_flight.begin(barrier, metrics, passed, waiting, is_recording=unaligned)

    # Reports.

    def start(self, details: dict[str, object]) -> None:
        """State is restored: begin to take input."""
        self.inputs.cuts_at_watermarks = not self._carries_watermarks
        self._change(SubtaskStatus.RUNNING, details)

    @property
    def _carries_watermarks(self) -> bool:
        """Whether the head takes batches with watermarks between their records.

        It does not where any operator of the chain may have work at a watermark and does not take
        such batches itself: that work comes before the next record.
        """
        firing = (operator for operator, _ in self._pending_slices)
        return all(operator.carries_watermarks for operator in (self._head, *firing))

    def _change(self, status: SubtaskStatus, details: dict[str, object] | None = None) -> None:
        self.status = status
        self._reporter.report(
            SubtaskChanged(self._attempt, self.chain, status, details=details or {})
        )

    def report_progress(self, now_ns: int) -> None:
        """Report the alignment in progress, if it is due."""
        if progress := self.alignment_clock.due_progress(now_ns, self._attempt, self.chain):
            self._reporter.report(progress)

    def metrics(self, now_ns: int, elapsed_ns: int) -> SubtaskMetrics:
        """The subtask's counters for the ``elapsed_ns`` since the attempt began."""
        held_ns = self.held.total_ns(now_ns)
        idle_ns = max(0, elapsed_ns - self.busy_ns - held_ns)  # Rounded once: it never shrinks.
        return SubtaskMetrics(
            attempt=self._attempt,
            chain=self.chain,
            records_in=self.records_in,
            records_out=sum([gate.records_out for gate in self.outputs]),  # Lists are quicker.
            bytes_in=sum([c.bytes_in for c in self.inputs.channels.values()]),
            bytes_out=sum([c.bytes_out for gate in self.outputs for c in gate.channels]),
            busy_ms=self.busy_ns / 1e6,
            idle_ms=idle_ns / 1e6,
            back_pressured_ms=held_ns / 1e6,
            watermark_ms=self._reached_watermark_ms,
            late_records=sum([c.operator.ctx.late_records for c in self.operators]),
            cpu_wait_ms=self.of_slot.cpu_wait_ns / 1e6,
            memory_bytes=self.of_slot.memory_bytes,
            cpu_pressure_ms=self.of_slot.cpu_pressure_ns / 1e6,
            calls=self.of_slot.calls.get(self.chain, ()),
            beside=self.of_slot.beside,
            bad_records=sum([c.operator.ctx.bad_records for c in self.operators]),
        )

    @property
    def _reached_watermark_ms(self) -> int | None:
        """The watermark at the head; behind a source, the one that the chain generates."""
        reached = self._watermark_ms
        if self._source is not None:
            made = (chained.operator.own_watermark_ms for chained in self.operators)
            reached = max([reached, *(at for at in made if at is not None)])
        return None if reached == MIN_WATERMARK_MS else reached

    def give_back(self) -> None:
        """Move state to disk, where its backend can."""
        for state in self._keyed_states:
            state.give_back()

    def close(self, on_error: Callable[[BaseException], None]) -> None:
        """Close every operator; an exception of one does not keep the others from closing."""
        for chained in reversed(self.operators):
            try:
                chained.operator.close()
            except RAISED as error:
                on_error(error)
            chained.state.close()


def _overrides(operator: Operator, name: str) -> bool:
    """Whether its class has a method of its own in place of one that does nothing."""
    return getattr(type(operator), name) is not getattr(Operator, name)
