"""The shell around the checkpoint coordinator in the driver: it executes the commands.

The coordinator (``weir.protocol.coordinator``) decides, in this process or in the control plane
(``weir.jobmaster.coordination``); the checkpoint runner keeps the acknowledgements until the
manifest is written from them, does the I/O, and reports the outcomes as events. The checkpoint
storage is the truth: a new driver of the job starts from the checkpoints there.

A manifest and the claim of an attempt fence each other. A driver writes the manifest, then looks
whether a newer attempt of another driver is recorded; a new driver records its attempt, then looks
for manifests. In either order the old driver sees the new attempt and commits nothing, or the new
driver sees the manifest and restores from it.

A savepoint has two manifests: one in its own directory, which makes it movable and takes the name,
and then the one under its checkpoint id, which makes it complete as for every checkpoint.
"""

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, assert_never

from weir.common.clock import Clock
from weir.config import JobConfig
from weir.errors import StorageError
from weir.fault_points import reach
from weir.graph.physical import ExecutionGraph
from weir.ids import (
    AttemptNumber,
    CheckpointId,
    JobId,
    OperatorId,
    StateHandle,
    SubtaskId,
)
from weir.jobmaster.coordination import (
    ControlPlane,
    Coordination,
    LocalCoordination,
    RemoteCoordination,
)
from weir.jobmaster.restore_choice import Claim, RestoreChoice
from weir.output.output_files import delete_unneeded
from weir.protocol.deployment import Versions
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    CheckpointsDiscarded,
    CheckpointSettled,
    CheckpointTriggered,
    JobEvent,
    Notice,
)
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.lineage import UNKNOWN
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
    ManifestFailed,
    ManifestWritten,
    OperatorAck,
    RecordAbandoned,
    RecordAborted,
    RecordCompleted,
    RecordReclaimed,
    SubtaskCommand,
    TriggerCheckpoint,
    WriteManifest,
)
from weir.protocol.pending import (
    STOP_KINDS,
    CheckpointPlan,
    CompletedCheckpoint,
    PendingCheckpoint,
)
from weir.secrets import job_secrets
from weir.storage.layout import (
    SAVEPOINT_MANIFEST,
    JobLayout,
    in_job,
    savepoint_id,
)
from weir.storage.manifest import (
    Manifest,
    OperatorSummary,
    Tombstone,
    discard_savepoint,
    dump,
    load,
)
from weir.storage.store import CheckpointStore, store_for

FINAL_RETRY_MS = 100
# Checkpoints whose source positions are kept where the coordinator does not report discards.
REMEMBERED_MAX = 1_000

Io: TypeAlias = Callable[[Callable[[], Any], Callable[[Any], None]], None]


class FencedError(StorageError):
    """Another driver has taken the job over."""

    retryable = False


class IdTaken(StorageError):
    """A manifest of this checkpoint id exists already."""

    retryable = False


class PlaceTaken(StorageError):
    """The directory of a savepoint holds another one."""

    retryable = False


@dataclass(frozen=True, slots=True)
class _Written:
    """Start and sizes of a checkpoint whose manifest was commanded."""

    since_ms: int
    state_size: int = 0
    written_size: int = 0


Answered: TypeAlias = Callable[[CompletedCheckpoint | None, str], None]


class CheckpointRunner:
    """Takes the checkpoints of one job, as its coordinator decides."""

    def __init__(
        self,
        plan: ExecutionGraph,
        config: JobConfig,
        job_id: JobId,
        *,
        store: CheckpointStore,
        versions: Versions,
        io: Io,
        clock: Clock,
        emit: Callable[[JobEvent], None],
        send: Callable[[SubtaskCommand], None],
        fail_attempt: Callable[[str], None],
        fenced: Callable[[], None],
        control: ControlPlane | None = None,
        open_store: Callable[[str | None], CheckpointStore] = store_for,
    ) -> None:
        """Prepare; ``control`` None means that the coordinator runs in this process."""
        self._open_store = open_store
        self._plan = plan
        self._config = config
        self._job_id = job_id
        self._layout = JobLayout(job_id)
        self._store = store
        self._versions = versions
        self._io = io
        self._clock = clock
        self._emit = emit
        self._send = send
        self._fail_attempt = fail_attempt
        self._fenced = fenced
        self.coordination: Coordination
        self._remote: RemoteCoordination | None = None
        if control is None:
            self.coordination = LocalCoordination(config.checkpoints, clock, self.execute)
        else:
            self._remote = RemoteCoordination(config.checkpoints, clock, control, self)
            self.coordination = self._remote
        self._is_fenced_off = False
        self._keeps_all = False  # Completed checkpoints may not be deleted (any more).
        self._everybody = tuple(sorted(CheckpointPlan.for_graph(plan).to_acknowledge()))
        self._started: AttemptNumber | None = None  # The newest attempt that took checkpoints.
        self._is_running = False  # That attempt still takes checkpoints.
        self._cleared_in: AttemptNumber | None = (
            None  # The attempt that last deleted withdrawn output.
        )
        self._open: dict[CheckpointId, int] = {}  # Triggered, no manifest commanded; since when.
        self._unsettled: set[CheckpointId] = set()  # Triggered; no ``CheckpointSettled`` yet.
        self._writing: set[CheckpointId] = set()  # Manifests whose outcome is not known.
        self._acks: dict[CheckpointId, dict[SubtaskId, OperatorAck]] = {}  # Of open checkpoints.
        self._written: dict[CheckpointId, _Written] = {}  # Manifest commanded, end not emitted.
        # The records that each source had emitted at a checkpoint, as far as known.
        self._source_records: dict[CheckpointId, dict[str, int]] = {}
        self._base_records: dict[str, int] = {}  # The same at the restored checkpoint.
        self._knows_all_records = True  # Source records count from the job's beginning.
        self._max_parallelism: Mapping[OperatorId, int] = {}
        self._newest_attempt = AttemptNumber(0)
        self._restored_from: CheckpointId | None = None
        self._lineage = UNKNOWN  # Of the restored checkpoint.
        self._claim: Claim | None = None
        self._targets: dict[CheckpointId, str] = {}  # Of savepoints, settled ones included.
        self._kinds: dict[CheckpointId, CheckpointKind] = {}  # Of those in ``_unsettled``.
        self._answers: dict[str, Answered] = {}  # By request.
        self._has_stopped = False  # A stop completed: nothing follows in this attempt.
        self._io_count = 0
        # Whether this driver completed a checkpoint that the job would restore after a failure.
        self.has_completed = False
        self._when_quiet: deque[Callable[[], None]] = deque()
        self._final_id: CheckpointId | None = None
        self._final_request: str | None = None  # The request of the final checkpoint.
        self._final_due_ms: int | None = None
        self._final_count = 0

    # Driving.

    @property
    def is_busy(self) -> bool:
        """Whether storage is being written or deleted."""
        return self._io_count > 0

    def next_due_ms(self) -> int | None:
        """The time at which ``tick`` is due next."""
        due = [self.coordination.next_due_ms(), self._final_due_ms]
        return min((d for d in due if d is not None), default=None)

    def tick(self) -> None:
        """Trigger and expire what is due."""
        now = self._clock.now_ms()
        if self._final_due_ms is not None and now >= self._final_due_ms:
            self._final_due_ms = None
            self.trigger_final()
        self.coordination.tick()
        self._check_quiet()

    def loaded(self, stored: CheckpointsRestored) -> None:
        """The storage was searched: give its checkpoints to the coordinator."""
        self._step(stored)

    def restored(self, choice: RestoreChoice) -> None:
        """The next attempt restores this choice."""
        manifest = choice.manifest
        self._base_records, self._knows_all_records = {}, True
        if manifest is not None:
            number = manifest.checkpoint_id
            self._knows_all_records = bool(manifest.source_records)
            known = manifest.source_records or self._source_records.get(number, {})
            uids = {op.uid for op in self._plan.graph.operators if op.is_source}
            self._base_records = {uid: int(n) for uid, n in known.items() if uid in uids}
            self._source_records[number] = self._base_records
        self._max_parallelism = choice.plan.max_parallelism
        self._restored_from = choice.checkpoint_id
        self._lineage = choice.lineage
        if choice.claim is not None:
            self._claim = choice.claim

    def begin_attempt(self, attempt: AttemptNumber) -> None:
        """An attempt of this driver begins; it fences older attempts of other drivers."""
        self._newest_attempt = attempt

    def start(self, attempt: AttemptNumber, jitter: float) -> None:
        """All subtasks run: start checkpointing.

        Units: ``jitter`` in [0, 1) sets the first checkpoint's delay between pause and interval.
        """
        pause = self._config.checkpoints.min_pause_ms
        interval = max(self._config.checkpoints.interval_ms or pause, pause)
        self._started, self._is_running, self._has_stopped = attempt, True, False
        self._kinds.clear()
        self._step(
            CheckpointingStarted(
                attempt,
                CheckpointPlan.for_graph(self._plan),
                first_delay_ms=pause + int(jitter * (interval - pause)),
                restored_from=self._restored_from,
                lineage=self._lineage,
            )
        )

    def stop(self, reason: FailureReason) -> None:
        """The attempt is over: abort the checkpoints under way."""
        self._final_due_ms = self._final_request = None
        if self._is_running and self._started is not None:
            self._is_running = False
            self._step(CheckpointingStopped(self._started, reason))

    def mark_fenced(self) -> None:
        """Another driver has taken the job over: its storage belongs to that one from now on."""
        self._is_fenced_off = True

    def check_fence(self) -> None:
        """Check that no other driver has begun an attempt after those of this one; does I/O.

        Raises:
            FencedError: Another driver has.
            StorageError: The storage failed.
        """
        names = self._store.list(self._layout.attempts)
        newest = max(map(self._layout.attempt_of, names), default=0)
        if newest > self._newest_attempt:
            raise FencedError(f"attempt {newest} of the job belongs to another driver")

    def job_ended(self, status: JobStatus) -> None:
        """The job is over: keep or delete its checkpoints."""
        if status is not JobStatus.FINISHED or self._is_fenced_off:
            if not self._is_fenced_off and self._newest_attempt:
                self._note_over()
            self._end(status)
            return

        def done(outcome: Exception | None) -> None:
            if outcome is not None:
                self._keeps_all = True
                text = f"the job's checkpoints stay, since its end could not be recorded: {outcome}"
                self._emit(Notice(self._clock.now_ms(), text))
            self._end(status)

        # Before its checkpoints are deleted: a driver that finds none would start from the
        # beginning.
        self._run(lambda: self._store.put(self._layout.finished, b""), done)

    def _note_over(self) -> None:
        """Record that no part of the job runs any more, until a driver runs it again."""
        path = self._layout.over(self._newest_attempt)

        def done(outcome: Exception | None) -> None:
            if isinstance(outcome, Exception):
                text = f"the job's end could not be recorded in its storage: {outcome}"
                self._emit(Notice(self._clock.now_ms(), text))

        self._run(lambda: self._store.put(path, b""), done)

    def _end(self, status: JobStatus) -> None:
        self._is_running = False
        self._step(JobEnded(status))

    def on_report(self, report: Acknowledged | Declined) -> None:
        """A chain acknowledged or declined.

        Raises:
            ProtocolError: No correct worker sends this report.
        """
        if (
            isinstance(report, Acknowledged)
            and report.checkpoint_id in self._open
            and report.attempt == self._started
        ):
            filed = self._acks.setdefault(report.checkpoint_id, {})
            filed.update((ack.subtask, ack) for ack in report.operators)
        self._step(report)

    def on_command(self, command: CoordinatorCommand) -> None:
        """Execute a command of the control plane; late and repeated ones change nothing."""
        assert self._remote is not None, "commands come from a control plane only"
        if not self._is_fenced_off:
            self._remote.handle_command(command)
            self._check_quiet()

    def request(
        self, request_id: str, kind: CheckpointKind, target: str | None, answered: Answered
    ) -> None:
        """Request a savepoint; ``answered`` is called once with its outcome.

        It is called with the completed savepoint, or with None and the reason why there is none.
        Library mode only: a control plane keeps its requests itself.
        """
        assert self._remote is None, "under a control plane requests are its own"
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
        if self._has_stopped:
            return  # The stop's savepoint was that checkpoint.
        if STOP_KINDS & set(self._kinds.values()):
            # A stop under way commits the tail as well. Should it fail, the retry triggers.
            self._final_due_ms = self._clock.now_ms() + FINAL_RETRY_MS
            return
        self._final_count += 1
        self._final_request = f"final-{self._final_count}"
        self._step(CheckpointRequested(self._final_request))

    def after_pending_manifest(self, action: Callable[[], None]) -> None:
        """Call ``action`` when no manifest is being written: now, or after the pending one."""
        self._when_quiet.append(action)
        self._check_quiet()

    def _check_quiet(self) -> None:
        if self.coordination.is_folding:
            return  # The next manifest may be commanded in a moment.
        while self._when_quiet and not self._writing:
            self._when_quiet.popleft()()

    def source_records(self, checkpoint_id: CheckpointId | None) -> int:
        """Records that the job's sources had emitted at a checkpoint; 0 where that is unknown."""
        known = {} if checkpoint_id is None else self._source_records.get(checkpoint_id, {})
        return sum(known.values())

    def _step(self, event: CoordinatorEvent) -> None:
        self.coordination.handle_event(event)
        self._check_quiet()

    # Commands.

    def execute(self, command: CoordinatorCommand) -> None:
        """Execute a command of the coordinator."""
        now = self._clock.now_ms()
        match command:
            case TriggerCheckpoint():
                self._announce(command, now)
                self._send(command)
            case CheckpointCompleted(checkpoint_id=checkpoint_id, final=is_stop):
                self._has_stopped = self._has_stopped or is_stop
                self._send(replace(command, final=is_stop or checkpoint_id == self._final_id))
                if (written := self._written.get(checkpoint_id)) is not None:
                    # Under the control plane no ``RecordCompleted`` comes before this command.
                    self._note_completed(checkpoint_id, now, now - written.since_ms)
            case CheckpointAborted(checkpoint_id=checkpoint_id):
                self._send(command)
                self.drop(checkpoint_id)
            case WriteManifest(pending):
                self._write_manifest(pending)
            case RecordCompleted(completed, request):
                duration = completed.completed_at_ms - completed.triggered_at_ms
                self._note_completed(completed.checkpoint_id, now, duration)
                self._answer(request.request_id, completed)
                self._use_claim(completed)
            case RecordAborted(pending, reason, cause):
                # By this driver's clock: the coordinator's may be another.
                since_ms = self._open.get(pending.checkpoint_id, pending.barrier.triggered_at_ms)
                duration = max(0, now - since_ms)
                self._tell_settled(
                    CheckpointSettled(now, pending.checkpoint_id, duration, reason, cause)
                )
                self.drop(pending.checkpoint_id)
                self._retry_final(pending.request.request_id, now)
                why = f"{reason}: {cause}" if cause else str(reason)
                self._answer(pending.request.request_id, None, why)
            case CheckpointRefused(request, reason):
                self._retry_final(request.request_id, now)
                self._answer(request.request_id, None, f"refused: {reason}")
                if request.request_id is not None:
                    self._emit(Notice(now, f"checkpoint refused: {reason}"))
            case DiscardHandles(handles):
                self._delete(handles)
            case DiscardPending(checkpoint_id):
                self._discard_pending(checkpoint_id)
            case DiscardCheckpoint(completed):
                # Once fenced, the checkpoint belongs to the driver that took over.
                if not self._is_fenced_off and not self._keeps_all:
                    self._discard(completed)
            case RecordAbandoned() | RecordReclaimed():
                pass
            case FailJob(_, cause):
                self._fail_attempt(cause)
            case _:
                assert_never(command)

    def _announce(self, command: TriggerCheckpoint, now: int) -> None:
        checkpoint_id = command.barrier.checkpoint_id
        self._open[checkpoint_id] = now
        self._unsettled.add(checkpoint_id)
        kind, target = command.barrier.options.kind, command.barrier.options.target
        self._kinds[checkpoint_id] = kind
        if target is not None:
            self._targets[checkpoint_id] = target
            _drop_oldest(self._targets, REMEMBERED_MAX)
        self._emit(CheckpointTriggered(now, checkpoint_id, kind, self._everybody))

    def _note_completed(self, checkpoint_id: CheckpointId, now: int, duration_ms: int) -> None:
        written = self._written.pop(checkpoint_id, None) or _Written(0)
        self._tell_settled(
            CheckpointSettled(
                now,
                checkpoint_id,
                duration_ms,
                state_size=written.state_size,
                written_size=written.written_size,
            )
        )

    def _tell_settled(self, settled: CheckpointSettled) -> None:
        """Emit it once: the control plane's command may repeat, or follow an abort made here."""
        if settled.checkpoint_id in self._unsettled:
            self._unsettled.remove(settled.checkpoint_id)
            self._kinds.pop(settled.checkpoint_id, None)
            self._emit(settled)

    def drop(self, checkpoint_id: CheckpointId) -> None:
        """Drop the acknowledgements and sizes kept of an aborted checkpoint."""
        self._open.pop(checkpoint_id, None)
        self._acks.pop(checkpoint_id, None)
        self._written.pop(checkpoint_id, None)
        self._kinds.pop(checkpoint_id, None)
        self._source_records.pop(checkpoint_id, None)

    def abort_locally(
        self, command: CheckpointAborted, triggered_at_ms: int, reason: FailureReason, cause: str
    ) -> None:
        """Tell the subtasks that a checkpoint is aborted, and emit the reason."""
        now = self._clock.now_ms()
        self.execute(command)
        settled = CheckpointSettled(
            now, command.checkpoint_id, now - triggered_at_ms, reason, cause
        )
        self._tell_settled(settled)

    def _retry_final(self, request_id: str | None, now: int) -> None:
        # Under the control plane the answer may arrive in another attempt than the one that
        # requested, whose subtasks have not ended.
        if request_id is not None and request_id == self._final_request and self._is_running:
            self._final_due_ms = now + FINAL_RETRY_MS

    # Storage.

    def _write_manifest(self, pending: PendingCheckpoint) -> None:
        checkpoint_id = pending.checkpoint_id
        acks = self._acks.pop(checkpoint_id, {})
        since_ms = self._open.pop(checkpoint_id, self._clock.now_ms())
        self._writing.add(checkpoint_id)
        is_checkpoint = pending.kind is CheckpointKind.CHECKPOINT
        if is_checkpoint and (pending.request.request_id or "").startswith("final-"):
            self._final_id = checkpoint_id
        self._source_records[checkpoint_id] = self._records_of(acks)
        self._written[checkpoint_id] = _Written(
            since_ms,
            sum(ack.metrics.state_size for ack in acks.values()),
            sum(ack.metrics.written_size for ack in acks.values()),
        )
        if self._remote is not None:
            _drop_oldest(self._source_records, REMEMBERED_MAX)
            _drop_oldest(self._written, REMEMBERED_MAX)
        took_ms = max(0, self._clock.now_ms() - since_ms)
        manifest = dump(self._manifest(pending, acks, took_ms))
        path, target = self._layout.manifest(checkpoint_id), pending.barrier.options.target

        def work() -> None:
            reach("manifest.before", id=checkpoint_id)
            self.check_fence()  # Before as well, or the successor finds its checkpoint id taken.
            if target is not None:
                self._write_own_manifest(pending, target, manifest)
                reach("savepoint.written", id=checkpoint_id)
            created = self._store.create_if_absent(path, manifest)
            self.check_fence()
            if not created:  # No newer driver exists, so an older one wrote it; that one stops.
                if target is not None:
                    self._discard_in(target, checkpoint_id, pending.attempt)
                raise IdTaken(f"an older driver of the job has written {path}")
            reach("manifest.written", id=checkpoint_id)

        def done(outcome: Exception | None) -> None:
            match outcome:
                case None:
                    self._manifest_settled(ManifestWritten(checkpoint_id), pending.kind)
                case FencedError():
                    self._fenced()  # First, or the failure would restart the job for a moment.
                    failed = ManifestFailed(checkpoint_id, str(outcome), may_exist=True)
                    self._manifest_settled(failed)
                case IdTaken():
                    failed = ManifestFailed(checkpoint_id, str(outcome), may_exist=True)
                    self._manifest_settled(failed)
                case error:
                    self._give_up(pending, path, manifest, str(error))

        self._run(work, done)

    def _write_own_manifest(self, pending: PendingCheckpoint, target: str, manifest: bytes) -> None:
        """Write the savepoint's own manifest, which makes it movable and takes its name."""
        mark = self._layout.savepoint_mark(pending.checkpoint_id, pending.attempt)
        self._store.put(mark, target.encode())
        if not self._open_store(target).create_if_absent(SAVEPOINT_MANIFEST, manifest):
            raise PlaceTaken(f"{target} holds a savepoint already; choose another name")

    def _manifest_settled(
        self, outcome: ManifestWritten | ManifestFailed, kind: CheckpointKind | None = None
    ) -> None:
        self._writing.discard(outcome.checkpoint_id)
        if isinstance(outcome, ManifestWritten):
            # A savepoint is a copy: a failed job would not be restored from it.
            is_copy = kind is CheckpointKind.SAVEPOINT
            self.has_completed = self.has_completed or not is_copy
            if is_copy and self._remote is not None:  # No ``CheckpointCompleted`` follows.
                self._step(outcome)
                written = self._written.get(outcome.checkpoint_id) or _Written(0)
                now = self._clock.now_ms()
                self._note_completed(outcome.checkpoint_id, now, now - written.since_ms)
                return
        self._step(outcome)

    def _give_up(self, pending: PendingCheckpoint, path: str, manifest: bytes, cause: str) -> None:
        """Writing the manifest failed: take its key with a tombstone, so that it cannot appear."""
        checkpoint_id = pending.checkpoint_id

        def taken() -> ManifestWritten | ManifestFailed:
            if self._store.read(path) == manifest:
                self.check_fence()
                return ManifestWritten(checkpoint_id)  # It was written after all.
            return ManifestFailed(checkpoint_id, cause, may_exist=True)

        self._write_tombstone(checkpoint_id, pending.attempt, cause, taken, pending.kind)

    def write_tombstone(
        self, checkpoint_id: CheckpointId, attempt: AttemptNumber, cause: str
    ) -> None:
        """Write a tombstone so that the manifest never appears, and report ``ManifestFailed``."""
        if checkpoint_id in self._writing or self._is_fenced_off:
            return  # Its outcome is under way; or its successor settles it.
        path = self._layout.manifest(checkpoint_id)
        self._writing.add(checkpoint_id)
        self.drop(checkpoint_id)

        def taken() -> ManifestFailed:
            is_tombstone = isinstance(load(self._store.read(path), path), Tombstone)
            return ManifestFailed(checkpoint_id, cause, may_exist=not is_tombstone)

        self._write_tombstone(checkpoint_id, attempt, cause, taken)

    def _write_tombstone(
        self,
        checkpoint_id: CheckpointId,
        attempt: AttemptNumber,
        cause: str,
        taken: Callable[[], ManifestWritten | ManifestFailed],
        kind: CheckpointKind | None = None,
    ) -> None:
        """Write a tombstone under the manifest's key; ``taken``: the outcome if the key exists."""

        def work() -> ManifestWritten | ManifestFailed:
            tombstone = Tombstone(
                job_id=self._job_id,
                checkpoint_id=checkpoint_id,
                attempt=attempt,
                given_up_ms=self._clock.now_ms(),
                reason=job_secrets.masker().text(cause),
            )
            self.check_fence()  # The key may be the successor's.
            path = self._layout.manifest(checkpoint_id)
            if self._store.create_if_absent(path, dump(tombstone)):
                return ManifestFailed(checkpoint_id, cause)
            return taken()

        def done(outcome: ManifestWritten | ManifestFailed | Exception) -> None:
            if isinstance(outcome, FencedError):
                self._fenced()
            if isinstance(outcome, Exception):
                outcome = ManifestFailed(checkpoint_id, cause, may_exist=True)
            self._manifest_settled(outcome, kind)

        self._run(work, done)

    def _records_of(self, acks: dict[SubtaskId, OperatorAck]) -> dict[str, int]:
        """The records that each source has emitted up to these acknowledgements."""
        uids = [op.uid for op in self._plan.graph.operators if op.is_source]
        total = {uid: self._base_records.get(uid, 0) for uid in uids}
        for subtask in self._plan.source_subtasks:
            if (ack := acks.get(subtask)) is not None:
                total[subtask.operator] += ack.metrics.records
        return {str(uid): count for uid, count in total.items()}

    def _manifest(
        self, pending: PendingCheckpoint, acks: dict[SubtaskId, OperatorAck], took_ms: int
    ) -> Manifest:
        return Manifest(
            job_id=self._job_id,
            job_name=self._plan.graph.name,
            checkpoint_id=pending.checkpoint_id,
            parent_id=pending.parent_id,
            kind=pending.kind,
            attempt=pending.attempt,
            triggered_ms=pending.barrier.triggered_at_ms,
            completed_ms=pending.barrier.triggered_at_ms + took_ms,  # One clock for both.
            versions=self._versions,
            operators=tuple(
                OperatorSummary(
                    op.uid,
                    job_secrets.masker().text(op.name),
                    op.parallelism,
                    self._max_parallelism[op.uid],
                    is_source=op.is_source,
                    files=op.files,
                )
                for op in self._plan.graph.operators
            ),
            acks=tuple(ack for _, ack in sorted(acks.items())),
            location=pending.barrier.options.target,
            source_records=self._records_of(acks) if self._knows_all_records else {},
        )

    def _discard_pending(self, checkpoint_id: CheckpointId) -> None:
        # The checkpoint belongs to the newest attempt that took any: the next one waits until it is
        # settled.
        assert self._started is not None
        attempt, target = self._started, self._targets.get(checkpoint_id)

        def work() -> None:
            if target is not None:
                self._discard_in(target, checkpoint_id, attempt)
            self._store.delete_prefix(self._layout.attempt_state(checkpoint_id, attempt))

        self._run(work, self._deleted)

    def _discard_in(self, target: str, checkpoint_id: CheckpointId, attempt: AttemptNumber) -> None:
        discard_savepoint(self._open_store(target), self._job_id, checkpoint_id, attempt)

    def _discard(self, completed: CompletedCheckpoint) -> None:
        checkpoint_id = completed.checkpoint_id
        self._source_records.pop(checkpoint_id, None)

        def work() -> None:
            self.check_fence()  # A driver that took over may be restoring from it.
            # The manifest first: without it the other files are no checkpoint to restore.
            self._store.delete(self._layout.manifest(checkpoint_id))
            self._store.delete_prefix(self._layout.checkpoint(checkpoint_id))

        def done(outcome: Exception | None) -> None:
            if outcome is None:
                now = self._clock.now_ms()
                self._emit(CheckpointsDiscarded(now, (checkpoint_id,)))
                self._delete_withdrawn(completed)
            self._deleted(outcome)

        self._run(work, done)

    def _delete_withdrawn(self, discarded: CompletedCheckpoint) -> None:
        """Delete withdrawn output that only the discarded branch could have put back.

        Once per attempt also without a branch, for output left over when earlier attempts failed.
        """
        if discarded.abandoned_at_ms is None and self._cleared_in == self._started:
            return
        self._cleared_in = self._started
        directories = {op.files for op in self._plan.graph.operators if op.files is not None}

        def work() -> None:
            self.check_fence()  # A driver that took over may be putting it back.
            up_to = discarded.checkpoint_id
            delete_unneeded(self._store, self._job_id, directories, up_to)

        def done(outcome: Exception | None) -> None:
            if outcome is not None:
                text = f"withdrawn output could not be deleted and stays: {outcome}"
                self._emit(Notice(self._clock.now_ms(), text))

        if directories:
            self._run(work, done)

    def _delete(self, handles: tuple[StateHandle, ...]) -> None:
        paths = [handle.path for handle in handles if handle.path is not None]

        def work() -> None:
            for path in paths:
                number = savepoint_id(path)
                if number is None:
                    self._store.delete(in_job(self._job_id, path))
                elif (target := self._targets.get(number)) is not None:
                    self._open_store(target).delete(path)

        if paths:
            self._run(work, self._deleted)

    def _use_claim(self, completed: CompletedCheckpoint) -> None:
        """Delete the claimed savepoint once the job retains enough checkpoints of its own."""
        claim, local = self._claim, self.coordination
        if claim is None or not isinstance(local, LocalCoordination):
            return  # A control plane deletes it itself.
        own = [c for c in local.state.completed if c.abandoned_at_ms is None]
        if sum(c.checkpoint_id > claim.checkpoint_id for c in own) < (
            self._config.checkpoints.retained_max
        ):
            return
        self._claim = None

        def work() -> None:
            self.check_fence()
            if claim.job_id == self._job_id:  # First, so that none restores it by its id any more.
                self._store.delete_prefix(self._layout.checkpoint(claim.checkpoint_id))
            store = self._open_store(claim.location)
            discard_savepoint(store, claim.job_id, claim.checkpoint_id, claim.attempt)

        self._run(work, self._deleted)

    def _deleted(self, outcome: Exception | None) -> None:
        if outcome is not None:
            now = self._clock.now_ms()
            self._emit(Notice(now, f"discarded state could not be deleted and stays: {outcome}"))

    def _run(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self._io_count += 1

        def finished(outcome: Any) -> None:
            self._io_count -= 1
            done(outcome)

        self._io(work, finished)


def _drop_oldest(kept: dict[CheckpointId, Any], keep_max: int) -> None:
    while len(kept) > keep_max:
        del kept[next(iter(kept))]
