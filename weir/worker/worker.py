"""The worker: all subtasks of one slot in one attempt; one loop steps those that have work.

The worker knows no socket, process or thread. All input comes in through ``handle``, all output
leaves through its ports, so that a simulation runs this very class.

A subtask that raises ends the attempt: the worker reports it and stops working, since every record
it would process now is replayed by the next attempt anyway.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from weir.common.clock import Clock
from weir.config import JobConfig
from weir.errors import ChannelError, CorruptStateError, SubtaskError, UserError
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, ChannelId, JobId, SubtaskId
from weir.operators.user_code import RAISED
from weir.protocol.deployment import Deploy, StopProcess
from weir.protocol.elements import CheckpointBarrier, Element, EndOfInput
from weir.protocol.inspection import InspectionKind, InspectSubtask
from weir.protocol.lifecycle import SubtaskStatus
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    SampledCall,
    SubtaskChanged,
    ThreadsBeside,
    TriggerCheckpoint,
)
from weir.state.backends.budget import MemoryBudget
from weir.storage.local_copies import LocalCopies
from weir.storage.store import CheckpointStore, store_for
from weir.worker.assembly import build_subtasks
from weir.worker.brief_slices import BriefSlices
from weir.worker.failure_text import failure_text
from weir.worker.gates import OutputGate
from weir.worker.inspection.taps import Aside, Taps
from weir.worker.memory.holders import Holder, holders_of
from weir.worker.metrics_reports import INTERVAL_NS, MetricsReports, SlotFigures, interval_ns
from weir.worker.ports import (
    Call,
    CommandArrived,
    ConnectionBroken,
    CreditGranted,
    ElementArrived,
    Inbox,
    InboxItem,
    Reporter,
    SnapshotThread,
    Transport,
)
from weir.worker.ready_queue import ReadyQueue
from weir.worker.subtask import Progress, Subtask

LOOK_INTERVAL_NS = 50_000_000  # How often a busy loop checks for due reports.


def _at_once(work: Callable[[], None]) -> None:
    """Without another thread."""
    work()


class Worker:
    """Runs the subtasks of one slot for one attempt."""

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        attempt: AttemptNumber,
        job_id: JobId,
        slot_index: int,
        *,
        inbox: Inbox,
        transport: Transport,
        reporter: Reporter,
        snapshot_thread: SnapshotThread,
        clock: Clock,
        cpu_wait_ns: Callable[[], int] = lambda: 0,
        memory_bytes: Callable[[], int] = lambda: 0,
        memory_limit_bytes: int | None = None,
        cpu_pressure_ns: Callable[[], int] = lambda: 0,
        sampled_calls: Callable[[], Mapping[SubtaskId, tuple[SampledCall, ...]]] = dict,
        threads_beside: Callable[[], ThreadsBeside | None] = lambda: None,
        open_store: Callable[[str | None], CheckpointStore] = store_for,
        copies: LocalCopies | None = None,
        aside: Aside = _at_once,
        plan: ExecutionGraph | None = None,
    ) -> None:
        """Prepare.

        Args:
            copies: The slot's copies of state files; None: the job keeps none.
            plan: That of the graph, where there is one already.
        """
        self.finished = False  # The process may exit.
        self.subtasks: Sequence[Subtask] = ()
        self._plan = plan or ExecutionGraph(graph)
        self._config = config
        self._attempt = attempt
        self._job_id = job_id
        self._slot_index = slot_index  # Of the plan.
        self._inbox = inbox
        self._transport = transport
        self._reporter = reporter
        self._snapshot_thread = snapshot_thread
        self._clock = clock
        self._cpu_wait_ns = cpu_wait_ns  # Of the loop's thread, since the attempt began.
        self._memory_bytes = memory_bytes  # Of the process, now.
        self._budget = MemoryBudget(memory_limit_bytes)
        self._cpu_pressure_ns = cpu_pressure_ns  # Of the host, since the attempt began.
        self._sampled_calls = sampled_calls
        self._threads_beside = threads_beside
        self._open_store = open_store
        self._copies = copies
        self._taps = Taps(reporter, clock, aside)
        self._receivers: dict[ChannelId, Subtask] = {}
        self._senders: dict[ChannelId, tuple[Subtask, OutputGate, int]] = {}
        self._ready = ReadyQueue()
        self._brief = BriefSlices(clock)
        self._aligning: dict[Subtask, None] = {}  # Those whose alignment is to be reported.
        self._touched: set[Subtask] = set()  # Those whose counters may have grown since the report.
        self._early: list[InboxItem] = []  # From peers that were deployed before this worker.
        self._deployed = False
        self._failed = False
        self._started_ns = clock.monotonic_ns()
        self._metrics = MetricsReports(reporter)
        self._metrics_due_ns = self._started_ns + INTERVAL_NS
        self._look_due_ns = self._started_ns
        # The call under way that may be user code: its subtask, and since when. Another thread
        # reads both, so the time is set first: while it stays the same, so does the subtask.
        self.calling_since_ns = self._started_ns
        self.calling: SubtaskId | None = None

    def handle(self, item: InboxItem) -> None:
        """Handle one item of the inbox."""
        match item:
            case ElementArrived(channel, element) if self._deployed:
                self._deliver(channel, element)
            case ElementArrived() | CreditGranted() if not self._deployed:
                self._early.append(item)
            case CreditGranted(channel, size):
                subtask, gate, index = self._senders[channel]
                gate.granted(index, size)
                self._ready.add(subtask)
            case Call(function):
                function()
            case CommandArrived(command):
                self._obey(command)
            case ConnectionBroken(peer, cause):
                error = ChannelError(f"lost the connection to {peer}: {cause}")
                self._fail_all(error, {"lost_peer": peer})

    def _deliver(self, channel: ChannelId, element: Element) -> None:
        if self._failed:
            return  # The attempt is over: nothing is processed, and no barrier may act.
        subtask = self._receivers[channel]
        subtask.deliver(channel, element)
        self._ready.add(subtask)
        if subtask.is_overtaken and isinstance(element, CheckpointBarrier | EndOfInput):
            self._guarded(lambda receiver: receiver.announce(channel, element), [subtask])

    def _obey(self, command: object) -> None:
        match command:
            case Deploy():
                self._deploy(command)
            case StopProcess():
                self.finished = True
            case _ if self._failed:
                return  # The attempt is over: it must not commit or write any more.
            case TriggerCheckpoint(_, barrier, _):
                self._brief.on_trigger(barrier)
                takers = []
                for subtask in self.subtasks:  # Most of them only note it.
                    if subtask.waits_for_barriers:
                        subtask.on_trigger(barrier)
                    else:
                        takers.append(subtask)
                self._guarded(lambda subtask: subtask.on_trigger(barrier), takers)
            case CheckpointCompleted(_, checkpoint_id, final):
                self._brief.on_completed(checkpoint_id)
                self._guarded(
                    lambda subtask: subtask.on_completed(checkpoint_id, final=final),
                    [subtask for subtask in self.subtasks if subtask.awaits_completion],
                )
                if self._copies is not None:
                    self._snapshot_thread.submit(partial(self._copies.completed, checkpoint_id))
            case CheckpointAborted(_, checkpoint_id, _):
                self._brief.on_aborted(checkpoint_id)
                self._guarded(lambda subtask: subtask.on_aborted(checkpoint_id))
                if self._copies is not None:
                    self._snapshot_thread.submit(partial(self._copies.aborted, checkpoint_id))
            case InspectSubtask(kind=InspectionKind.RECORDS):
                self._taps.open(command, self.subtasks, is_allowed=self._config.allow_tap)
            case _:
                raise AssertionError(f"{command} is no command for a worker")

    def _deploy(self, deploy: Deploy) -> None:
        try:
            self.subtasks = build_subtasks(
                self._plan,
                self._config,
                deploy,
                self._slot_index,
                inbox=self._inbox,
                transport=self._transport,
                reporter=self._reporter,
                snapshot_thread=self._snapshot_thread,
                clock=self._clock,
                open_store=self._open_store,
                copies=self._copies,
                entering=self._enter,
                budget=self._budget,
            )
        except RAISED as error:
            self.calling = None
            self._fail_all(error)
            return
        self.calling = None
        for subtask in self.subtasks:
            subtask.began_ns = self._started_ns
            for channel_id in subtask.inputs.channels:
                self._receivers[channel_id] = subtask
            for gate in subtask.outputs:
                for index, channel in enumerate(gate.channels):
                    self._senders[channel.id] = subtask, gate, index
            self._ready.add(subtask)
        self._deployed = True
        if deploy.completes_stop:
            for subtask in self.subtasks:
                subtask.finish_stop()
        for item in self._early:
            self.handle(item)
        self._early.clear()

    def run_once(self) -> float | None:
        """Run one slice of every subtask that is ready.

        Returns:
            Seconds the loop may sleep unless an item arrives: 0 to run again at once, None to
            wait for the inbox alone.
        """
        if self._failed:
            return None
        now_ms = self._clock.now_ms()
        self._ready.wake(now_ms)
        is_brief = self._brief.are_due(now_ms)
        taken = self._ready.take()
        self._touched.update(taken)
        for subtask in taken:
            started = self._clock.monotonic_ns()
            self.calling_since_ns = started
            self.calling = subtask.chain
            try:
                progress = subtask.step(is_brief=is_brief)
            except RAISED as error:
                self.calling = None
                self._fail(subtask.chain, error)
                return None
            if progress is Progress.BACK_PRESSURED:
                subtask.held.begin(started)
                # Credit lets it enter, or a time-out of a barrier.
                self._ready.wait(subtask, subtask.next_timer_ms())
                continue
            subtask.held.end(started)
            if progress is Progress.WORKED:
                subtask.busy_ns += self._clock.monotonic_ns() - started
                self._note_alignment(subtask)
                self._queue(subtask)
            else:
                self._ready.wait(subtask, subtask.next_timer_ms())
        self.calling = None
        now = self._clock.monotonic_ns()
        if now >= self._look_due_ns:
            self._look(now)
        return 0.0 if self._ready else self._sleep(now)

    def _sleep(self, now_ns: int) -> float | None:
        timer_ms = self._ready.next_timer_ms()
        sleeps = [] if timer_ms is None else [(timer_ms - self._clock.now_ms()) / 1000]
        progress = [
            due for s in self._aligning if (due := s.alignment_clock.progress_due_ns) is not None
        ]
        if (tap_due_ns := self._taps.due_ns) is not None:
            progress.append(tap_due_ns)
        if progress:
            due_ns = min(progress)
            self._look_due_ns = min(self._look_due_ns, due_ns)
            sleeps.append((due_ns - now_ns) / 1e9)
        return max(0.0, min(sleeps)) if sleeps else None

    def _look(self, now_ns: int) -> None:
        """Send due reports; a busy loop does so only every ``LOOK_INTERVAL_NS``."""
        self._look_due_ns = now_ns + LOOK_INTERVAL_NS
        self._taps.close_due(now_ns)
        for subtask in list(self._aligning):
            subtask.report_progress(now_ns)
            self._note_alignment(subtask)
        if now_ns >= self._metrics_due_ns:
            self._metrics_due_ns = now_ns + interval_ns(len(self.subtasks))
            elapsed_ns = now_ns - self._started_ns
            figures = SlotFigures(
                self._cpu_wait_ns(),
                self._cpu_pressure_ns(),
                self._memory_bytes(),
                self._sampled_calls(),
                self._threads_beside(),
            )
            for subtask in self.subtasks:
                if subtask in self._touched or self._metrics.is_due(subtask.chain, now_ns):
                    subtask.of_slot = figures
                    self._metrics.offer(subtask.metrics(now_ns, elapsed_ns), now_ns)
            self._touched.clear()

    def _enter(self, chain: SubtaskId) -> None:
        self.calling_since_ns = self._clock.monotonic_ns()
        self.calling = chain

    def _guarded(
        self, action: Callable[[Subtask], None], subtasks: Sequence[Subtask] | None = None
    ) -> None:
        """Do something with these subtasks, which may call user code; None: with all."""
        for subtask in self.subtasks if subtasks is None else subtasks:
            started = self._clock.monotonic_ns()
            subtask.held.end(started)  # Busy from now on; the next step may hold it again.
            self.calling_since_ns = started
            self.calling = subtask.chain
            try:
                action(subtask)
            except RAISED as error:
                self.calling = None
                self._fail(subtask.chain, error)
                return
            subtask.busy_ns += self._clock.monotonic_ns() - started
            self._touched.add(subtask)
            self._queue(subtask)
            self._note_alignment(subtask)
        self.calling = None

    def _queue(self, subtask: Subtask) -> None:
        """Let a subtask that did something do its next step, or wait where that is known."""
        if subtask.waits:
            self._ready.wait(subtask, subtask.next_timer_ms())
        else:
            self._ready.add(subtask)

    def _note_alignment(self, subtask: Subtask) -> None:
        if subtask.alignment_clock.progress_due_ns is not None:
            self._aligning[subtask] = None
        else:
            self._aligning.pop(subtask, None)

    def _fail_all(self, error: BaseException, details: dict[str, Any] | None = None) -> None:
        """Fail for a cause that belongs to the slot, not to one subtask."""
        chains = [c.head for c in self._plan.chains if self._slot_index < c.parallelism]
        self._fail(SubtaskId(chains[0], self._slot_index), error, details)

    def _fail(
        self, chain: SubtaskId, error: BaseException, details: dict[str, Any] | None = None
    ) -> None:
        if self._failed:
            return
        self._failed = True
        cause = failure_text(error)
        details = details or {}
        if isinstance(error, UserError):  # The same records would meet the same error for ever.
            details = {**details, "restarts_help": False}
        elif isinstance(error, SubtaskError) and error.place is not None:
            position = next((str(s.position) for s in self.subtasks if s.chain == chain), "")
            details = {**details, "place": error.place, "position": position}
        elif isinstance(error, CorruptStateError):
            details = {**details, "damaged_state": True}
        self._reporter.report(
            SubtaskChanged(self._attempt, chain, SubtaskStatus.FAILED, cause, details)
        )

    def rouse(self) -> None:
        """Step every subtask in the next round: sources have input that no inbox item tells of."""
        for subtask in self.subtasks:
            self._ready.add(subtask)

    def give_back(self) -> None:
        """Move state to disk, where that can be; between two slices."""
        self._guarded(lambda subtask: subtask.give_back())

    def holders(self) -> list[Holder]:
        """The states in memory, the largest first. From any thread."""
        return holders_of(
            (subtask.chain, each.subtask, each.state)
            for subtask in self.subtasks
            for each in subtask.operators
        )

    def close(self) -> None:
        """Close every operator; errors are reported, not raised."""
        for subtask in self.subtasks:
            subtask.close(partial(self._fail, subtask.chain))
