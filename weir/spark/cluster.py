"""The driver side: the stage of slots, the sockets to slots and workers, and the job master's loop.

One thread, the one that called ``execute``, runs the job master's loop over a selector. A second
runs the Spark job whose tasks are the slots; a small pool does storage I/O. Both only hand their
outcome to the loop.
"""

import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark import SparkContext

from weir.channels.authority import Network
from weir.channels.control_connection import ControlConnection
from weir.channels.hosts import listen
from weir.common.clock import Clock
from weir.config import JobConfig
from weir.errors import ChannelError, ProtocolError, SlotError
from weir.graph.logical import JobGraph
from weir.ids import CheckpointId, JobId, SubtaskId
from weir.jobmaster.collected_output import ComesAgain
from weir.jobmaster.job_master import JobMaster
from weir.jobmaster.remote_coordination import ControlPlane
from weir.jobmaster.restorer import NO_PROGRESS, JobProgress
from weir.protocol.deployment import (
    Address,
    DismissSlot,
    SlotCommand,
    SlotFailed,
    SlotHeartbeat,
    SlotRegistered,
    StartWorker,
    Versions,
    WorkerCommand,
    WorkerExited,
    WorkerReady,
)
from weir.protocol.events import JobEvent
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import SubtaskCommand
from weir.spark.slot import slot_task
from weir.spark.slot_tasks import replace_executor
from weir.spark.worker_python import explained, newest_failure, unfit_python
from weir.storage.catalog import RestoreRequest
from weir.storage.store import CheckpointStore

logger = logging.getLogger(__name__)

IO_THREADS = 4
IO_THREAD_NAME = "weir-io"
BACKLOG = 128
RELEASE_TIMEOUT_S = 15.0
AUTHENTICATION_TIMEOUT_S = 10.0
STRANGERS_MAX = 64  # Connections under authentication, beyond two for each slot.
PYTHON_PERIOD_S = 1.0
# Of a task that failed as often as its session allows: Spark's words, and PySpark's in their place.
_GIVEN_UP = ("Job aborted due to stage failure", "exception was thrown from the Python worker")
LAST_SLOT_S = 2.0  # From the last slot's goodbye to the end of its Spark job.


Call = Callable[[Callable[[], None]], None]


class DriverOwner(Protocol):
    """The owner of a driver that a control plane started, as the running job needs it."""

    @property
    def control(self) -> ControlPlane:
        """The control plane, as the job posts to it."""

    @property
    def progress(self) -> JobProgress:
        """The job's under earlier drivers."""

    def attached(self, job: JobMaster, call: Call) -> None:
        """The job is about to run; ``call`` runs a function on the loop, from any thread."""

    def over(self, job: JobMaster) -> None:
        """The job reached its end, or this driver left it; its slots are being released."""


@dataclass(slots=True)
class _Peer:
    """The peer of a control connection, a slot or a worker process, once it has reported."""

    connection: ControlConnection
    slot_index: int | None = None
    spark_attempt: int = 0  # Slots only.
    is_watched_for_write: bool = False
    deadline: float = field(default_factory=lambda: time.monotonic() + AUTHENTICATION_TIMEOUT_S)

    @property
    def is_stranger(self) -> bool:
        """Whether it has not proved its identity yet."""
        return not self.connection.authenticated


class SparkCluster:
    """The job master's ``Cluster``: Spark tasks as slots, reached through control connections."""

    def __init__(
        self,
        spark: SparkContext,
        host: str,
        slot_count: int,
        network: Network,
        unanswered_ms_max: int,
    ) -> None:
        self._spark = spark
        self._unanswered_ms_max = unanswered_ms_max
        self._slot_count = slot_count
        self._network = network
        self._security = network.job_master()
        self._listener = listen(host, BACKLOG)
        self._listener.setblocking(False)
        port = self._listener.getsockname()[1]
        self._address = Address(host, port)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._peers: dict[int, _Peer] = {}  # By file descriptor.
        self._slots: dict[int, _Peer] = {}
        self._workers: dict[int, _Peer] = {}
        self._results: deque[Callable[[], None]] = deque()
        self._pool = ThreadPoolExecutor(IO_THREADS, thread_name_prefix=IO_THREAD_NAME)
        self._stage: threading.Thread | None = None
        self._stage_error: Exception | None = None
        self._stage_done = False
        self._has_served = False  # A slot of this stage registered.
        self._canceled = False
        self._python_due = 0.0
        self._job: JobMaster | None = None

    # The job master's ``Cluster``.

    def to_slot(self, slot_index: int, command: SlotCommand) -> None:
        """Send a command to a registered slot."""
        if isinstance(command, StartWorker):
            credentials = self._network.worker(command.attempt, command.plan_slot)
            command = replace(command, credentials=credentials)
        self._send(self._slots.get(slot_index), command)

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command to the slot's worker of the current attempt."""
        peer = self._workers.get(slot_index)
        if peer is not None and peer.connection.attempt == command.attempt:
            self._send(peer, command)

    def replace_slot(self, slot_index: int) -> None:
        """Have Spark kill the task of a slot that hangs; Spark then starts the task anew."""
        peer = self._slots.pop(slot_index, None)
        if peer is not None:
            task_id = peer.spark_attempt
            self._drop(peer)
            why = "Weir: the slot is silent"
            self._ask(lambda: self._spark._jsc.sc().killTaskAttempt(task_id, True, why))

    def replace_executor(self, slot_index: int) -> None:
        """Have the cluster replace the executor of a slot; the slot's task starts in another."""
        peer = self._slots.get(slot_index)
        if peer is not None:
            task_id = peer.spark_attempt
            self._ask(lambda: replace_executor(self._spark, self._group, task_id))

    def _ask(self, work: Callable[[], object]) -> None:
        """Ask Spark for something in the pool."""

        def asked(outcome: object) -> None:
            if isinstance(outcome, Exception):
                logger.warning("Spark does not replace a slot: %s", outcome)

        self.io(work, asked)

    def core_count(self) -> int:
        """The number of cores that Spark has now."""
        return int(self._spark.defaultParallelism)

    def slot_failure(self) -> str:
        """The newest failure of a slot's task, in a line; empty: none has failed."""
        return newest_failure(self._spark, self._group)

    def io(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run ``work`` in the pool and ``done`` on the loop."""

        def run() -> None:
            outcome: Any
            try:
                outcome = work()
            except Exception as error:
                outcome = error
            self._post(lambda: done(outcome))

        try:
            self._pool.submit(run)
        except RuntimeError:  # The interpreter is ending, and with it all pools.
            run()

    def _send(self, peer: _Peer | None, message: Any) -> None:
        if peer is None or peer.connection.ended:
            return
        try:
            peer.connection.send(message)
        except ChannelError as error:
            logger.warning("the connection to a slot or worker is dropped: %s", error)
            self._lost(peer)
            return
        peer.connection.pump_out()
        self._watch(peer)

    # The loop.

    def run(
        self,
        job: JobMaster,
        clock: Clock,
        is_enough: Callable[[], bool],
        manager: DriverOwner | None = None,
    ) -> None:
        """Run the job to its end, or until ``is_enough`` says so; then end the slots."""
        self._job = job
        if manager is not None:
            manager.attached(job, self._post)
        self._start_stage()
        job.start()
        while not job.is_over:
            try:
                self._round(job, clock)
                if is_enough():
                    job.cancel()
            except KeyboardInterrupt:
                job.cancel()
        if manager is not None:
            manager.over(job)
        self._release(clock)

    def cancel(self) -> None:
        """Cancel the job; callable from a signal handler or another thread."""
        self._canceled = True
        self._wake()

    def _round(self, job: JobMaster, clock: Clock) -> None:
        due = job.next_due_ms()
        timeout = None if due is None else max(0.0, (due - clock.now_ms()) / 1000)
        if self._waits_for_slots(job):
            self._look_at_python(job)
            timeout = PYTHON_PERIOD_S if timeout is None else min(timeout, PYTHON_PERIOD_S)
        self._turn(timeout)
        if self._canceled:
            self._canceled = False
            job.cancel()
        if self._stage_done and not job.is_over:
            self._on_stage_ended(job)
        due = job.next_due_ms()
        if due is not None and clock.now_ms() >= due:
            job.tick()

    def _waits_for_slots(self, job: JobMaster) -> bool:
        return job.status is JobStatus.INITIALIZING and len(self._slots) < self._slot_count

    def _look_at_python(self, job: JobMaster) -> None:
        """See now and then whether slots are missing for the Python of the workers."""
        now = time.monotonic()
        if now < self._python_due:
            return
        self._python_due = now + PYTHON_PERIOD_S
        registered = frozenset(self._slots)

        def ended(cause: str) -> None:
            if cause and self._waits_for_slots(job):
                job.slots_cannot_start(cause)

        self.io(
            lambda: unfit_python(self._spark, self._group, lambda slot: slot not in registered),
            ended,
        )

    def _turn(self, timeout: float | None) -> None:
        strangers = [peer for peer in self._peers.values() if peer.is_stranger]
        if strangers:
            timeout = 1.0 if timeout is None else min(timeout, 1.0)
            for silent in strangers:
                if time.monotonic() > silent.deadline:
                    logger.warning("a connection is closed: its peer does not prove who it is")
                    self._drop(silent)
        for key, mask in self._selector.select(timeout):
            if key.fileobj is self._listener:
                self._accept()
            elif key.fileobj is self._wake_in:
                with suppress(BlockingIOError):
                    self._wake_in.recv(4096)
            else:
                peer = self._peers.get(key.fd)
                if peer is not None:
                    self._serve(peer, mask)
        while self._results:
            self._results.popleft()()

    def _release(self, clock: Clock) -> None:
        """Send the last commands and wait until the slots have ended."""
        deadline = clock.monotonic_ns() + int(RELEASE_TIMEOUT_S * 1e9)
        cancel_at = None  # Cancelling keeps tasks that still wait for a core from starting.
        while not self._stage_done and (now := clock.monotonic_ns()) < deadline:
            if not self._slots and cancel_at is None:
                cancel_at = now + int(LAST_SLOT_S * 1e9)
            if cancel_at is not None and now >= cancel_at:
                break
            self._turn(0.1)
        if self._stage_done:
            return
        self._spark.cancelJobGroup(self._group)
        deadline = clock.monotonic_ns() + int(RELEASE_TIMEOUT_S * 1e9)
        while not self._stage_done and clock.monotonic_ns() < deadline:
            self._turn(0.1)

    def close(self) -> None:
        """Close every socket and end the pool; after an error, the slots' Spark job as well."""
        if self._stage is not None and not self._stage_done:
            with suppress(OSError, Py4JError):  # Spark's JVM has ended.
                self._spark.cancelJobGroup(self._group)
        for peer in list(self._peers.values()):
            self._drop(peer)
        self._pool.shutdown(wait=True)
        self._selector.close()
        for sock in (self._listener, self._wake_in, self._wake_out):
            sock.close()

    def _post(self, action: Callable[[], None]) -> None:
        self._results.append(action)
        self._wake()

    def _wake(self) -> None:
        with suppress(BlockingIOError, OSError):  # Full: awake anyway. Closed: the loop has ended.
            self._wake_out.send(b"\0")

    # Slots as a Spark job.

    @property
    def _group(self) -> str:
        return f"weir-{self._address.port}"

    def _start_stage(self) -> None:
        self._stage_done, self._stage_error, self._has_served = False, None, False
        self._stage = threading.Thread(target=self._run_stage, name="weir-slots", daemon=True)
        self._stage.start()

    def _on_stage_ended(self, job: JobMaster) -> None:
        """The Spark job of the slots ended before this job.

        Where Spark gave up on a task, all slots are lost, and the restart strategy has to decide:
        so it does in a session that the user started, whose tasks may fail one to four times. It
        ends without an error where all of its slots were dismissed, for those of another Spark job.
        """
        why = str(self._stage_error or "")
        if self._has_served and (not why or any(words in why for words in _GIVEN_UP)):
            self._start_stage()
            return
        if unfit := explained(why):
            job.slots_cannot_start(unfit)
        if not job.is_over:
            ended = f"the cluster ended all slots: {why or 'the Spark job of the slots ended'}"
            job.slots_ended(unfit or ended)

    def _run_stage(self) -> None:
        count = self._slot_count
        task: Any = slot_task(self._address, self._unanswered_ms_max)
        try:
            credentials = list(map(self._network.slot, range(count)))
            self._spark.setJobGroup(self._group, "Weir slots", interruptOnCancel=True)
            self._spark.parallelize(credentials, count).mapPartitionsWithIndex(task).count()
        except (OSError, Py4JNetworkError) as error:
            self._stage_error = SlotError(
                f"Spark's JVM has ended ({error}); the cause, such as a lack of memory, may be in "
                "its output or the system's log"
            )
        except Exception as error:
            self._stage_error = error

        def ended() -> None:
            self._stage_done = True

        self._post(ended)

    # Peers.

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        strangers = sum(peer.is_stranger for peer in self._peers.values())
        if strangers >= STRANGERS_MAX + 2 * self._slot_count:
            logger.warning("a connection is refused: %d others are not authenticated", strangers)
            sock.close()
            return
        assert self._job is not None
        connection = ControlConnection.accept(
            sock, self._security, self._job.is_running, self._unanswered_ms_max
        )
        self._peers[connection.fileno()] = _Peer(connection)
        self._selector.register(connection.fileno(), selectors.EVENT_READ)

    def _serve(self, peer: _Peer, mask: int) -> None:
        connection = peer.connection
        if mask & selectors.EVENT_WRITE:
            connection.pump_out()
        if mask & selectors.EVENT_READ:
            try:
                if messages := connection.pump_in():
                    self._receive(peer, messages)
            except (ChannelError, ProtocolError) as error:
                logger.warning("a control connection is closed: %s", error)
                connection.ended = True
            connection.pump_out()
        if connection.ended:
            self._lost(peer)
        else:
            self._watch(peer)

    def _watch(self, peer: _Peer) -> None:
        fd, wants_write = peer.connection.fileno(), peer.connection.wants_write
        if self._peers.get(fd) is peer and peer.is_watched_for_write != wants_write:
            peer.is_watched_for_write = wants_write
            write = selectors.EVENT_WRITE if wants_write else 0
            self._selector.modify(fd, selectors.EVENT_READ | write)

    def _receive(self, peer: _Peer, messages: list[Any]) -> None:
        if peer.connection.attempt is None:
            for message in messages:
                self._receive_from_slot(peer, message)
            return
        assert self._job is not None
        for message in messages:
            self._check_worker(peer, message)
        assert peer.slot_index is not None
        self._job.on_worker(peer.slot_index, *messages)

    def _check_worker(self, peer: _Peer, message: Any) -> None:
        """Know the worker process by its first message; refuse what it may not send."""
        if getattr(message, "attempt", None) != peer.connection.attempt:
            raise ProtocolError(f"{peer.connection.peer} sent {message}")
        if isinstance(message, WorkerReady):
            if message.slot_index != peer.connection.slot_index:
                raise ProtocolError(f"{peer.connection.peer} reported as slot {message.slot_index}")
            peer.slot_index = message.slot_index
            known = self._workers.get(message.slot_index)
            if known is None or (known.connection.attempt or 0) < message.attempt:
                self._workers[message.slot_index] = peer  # Else a stale report.
        if peer.slot_index is None:
            raise ProtocolError(f"a worker process sent {message} before it was ready")

    def _receive_from_slot(self, peer: _Peer, message: Any) -> None:
        assert self._job is not None
        match message:
            case SlotRegistered(slot_index, spark_attempt):
                if slot_index != peer.connection.slot_index:
                    raise ProtocolError(f"{peer.connection.peer} registered as slot {slot_index}")
                older = self._slots.get(slot_index)
                if older is not None and older.spark_attempt >= spark_attempt:
                    self._dismiss(peer)
                    return
                peer.slot_index, peer.spark_attempt = slot_index, spark_attempt
                self._slots[slot_index] = peer
                self._has_served = True
                self._job.on_slot(message)
                if older is not None:
                    self._dismiss(older)
            case WorkerExited() | SlotHeartbeat() | SlotFailed():
                if self._slots.get(message.slot_index) is peer:
                    self._job.on_slot(message)
            case _:
                raise ProtocolError(f"a slot sent {message}")

    def _dismiss(self, peer: _Peer) -> None:
        """End a slot whose place another Spark task has taken.

        Were it started anew, it would take the place back, and so on.
        """
        self._send(peer, DismissSlot())
        self._drop(peer)

    def _lost(self, peer: _Peer) -> None:
        assert self._job is not None
        known = self._peers.get(peer.connection.fileno()) is peer
        self._drop(peer)
        if not known or peer.slot_index is None:
            return
        attempt = peer.connection.attempt
        if attempt is not None:
            if self._workers.get(peer.slot_index) is peer:
                del self._workers[peer.slot_index]
                self._job.on_worker_lost(peer.slot_index, attempt)
        elif self._slots.get(peer.slot_index) is peer:
            del self._slots[peer.slot_index]
            self._job.on_slot_lost(peer.slot_index, peer.spark_attempt)

    def _drop(self, peer: _Peer) -> None:
        fd = peer.connection.fileno()
        if self._peers.get(fd) is peer:
            del self._peers[fd]
            self._selector.unregister(fd)
        peer.connection.close()


def run_job(
    spark: SparkContext,
    graph: JobGraph,
    config: JobConfig,
    job_id: JobId,
    *,
    program: bytes,
    store: CheckpointStore,
    versions: Versions,
    clock: Clock,
    emit: Callable[[JobEvent], None],
    collect: Callable[[SubtaskId, CheckpointId, bytes], None],
    take_back: Callable[[ComesAgain], int],
    is_enough: Callable[[], bool],
    restore_from: RestoreRequest | None,
    slot_count: int,
    host: str,
    network: Network,
    manager: DriverOwner | None = None,
    secrets: Mapping[str, str] | None = None,
) -> JobMaster:
    """Run a job on a Spark cluster to its end, or until this driver has to leave it.

    Returns:
        The job master, for its status and cause, and why the driver left it, if it did.
    """
    cluster = SparkCluster(spark, host, slot_count, network, config.unanswered_ms_max)
    try:
        job = JobMaster(
            graph,
            config,
            job_id,
            program=program,
            store=store,
            versions=versions,
            cluster=cluster,
            clock=clock,
            emit=emit,
            collect=collect,
            take_back=take_back,
            restore_from=restore_from,
            progress=NO_PROGRESS if manager is None else manager.progress,
            secrets=secrets,
            control=None if manager is None else manager.control,
        )
        cluster.run(job, clock, is_enough, manager)
        return job
    finally:
        cluster.close()
