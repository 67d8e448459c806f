"""The job master: deploys a job's attempts on slots, watches them, and replaces failed ones.

One attempt goes through these steps; a failure in any of them ends the attempt::

    wait for slots -> start workers -> choose a checkpoint -> deploy -> all subtasks run
         ^                                                                   |
         └── restart strategy's delay <── stop (failing) <── failure ────────┤
                                                                             └── all ended:
                                               a final checkpoint, commit, finished

The slots themselves outlive attempts: a fresh worker process per attempt runs in the same Spark
task. A lost slot registers again after Spark's own retry of the task, or a spare slot replaces it.

The job master is driven by one thread and never blocks: storage is reached through ``Cluster.io``,
slots and workers through the other methods of ``Cluster``, and the shell around it calls ``tick``
when ``next_due_ms`` says so. It holds no truth that a restart could lose: the checkpoint storage is
the truth.

In library mode savepoints are requested through a mailbox in the checkpoint storage, and answered
there; under a control plane requests are commands.
"""

import math
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from weir.common.clock import Clock
from weir.config import JobConfig
from weir.errors import WeirError
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, SubtaskId
from weir.jobmaster.checkpoint_runner import CheckpointRunner
from weir.jobmaster.coordination import LocalCoordination
from weir.jobmaster.fence import Fence, FencedError
from weir.jobmaster.remote_coordination import ControlPlane, RemoteCoordination
from weir.jobmaster.restore_choice import (
    JobFinished,
    RestoreChoice,
    begin_from,
    check_kept,
    choose_restore,
)
from weir.jobmaster.savepoint_mailbox import Answer, Mailbox, SavepointRequest
from weir.jobmaster.savepoint_requests import RequestPoll
from weir.protocol.deployment import (
    Address,
    Delivered,
    Deploy,
    ReleaseSlot,
    Secrets,
    SlotAccepted,
    SlotCommand,
    SlotFailed,
    SlotHeartbeat,
    SlotRegistered,
    SlotReport,
    StartWorker,
    StopProcess,
    StopWorker,
    Versions,
    WorkerCommand,
    WorkerExited,
    WorkerHeartbeat,
    WorkerReady,
    WorkerReport,
)
from weir.protocol.driver_messages import CancelJob, DriverCommand
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CaughtUp,
    JobChanged,
    JobEvent,
    Notice,
    Recovered,
    SlotChanged,
    WorkerStarted,
)
from weir.protocol.lifecycle import JOB_TRANSITIONS, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    AlignmentProgress,
    CheckpointsRestored,
    Declined,
    Report,
    SubtaskChanged,
    SubtaskCommand,
    SubtaskMetrics,
    SubtaskStalled,
)
from weir.protocol.pending import STOP_KINDS, CompletedCheckpoint
from weir.protocol.restarts import initial, on_failure
from weir.storage.catalog import OpenStore, RestoreRequest
from weir.storage.layout import SAVEPOINT_MANIFEST, savepoint_location
from weir.storage.store import CheckpointStore, WriteRefusedError, store_for

EXIT_REPORT_MS = 200  # From a lost worker connection to the supervisor's ``WorkerExited``.


class Cluster(Protocol):
    """The job master's access to slots, workers and storage; no method blocks or raises."""

    def to_slot(self, slot_index: int, command: SlotCommand) -> None:
        """Send a command to a registered slot; dropped where the slot is lost."""

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command to the slot's worker process of the current attempt."""

    def replace_slot(self, slot_index: int) -> None:
        """End the Spark task of a slot that hangs, so that Spark starts it anew."""

    def core_count(self) -> int:
        """The number of cores that the cluster has now, for messages."""

    def io(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run ``work`` elsewhere, then ``done`` with its result or exception on this thread."""


@dataclass(slots=True)
class _Worker:
    address: Address
    pid: int
    rounds: int = -1
    progressed_at_ms: int = 0
    lost_at_ms: int | None = None

    def due_ms(self, timeout_ms: int) -> int:
        """The time at which the attempt fails without a report of or about the worker."""
        if self.lost_at_ms is not None:
            return self.lost_at_ms + EXIT_REPORT_MS
        return self.progressed_at_ms + timeout_ms


@dataclass(slots=True)
class _Slot:
    registered: SlotRegistered
    heard_at_ms: int


@dataclass(slots=True)
class _Recovery:
    """A recovery under way: the failure, and the measurements so far."""

    cause: str
    failed_at_ms: int
    backoff_ms: float
    source_records: int  # Emitted by the failed attempt's sources, as far as reported.
    workers_at_ms: int = 0


@dataclass(slots=True)
class _Attempt:
    number: AttemptNumber
    claimed: bool = False
    workers_asked: bool = False
    choosing: bool = False
    choice: RestoreChoice | None = None
    deployed: bool = False
    statuses: dict[SubtaskId, SubtaskStatus] = field(default_factory=dict)
    restored_bytes: int = 0
    metrics: dict[SubtaskId, SubtaskMetrics] = field(default_factory=dict)
    suspicion: tuple[str, int] | None = None  # A failure without its cause, and when to act on it.


class JobMaster:
    """The job master of one job, which it runs to its end."""

    def __init__(
        self,
        graph: JobGraph,
        config: JobConfig,
        job_id: JobId,
        *,
        program: bytes,
        store: CheckpointStore,
        versions: Versions,
        cluster: Cluster,
        clock: Clock,
        emit: Callable[[JobEvent], None],
        collect: Callable[[SubtaskId, bytes], None],
        restore_from: RestoreRequest | None = None,
        secrets: Mapping[str, str] | None = None,
        seed: int | None = None,
        control: ControlPlane | None = None,
        open_store: OpenStore = store_for,
    ) -> None:
        """Prepare the job; nothing happens before ``start``.

        Args:
            program: The cloudpickled ``(graph, config)`` for the slots.
            emit: Receives every event of the job, in order, for readers in this process.
            collect: Receives committed output meant for the driver, each piece once.
            restore_from: A checkpoint to begin with; None means the newest completed one of this
                job id, if there is any.
            secrets: The values that the functions of the pipeline may get, by name.
            control: The control plane that decides about checkpoints and starts another driver
                where this one has to leave; None means library mode.
            open_store: Opens other storage, which savepoints are written to and restored from.
        """
        self.status = JobStatus.CREATED
        self.cause = ""  # Why the job failed, once it did.
        self.end: JobChanged | None = None  # The job's end, once it has one.
        self.left: str | None = None  # Why this driver ends although the job is not over.
        self._control = control
        self._graph = graph
        self._plan = ExecutionGraph(graph)
        self._config = config
        self._job_id = job_id
        self._program = program
        self._store = store
        self._versions = versions
        self._cluster = cluster
        self._clock = clock
        self._emit = emit
        self._collect = collect
        self._restore_from = restore_from
        self._secrets: Secrets = tuple((secrets or {}).items())
        self._open_store = open_store
        # Stops whose savepoint is complete and whose job has not ended: name, URI, callback.
        self._stopping: list[tuple[str, str, Callable[[Answer], None]]] = []
        self._looking = 0  # Requests whose directory is being checked.
        self._requests: RequestPoll | None = None
        if control is None and config.checkpoints.storage is not None:
            self._requests = RequestPoll(
                Mailbox(store, job_id),
                io=cluster.io,
                clock=clock,
                ask=self._asked,
                note=self._note,
            )
        self._random = random.Random(seed)
        self._restarts = initial(
            config.restart, has_checkpoints=config.checkpoints.interval_ms is not None
        )
        self._slots: dict[int, _Slot] = {}  # By the index they registered with.
        self._places: list[int] = []  # Slot of the plan -> registered slot, of this attempt.
        self._workers: dict[int, _Worker] = {}  # By slot of the plan, of this attempt.
        self._attempt = _Attempt(AttemptNumber(0))
        self._has_claimed = False  # Some attempt is this driver's; it was then the newest.
        self._restart_at_ms: int | None = None
        self._slots_deadline_ms: int | None = None
        self._workers_deadline_ms: int | None = None
        self._recovery: _Recovery | None = None
        self._catching_up: tuple[int, int] | None = None  # (records to reach, since ms)
        self._delivered_up_to: dict[SubtaskId, CheckpointId] = {}
        self._told: set[str] = set()  # Notes on the choice of a checkpoint.
        self._fence = Fence(store, job_id)
        self._checkpoints = CheckpointRunner(
            self._plan,
            config,
            job_id,
            store=store,
            fence=self._fence,
            versions=versions,
            io=cluster.io,
            clock=clock,
            coordination=(
                LocalCoordination(config.checkpoints, clock)
                if control is None
                else RemoteCoordination(config.checkpoints, clock, control)
            ),
            emit=emit,
            note=self._note,
            send=self._to_all_workers,
            fail_attempt=self._fail_attempt,
            fenced=self._superseded,
            open_store=open_store,
        )

    # Driving.

    @property
    def slot_count(self) -> int:
        """The number of slots that the job needs."""
        return self._plan.slot_count

    @property
    def is_over(self) -> bool:
        """Whether the job ended, or this driver left it, and no I/O is under way."""
        is_answering = self._looking > 0 or (self._requests is not None and self._requests.is_busy)
        return self._has_ended and not self._checkpoints.is_busy and not is_answering

    @property
    def _has_ended(self) -> bool:
        return self.left is not None or self.status not in JOB_TRANSITIONS

    @property
    def _is_initializing(self) -> bool:
        return self.left is None and self.status is JobStatus.INITIALIZING

    def start(self) -> None:
        """Look for earlier attempts of the job, then begin the first of this driver."""
        self._change(JobStatus.INITIALIZING)
        self._begin_first_attempt()

    def _begin_first_attempt(self) -> None:
        def done(outcome: AttemptNumber | Exception) -> None:
            if not self._is_initializing:
                return  # Cancelled meanwhile.
            if isinstance(outcome, Exception):
                self._end(JobStatus.FAILED, str(outcome))
                return
            self._begin_attempt(AttemptNumber(outcome + 1))

        self._cluster.io(self._fence.newest_recorded, done)

    def is_running(self, attempt: AttemptNumber) -> bool:
        """Whether this is the current attempt; any other is over, or has not begun."""
        return self._attempt.number == attempt

    def slots_ended(self, cause: str) -> None:
        """The cluster gives no slots any more.

        In library mode the job fails; under a control plane this driver leaves, and the job's next
        driver continues it.
        """
        why = f"the cluster ended all slots: {cause}"
        if self._control is None:
            self._end(JobStatus.FAILED, why)
        else:
            self.leave(why)

    def leave(self, cause: str) -> None:
        """End this driver: its workers stop and its slots are released; the job's status stays."""
        if self._has_ended:
            return
        self.left = cause
        self._let_go("the driver leaves")
        self._checkpoints.stop(FailureReason.JOB_FAILOVER)

    def fence(self, cause: str) -> None:
        """Another driver has the job: end at once, and commit and write nothing more."""
        self._fence.mark_fenced()
        self.leave(cause)

    def on_command(self, command: DriverCommand) -> None:
        """Execute a command of the control plane."""
        if self._has_ended:
            return
        if isinstance(command, CancelJob):
            self.cancel()
        else:
            self._checkpoints.on_command(command)

    def cancel(self) -> None:
        """Stop the job without a savepoint."""
        if not self._has_ended:
            if self.status is not JobStatus.CREATED:
                self._change(JobStatus.CANCELLING)
            self._end(JobStatus.CANCELED)

    # Savepoints, in library mode.

    def savepoint(
        self,
        request_id: str,
        kind: CheckpointKind,
        target: str | None,
        *,
        done: Callable[[str], None],
        failed: Callable[[str], None],
    ) -> None:
        """Take a savepoint, or stop the job with one.

        Args:
            request_id: Chosen by the requester.
            target: The savepoint's own directory; None: named after the request, in the storage.
            done: Receives the savepoint's URI; for a stop, once the job has finished.
            failed: Receives the error; it names the savepoint where one is kept although the job
                did not stop.
        """

        def answered(answer: Answer) -> None:
            if answer.ok:
                done(answer.uri)
            else:
                failed(answer.error)

        storage = self._config.checkpoints.storage
        if target is None and storage is not None:
            target = savepoint_location(storage, self._job_id, request_id)
        if target is None:
            failed("the job keeps its checkpoints in memory, so a savepoint needs a directory")
            return
        self._save(SavepointRequest(request_id, kind, target, expires_ms=0), answered)

    def _asked(self, request: SavepointRequest) -> None:
        """A request came through the mailbox."""
        assert self._requests is not None
        self._save(request, self._requests.answer)

    def _save(self, request: SavepointRequest, answered: Callable[[Answer], None]) -> None:
        name, kind, target = request.request_id, request.kind, request.target

        def refuse(why: str) -> None:
            answered(Answer(name, ok=False, error=why))

        def look() -> None:
            """Check that the savepoint directory is free and writable before triggering.

            Otherwise a barrier would hold the job up, or its sources would end, for nothing.
            """
            store = self._open_store(target)
            if store.exists(SAVEPOINT_MANIFEST):
                raise WriteRefusedError(f"{target} holds a savepoint already; choose another name")
            probe = f"probe-{self._attempt.number}"
            store.put(probe, b"")
            store.delete(probe)

        def looked(outcome: Exception | None) -> None:
            self._looking -= 1
            if isinstance(outcome, Exception):
                refuse(str(outcome))
            elif self.status is not JobStatus.RUNNING:
                refuse(f"the job is {self.status}; request the savepoint again when it runs")
            else:
                self._checkpoints.request(name, kind, target, settled)

        def settled(completed: CompletedCheckpoint | None, why: str) -> None:
            if completed is None:
                refuse(f"the savepoint was not taken: {why}")
            elif kind in STOP_KINDS:
                self._stopping.append((name, target, answered))
                if self._has_ended:  # While the manifest was being written.
                    self._answer_stops()
            else:
                answered(Answer(name, ok=True, uri=target))

        self._looking += 1
        self._cluster.io(look, looked)

    def _answer_stops(self) -> None:
        """The job is over: answer the stops, with success where it finished."""
        stopping, self._stopping = self._stopping, []
        for name, uri, answered in stopping:
            if self.status is JobStatus.FINISHED:
                answered(Answer(name, ok=True, uri=uri))
            else:
                error = f"{self._told_end}; the savepoint was taken and is kept: {uri}"
                answered(Answer(name, ok=False, uri=uri, error=error))

    def next_due_ms(self) -> int | None:
        """The time at which ``tick`` is due next."""
        if self._has_ended:
            return None
        candidates = [
            self._restart_at_ms,
            self._slots_deadline_ms,
            self._workers_deadline_ms,
            self._attempt.suspicion and self._attempt.suspicion[1],
            self._checkpoints.next_due_ms(),
            None if self._requests is None else self._requests.next_due_ms(),
        ]
        candidates += [
            s.heard_at_ms + self._config.heartbeat_timeout_ms for s in self._slots.values()
        ]
        candidates += [w.due_ms(self._config.heartbeat_timeout_ms) for w in self._workers.values()]
        return min((c for c in candidates if c is not None), default=None)

    def tick(self) -> None:
        """Check heartbeats and deadlines, restart when due, trigger checkpoints."""
        if self._has_ended:
            return
        now = self._clock.now_ms()
        self._check_heartbeats(now)
        if self._slots_deadline_ms is not None and now >= self._slots_deadline_ms:
            self._slots_deadline_ms = None
            have = len(self._slots)
            if have < self.slot_count:
                self._end(
                    JobStatus.FAILED,
                    f"{have} of {self.slot_count} slots registered within "
                    f"{self._config.slots_timeout_ms} ms; the cluster has "
                    f"{self._cluster.core_count()} cores. Lower the parallelism, give the cluster "
                    f"more cores (local[{self.slot_count}] on one machine), or raise "
                    "slots_timeout_ms",
                )
                return
        if self._attempt.suspicion is not None and now >= self._attempt.suspicion[1]:
            cause, _ = self._attempt.suspicion
            self._attempt.suspicion = None
            self._fail_attempt(cause)
        if self._workers_deadline_ms is not None and now >= self._workers_deadline_ms:
            self._workers_deadline_ms = None
            self._fail_attempt(
                f"not every slot had a worker process within {self._config.slots_timeout_ms} ms"
            )
        if self._restart_at_ms is not None and now >= self._restart_at_ms:
            self._restart_at_ms = None
            self._change(JobStatus.INITIALIZING)
            self._begin_attempt(AttemptNumber(self._attempt.number + 1))
        if self._requests is not None:
            self._requests.tick()
        self._checkpoints.tick()

    def _check_heartbeats(self, now: int) -> None:
        timeout = self._config.heartbeat_timeout_ms
        for index, slot in list(self._slots.items()):
            if now - slot.heard_at_ms >= timeout:
                self._cluster.replace_slot(index)
                self._slot_gone(index, f"slot {index} was silent for {timeout} ms; it is replaced")
        for index, worker in list(self._workers.items()):
            if now < worker.due_ms(timeout):
                continue
            del self._workers[index]
            if worker.lost_at_ms is not None:
                self._fail_attempt(f"the worker process of slot {index} is gone")
            else:
                self._fail_attempt(
                    f"the worker process of slot {index} made no progress for {timeout} ms; "
                    "it hangs in user code or is stopped, and is replaced"
                )

    # Slots.

    def on_slot(self, report: SlotReport) -> None:
        """A slot reports."""
        match report:
            case SlotRegistered():
                self._register(report)
            case SlotHeartbeat(slot_index):
                if slot := self._slots.get(slot_index):
                    slot.heard_at_ms = self._clock.now_ms()
            case SlotFailed(slot_index, cause):
                self._end(JobStatus.FAILED, f"slot {slot_index} cannot run the pipeline: {cause}")
            case WorkerExited(slot_index, attempt, pid, exit_code, stderr_tail):
                if attempt == self._attempt.number:
                    how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit {exit_code}"
                    tail = f"\n{stderr_tail.strip()}" if stderr_tail.strip() else ""
                    self._fail_attempt(
                        f"the worker process of slot {slot_index} (pid {pid}) ended: {how}{tail}"
                    )

    def on_slot_lost(self, slot_index: int, spark_attempt: int) -> None:
        """The connection to a slot was lost."""
        slot = self._slots.get(slot_index)
        if slot is not None and slot.registered.spark_attempt == spark_attempt:
            self._slot_gone(slot_index, f"slot {slot_index} on {slot.registered.host} was lost")

    def _slot_gone(self, slot_index: int, cause: str) -> None:
        """Remove a lost slot; the attempt fails if it uses the slot, not for an idle spare."""
        slot = self._slots.pop(slot_index).registered
        if self.left is not None:
            return  # The slot was released, and this driver emits no events of the job any more.
        self._report(SlotChanged(self._clock.now_ms(), slot_index, slot.host, slot.pid, False))
        if self._attempt.workers_asked and slot_index in self._places:
            self._fail_attempt(cause)

    def _register(self, slot: SlotRegistered) -> None:
        if self._has_ended:
            self._cluster.to_slot(slot.slot_index, ReleaseSlot(self.status.value))
            return
        if slot.versions != self._versions:
            self._cluster.to_slot(slot.slot_index, ReleaseSlot("other versions"))
            self._end(
                JobStatus.FAILED,
                f"slot {slot.slot_index} on {slot.host} runs {_spoken(slot.versions)}, the driver "
                f"{_spoken(self._versions)}; install the same versions on every executor",
            )
            return
        known = self._slots.get(slot.slot_index)
        if known is not None:
            if known.registered.spark_attempt >= slot.spark_attempt:
                return  # An older Spark task of the same slot; its successor is here already.
            self._slot_gone(slot.slot_index, f"slot {slot.slot_index} was restarted by Spark")
            if self._has_ended:  # The restart strategy gave up on that failure.
                self._cluster.to_slot(slot.slot_index, ReleaseSlot(self.status.value))
                return
        now = self._clock.now_ms()
        self._slots[slot.slot_index] = _Slot(slot, now)
        self._report(SlotChanged(now, slot.slot_index, slot.host, slot.pid, True))
        self._cluster.to_slot(
            slot.slot_index, SlotAccepted(self._job_id, self._program, self._secrets)
        )
        self._ask_for_workers()

    # Bringing an attempt up.

    def _begin_attempt(self, number: AttemptNumber) -> None:
        self._attempt = attempt = _Attempt(number)
        self._fence.begin_attempt(number)
        if len(self._slots) < self.slot_count:
            self._slots_deadline_ms = self._clock.now_ms() + self._config.slots_timeout_ms
        self._workers.clear()
        self._ask_for_workers()

        def claimed(outcome: bool | Exception) -> None:
            if self._attempt is not attempt or self.left is not None:
                return
            if isinstance(outcome, Exception):
                self._cannot_begin(f"checkpoint storage: {outcome}", outcome)
            elif outcome:
                attempt.claimed = self._has_claimed = True
                self._deploy_if_ready()
            elif self._control is None or self._has_claimed:
                self._superseded()
            else:
                # The control plane launched this driver as the newest. The one before it still runs
                # and claimed one more attempt number; it cannot claim the next.
                self._begin_first_attempt()

        self._cluster.io(lambda: self._fence.claim(number), claimed)

    def _choose_places(self) -> list[int]:
        """The registered slot for each slot of the plan: its own, or a spare that replaces it."""
        spares = sorted(index for index in self._slots if index >= self.slot_count)
        return [
            index if index in self._slots else spares.pop(0) for index in range(self.slot_count)
        ]

    def _ask_for_workers(self) -> None:
        attempt = self._attempt
        if (
            attempt.number == 0
            or attempt.workers_asked
            or not self._is_initializing
            or len(self._slots) < self.slot_count
        ):
            return
        attempt.workers_asked = True
        self._slots_deadline_ms = None
        # Not the heartbeats' timeout: a fresh slot first loads the pipeline's imports.
        self._workers_deadline_ms = self._clock.now_ms() + self._config.slots_timeout_ms
        self._places = self._choose_places()
        for plan_slot, place in enumerate(self._places):
            self._cluster.to_slot(place, StartWorker(attempt.number, plan_slot))

    def on_worker(self, slot_index: int, report: Report | WorkerReport) -> None:
        """A worker process reports."""

        if report.attempt != self._attempt.number:
            return  # A worker of an older attempt that was not told to stop yet.
        match report:
            case WorkerReady(_, _, pid, address):
                now = self._clock.now_ms()
                self._workers[slot_index] = _Worker(address, pid, progressed_at_ms=now)
                self._report(WorkerStarted(now, report.attempt, slot_index, pid))
                self._deploy_if_ready()
            case WorkerHeartbeat(_, _, rounds, _):
                worker = self._workers.get(slot_index)
                if worker is not None and worker.rounds != rounds:
                    worker.rounds = rounds
                    worker.progressed_at_ms = self._clock.now_ms()
            case Delivered(_, subtask, checkpoint_id, payload):
                self._deliver(subtask, checkpoint_id, payload)
            case SubtaskChanged() if self._has_ended:
                return  # Stopping workers lose each other's connections, which is no failure.
            case SubtaskChanged():
                self._report(report)
                self._subtask_changed(report)
            case SubtaskMetrics():
                self._attempt.metrics[report.chain] = report
                self._report(report)
                self._check_caught_up()
            case AlignmentProgress() | SubtaskStalled():
                self._report(report)
            case Acknowledged() | Declined():
                self._emit(report)  # The coordinator posts it.
                self._checkpoints.on_report(report)

    def on_worker_lost(self, slot_index: int, attempt: AttemptNumber) -> None:
        """The control connection of a worker process was lost."""
        worker = self._workers.get(slot_index)
        if attempt == self._attempt.number and worker is not None:
            worker.lost_at_ms = self._clock.now_ms()  # Its supervisor is about to report why.

    def _deploy_if_ready(self) -> None:
        attempt = self._attempt
        if not attempt.claimed or attempt.deployed or not self._is_initializing:
            return
        choice = attempt.choice
        if choice is None:
            self._choose()
            return
        if len(self._workers) < self.slot_count:
            return
        attempt.deployed = True
        self._workers_deadline_ms = None
        if self._recovery is not None:
            self._recovery.workers_at_ms = self._clock.now_ms()
        addresses = tuple(self._workers[index].address for index in range(self.slot_count))
        for index in range(self.slot_count):
            deploy = Deploy(
                attempt=attempt.number,
                job_id=self._job_id,
                slot_addresses=addresses,
                storage=self._config.checkpoints.storage,
                restored_checkpoint=choice.checkpoint_id,
                restored_storage=choice.storage or self._config.checkpoints.storage,
                restored_directory=choice.directory,
                restores=choice.restores_of_slot(index),
                max_parallelism=tuple(choice.plan.max_parallelism.items()),
                lineage=choice.lineage,
                rewinds_output=choice.rewinds_output,
                adopts=choice.adopts,
                completes_stop=choice.completes_stop,
                sent_at_ms=self._clock.now_ms(),
                secrets=self._secrets,
            )
            self._cluster.to_worker(index, deploy)

    def _choose(self) -> None:
        """Choose the checkpoint to restore, after a manifest that is being written right now."""
        attempt = self._attempt
        if attempt.choosing:
            return
        attempt.choosing = True

        def work() -> tuple[RestoreChoice, CheckpointsRestored]:
            # Until this driver completed a checkpoint of its own, the requested one is restored,
            # not a newer one that the job went back behind.
            requested = None if self._checkpoints.has_completed else self._restore_from
            choice = choose_restore(
                self._store,
                self._job_id,
                self._plan,
                self._config,
                requested=requested,
                open_store=self._open_store,
            )
            stored = begin_from(self._store, self._job_id, attempt.number, choice)
            if requested is not None:
                check_kept(self._store, requested, choice, self._open_store)
            # After noting the base: a driver that has claimed the job since either reads that base,
            # or is seen here, before the sinks move files that its checkpoint counts on.
            self._fence.check()
            return choice, stored

        def done(outcome: tuple[RestoreChoice, CheckpointsRestored] | Exception) -> None:
            if not isinstance(outcome, Exception) and not self.is_over:
                # Also of an attempt that has failed meanwhile: its base is noted, so that the next
                # one looks at no checkpoint that this one passed over.
                self._tell(outcome[0].notes)
            if self._attempt is not attempt or not self._is_initializing:
                return
            if isinstance(outcome, JobFinished) and self._control is not None:
                # An earlier driver finished the job, and ended before the control plane knew.
                self._change(JobStatus.RUNNING)
                self._end(JobStatus.FINISHED)
                return
            if isinstance(outcome, FencedError):
                self._superseded()
                return
            if isinstance(outcome, Exception):
                self._cannot_begin(f"cannot restore: {outcome}", outcome)
                return
            choice, stored = outcome
            attempt.choice = choice
            self._checkpoints.loaded(stored)
            self._checkpoints.restored(choice)
            now = self._clock.now_ms()
            self._report(AttemptStarted(now, attempt.number, choice.checkpoint_id))
            self._deploy_if_ready()

        self._checkpoints.after_pending_manifest(lambda: self._cluster.io(work, done))

    def _tell(self, notes: Iterable[str]) -> None:
        for note in notes:
            if note not in self._told:  # Every restart would repeat it.
                self._told.add(note)
                self._note(note)

    # A running attempt.

    def _subtask_changed(self, report: SubtaskChanged) -> None:
        attempt = self._attempt
        attempt.statuses[report.chain] = report.status
        attempt.restored_bytes += int(report.details.get("restored_bytes", 0))
        match report.status:
            case SubtaskStatus.FAILED if "lost_peer" in report.details:
                # A consequence: the lost peer's own failure is about to be reported.
                cause = f"{report.chain} failed\n{report.cause.strip()}"
                attempt.suspicion = cause, self._clock.now_ms() + EXIT_REPORT_MS
                return
            case SubtaskStatus.FAILED if not report.details.get("restarts_help", True):
                self._end(JobStatus.FAILED, f"{report.chain} failed\n{report.cause.strip()}")
                return
            case SubtaskStatus.FAILED:
                self._fail_attempt(f"{report.chain} failed\n{report.cause.strip()}")
                return
            case _ if self.status is JobStatus.INITIALIZING:
                if self._all(SubtaskStatus.RUNNING, SubtaskStatus.ENDED, SubtaskStatus.FINISHED):
                    self._running()
        if self.status is not JobStatus.RUNNING:
            return
        if self._all(SubtaskStatus.FINISHED):
            self._end(JobStatus.FINISHED)
        elif self._all(SubtaskStatus.ENDED):
            self._checkpoints.trigger_final()

    def _all(self, *statuses: SubtaskStatus) -> bool:
        reached = self._attempt.statuses
        return all(reached.get(subtask) in statuses for subtask in self._plan.chain_subtasks)

    def _running(self) -> None:
        self._change(JobStatus.RUNNING)
        now = self._clock.now_ms()
        recovery, attempt = self._recovery, self._attempt
        if recovery is not None:
            assert attempt.choice is not None
            replayed = max(0, recovery.source_records - self._checkpoints.restored_records)
            begun = recovery.failed_at_ms + recovery.backoff_ms
            self._report(
                Recovered(
                    at_ms=now,
                    attempt=attempt.number,
                    cause=recovery.cause,
                    restored_checkpoint=attempt.choice.checkpoint_id,
                    backoff_ms=recovery.backoff_ms,
                    redeploy_ms=max(0.0, recovery.workers_at_ms - begun),
                    restore_ms=float(now - recovery.workers_at_ms),
                    restored_bytes=attempt.restored_bytes,
                    replayed_records=replayed,
                )
            )
            self._catching_up = (replayed, now) if replayed else None
            self._recovery = None
        jitter = self._random.random()
        if attempt.choice is not None and attempt.choice.completes_stop:
            return  # The attempt only commits and ends: it takes no checkpoint.
        self._checkpoints.start(attempt.number, jitter)
        if self._requests is not None:
            self._requests.start()

    def _source_records(self) -> int:
        sources = set(self._plan.source_subtasks)
        return sum(m.records_in for c, m in self._attempt.metrics.items() if c in sources)

    def _check_caught_up(self) -> None:
        if self._catching_up is not None and self._source_records() >= self._catching_up[0]:
            now = self._clock.now_ms()
            self._report(CaughtUp(now, self._attempt.number, float(now - self._catching_up[1])))
            self._catching_up = None

    def _deliver(self, subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes) -> None:
        if checkpoint_id:
            if checkpoint_id <= self._delivered_up_to.get(subtask, 0):
                return  # Delivered by an earlier attempt already.
            self._delivered_up_to[subtask] = checkpoint_id
        self._collect(subtask, payload)

    # Failing.

    def _cannot_begin(self, cause: str, error: Exception) -> None:
        """The attempt ends before it began; where a retry may help, the job is restarted."""
        if isinstance(error, WeirError) and error.retryable:
            self._attempt.workers_asked = True  # No workers are to be started for it.
            self._fail_attempt(cause)
        else:
            self._end(JobStatus.FAILED, cause)

    def _fail_attempt(self, cause: str) -> None:
        """The attempt failed: restart the job, or fail it, as the restart strategy decides."""
        if self.left is not None or self.status in (JobStatus.FAILING, JobStatus.RESTARTING):
            return  # A consequence of the failure that is being handled.
        if self.status not in (JobStatus.INITIALIZING, JobStatus.RUNNING):
            return
        now = self._clock.now_ms()
        if self.status is JobStatus.INITIALIZING and not self._attempt.workers_asked:
            return  # Slots come and go; the attempt waits for them anyway.
        self._change(JobStatus.FAILING, cause)
        self._slots_deadline_ms = self._workers_deadline_ms = None
        self._catching_up = None
        if self._requests is not None:
            self._requests.pause()
        self._checkpoints.stop(FailureReason.JOB_FAILOVER)
        self._restarts, delay_ms = on_failure(self._restarts, now, self._random.random())
        if delay_ms is None:
            self._end(JobStatus.FAILED, cause)
            return
        reached = self._source_records()
        if self._attempt.choice is not None:
            reached += self._checkpoints.restored_records
        if self._recovery is not None:  # This attempt never ran: its predecessor got further.
            reached = max(reached, self._recovery.source_records)
        self._recovery = _Recovery(cause, now, float(delay_ms), reached)
        self._change(JobStatus.RESTARTING)
        self._restart_at_ms = now + math.ceil(delay_ms)
        if (
            delay_ms > 0 or len(self._slots) < self.slot_count
        ):  # Else the next attempt replaces them.
            for index in self._slots:
                self._cluster.to_slot(index, StopWorker(self._attempt.number))

    def _superseded(self) -> None:
        self._fence.mark_fenced()
        if self._requests is not None:
            self._requests.drop()
        cause = (
            f"another driver runs {self._job_id} now: a newer attempt is recorded in the "
            "checkpoint storage; this one stops without committing anything"
        )
        if self._control is None:
            self._end(JobStatus.FAILED, cause)
        else:
            self.leave(cause)

    def _end(self, status: JobStatus, cause: str = "") -> None:
        if self._has_ended:
            return
        self.cause = cause if status is JobStatus.FAILED else ""
        self._let_go(status.value)
        if (
            self.status in (JobStatus.INITIALIZING, JobStatus.RUNNING)
            and status not in (JOB_TRANSITIONS[self.status])
        ):
            self._change(JobStatus.FAILING, cause)
        self._change(status, cause)
        self._answer_stops()
        self._checkpoints.job_ended(status)
        if self._requests is not None:
            self._requests.end(self._told_end)

    @property
    def _told_end(self) -> str:
        return f"the job is {self.status}{f': {self.cause}' if self.cause else ''}"

    def _let_go(self, why: str) -> None:
        """Stop the workers, and release the slots."""
        self._restart_at_ms = self._slots_deadline_ms = self._workers_deadline_ms = None
        for index in self._workers:
            self._cluster.to_worker(index, StopProcess(self._attempt.number))
        for index in self._slots:
            self._cluster.to_slot(index, ReleaseSlot(why))

    def _change(self, status: JobStatus, cause: str = "") -> None:
        assert status in JOB_TRANSITIONS[self.status], f"{self.status} -> {status}"
        self.status = status
        changed = JobChanged(self._clock.now_ms(), status, cause)
        if status in JOB_TRANSITIONS:
            self._report(changed)
        else:
            self.end = changed  # Its owner posts it, once no I/O is under way.
            self._emit(changed)

    def _report(self, event: JobEvent) -> None:
        """Emit an event, and post it to the control plane, which learns of it by nothing else."""
        self._emit(event)
        if self._control is not None:
            self._control.post(event)

    def _note(self, text: str) -> None:
        self._report(Notice(self._clock.now_ms(), text))

    def _to_all_workers(self, command: SubtaskCommand) -> None:
        for index in self._workers:
            self._cluster.to_worker(index, command)


def _spoken(versions: Versions) -> str:
    return f"Weir {versions.weir}, Python {versions.python}, pyarrow {versions.pyarrow}"
