"""The worker process: one worker on the main thread, its stand-in at sockets, one for snapshots.

The main thread runs the loop: handle the inbox, run a slice of every subtask, serve the sockets
until there is work again. These are the data connections and the connection to the job master; the
I/O thread serves them while a round lasts long (``weir.channels.io_thread``). Heartbeats carry the
number of the loop's rounds: the job master detects a stalled loop, even one in a C call. Unless
that call keeps the interpreter lock, the I/O thread also reports the stalled loop's stack
(``stalls``). One more thread samples the loop's stack (``inspection.stack_samples``), and reports
that no thread of the process ran for a while (``standstill``); it also watches over the memory of
the process (``memory.watch``). SIGUSR1 writes the stacks of all threads to standard error
(``stacks``).

The process ends in one of five ways: told to stop, it closes everything and exits with 0; without
its job master it exits at once; without its supervisor the kernel kills it (``lifeline``); above
the limit of its memory it reports a failed subtask and exits with 71; an exception that the worker
did not report itself is printed and ends it with 1. Exits do not unwind: threads of user code may
be anywhere.
"""

import faulthandler
import io
import os
import random
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any, NoReturn, Protocol

import numpy as np

from weir.channels.control_connection import ControlConnection
from weir.channels.io_thread import IoThread, name_thread
from weir.channels.security import open_credentials
from weir.channels.tcp import TcpTransport
from weir.common.clock import Clock, SystemClock
from weir.config import JobConfig
from weir.errors import ChannelError
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, ChannelId, JobId, SubtaskId
from weir.protocol.deployment import (
    Deploy,
    StopProcess,
    WorkerHeartbeat,
    WorkerReady,
    WorkerReport,
)
from weir.protocol.elements import CheckpointBarrier, Element
from weir.protocol.inspection import Inspected, InspectionKind, InspectSubtask
from weir.protocol.messages import (
    CheckpointAborted,
    CheckpointCompleted,
    Declined,
    Report,
    SampledCall,
    SubtaskChanged,
    SubtaskStalled,
    ThreadsBeside,
    TriggerCheckpoint,
)
from weir.protocol.wire import WireMessage
from weir.secrets import job_secrets
from weir.storage.local_copies import LocalCopies, open_copies
from weir.worker.cpu_wait import CpuPressure, CpuWait
from weir.worker.inbox import ThreadInbox
from weir.worker.inspection.stack_samples import SLEEPING_LOOKS, StackSamples
from weir.worker.inspection.threads_beside import ThreadsWatch
from weir.worker.memory.garbage import Garbage
from weir.worker.memory.give_back import give_back
from weir.worker.memory.held import HeldMemory
from weir.worker.memory.holders import Holder
from weir.worker.memory.watch import MemoryWatch, end_process
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
from weir.worker.stacks import StackDumps, write_stderr
from weir.worker.stalls import StallWatch
from weir.worker.standstill import Standstills, StandstillWatch
from weir.worker.template import RunWorker

EXIT_FAILED = 1
EXIT_MASTER_LOST = 70
# A busy loop gives the interpreter to another thread after this long; Python's default of 5 ms
# would add 5 ms to each turn of its stand-in, and to each step of a snapshot that is written.
SWITCH_INTERVAL_S = 0.0005
FLUSH_TIMEOUT_S = 1.0
# Reports that follow another one so soon are written together: a checkpoint has one from each
# subtask, and each write wakes the job master.
REPORTS_INTERVAL_S = 0.005
WATCH_INTERVAL_S = 0.05  # On average, while the loop is at work.
WATCH_ASLEEP_S = SLEEPING_LOOKS * WATCH_INTERVAL_S  # The same while it sleeps.
_WITH_TEXTS = (SubtaskChanged, SubtaskStalled, Declined)


class RunsSubtasks(Protocol):
    """The interface of ``weir.worker.worker.Worker`` that the loop uses."""

    finished: bool
    calling_since_ns: int
    calling: SubtaskId | None

    def handle(self, item: InboxItem) -> None:
        """Handle one item of the inbox."""

    def run_once(self) -> float | None:
        """Run a slice of each subtask; seconds to sleep, 0 for none, None until an item arrives."""

    def give_back(self) -> None:
        """Move state to disk, where that can be."""

    def holders(self) -> Sequence[Holder]:
        """The states in memory, the largest first. From any thread."""

    def close(self) -> None:
        """Close every operator."""


class WorkerClass(Protocol):
    """The constructor of a worker."""

    def __call__(
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
        cpu_wait_ns: Callable[[], int],
        memory_bytes: Callable[[], int],
        memory_limit_bytes: int | None,
        cpu_pressure_ns: Callable[[], int],
        sampled_calls: Callable[[], Mapping[SubtaskId, tuple[SampledCall, ...]]],
        threads_beside: Callable[[], ThreadsBeside | None],
        copies: LocalCopies | None,
        aside: Callable[[Callable[[], None]], None],
    ) -> RunsSubtasks: ...


class SnapshotWorker:
    """The thread that writes snapshots, one after the other."""

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._work: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        threading.Thread(target=self._run, name="weir-snapshots", daemon=True).start()

    def submit(self, work: Callable[[], Any]) -> None:
        """Queue work, which returns its outcome itself; if it raises, the loop raises."""
        self._work.put(work)

    def stop(self) -> None:
        """End the thread after the work that is queued; does not wait for it."""
        self._work.put(None)

    def _run(self) -> None:
        name_thread("weir-snapshots")
        while (work := self._work.get()) is not None:
            try:
                work()
            except BaseException as error:
                self._inbox.put(Call(partial(_raise, error)))


class MasterLink:
    """The connection to the job master, one of the sockets; a ``Reporter`` to all others."""

    def __init__(
        self,
        io: IoThread,
        connection: ControlConnection,
        on_command: Callable[[CommandArrived], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._io = io
        self._connection = connection
        self._on_command = on_command
        self._on_lost = on_lost
        self._stopping = False  # Told to stop: the job master may leave first.
        self._is_write_due = False
        self._written_at_s = 0.0
        self._flushed: threading.Event | None = None
        io.call(lambda: io.add(self))

    def report(self, report: Report | WorkerReport) -> None:
        """Queue a report, secrets masked in its texts. From any thread."""
        if isinstance(report, _WITH_TEXTS):
            report = job_secrets.masker().message(report)
        self._io.call(partial(self._send, report))

    def flush(self, timeout_s: float) -> None:
        """Wait until everything reported so far is written, at most ``timeout_s``."""
        flushed = threading.Event()
        self._io.call(partial(self._announce, flushed))
        flushed.wait(timeout_s)

    # On the thread that serves.

    def fileno(self) -> int:
        return self._connection.fileno()

    @property
    def wants_write(self) -> bool:
        return self._connection.wants_write

    def on_ready(self, *, readable: bool, writable: bool) -> None:
        try:
            if readable:
                for message in self._connection.pump_in():
                    self._obey(message)
        except ChannelError as error:
            self._on_lost(str(error))
        self._pump_out()

    def _send(self, report: Report | WorkerReport) -> None:
        if self._connection.ended:
            return
        self._connection.send(report)
        if not self._is_write_due:
            self._is_write_due = True
            wait_s = self._written_at_s + REPORTS_INTERVAL_S - time.monotonic()
            if wait_s > 0:
                self._io.after(wait_s, self._write)
            else:
                self._io.call(self._write, wake=False)  # Behind other reports; served right now.

    def _write(self) -> None:
        self._is_write_due = False
        self._written_at_s = time.monotonic()
        if not self._connection.ended:
            self._pump_out()

    def _announce(self, flushed: threading.Event) -> None:
        self._flushed = flushed
        if self._connection.ended:
            flushed.set()
        else:
            self._pump_out()

    def _pump_out(self) -> None:
        self._connection.pump_out()
        if self._flushed is not None and not self._connection.wants_write:
            self._flushed.set()
        if not self._connection.ended:
            self._io.refresh(self)
        elif self._stopping:
            self._io.remove(self)
            self._connection.close()
        else:
            self._on_lost("it closed the connection")

    def _obey(self, message: WireMessage) -> None:
        match message:
            case StopProcess():
                self._stopping = True
                self._on_command(CommandArrived(message))
            case Deploy() | TriggerCheckpoint() | CheckpointCompleted() | CheckpointAborted():
                self._on_command(CommandArrived(message))
            case InspectSubtask():
                self._on_command(CommandArrived(message))
            case _:
                raise ChannelError(f"{type(message).__name__} is no command for a worker process")


class WorkerProcess:
    """One worker with its threads and connections; to be created on the thread that runs it."""

    def __init__(
        self, graph: JobGraph, config: JobConfig, run: RunWorker, worker_class: WorkerClass
    ) -> None:
        self._run_command = run
        self._heartbeat_s = config.heartbeat_interval_ms / 1000
        self._rounds = 0
        self._io = IoThread("weir-io", on_crash=_die_of)
        self._inbox = inbox = ThreadInbox(self._io.wake_loop)
        self._clock = clock = SystemClock()
        self._io.add(StackDumps())
        security = open_credentials(run.credentials)
        connection = ControlConnection.connect(
            run.master, security, unanswered_ms_max=config.unanswered_ms_max
        )
        self._transport = TcpTransport(
            self._io,
            ExecutionGraph(graph).channels,
            attempt=run.attempt,
            slot_index=run.slot_index,
            security=security,
            host=run.host,
            frame_bytes_max=config.channels.frame_bytes_max,
            pickles=config.allow_pickled_state,
            unanswered_ms_max=config.unanswered_ms_max,
            on_element=self._on_element,
            on_credit=lambda channel, size: inbox.put(CreditGranted(channel, size)),
            on_broken=lambda peer, cause: inbox.put(ConnectionBroken(peer, cause)),
        )
        self._master = MasterLink(self._io, connection, self._on_command, _die_without_master)
        self._snapshots = SnapshotWorker(inbox)
        self._held_bytes = HeldMemory()
        stacks = StackSamples(clock)
        threads = ThreadsWatch(threading.get_ident(), clock=clock)
        self._worker = worker_class(
            graph,
            config,
            run.attempt,
            run.job_id,
            run.slot_index,
            inbox=inbox,
            transport=self._transport,
            reporter=self._master,
            snapshot_thread=self._snapshots,
            clock=clock,
            cpu_wait_ns=CpuWait().waited_ns,
            memory_bytes=self._held_bytes,
            memory_limit_bytes=None if run.memory is None else run.memory.limit_bytes,
            cpu_pressure_ns=CpuPressure().lacked_ns,
            sampled_calls=stacks.calls,
            threads_beside=threads.beside,
            copies=open_copies(run.copies, config.state.local_copies_bytes_max),
            aside=_aside,
        )
        self._asked: SimpleQueue[InspectSubtask] = SimpleQueue()  # For stacks.
        self._chain_of = {
            uid: chain.head for chain in ExecutionGraph(graph).chains for uid in chain.operators
        }
        threading.Thread(
            target=partial(
                self._watch, stacks, threads, threading.get_ident(), _first_chain(graph, run)
            ),
            name="weir-watch",
            daemon=True,
        ).start()

    def _watch(
        self, stacks: StackSamples, threads: ThreadsWatch, loop_thread: int, chain: SubtaskId
    ) -> None:
        """Look at the loop now and then as long as the process lives, on a thread of its own."""
        name_thread("weir-watch")
        waited_ns = CpuWait().waited_ns  # Of this thread.
        standstills = Standstills(self._clock, waited_ns=waited_ns)
        standstill = StandstillWatch(
            self._worker,
            loop_thread,
            self._run_command.attempt,
            chain,
            standstills=standstills,
            clock=self._clock,
            reporter=self._master,
        )
        stalls = StallWatch(
            self._worker,
            loop_thread,
            self._run_command.attempt,
            clock=self._clock,
            reporter=self._master,
            still_ns=lambda: standstills.still_ns,
        )
        memory = MemoryWatch(
            self._worker,
            self._run_command.memory,
            self._run_command.attempt,
            chain,
            held_bytes=self._held_bytes,
            give_back=give_back,
            inbox=self._inbox,
            clock=self._clock,
            reporter=self._master,
            end=partial(end_process, partial(self._master.flush, FLUSH_TIMEOUT_S)),
        )
        garbage = Garbage(self._held_bytes, self._inbox, self._clock)
        garbage.start()
        while True:
            interval_s = WATCH_ASLEEP_S if self._io.is_loop_asleep else WATCH_INTERVAL_S
            threads.sleep(random.uniform(0.5, 1.5) * interval_s, waited_ns)
            standstill.look()  # First: the stall watch goes by what it saw.
            stalls.look()
            memory.look()
            garbage.look()
            stacks.look(self._worker, loop_thread)
            while not self._asked.empty():
                self._report_stacks(stacks, self._asked.get())

    def _report_stacks(self, stacks: StackSamples, asked: InspectSubtask) -> None:
        """Answer from this thread: the loop may be in a call that never ends."""
        run = self._run_command
        chain = SubtaskId(self._chain_of.get(asked.operator, asked.operator), run.slot_index)
        self._master.report(
            Inspected(run.attempt, asked.request_id, asked.index, stacks=stacks.taken(chain))
        )

    def run(self) -> None:
        """Run the loop until the worker is finished, then leave in good order."""
        run = self._run_command
        signal.signal(
            signal.SIGTERM,
            lambda signum, frame: self._inbox.put(CommandArrived(StopProcess(run.attempt))),
        )
        self._io.call(lambda: self._io.every(self._heartbeat_s, self._send_heartbeat))
        self._io.start()
        self._master.report(
            WorkerReady(run.attempt, run.slot_index, os.getpid(), self._transport.address)
        )
        self._loop()
        self._snapshots.stop()
        self._worker.close()
        self._transport.close(FLUSH_TIMEOUT_S)
        self._master.flush(FLUSH_TIMEOUT_S)

    def _loop(self) -> None:
        worker, inbox, io = self._worker, self._inbox, self._io
        # Twice per heartbeat, so that an idle loop does not look like a stalled one.
        sleep_max_s = self._heartbeat_s / 2
        self._transport.corked = True
        io.attend(inbox.__bool__)
        while True:
            for item in inbox.drain():
                worker.handle(item)
            if worker.finished:
                break
            pause_s = worker.run_once()
            self._rounds += 1
            self._transport.end_round()
            if pause_s == 0 or inbox:
                io.visit()
            else:
                io.wait(sleep_max_s if pause_s is None else min(pause_s, sleep_max_s))
        io.leave()

    def _on_command(self, item: CommandArrived) -> None:
        if isinstance(item.command, InspectSubtask):
            if item.command.kind is InspectionKind.STACKS:
                self._asked.put(item.command)
                return
        elif isinstance(item.command, Deploy):
            job_secrets.hold(dict(item.command.secrets))
            if item.command.sent_at_ms is not None:
                self._clock.follow(item.command.sent_at_ms)
            self._transport.connect(item.command.slot_addresses)
        elif isinstance(item.command, TriggerCheckpoint):
            self._clock.at_least(item.command.barrier.triggered_at_ms)
        self._inbox.put(item)

    def _on_element(self, channel: ChannelId, element: Element) -> None:
        if type(element) is CheckpointBarrier:  # It may be here before the trigger is.
            self._clock.at_least(element.triggered_at_ms)
        self._inbox.put(ElementArrived(channel, element))

    def _send_heartbeat(self) -> None:
        run = self._run_command
        self._master.report(WorkerHeartbeat(run.attempt, run.slot_index, self._rounds))


def main(
    graph: JobGraph,
    config: JobConfig,
    run: RunWorker,
    worker_class: WorkerClass,
    *,
    lifeline: socket.socket,
) -> NoReturn:
    """Run as the worker process of one attempt; ``lifeline`` is armed, and stays open."""
    name_thread("weir-worker")
    faulthandler.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # Prints of user code appear at once.
    np.random.seed()  # Every fork of the template would draw the same numbers.
    code = 0
    try:
        WorkerProcess(graph, config, run, worker_class).run()
    except Exception:
        traceback.print_exc()
        code = EXIT_FAILED
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _aside(work: Callable[[], None]) -> None:
    """Run work that may be the user's code on a thread of its own."""
    threading.Thread(target=work, name="weir-tap", daemon=True).start()


def _first_chain(graph: JobGraph, run: RunWorker) -> SubtaskId:
    """The first of a slot's subtasks."""
    heads = (c.head for c in ExecutionGraph(graph).chains if run.slot_index < c.parallelism)
    return SubtaskId(next(heads), run.slot_index)


def _raise(error: BaseException) -> None:
    raise error


def _die_of(error: BaseException) -> NoReturn:
    _die("".join(traceback.format_exception(error)), EXIT_FAILED)


def _die_without_master(cause: str) -> NoReturn:
    _die(f"the worker process lost its job master: {cause}\n", EXIT_MASTER_LOST)


def _die(why: str, code: int) -> NoReturn:
    """End the process at once; callable from any thread."""
    write_stderr(why)
    os._exit(code)
