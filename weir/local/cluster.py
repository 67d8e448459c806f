"""A whole job in one process and one thread: job master, slots, workers and channels.

Everything is an action in one event queue, ordered by time. The classes that run are those of a
real cluster (``JobMaster``, ``Worker`` and their parts); only the connections between them are
replaced: a socket becomes a ``DelayedLink``, which delivers in order and after a delay, a process
becomes an object, a pool of threads a call. ``run_in_process`` uses the real clock and no delays:
the smallest way to run a pipeline, without Spark. ``tests.simulation`` uses a clock that is moved
by hand, delays from a seed, and faults.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any
from uuid import uuid4

from weir.common.row_codec import decode_rows
from weir.config import JobConfig
from weir.errors import InternalError
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, ChannelId, CheckpointId, JobId, SubtaskId
from weir.jobmaster.collected_output import CollectedRows, ComesAgain
from weir.jobmaster.job_master import JobMaster
from weir.local.event_queue import Action, DelayedLink, EventQueue, Latencies, RealClock
from weir.protocol.deployment import (
    Address,
    Deploy,
    ReleaseSlot,
    SlotAccepted,
    SlotCommand,
    SlotHeartbeat,
    SlotRegistered,
    SlotReport,
    StartWorker,
    StopProcess,
    StopWorker,
    WorkerCommand,
    WorkerExited,
    WorkerHeartbeat,
    WorkerReady,
    WorkerReport,
)
from weir.protocol.elements import Element
from weir.protocol.events import JobEvent
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import Report, SubtaskCommand
from weir.storage.catalog import RestoreRequest
from weir.storage.local_copies import LocalCopies, open_copies
from weir.storage.local_directory import COPIES, LocalDirectory
from weir.storage.store import CheckpointStore, store_for
from weir.worker.ports import (
    CommandArrived,
    ConnectionBroken,
    CreditGranted,
    ElementArrived,
    InboxItem,
)
from weir.worker.versions import installed_versions
from weir.worker.worker import Worker

HOST = "in-process"
SIGKILL = 9


class InProcessWorker:
    """A worker process as an object: the ``Worker``, its inbox, and its outgoing links."""

    def __init__(
        self,
        cluster: "InProcessCluster",
        slot_index: int,
        attempt: AttemptNumber,
        pid: int,
        copies: LocalCopies | None = None,
    ) -> None:
        self.slot_index = slot_index  # In the plan.
        self.place = slot_index  # The slot that runs it: a spare may replace a lost one.
        self.slot: InProcessSlot | None = None
        self.attempt = attempt
        self.pid = pid
        self.alive = True
        self.stopped = False  # As by SIGSTOP: alive, but not running.
        self.inbox: deque[InboxItem] = deque()
        self.commands = cluster.line("command")
        self.reports = cluster.line("report")
        self.snapshots = cluster.line("snapshot")  # Its thread: one after the other.
        self.channels: dict[
            tuple[ChannelId, bool], DelayedLink
        ] = {}  # True: credit, the other way.
        self._cluster = cluster
        self._peers: tuple[int, ...] = ()  # Process ids by slot index.
        self._broken: set[int] = set()
        self._rounds = 0
        self._run_at_ns: int | None = None  # When the loop runs next.
        self._runs = count()
        self._run_number = 0
        self.worker = Worker(
            cluster.graph,
            cluster.config,
            attempt,
            cluster.job_id,
            slot_index,
            inbox=self,
            transport=self,
            reporter=self,
            snapshot_thread=self,
            clock=cluster.events.clock,
            open_store=cluster.open_store,
            copies=copies,
            plan=cluster.plan,
        )

    # The ports of the worker.

    def put(self, item: InboxItem) -> None:
        """Add an item and wake the loop."""
        if self.alive:
            self.inbox.append(item)
            self.wake()

    def send(self, channel: ChannelId, element: Element) -> None:
        """Send an element to the receiver of an outgoing channel."""
        receiver = self._cluster.plan.channels[channel].receiver
        self._transmit(channel, receiver, ElementArrived(channel, element), is_credit=False)

    def grant(self, channel: ChannelId, size: int) -> None:
        """Give credit to the sender of an incoming channel."""
        sender = self._cluster.plan.channels[channel].sender
        self._transmit(channel, sender, CreditGranted(channel, size), is_credit=True)

    def report(self, report: Report | WorkerReport) -> None:
        """Send a report to the job master."""
        self.reports.send(lambda: self._cluster.reported(self, report))

    def submit(self, work: Callable[[], Any]) -> None:
        """Write a snapshot a little later."""
        self.snapshots.send(lambda: self._cluster.write(self, work))

    def _transmit(
        self, channel: ChannelId, to: SubtaskId, item: InboxItem, *, is_credit: bool
    ) -> None:
        peer = self._cluster.processes.get(self._peers[to.index])
        if peer is None or not peer.alive:
            self.lose(self._peers[to.index])
            return
        line = self.channels.get((channel, is_credit))
        if line is None:
            line = self.channels[channel, is_credit] = self._cluster.line("channel")
        line.send(lambda: peer.put(item))

    def lose(self, pid: int) -> None:
        """The connection to a peer was lost."""
        if pid in self._peers and pid not in self._broken:
            self._broken.add(pid)
            self.put(ConnectionBroken(f"process {pid}", "it ended"))

    # The loop.

    def wake(self) -> None:
        """Schedule a round of the loop."""
        self._run_after(self._cluster.conditions.delay_ns("loop"))

    def _run_after(self, delay_ns: int) -> None:
        due_ns = self._cluster.events.clock.monotonic_ns() + delay_ns
        if self._run_at_ns is not None and self._run_at_ns <= due_ns:
            return
        self._run_at_ns = due_ns
        self._run_number = number = next(self._runs)
        self._cluster.events.at(due_ns, lambda: self._due(number))

    def _due(self, number: int) -> None:
        if number == self._run_number:
            self._run_at_ns = None
            if self.alive and not self.stopped:
                self._cluster.step(self)

    def run(self) -> None:
        """One round of the loop: handle inbox items, then run a slice of every subtask."""
        self._rounds += 1
        for _ in range(self._cluster.conditions.take(len(self.inbox))):
            self.handle(self.inbox.popleft())
            if self.worker.finished:
                self._cluster.exited(self, exit_code=0)
                return
        sleep_s = self.worker.run_once()
        if self.inbox or sleep_s == 0:
            self.wake()
        elif sleep_s is not None:
            self._run_after(int(sleep_s * 1e9))

    def handle(self, item: InboxItem) -> None:
        """Pass one item to the worker."""
        if isinstance(item, CommandArrived) and isinstance(item.command, Deploy):
            self._peers = tuple(address.port for address in item.command.slot_addresses)
        self.worker.handle(item)

    def beat(self) -> None:
        """Send a heartbeat."""
        rounds = self._rounds if self.stopped else self._rounds + 1
        self._rounds = rounds
        self.report(WorkerHeartbeat(self.attempt, self.slot_index, rounds))


@dataclass(slots=True)
class InProcessSlot:
    """A Spark task as an object."""

    index: int
    spark_attempt: int
    commands: DelayedLink
    reports: DelayedLink
    alive: bool = True
    is_released: bool = False
    worker: InProcessWorker | None = None
    copies: LocalDirectory | None = None  # Of state files, from worker to worker.

    def leave_copies(self) -> None:
        """Delete its directory where the slot was released; else a later one finds it."""
        if self.copies is not None:
            self.copies.leave(is_over=self.is_released)


class InProcessCluster:
    """The slots of one job and the links between them and its job master.

    It implements the job master's ``Cluster``, and drives the job master as a driver does.
    """

    worker_class: type[InProcessWorker] = InProcessWorker

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        job_id: JobId,
        *,
        events: EventQueue,
        conditions: Latencies,
        open_store: Callable[[str | None], CheckpointStore] = store_for,
    ) -> None:
        self.graph = graph
        self.config = config
        self.job_id = job_id
        self.plan = ExecutionGraph(graph)
        self.events = events
        self.conditions = conditions
        self.open_store = open_store
        self.slots: dict[int, InProcessSlot] = {}
        self.processes: dict[int, InProcessWorker] = {}
        self.master: JobMaster | None = None
        self._ready: dict[int, InProcessWorker] = {}  # As the job master knows them.
        self._pids = count(1)
        self._spark_attempts = count()
        self._tick_at_ms: int | None = None

    def line(self, what: str) -> DelayedLink:
        """A new link."""
        return DelayedLink(self.events, self.conditions, what)

    # The job master's ``Cluster``.

    def to_slot(self, slot_index: int, command: SlotCommand) -> None:
        """Send a command to a slot."""
        slot = self.slots.get(slot_index)
        if slot is not None:
            slot.commands.send(lambda: self._obey(slot, command))

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command to the worker of its attempt."""
        process = self._ready.get(slot_index)
        if process is not None and process.attempt == command.attempt:
            process.commands.send(lambda: process.put(CommandArrived(command)))

    def replace_slot(self, slot_index: int) -> None:
        """End a slot and start it anew."""
        slot = self.slots.get(slot_index)
        if slot is not None:
            self.lose_slot(slot)

    def replace_executor(self, slot_index: int) -> None:
        """Nothing: all slots run the versions of their job master, with which they share a process.

        No slot is refused.
        """

    def core_count(self) -> int:
        """The number of slots."""
        return len(self.slots)

    def slot_failure(self) -> str:
        """Empty: a slot that starts registers."""
        return ""

    def io(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run ``work`` after the delay of I/O, and ``done`` after another."""

        def run() -> None:
            outcome = self.perform(work)
            self.events.after(
                self.conditions.delay_ns("io"), lambda: self.enter(lambda: done(outcome))
            )

        self.events.after(self.conditions.delay_ns("io"), run)

    def perform(self, work: Callable[[], Any]) -> Any:
        """The result of ``work``, or the exception that it raised."""
        try:
            return work()
        except Exception as error:
            return error

    # Driving.

    def start(self, master: JobMaster) -> None:
        """Start the job and its slots."""
        self.master = master
        self.enter(master.start)
        for index in range(master.slot_count + self.config.spare_slots):
            self.start_slot(index)

    def enter(self, action: Action) -> None:
        """Call into the job master, then schedule its next tick."""
        master = self.master
        assert master is not None
        action()
        due_ms = None if master.is_over else master.next_due_ms()
        if due_ms is None or (self._tick_at_ms is not None and self._tick_at_ms <= due_ms):
            return
        self._tick_at_ms = due_ms

        def tick() -> None:
            if self._tick_at_ms == due_ms:
                self._tick_at_ms = None
                self.enter(master.tick)

        self.events.after(max(0, due_ms - self.events.clock.now_ms()) * 1_000_000, tick)

    def step(self, process: InProcessWorker) -> None:
        """Run one round of a worker's loop."""
        process.run()

    def write(self, process: InProcessWorker, work: Callable[[], Any]) -> None:
        """Run a worker's snapshot thread."""
        if process.alive:
            work()

    # Slots.

    def start_slot(self, index: int) -> None:
        """Start a slot, which registers after the delay of a start."""
        slot = InProcessSlot(
            index, next(self._spark_attempts), self.line("command"), self.line("report")
        )

        def register() -> None:
            if not self.is_running:
                return
            self.slots[index] = slot
            registered = SlotRegistered(index, slot.spark_attempt, HOST, 0, installed_versions())
            self.say(slot, registered)
            self._beat_slot(slot)

        self.events.after(self.conditions.delay_ns("start"), register)

    def say(self, slot: InProcessSlot, report: SlotReport) -> None:
        """Send a slot's report to the job master."""
        slot.reports.send(lambda: self.enter(lambda: self._master.on_slot(report)))

    @property
    def _master(self) -> JobMaster:
        assert self.master is not None
        return self.master

    @property
    def is_running(self) -> bool:
        """Whether the job is not over, so that slots and workers are needed."""
        return not self._master.is_over

    def _beat_slot(self, slot: InProcessSlot) -> None:
        if slot.alive and self.is_running:
            self.say(slot, SlotHeartbeat(slot.index))
            self.events.after(
                self.config.heartbeat_interval_ms * 1_000_000, lambda: self._beat_slot(slot)
            )

    def lose_slot(self, slot: InProcessSlot) -> None:
        """A slot and its worker are lost; Spark starts the task anew."""
        if not slot.alive:
            return
        slot.alive = False
        slot.commands.cut = True
        slot.leave_copies()
        if slot.worker is not None:
            self.kill(slot.worker)
        if self.slots.get(slot.index) is slot:
            del self.slots[slot.index]
        slot.reports.send(
            lambda: self.enter(lambda: self._master.on_slot_lost(slot.index, slot.spark_attempt))
        )
        self.start_slot(slot.index)

    def _obey(self, slot: InProcessSlot, command: SlotCommand) -> None:
        match command:
            case SlotAccepted():
                return  # The program need not be loaded: it runs in this process.
            case StartWorker(attempt, plan_slot):
                if slot.worker is not None:
                    self.kill(slot.worker)
                copies = self._copies_of(slot, plan_slot)
                process = self.worker_class(self, plan_slot, attempt, next(self._pids), copies)
                process.place, process.slot = slot.index, slot
                slot.worker = self.processes[process.pid] = process
                self.events.after(
                    self.conditions.delay_ns("start"), lambda: self._worker_started(process)
                )
            case StopWorker(attempt, grace_ms):
                if slot.worker is not None and slot.worker.attempt == attempt:
                    self._stop(slot.worker, grace_ms)
            case ReleaseSlot():
                slot.alive, slot.is_released = False, True
                if slot.worker is not None:
                    self._stop(slot.worker, grace_ms=0)
                else:
                    slot.leave_copies()
                if self.slots.get(slot.index) is slot:  # A late slot is released twice.
                    del self.slots[slot.index]

    def _copies_of(self, slot: InProcessSlot, plan_slot: int) -> LocalCopies | None:
        state = self.config.state
        if not state.local_copies:
            return None
        if slot.copies is None:
            slot.copies = LocalDirectory(state.local_copies_directory, COPIES, self.job_id)
        self.take_over_copies(slot.copies, plan_slot)
        return open_copies(str(slot.copies.path), state.local_copies_bytes_max)

    def take_over_copies(self, copies: LocalDirectory, plan_slot: int) -> None:
        """Have a slot take over the copies of those that were lost in its place."""
        copies.take_over(str(plan_slot))

    def _stop(self, process: InProcessWorker, grace_ms: int) -> None:
        process.put(CommandArrived(StopProcess(process.attempt)))
        self.events.after(
            self.conditions.delay_ns("start") + grace_ms * 1_000_000, lambda: self.kill(process)
        )

    # Workers.

    def _worker_started(self, process: InProcessWorker) -> None:
        if process.alive:
            address = Address(HOST, process.pid)
            process.report(WorkerReady(process.attempt, process.slot_index, process.pid, address))
            self._beat_worker(process)

    def _beat_worker(self, process: InProcessWorker) -> None:
        if process.alive and self.is_running:
            process.beat()
            self.events.after(
                self.config.heartbeat_interval_ms * 1_000_000, lambda: self._beat_worker(process)
            )

    def reported(self, process: InProcessWorker, report: Report | WorkerReport) -> None:
        """A worker's report reaches the job master."""
        if isinstance(report, WorkerReady):
            known = self._ready.get(process.slot_index)
            if known is None or known.attempt < process.attempt:  # Else the report is stale.
                self._ready[process.slot_index] = process
        self.enter(lambda: self._master.on_worker(process.slot_index, report))

    def kill(self, process: InProcessWorker) -> None:
        """End a worker process as by SIGKILL."""
        self.exited(process, exit_code=-SIGKILL)

    def exited(self, process: InProcessWorker, exit_code: int) -> None:
        """A worker process has exited: its peers, its slot and the job master notice."""
        if not process.alive:
            return
        process.alive = False
        process.inbox.clear()
        self.release(process, exit_code)
        if process.slot is not None and not process.slot.alive:
            process.slot.leave_copies()
        del self.processes[process.pid]
        for peer in list(self.processes.values()):
            if peer.attempt == process.attempt:
                self.events.after(
                    self.conditions.delay_ns("channel"), partial(peer.lose, process.pid)
                )
        slot = self.slots.get(process.place)
        if slot is not None and slot.worker is process:
            slot.worker = None
            self.say(slot, WorkerExited(slot.index, process.attempt, process.pid, exit_code))
        process.reports.send(lambda: self.enter(lambda: self._lost(process)))

    def release(self, process: InProcessWorker, exit_code: int) -> None:
        """Close a worker's operators: no end of a process releases their resources."""
        process.worker.close()

    def _lost(self, process: InProcessWorker) -> None:
        if self._ready.get(process.slot_index) is process:
            del self._ready[process.slot_index]
            self._master.on_worker_lost(process.slot_index, process.attempt)


@dataclass(frozen=True, slots=True)
class JobResult:
    """The outcome of a job.

    ``collected`` is the output for the driver, in the order of its commit.
    """

    job_id: JobId
    status: JobStatus
    cause: str
    events: list[JobEvent]
    collected: list[Any]


def run_in_process(
    graph: JobGraph,
    config: JobConfig,
    *,
    job_id: JobId | None = None,
    restore_from: RestoreRequest | None = None,
    emit: Callable[[JobEvent], None] | None = None,
    collect: Callable[[SubtaskId, CheckpointId, bytes], None] | None = None,
    take_back: Callable[[ComesAgain], int] | None = None,
    is_enough: Callable[[], bool] = lambda: False,
    meanwhile: Callable[[JobMaster], None] | None = None,
    secrets: Mapping[str, str] | None = None,
) -> JobResult:
    """Run a job to its end in this process and this thread.

    Args:
        job_id: None for a new one. With the id of an earlier run and durable storage, the job is
            restored from its newest checkpoint.
        restore_from: A requested checkpoint to begin with.
        emit: Receives every event as it happens.
        collect: Receives the output that sinks deliver; None keeps it in the result.
        take_back: Drops what ``collect`` received and comes again; see ``JobMaster``.
        is_enough: Whether the delivered output suffices, so that the job may be cancelled.
        meanwhile: Called between any two actions; may request a savepoint.
        secrets: The values that functions may get, by name.
    """
    job_id = job_id or JobId(f"in-process-{uuid4().hex[:8]}")
    happened: list[JobEvent] = []
    collected = CollectedRows()

    def note(event: JobEvent) -> None:
        happened.append(event)
        if emit is not None:
            emit(event)

    def keep(subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes) -> None:
        collected.add(checkpoint_id, decode_rows(payload, pickles=config.allow_pickled_state))

    def drop(comes_again: ComesAgain) -> int:
        collected.take_back(comes_again)
        return 0

    clock = RealClock()
    events = EventQueue(clock)
    cluster = InProcessCluster(graph, config, job_id, events=events, conditions=Latencies())
    master = JobMaster(
        graph,
        config,
        job_id,
        program=b"",
        store=store_for(config.checkpoints.storage),
        versions=installed_versions(),
        cluster=cluster,
        clock=clock,
        emit=note,
        collect=collect or keep,
        take_back=take_back or drop,
        restore_from=restore_from,
        secrets=secrets,
    )
    cluster.start(master)
    while not master.is_over:
        try:
            if not events.run_next():
                raise InternalError(f"no action is left to run, and the job is {master.status}")
            if is_enough():
                cluster.enter(master.cancel)
            if meanwhile is not None:
                cluster.enter(partial(meanwhile, master))
        except KeyboardInterrupt:
            cluster.enter(master.cancel)
    while cluster.processes and events.run_next():
        pass  # The workers stop, and their operators are closed.
    return JobResult(job_id, master.status, master.cause, happened, collected.rows)
