"""The job master: deploys a job's attempts on slots, watches them, and replaces failed ones.

One attempt goes through these steps; a failure in any of them ends the attempt::

    wait for slots -> start workers -> choose a checkpoint -> deploy -> all subtasks run
         ^                                                                   |
         └── restart strategy's delay <── stop (failing) <── failure ────────┤
                                                                             └── all ended:
                                               a final checkpoint, commit, finished

The job master decides about the job's status and its attempts. What it knows lies beside it:
``slots``, ``workers``, ``attempt``, ``restarts``, ``recovery_report``; what it has done by others
is ``restorer``'s, ``checkpoint_runner``'s and ``savepoint_requests``'.

It is driven by one thread and never blocks: storage is reached through ``Cluster.io``,
slots and workers through the other methods of ``Cluster``, and the shell around it calls ``tick``
when ``next_due_ms`` says so. It holds no truth that a restart could lose: the checkpoint storage is
the truth.
"""

from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from typing import Any, TypeAlias

from weir.common.clock import Clock
from weir.config import JobConfig
from weir.errors import WeirError
from weir.graph.logical import JobGraph
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, SubtaskId
from weir.jobmaster.attempt import Attempt
from weir.jobmaster.checkpoint_runner import CheckpointRunner
from weir.jobmaster.cluster import Cluster
from weir.jobmaster.collected_output import ComesAgain, DeliveredOnce, printed_again
from weir.jobmaster.coordination import LocalCoordination
from weir.jobmaster.fence import Fence, FencedError
from weir.jobmaster.job_description import JobDescription
from weir.jobmaster.recovery_report import RecoveryReport
from weir.jobmaster.remote_coordination import ControlPlane, RemoteCoordination
from weir.jobmaster.restarts import Restarts
from weir.jobmaster.restore_choice import JobFinished, RestoreChoice
from weir.jobmaster.restorer import NO_PROGRESS, JobProgress, Restorer
from weir.jobmaster.savepoint_requests import SavepointRequests
from weir.jobmaster.slots import Slots
from weir.jobmaster.workers import EXIT_REPORT_MS, Workers
from weir.protocol.deployment import (
    Delivered,
    ReleaseSlot,
    SlotFailed,
    SlotHeartbeat,
    SlotRegistered,
    SlotReport,
    Versions,
    WorkerExited,
    WorkerHeartbeat,
    WorkerReady,
    WorkerReport,
)
from weir.protocol.driver_messages import CancelJob, DriverCommand
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    JobChanged,
    JobEvent,
    Notice,
    SlotChanged,
    WorkerStarted,
)
from weir.protocol.inspection import Inspected, InspectSubtask
from weir.protocol.lifecycle import JOB_TRANSITIONS, FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    AlignmentProgress,
    CheckpointsRestored,
    Declined,
    Report,
    SubtaskChanged,
    SubtaskMetrics,
    SubtaskStalled,
)
from weir.protocol.pending import CompletedCheckpoint
from weir.protocol.slot_memory import KILLED_FOR_MEMORY
from weir.storage.attempt_claims import describe_process
from weir.storage.catalog import OpenStore, RestoreRequest
from weir.storage.store import CheckpointStore, WriteRefusedError, store_for

Chosen: TypeAlias = tuple[RestoreChoice, CheckpointsRestored]


def _keep_all(comes_again: ComesAgain) -> int:
    """The effect on output that is not kept: none."""
    return 0


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
        collect: Callable[[SubtaskId, CheckpointId, bytes], None],
        take_back: Callable[[ComesAgain], int] = _keep_all,
        restore_from: RestoreRequest | None = None,
        progress: JobProgress = NO_PROGRESS,
        secrets: Mapping[str, str] | None = None,
        seed: int | None = None,
        control: ControlPlane | None = None,
        open_store: OpenStore = store_for,
    ) -> None:
        """Prepare the job; nothing happens before ``start``.

        Args:
            program: The cloudpickled ``(graph, config)`` for the slots.
            emit: Receives every event of the job, in order, for readers in this process.
            collect: Receives committed output meant for the driver, each piece once, with the
                checkpoint that it was committed for.
            take_back: Drops what it collected for checkpoints whose records come again; returns
                how many lines come again although they were printed.
            restore_from: A checkpoint to begin with; None means the newest completed one of this
                job id, if there is any.
            progress: The job's under earlier drivers; its storage has to be as new.
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
        self._cluster = cluster
        self._clock = clock
        self._emit = emit
        plan = ExecutionGraph(graph)
        given = tuple((secrets or {}).items())
        self._job = JobDescription(job_id, plan, config, program, versions, given)
        self._restarts = Restarts(
            config.restart, has_checkpoints=config.checkpoints.interval_ms is not None, seed=seed
        )
        self._slots = Slots(
            cluster, plan.slot_count, config.heartbeat_timeout_ms, config.slot_memory_bytes
        )
        self._workers = Workers(cluster, config.heartbeat_timeout_ms)
        self._attempt = Attempt(AttemptNumber(0))
        self._recovery = RecoveryReport()
        self._delivered = DeliveredOnce(collect, take_back)
        self._told: set[str] = set()  # Notes on the choice of a checkpoint.
        self._has_run = False  # All its subtasks have, in an attempt of this driver.
        self._fence = Fence(store, job_id, describe_process() if control is None else control.claim)
        self._restorer = Restorer(self._job, store, open_store, self._fence, restore_from, progress)
        self._checkpoints = CheckpointRunner(
            self._job,
            store=store,
            fence=self._fence,
            io=cluster.io,
            clock=clock,
            coordination=(
                LocalCoordination(config.checkpoints, clock)
                if control is None
                else RemoteCoordination(config.checkpoints, clock, control)
            ),
            emit=emit,
            note=self._note,
            send=self._workers.send_all,
            fail_attempt=self._fail_attempt,
            fenced=self._superseded,
            open_store=open_store,
        )
        self._savepoints = SavepointRequests(
            self._checkpoints,
            store,
            job_id,
            storage=config.checkpoints.storage,
            has_mailbox=control is None and config.checkpoints.storage is not None,
            fence=self._fence,
            io=cluster.io,
            clock=clock,
            open_store=open_store,
            status=lambda: self.status,
            note=self._note,
        )

    # Driving.

    @property
    def slot_count(self) -> int:
        """The number of slots that the job needs."""
        return self._job.slot_count

    @property
    def is_over(self) -> bool:
        """Whether the job ended, or this driver left it, and no I/O is under way."""
        return self._has_ended and not (self._checkpoints.is_busy or self._savepoints.is_busy)

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

    def is_running(self, attempt: AttemptNumber) -> bool:
        """Whether this is the current attempt; any other is over, or has not begun."""
        return self._attempt.number == attempt

    def slots_ended(self, cause: str) -> None:
        """The cluster gives no slots any more; ``cause`` says why.

        In library mode the job fails; under a control plane this driver leaves, and the job's next
        driver continues it.
        """
        if self._control is None:
            self._end(JobStatus.FAILED, cause)
        else:
            self.leave(cause)

    def slots_cannot_start(self, cause: str) -> None:
        """An executor of the cluster can run no slot: a job that never ran there fails.

        Any other one waits: Spark tries again, and another executor may be able to.
        """
        if self._ran_before:
            self._tell([cause])
        else:
            self._end(JobStatus.FAILED, cause)

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
        match command:
            case CancelJob():
                self.cancel()
            case InspectSubtask():
                self._inspect(command)
            case _:
                self._checkpoints.on_command(command)

    def _inspect(self, command: InspectSubtask) -> None:
        current = self._attempt.number
        if self.status is JobStatus.RUNNING and command.attempt == current:
            self._workers.send(command.index, command)
        else:
            cause = "the job is being restarted"
            self._answer(Inspected(current, command.request_id, command.index, cause))

    def _answer(self, report: Inspected) -> None:
        if self._control is not None:  # Only the control plane asks.
            self._control.post(report)  # Not _report: what it shows is for one reader.

    def cancel(self) -> None:
        """Stop the job without a savepoint."""
        if not self._has_ended:
            if self.status is not JobStatus.CREATED:
                self._change(JobStatus.CANCELLING)
            self._end(JobStatus.CANCELED)

    def checkpoint(
        self, request_id: str, answered: Callable[[CompletedCheckpoint | None, str], None]
    ) -> None:
        """Take a checkpoint beside those of the interval; in library mode only.

        ``answered`` receives the completed checkpoint, or None and the reason why there is none.
        """
        self._checkpoints.request(request_id, CheckpointKind.CHECKPOINT, None, answered)

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
        self._savepoints.request(request_id, kind, target, done=done, failed=failed)

    def next_due_ms(self) -> int | None:
        """The time at which ``tick`` is due next."""
        if self._has_ended:
            return None
        candidates = [
            self._restarts.due_ms,
            self._slots.deadline_ms,
            self._workers.deadline_ms,
            self._attempt.suspicion and self._attempt.suspicion[1],
            self._checkpoints.next_due_ms(),
            self._savepoints.next_due_ms(),
            *self._slots.due_ms(),
            *self._workers.due_ms(),
        ]
        return min((c for c in candidates if c is not None), default=None)

    def tick(self) -> None:
        """Check heartbeats and deadlines, restart when due, trigger checkpoints."""
        if self._has_ended:
            return
        now = self._clock.now_ms()
        self._check_heartbeats(now)
        if self._is_past(self._slots.deadline_ms, now):
            self._slots.deadline_ms = None
            if not self._slots.are_enough:
                self._slots_did_not_come()
        if self._attempt.suspicion is not None and now >= self._attempt.suspicion[1]:
            cause, _ = self._attempt.suspicion
            self._attempt.suspicion = None
            self._fail_attempt(cause)
        if self._is_past(self._workers.deadline_ms, now):
            self._workers.deadline_ms = None
            timeout_ms = self._job.config.slots_timeout_ms
            self._fail_attempt(f"not every slot had a worker process within {timeout_ms} ms")
        if self._is_past(self._restarts.due_ms, now):
            self._restarts.due_ms = None
            self._change(JobStatus.INITIALIZING)
            if self._attempt.number == 0:  # The earlier attempts could not be looked up.
                self._begin_first_attempt()
            else:
                self._begin_attempt(AttemptNumber(self._attempt.number + 1))
        self._savepoints.tick()
        self._checkpoints.tick()

    @staticmethod
    def _is_past(due_ms: int | None, now: int) -> bool:
        return due_ms is not None and now >= due_ms

    def _slots_did_not_come(self) -> None:
        # Without a control plane the cluster may be another than that of the checkpoint.
        choice = None if self._control is None else self._attempt.choice
        had_them = self._slots.were_enough or (
            choice is not None and choice.had_slots(self._job.job_id, self.slot_count)
        )
        cause = self._slots.want(self._job.config.slots_timeout_ms, had_them=had_them)
        if self._slots.has_refused and self._control is not None:
            self.leave(cause)  # The next driver may have the versions of these slots.
        elif had_them:
            self._attempt.workers_asked = True  # No workers are to be started for it.
            self._fail_attempt(cause)
        else:
            self._end(JobStatus.FAILED, cause)

    def _check_heartbeats(self, now: int) -> None:
        for index, cause in self._slots.silent(now, self._workers.silent(now)):
            self._cluster.replace_slot(index)
            self._slot_gone(index, cause)
        self._slots.replace_refused(now)
        for cause in self._workers.take_gone(now):
            self._fail_attempt(cause)

    # Slots.

    def on_slot(self, report: SlotReport) -> None:
        """A slot reports."""
        match report:
            case SlotRegistered():
                self._register(report)
            case SlotHeartbeat(slot_index):
                self._slots.heard(slot_index, self._clock.now_ms())
            case SlotFailed(slot_index, cause):
                self._slot_failed(slot_index, f"slot {slot_index} cannot run the pipeline: {cause}")
            case WorkerExited(slot_index, attempt, pid, exit_code, stderr_tail, is_out_of_memory):
                if attempt == self._attempt.number:
                    how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit {exit_code}"
                    how += f", {KILLED_FOR_MEMORY}" if is_out_of_memory else ""
                    tail = f"\n{stderr_tail.strip()}" if stderr_tail.strip() else ""
                    end = f"(pid {pid}) ended" if pid else "did not start"
                    self._fail_attempt(
                        f"the worker process of slot {slot_index} {end}: {how}{tail}"
                    )

    def _slot_failed(self, slot_index: int, cause: str) -> None:
        self._slots.failed(slot_index)
        if not self._has_run:
            self._end(JobStatus.FAILED, cause)
        elif self._slots.have_place(slot_index):
            # The pipeline ran in other processes: files may be away, or the machine be another.
            self._fail_attempt(cause)
        else:
            self._note(cause)  # It is a spare.

    def on_slot_lost(self, slot_index: int, spark_attempt: int) -> None:
        """The connection to a slot was lost."""
        slot = self._slots.find(slot_index)
        if slot is not None and slot.spark_attempt == spark_attempt:
            self._slot_gone(slot_index, f"slot {slot_index} on {slot.host} was lost")

    def _slot_gone(self, slot_index: int, cause: str) -> None:
        """Remove a lost slot; the attempt fails if it uses the slot, not for an idle spare."""
        slot = self._slots.remove(slot_index)
        if self.left is not None:
            return  # The slot was released, and this driver emits no events of the job any more.
        self._report(SlotChanged(self._clock.now_ms(), slot_index, slot.host, slot.pid, False))
        if self._attempt.workers_asked and self._slots.have_place(slot_index):
            self._fail_attempt(cause)

    def _register(self, slot: SlotRegistered) -> None:
        if self._has_ended:
            self._cluster.to_slot(slot.slot_index, ReleaseSlot(self.status.value))
            return
        known = self._slots.find(slot.slot_index)
        if known is not None:
            if known.spark_attempt >= slot.spark_attempt:
                return  # An older Spark task of the same slot; its successor is here already.
            self._slot_gone(slot.slot_index, f"slot {slot.slot_index} was restarted by Spark")
            if self._has_ended:  # The restart strategy gave up on that failure.
                self._cluster.to_slot(slot.slot_index, ReleaseSlot(self.status.value))
                return
        now = self._clock.now_ms()
        if slot.versions != self._job.versions:
            self.slots_cannot_start(self._slots.refuse(slot, self._job.versions, now))
            return
        self._slots.add(slot, now)
        self._report(SlotChanged(now, slot.slot_index, slot.host, slot.pid, True))
        self._cluster.to_slot(slot.slot_index, self._job.acceptance())
        self._ask_for_workers()

    @property
    def _ran_before(self) -> bool:
        """Whether the job has run, under this driver or an earlier one."""
        return self._has_run or self._restorer.progress.checkpoint > 0

    # Bringing an attempt up.

    def _begin_first_attempt(self) -> None:
        def done(outcome: AttemptNumber | Exception) -> None:
            if not self._is_initializing:
                return  # Cancelled meanwhile.
            if isinstance(outcome, Exception):
                self._cannot_begin(f"checkpoint storage: {outcome}", outcome)
                return
            newest = max(outcome, self._restorer.progress.attempt)
            self._begin_attempt(AttemptNumber(newest + 1))

        self._cluster.io(self._fence.newest_recorded, done)

    def _begin_attempt(self, number: AttemptNumber) -> None:
        before = self._attempt
        trusts_files = before.number == 0 or before.has_run
        self._attempt = attempt = Attempt(number, trusts_files)
        self._fence.begin_attempt(number)
        if not self._slots.are_enough:
            self._slots.deadline_ms = self._clock.now_ms() + self._job.config.slots_timeout_ms
        self._workers.clear()
        self._ask_for_workers()

        def claimed(outcome: bool | Exception) -> None:
            if self._attempt is not attempt or self.left is not None:
                return
            if isinstance(outcome, Exception):
                self._cannot_begin(f"checkpoint storage: {outcome}", outcome)
            elif outcome:
                attempt.claimed = self._fence.has_claimed = True
                self._deploy_if_ready()
            elif self._control is None or self._fence.has_claimed:
                self._superseded()
            else:
                # The control plane launched this driver as the newest. The one before it still runs
                # and claimed one more attempt number; it cannot claim the next.
                self._begin_first_attempt()

        self._cluster.io(lambda: self._fence.claim(number), claimed)

    def _ask_for_workers(self) -> None:
        attempt = self._attempt
        if attempt.number == 0 or attempt.workers_asked:
            return
        if not self._is_initializing or not self._slots.are_enough:
            return
        attempt.workers_asked = True
        self._slots.deadline_ms = None
        # Not the heartbeats' timeout: a fresh slot first loads the pipeline's imports.
        self._workers.deadline_ms = self._clock.now_ms() + self._job.config.slots_timeout_ms
        self._slots.start_workers(attempt.number)

    def _deploy_if_ready(self) -> None:
        attempt = self._attempt
        if not attempt.claimed or attempt.deployed or not self._is_initializing:
            return
        if attempt.choice is None:
            self._choose()
            return
        if len(self._workers) < self.slot_count:
            return
        attempt.deployed = True
        self._workers.deadline_ms = None
        now = self._clock.now_ms()
        self._recovery.deploying(now)
        addresses = self._workers.addresses
        for index in range(self.slot_count):
            deploy = self._job.deployment(attempt.number, index, addresses, attempt.choice, now)
            self._workers.send(index, deploy)

    def _choose(self) -> None:
        """Choose the checkpoint to restore, after a manifest that is being written right now."""
        attempt = self._attempt
        if attempt.choosing:
            return
        attempt.choosing = True

        def work() -> Chosen:
            completed = self._checkpoints.newest_completed
            return self._restorer.choose(
                attempt.number, completed=completed, trusts_files=attempt.trusts_files
            )

        def done(outcome: Chosen | Exception) -> None:
            if not isinstance(outcome, Exception) and not self.is_over:
                # Also of an attempt that has failed meanwhile: its base is noted, so that the next
                # one looks at no checkpoint that this one passed over.
                self._tell(outcome[0].notes)
            if self._attempt is attempt and self._is_initializing:
                self._chosen(outcome)

        self._checkpoints.after_pending_manifest(lambda: self._cluster.io(work, done))

    def _chosen(self, outcome: Chosen | Exception) -> None:
        if isinstance(outcome, JobFinished) and self._control is not None:
            # An earlier driver finished the job, and ended before the control plane knew.
            self._change(JobStatus.RUNNING)
            self._end(JobStatus.FINISHED)
        elif isinstance(outcome, FencedError):
            self._superseded()
        elif isinstance(outcome, Exception):
            self._cannot_begin(f"cannot restore: {outcome}", outcome)
        else:
            attempt, (choice, stored) = self._attempt, outcome
            attempt.choice = choice
            self._checkpoints.loaded(stored)
            self._checkpoints.restored(choice)
            if lines := self._delivered.restored(choice):
                self._note(printed_again(lines, choice.checkpoint_id))
            now = self._clock.now_ms()
            self._report(AttemptStarted(now, attempt.number, choice.checkpoint_id))
            self._deploy_if_ready()

    def _tell(self, notes: Iterable[str]) -> None:
        for note in notes:
            if note not in self._told:  # Every restart would repeat it.
                self._told.add(note)
                self._note(note)

    # A running attempt.

    def on_worker(self, slot_index: int, *reports: Report | WorkerReport) -> None:
        """A worker process reports; acknowledgements that came together are counted together."""
        for cls, several in groupby(reports, type):
            if cls is Acknowledged:
                self._acknowledged(several)
            else:
                for report in several:
                    self._reported(slot_index, report)

    def _acknowledged(self, acks: Iterable[Any]) -> None:
        current = [ack for ack in acks if ack.attempt == self._attempt.number]
        for ack in current:
            self._emit(ack)  # Not _report: the coordination posts it.
        self._checkpoints.on_acknowledged(*current)

    def _reported(self, slot_index: int, report: Report | WorkerReport) -> None:
        if report.attempt != self._attempt.number:
            return  # A worker of an older attempt that was not told to stop yet.
        match report:
            case Declined():
                self._emit(report)  # Not _report: the coordination posts it.
                self._checkpoints.on_declined(report)
            case WorkerReady():
                now = self._clock.now_ms()
                self._workers.ready(slot_index, report, now)
                limit = self._slots.memory_limit(slot_index)
                self._report(WorkerStarted(now, report.attempt, slot_index, report.pid, limit))
                self._deploy_if_ready()
            case WorkerHeartbeat(_, _, rounds):
                self._workers.alive(slot_index, rounds, self._clock.now_ms())
            case Inspected():
                self._answer(report)
            case Delivered(_, subtask, checkpoint_id, payload):
                self._delivered.deliver(subtask, checkpoint_id, payload)
            case SubtaskChanged() if self._has_ended:
                return  # Stopping workers lose each other's connections, which is no failure.
            case SubtaskChanged():
                self._report(report)
                self._subtask_changed(report)
            case SubtaskMetrics():
                self._attempt.metrics[report.chain] = report
                self._report(report)
                if self._recovery.is_catching_up:  # Only then all sources are summed up.
                    now = self._clock.now_ms()
                    if caught_up := self._recovery.progressed(self._source_records, now):
                        self._report(caught_up)
            case AlignmentProgress() | SubtaskStalled():
                self._report(report)

    def on_worker_lost(self, slot_index: int, attempt: AttemptNumber) -> None:
        """The control connection of a worker process was lost."""
        if attempt == self._attempt.number:
            self._workers.lost(slot_index, self._clock.now_ms())

    def _subtask_changed(self, report: SubtaskChanged) -> None:
        attempt, chains = self._attempt, self._job.plan.chain_subtasks
        attempt.changed(report)
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
                self._program_failed(report)
                return
            case _ if self.status is JobStatus.INITIALIZING:
                up = SubtaskStatus.RUNNING, SubtaskStatus.ENDED, SubtaskStatus.FINISHED
                if attempt.have_all(chains, *up):
                    self._running()
        if self.status is not JobStatus.RUNNING:
            return
        if attempt.have_all(chains, SubtaskStatus.FINISHED):
            self._end(JobStatus.FINISHED)
        elif attempt.have_all(chains, SubtaskStatus.ENDED):
            self._checkpoints.trigger_final()

    def _running(self) -> None:
        self._change(JobStatus.RUNNING)
        attempt, now = self._attempt, self._clock.now_ms()
        attempt.has_run = self._has_run = True
        recovered = self._recovery.running(attempt, self._checkpoints.restored_records, now)
        if recovered is not None:
            self._report(recovered)
        if attempt.damage:
            self._note(attempt.damage)
        jitter = self._restarts.jitter()
        if attempt.choice is not None and attempt.choice.completes_stop:
            return  # The attempt only commits and ends: it takes no checkpoint.
        self._checkpoints.start(attempt.number, jitter)
        self._savepoints.start()

    @property
    def _source_records(self) -> int:
        return self._attempt.records_of(self._job.plan.source_subtasks)

    # Failing.

    def _program_failed(self, report: SubtaskChanged) -> None:
        """A subtask failed by itself: restart the job, unless the same error would come again."""
        cause = f"{report.chain} failed\n{report.cause.strip()}"
        attempt = self._attempt
        if "damaged_state" in report.details and attempt.trusts_files and not attempt.has_run:
            self._fail_attempt(cause, counts=False)  # The next one has all files read first.
            return
        completed = self._checkpoints.completed_count
        if not self._is_failing:
            now, details = self._clock.now_ms(), report.details
            place, position = details.get("place"), details.get("position", "")
            remedy = {"remedy": details["remedy"]} if "remedy" in details else {}
            if why := self._restarts.hopeless(place, position, completed, now, **remedy):
                self._end(JobStatus.FAILED, f"{why}\n{cause}")
                return
        self._fail_attempt(cause)

    def _cannot_begin(self, cause: str, error: Exception) -> None:
        """The attempt ends before it began; where a retry may help, the job is restarted.

        A storage that took an earlier attempt and refuses this one may take the next: it is mounted
        read-only for a while, or its permissions are being changed.
        """
        is_passing = isinstance(error, WriteRefusedError) and self._attempt.number > 1
        if is_passing or (isinstance(error, WeirError) and error.retryable):
            self._attempt.workers_asked = True  # No workers are to be started for it.
            self._fail_attempt(cause)
        else:
            self._end(JobStatus.FAILED, cause)

    @property
    def _is_failing(self) -> bool:
        return self.left is not None or self.status in (JobStatus.FAILING, JobStatus.RESTARTING)

    def _fail_attempt(self, cause: str, *, counts: bool = True) -> None:
        """The attempt failed: restart the job, or fail it, as the restart strategy decides.

        A failure that does not count is no failure to the strategy: the next attempt begins at
        once.
        """
        if self._is_failing:
            return  # A consequence of the failure that is being handled.
        if self.status not in (JobStatus.INITIALIZING, JobStatus.RUNNING):
            return
        now = self._clock.now_ms()
        if self.status is JobStatus.INITIALIZING and not self._attempt.workers_asked:
            return  # Slots come and go; the attempt waits for them anyway.
        self._change(JobStatus.FAILING, cause)
        self._slots.deadline_ms = self._workers.deadline_ms = None
        self._recovery.stop_catching_up()
        self._savepoints.pause()
        self._checkpoints.stop(FailureReason.JOB_FAILOVER)
        delay_ms = self._restarts.delay(now) if counts else 0.0
        if delay_ms is None:
            self._end(JobStatus.FAILED, cause)
            return
        reached = self._source_records
        if self._attempt.choice is not None:
            reached += self._checkpoints.restored_records
        self._recovery.restarting(cause, now, backoff_ms=float(delay_ms), source_records=reached)
        self._change(JobStatus.RESTARTING)
        self._restarts.schedule(now, delay_ms)
        if delay_ms > 0 or not self._slots.are_enough:  # Else the next attempt replaces them.
            self._slots.stop_workers(self._attempt.number)

    def _superseded(self) -> None:
        self._fence.mark_fenced()
        self._savepoints.drop_mailbox()
        cause = self._fence.cause
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
        how = f"the job is {self.status}{f': {self.cause}' if self.cause else ''}"
        self._savepoints.job_ended(how, is_finished=status is JobStatus.FINISHED)
        self._checkpoints.job_ended(status)
        self._savepoints.close_mailbox(how)

    def _let_go(self, why: str) -> None:
        """Stop the workers, and release the slots."""
        self._restarts.due_ms = self._slots.deadline_ms = self._workers.deadline_ms = None
        self._workers.stop(self._attempt.number)
        self._slots.release(why)

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
