"""The shell around the checkpoint coordinator in the driver: it executes the commands.

The coordinator (``weir.protocol.coordinator``) decides, in this process or in the control plane
(``weir.jobmaster.coordination``). The checkpoint runner keeps a record of each checkpoint
(``triggered_checkpoints``) with its acknowledgements until the manifest is written from them, has
``manifest_writer`` and ``checkpoint_files`` do the I/O, and reports the outcomes as events. The
checkpoint storage is the truth: a new driver of the job starts from the checkpoints there.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import TypeAlias, assert_never

from weir.common.clock import Clock
from weir.ids import AttemptNumber, CheckpointId
from weir.jobmaster.checkpoint_base import CheckpointBase
from weir.jobmaster.checkpoint_files import CheckpointFiles
from weir.jobmaster.coordination import (
    AbortHere,
    DropCheckpoint,
    LocalCoordination,
    RunnerCommand,
    WithholdManifest,
)
from weir.jobmaster.counted_io import CountedIo, Io
from weir.jobmaster.fence import Fence
from weir.jobmaster.final_checkpoint import FinalCheckpoint
from weir.jobmaster.job_description import JobDescription
from weir.jobmaster.manifest_writer import ManifestOutcome, ManifestWriter
from weir.jobmaster.remote_coordination import RemoteCoordination
from weir.jobmaster.restore_choice import RestoreChoice
from weir.jobmaster.triggered_checkpoints import Stage, TriggeredCheckpoints
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    CheckpointsDiscarded,
    CheckpointSettled,
    CheckpointTriggered,
    JobEvent,
)
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.messages import (
    Acknowledged,
    CheckpointAborted,
    CheckpointCompleted,
    CheckpointingStarted,
    CheckpointingStopped,
    CheckpointRefused,
    CheckpointRequested,
    CheckpointsRestored,
    CoordinatorCommand,
    CoordinatorEvent,
    Declined,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    FailJob,
    JobEnded,
    ManifestWritten,
    RecordAbandoned,
    RecordAborted,
    RecordCompleted,
    RecordReclaimed,
    SubtaskCommand,
    Tick,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.protocol.pending import CheckpointPlan, CompletedCheckpoint, PendingCheckpoint
from weir.storage.catalog import OpenStore
from weir.storage.store import CheckpointStore, store_for

Answered: TypeAlias = Callable[[CompletedCheckpoint | None, str], None]
_subject = attrgetter("attempt", "checkpoint_id")  # Of an acknowledgement.


class CheckpointRunner:
    """Takes the checkpoints of one job, as its coordinator decides."""

    def __init__(
        self,
        job: JobDescription,
        *,
        store: CheckpointStore,
        fence: Fence,
        io: Io,
        clock: Clock,
        coordination: LocalCoordination | RemoteCoordination,
        emit: Callable[[JobEvent], None],
        note: Callable[[str], None],
        send: Callable[[SubtaskCommand], None],
        fail_attempt: Callable[[str], None],
        fenced: Callable[[], None],
        open_store: OpenStore = store_for,
    ) -> None:
        """Prepare.

        Args:
            emit: Receives the events of checkpoints, which the coordinator knows by its own.
            note: Receives texts for the user.
            send: Sends a command to every worker.
            fail_attempt: Fails the attempt, by a decision of the coordinator.
            fenced: Called when it turns out that another driver has the job.
        """
        self._job = job
        self._plan = CheckpointPlan.for_graph(job.plan)
        self._expected = tuple(sorted(self._plan.to_acknowledge()))
        self._clock = clock
        self._emit = emit
        self._send = send
        self._fail_attempt = fail_attempt
        self._note = note
        self._coordination = coordination
        self._commands: deque[RunnerCommand] = deque()  # To be executed, in order.
        self._is_executing = False
        self._fence = fence
        self._io = CountedIo(io)
        self._manifests = ManifestWriter(
            store,
            job.job_id,
            fence=fence,
            io=self._io,
            clock=clock,
            open_store=open_store,
            settled=self._manifest_settled,
            fenced=fenced,
        )
        self._files = CheckpointFiles(
            store,
            job.job_id,
            fence=fence,
            io=self._io,
            clock=clock,
            open_store=open_store,
            output={op.files for op in job.plan.graph.operators if op.files is not None},
            note=note,
        )
        self._checkpoints = TriggeredCheckpoints()
        self._final = FinalCheckpoint()
        self._base = CheckpointBase()
        self._started: AttemptNumber | None = None  # The newest attempt that took checkpoints.
        self._is_running = False  # That attempt still takes checkpoints.
        # Checkpoints of this driver that the job would restore after a failure.
        self.completed_count = 0
        self.newest_completed: CheckpointId | None = None
        self._answers: dict[str, Answered] = {}  # By request.
        self._when_quiet: deque[Callable[[], None]] = deque()

    # Driving.

    @property
    def is_busy(self) -> bool:
        """Whether storage is being written or deleted."""
        return self._io.is_busy

    def next_due_ms(self) -> int | None:
        """The time at which ``tick`` is due next."""
        due = [self._coordination.next_due_ms(), self._final.due_ms]
        return min((d for d in due if d is not None), default=None)

    def tick(self) -> None:
        """Trigger and expire what is due."""
        due_ms = self._final.due_ms
        if due_ms is not None and self._clock.now_ms() >= due_ms:
            self._final.due_ms = None
            self.trigger_final()
        self._step(Tick())

    def loaded(self, stored: CheckpointsRestored) -> None:
        """The storage was searched: give its checkpoints to the coordinator."""
        self._step(stored)

    def restored(self, choice: RestoreChoice) -> None:
        """The next attempt restores this choice."""
        self._base = CheckpointBase.from_choice(choice, self._job.plan, self._checkpoints)
        if choice.claim is not None:
            self._files.claim = choice.claim

    def start(self, attempt: AttemptNumber, jitter: float) -> None:
        """All subtasks run: start checkpointing.

        Units: ``jitter`` in [0, 1) sets the first checkpoint's delay between pause and interval.
        """
        settings = self._job.config.checkpoints
        pause = settings.min_pause_ms
        interval = max(settings.interval_ms or pause, pause)
        self._started, self._is_running = attempt, True
        self._final.start()
        self._step(
            CheckpointingStarted(
                attempt,
                self._plan,
                first_delay_ms=pause + int(jitter * (interval - pause)),
                restored_from=self._base.restored_from,
                lineage=self._base.lineage,
            )
        )
        self._sweep(may_run=True)

    def stop(self, reason: FailureReason) -> None:
        """The attempt is over: abort the checkpoints under way."""
        self._final.stop()
        if self._is_running and self._started is not None:
            self._is_running = False
            self._step(CheckpointingStopped(self._started, reason))

    def job_ended(self, status: JobStatus) -> None:
        """The job is over: keep or delete its checkpoints."""

        def end() -> None:
            self._is_running = False
            self._step(JobEnded(status))
            # Workers of a job that failed or was cancelled may still be writing.
            may_run = status is not JobStatus.FINISHED
            self.after_pending_manifest(lambda: self._sweep(may_run=may_run))

        if not self._fence.is_fenced_off:
            self._files.release_output(self._fence.attempt)
            if status is JobStatus.FINISHED:
                # Before its checkpoints are deleted: a driver that finds none would start from the
                # beginning.
                self._files.record_finished(end)
                return
            if self._fence.attempt:
                self._files.record_over(self._fence.attempt)
        end()

    def on_acknowledged(self, *acks: Acknowledged) -> None:
        """Chains acknowledged; those of one checkpoint that came together are counted together.

        Raises:
            ProtocolError: No correct worker sends one of them.
        """
        for (attempt, checkpoint_id), several in groupby(acks, _subject):
            together = tuple(several)
            record = self._checkpoints.get(checkpoint_id)
            if record is not None and attempt == record.attempt:
                for ack in together:
                    record.file(ack.operators)
            self._execute_all(self._coordination.acknowledge(together))

    def on_declined(self, report: Declined) -> None:
        """A chain declined.

        Raises:
            ProtocolError: No correct worker sends this report.
        """
        self._step(report)

    def on_command(self, command: CoordinatorCommand) -> None:
        """Execute a command of the control plane; late and repeated ones change nothing."""
        remote = self._coordination
        assert isinstance(remote, RemoteCoordination), "commands come from a control plane only"
        self._execute_all(remote.receive_command(command))

    def request(
        self, request_id: str, kind: CheckpointKind, target: str | None, answered: Answered
    ) -> None:
        """Request a checkpoint or savepoint; ``answered`` is called once with its outcome.

        It is called with the completed one, or with None and the reason why there is none.
        Library mode only: a control plane keeps its requests itself.
        """
        is_local = isinstance(self._coordination, LocalCoordination)
        assert is_local, "under a control plane requests are its own"
        if request_id in self._answers:
            return  # Requested already, and under way.
        self._answers[request_id] = answered
        self._step(CheckpointRequested(request_id, kind, target))

    def _answer(
        self, request_id: str | None, completed: CompletedCheckpoint | None, why: str = ""
    ) -> None:
        answered = self._answers.pop(request_id, None) if request_id is not None else None
        if answered is not None:
            answered(completed, why)

    def trigger_final(self) -> None:
        """Every subtask ended: take the checkpoint that commits the tail of the output."""
        if self._final.is_committed:
            return  # A stop's savepoint was that checkpoint.
        if self._checkpoints.has_stop(self._started):
            # A stop under way commits the tail as well. Should it fail, the retry triggers.
            self._final.postpone(self._clock.now_ms())
            return
        self._step(self._final.request())

    def after_pending_manifest(self, action: Callable[[], None]) -> None:
        """Call ``action`` when no manifest is being written: now, or after the pending one."""
        self._when_quiet.append(action)
        self._check_quiet()

    def _check_quiet(self) -> None:
        while self._when_quiet and not self._manifests.is_writing:
            self._when_quiet.popleft()()

    @property
    def restored_records(self) -> int:
        """Records that the job's sources had emitted at the restored checkpoint, if known."""
        return sum(self._base.source_records.values())

    def _step(self, event: CoordinatorEvent) -> None:
        self._execute_all(self._coordination.receive(event))

    # Commands.

    def _execute_all(self, commands: Sequence[RunnerCommand]) -> None:
        self._commands.extend(commands)
        if self._is_executing:
            return  # A command led to the event behind these: it and those beside it come first.
        self._is_executing = True
        try:
            while self._commands:
                self._execute(self._commands.popleft())
        finally:
            self._is_executing = False
        self._check_quiet()

    def _execute(self, command: RunnerCommand) -> None:
        now = self._clock.now_ms()
        match command:
            case TriggerCheckpoint():
                self._trigger(command, now)
            case CheckpointCompleted(checkpoint_id=checkpoint_id, final=is_stop):
                is_final = self._final.completed(checkpoint_id, is_stop=is_stop)
                self._send(replace(command, final=is_final))
                record = self._checkpoints.get(checkpoint_id)
                if record is not None and record.stage is Stage.COMMANDED:
                    # Under the control plane no ``RecordCompleted`` comes before this command.
                    self._completed(checkpoint_id, now)
            case CheckpointAborted(checkpoint_id=checkpoint_id):
                self._send(command)
                self._checkpoints.drop(checkpoint_id)
            case AbortHere(aborted, reason, cause):
                self._send(aborted)
                self._checkpoints.drop(aborted.checkpoint_id)
                self._settle(aborted.checkpoint_id, now, reason, cause)
            case DropCheckpoint(checkpoint_id):
                self._checkpoints.drop(checkpoint_id)
            case WithholdManifest(checkpoint_id, attempt, cause):
                if self._manifests.withhold(checkpoint_id, attempt, cause):
                    self._checkpoints.drop(checkpoint_id)
            case WriteManifest(pending):
                self._write_manifest(pending, now)
            case RecordCompleted(completed, request):
                self._completed(completed.checkpoint_id, now)
                self._answer(request.request_id, completed)
                self._use_claim()
            case RecordAborted(pending, reason, cause):
                self._settle(pending.checkpoint_id, now, reason, cause)
                self._checkpoints.drop(pending.checkpoint_id)
                self._retry_final(pending.request.request_id, now)
                why = f"{reason}: {cause}" if cause else str(reason)
                self._answer(pending.request.request_id, None, why)
            case CheckpointRefused(request, reason):
                self._retry_final(request.request_id, now)
                self._answer(request.request_id, None, f"refused: {reason}")
                if request.request_id is not None:
                    self._note(f"checkpoint refused: {reason}")
            case DiscardHandles(handles):
                self._files.discard_handles(handles, self._target_of)
            case DiscardPending(checkpoint_id):
                record = self._checkpoints[checkpoint_id]
                self._files.discard_pending(checkpoint_id, record.attempt, record.target)
            case DiscardCheckpoint(completed):
                self._discard(completed)
            case RecordAbandoned() | RecordReclaimed():
                pass
            case FailJob(_, cause):
                self._fail_attempt(cause)
            case _:
                assert_never(command)

    def _trigger(self, command: TriggerCheckpoint, now: int) -> None:
        record = self._checkpoints.trigger(command, now)
        self._emit(CheckpointTriggered(now, record.checkpoint_id, record.kind, self._expected))
        self._send(command)

    def _completed(self, checkpoint_id: CheckpointId, now: int) -> None:
        self._settle(checkpoint_id, now)
        if (record := self._checkpoints.get(checkpoint_id)) is not None:
            record.stage = Stage.OVER

    def _settle(
        self,
        checkpoint_id: CheckpointId,
        now: int,
        failure: FailureReason | None = None,
        cause: str = "",
    ) -> None:
        """Emit the end once: the control plane's command may repeat, or follow an abort here."""
        record = self._checkpoints.get(checkpoint_id)
        if record is None or record.is_settled:
            return
        record.is_settled = True
        # By this driver's clock: the coordinator's may be another.
        duration_ms = max(0, now - record.since_ms)
        sizes = (0, 0) if failure is not None else (record.state_size, record.written_size)
        self._emit(CheckpointSettled(now, checkpoint_id, duration_ms, failure, cause, *sizes))

    def _retry_final(self, request_id: str | None, now: int) -> None:
        if self._is_running:
            self._final.came_to_nothing(request_id, now)

    # Storage.

    def _write_manifest(self, pending: PendingCheckpoint, now: int) -> None:
        record = self._checkpoints[pending.checkpoint_id]
        acks = record.take_acks()
        record.source_records = self._base.records_with(self._job.plan, acks)
        self._final.commanded(pending)
        manifest = self._base.manifest(pending, acks, max(0, now - record.since_ms), self._job)
        self._manifests.write(pending, manifest)

    def _manifest_settled(self, outcome: ManifestOutcome) -> None:
        record = self._checkpoints.get(outcome.checkpoint_id)
        is_copy = record is not None and record.kind is CheckpointKind.SAVEPOINT
        # A savepoint is a copy: a failed job would not be restored from it.
        is_written = isinstance(outcome, ManifestWritten)
        if is_written and not is_copy:
            self.completed_count += 1
            self.newest_completed = outcome.checkpoint_id
        self._step(outcome)
        if is_written and is_copy and isinstance(self._coordination, RemoteCoordination):
            self._completed(outcome.checkpoint_id, self._clock.now_ms())  # No command says so.

    def _discard(self, completed: CompletedCheckpoint) -> None:
        checkpoint_id = completed.checkpoint_id

        def gone() -> None:
            self._emit(CheckpointsDiscarded(self._clock.now_ms(), (checkpoint_id,)))
            self._checkpoints.remove(checkpoint_id)

        self._files.discard(completed, gone)

    def _sweep(self, *, may_run: bool) -> None:
        # A control plane sweeps the storage by its rows.
        if isinstance(self._coordination, LocalCoordination) and self._fence.has_claimed:
            self._files.sweep(may_run=may_run)

    def _target_of(self, checkpoint_id: CheckpointId) -> str | None:
        record = self._checkpoints.get(checkpoint_id)
        return None if record is None else record.target

    def _use_claim(self) -> None:
        local = self._coordination
        if isinstance(local, LocalCoordination):  # A control plane deletes it itself.
            completed = local.state.completed
            own = [c.checkpoint_id for c in completed if c.abandoned_at_ms is None]
            self._files.use_claim(own, self._job.config.checkpoints.retained_max)
