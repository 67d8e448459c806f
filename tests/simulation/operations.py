"""The operator of a simulated job, who now and then asks for savepoints, stops and rollbacks.

The operations are those of ``weir.protocol.operations``, carried out in the transactions of the
simulated control plane. After every step of one a fault may be armed, so that over the seeds
everything dies between any two steps. What an operation must leave behind is checked when it ends.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from tests.simulation.cluster import STORAGE, FaultyStore
from tests.simulation.control_plane import MS, SimulatedControlPlane
from tests.simulation.pipelines import InvariantBroken
from weir.errors import WeirError
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.local.event_queue import EventQueue
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import JobStatus
from weir.protocol.messages import (
    CheckpointRefused,
    CheckpointRequested,
    CoordinatorCommand,
    RecordAborted,
    RecordCompleted,
)
from weir.protocol.operations import (
    Before,
    Begun,
    Checked,
    Fail,
    ForkRuns,
    JobReached,
    LaunchTick,
    NotChecked,
    NotSaved,
    OperationCommand,
    OperationEvent,
    OperationKind,
    OperationState,
    OutOfTime,
    Phase,
    Relaunch,
    Return,
    Save,
    Saved,
    SubmitFork,
    Succeed,
    advance,
)
from weir.protocol.pending import SAVEPOINT_KINDS, CompletedCheckpoint
from weir.protocol.wire import from_wire, to_wire
from weir.storage.layout import JobLayout, savepoint_location
from weir.storage.manifest import Manifest, load, verify

# Of the steps that are followed by a fault, while there were fewer than ``FAULTS_MAX``.
FAULT_SHARES = {
    Phase.CHECKING: 0.1,
    Phase.SAVING: 0.25,
    Phase.ENDING: 0.5,
    Phase.LAUNCH_DUE: 0.1,
    Phase.RELAUNCHING: 0.5,
    Phase.RETURN_DUE: 0.1,
    Phase.RETURNING: 0.5,
    Phase.FORKING: 0.9,
    Phase.DONE: 0.3,
}
FAULTS_MAX = 5
STEP_FAULTS = ("driver", "kill", "slot_lost", "away", "two_drivers")
LONGEST_MS = 20_000  # An operation that takes longer never ends.


class Operated(Protocol):
    """The job, as its operator sees it."""

    job_id: JobId
    is_done: bool  # It has ended, and not by a stop.

    def finished(self) -> str | None:
        """The job ended well: the savepoint of the stop that ended it; None: all was done."""

    def relaunch(self, *, rescaled: bool, returned: bool = False) -> None:
        """End the driver and start the next one; older ones may linger."""

    def halt(self) -> None:
        """End the driver; none follows, as of a program that raises before it has a job."""

    def fork(self, uri: str) -> None:
        """Submit another job that begins with this."""

    def strike(self, action: str, point: str) -> bool:
        """Have a fault strike now; False where there is nothing to strike."""


@dataclass(slots=True)
class Operation:
    """One that was accepted."""

    name: str
    state: OperationState
    began_ms: int
    target: str | None = None  # Of the savepoint that it takes.
    is_taken: bool = False  # The target is in use.
    end: Succeed | Fail | None = None

    def upgrades_from(self, uri: str) -> bool:
        """Whether this is an upgrade that takes its savepoint there."""
        is_upgrade = self.state.kind is OperationKind.UPGRADE
        return is_upgrade and self.target == uri and not self.is_taken


class SimulatedOperator:
    """Asks for operations, and folds into them what happens to the job."""

    def __init__(
        self,
        job: Operated,
        control: SimulatedControlPlane,
        *,
        events: EventQueue,
        store: FaultyStore,
        rng: random.Random,
        note: Callable[[str], None],
        happened: Counter[str],
        asks: int,
        is_faulty: bool,
    ) -> None:
        self.restore: str | None = None  # Where the job's next driver begins.
        self.status = JobStatus.CREATED
        self.stopped_with: str | None = None  # The job ended by a stop with this savepoint.
        self.savepoints: dict[CheckpointId, str] = {}  # That were taken, and where.
        self.deleted: set[CheckpointId] = set()  # As the operator asked for it.
        self.operations: list[Operation] = []
        self.forks_wanted = 0
        self._restore_since = AttemptNumber(0)  # The attempt that did not begin there yet.
        self._job = job
        self._control = control
        self._events = events
        self._store = store
        self._rng = rng
        self._note = note
        self._happened = happened
        self._asks = asks
        self._is_faulty = is_faulty
        self._changes_mind = rng.random() < 0.4  # Goes back and on again, mostly.
        self._waiting: deque[tuple[Operation, OperationEvent]] = deque()
        self._is_folding = False
        self._faults = 0
        control.listener = self
        self._ask_later()

    # Asking.

    def _ask_later(self) -> None:
        if self._asks > 0:
            self._asks -= 1
            delay_ms = self._rng.randint(3, 30)
            self._events.after(delay_ms * MS, lambda: self._control.when_there(self._ask))

    def _ask(self) -> None:
        if self._job.is_done and not self._rng.random() < 0.3:
            return
        is_busy = any(operation.end is None for operation in self.operations)
        is_quiet = self.status in (JobStatus.RUNNING, JobStatus.FINISHED) and not is_busy
        is_early = self._changes_mind and len(self._control.state.completed) < 2
        is_quiet = is_quiet and (self._job.is_done or not is_early)
        if self.stopped_with is not None or (not is_quiet and self._rng.random() < 0.8):
            self._asks += 1  # Most wait until the job runs and no operation is open.
            self._ask_later()
            return
        if self._rng.random() < 0.12:
            self._delete_savepoint()
        elif (operation := self._wanted()) is not None:
            self._begin(operation)
        self._ask_later()

    def _wanted(self) -> Operation | None:
        rng = self._rng
        name = f"operation-{len(self.operations) + 1}"
        target: str | None = savepoint_location(STORAGE, self._job.job_id, name)
        is_taken = bool(self.savepoints) and rng.random() < 0.25
        if is_taken:
            target = rng.choice(list(self.savepoints.values()))
        kinds = [OperationKind.ROLLBACK] * (4 if len(self._control.state.completed) > 1 else 1)
        if not self._job.is_done:
            kinds += [OperationKind.SAVEPOINT] * 2
            kinds += [OperationKind.STOP] * 2 + [OperationKind.RESCALE]
            kinds += [OperationKind.UPGRADE] * 2
            kinds += [OperationKind.FORK] * (self.forks_wanted == 0)
        kind = rng.choice(kinds)
        if rng.random() < 0.6 and (self._changes_mind or self._abandoned()):
            kind = OperationKind.ROLLBACK  # One that goes on again, more often than not.
        restore = None
        if kind is OperationKind.ROLLBACK:
            restore = self._somewhere()
            if restore is None:
                return None
        if kind is OperationKind.FORK and self.savepoints and rng.random() < 0.5:
            restore = rng.choice(list(self.savepoints.values()))
        if restore is not None or kind is OperationKind.RESCALE:
            target, is_taken = None, False
        state = OperationState(kind, drains=rng.random() < 0.5, restore=restore)
        if kind is OperationKind.UPGRADE:
            state = replace(state, before=Before(), checks=rng.random() < 0.5)
        return Operation(name, state, self._control.now_ms, target, is_taken)

    def _somewhere(self) -> str | None:
        """A checkpoint or savepoint that the job could go back to, or on to."""
        completed, abandoned = self._control.state.completed, self._abandoned()
        if abandoned and self._rng.random() < 0.7:
            return self._rng.choice(abandoned)
        candidates = [*map(self._uri, completed), *self.savepoints.values()]
        if completed and self._rng.random() < 0.5:
            return candidates[0]  # The further back the more is abandoned.
        return self._rng.choice(candidates) if candidates else None

    def _abandoned(self) -> list[str]:
        completed = self._control.state.completed
        return [self._uri(c) for c in completed if c.abandoned_at_ms is not None]

    def _begin(self, operation: Operation) -> None:
        if busy := [o for o in self.operations if o.end is None]:
            self._happened["refused as another one was under way"] += 1
            self._note(f"{operation.state.kind} is refused: {busy[0].name} is under way")
            return
        self.operations.append(operation)
        self._happened[f"{operation.state.kind} began"] += 1
        if operation.state.restore in self._abandoned():
            self._happened["rolled forward again"] += 1
        if operation.is_taken:
            self._happened["savepoint under a name in use"] += 1
        self._note(f"{operation.name} begins: {operation.state}")
        is_running = self._control.state.plan is not None
        self._tell(operation, Begun(is_running))
        if operation.state.phase is Phase.CHECKING:
            self._later(lambda: self._check(operation))
        if self._rng.random() < 0.1:
            self._hurry(operation, self._rng.randint(1, 60))

    def _hurry(self, operation: Operation, deadline_ms: int) -> None:
        self._happened["short deadline"] += 1

        def end() -> None:
            if not operation.state.error:  # Else its deadline has moved on.
                self._tell(operation, OutOfTime("too slow"))
                if operation.end is not None and self._control.withdraw(operation.name):
                    self._happened["request withdrawn"] += 1

        self._events.after(deadline_ms * MS, lambda: self._control.when_there(end))

    def _later(self, act: Callable[[], None]) -> None:
        delay_ms = self._rng.randint(1, 15)
        self._events.after(delay_ms * MS, lambda: self._control.when_there(act))

    def _check(self, operation: Operation) -> None:
        """The preview of an upgrade's pipeline has an answer."""
        if self._rng.random() < 0.1:
            self._happened["upgrade refused"] += 1
            self._tell(operation, NotChecked("its state cannot be mapped"))
        else:
            self._tell(operation, Checked(self._control.state.plan is not None))

    def _delete_savepoint(self) -> None:
        state = self._control.state
        newest = max(state.latest_completed_id or 0, state.base_id or 0)  # To come back to.
        free = [n for n, uri in self.savepoints.items() if uri != self.restore and n < newest]
        busy = any(o.end is None for o in self.operations)
        if not free or busy or self.forks_wanted or self.status is not JobStatus.RUNNING:
            return
        number = self._rng.choice(free)
        self._happened["savepoint deleted"] += 1
        self._note(f"savepoint {number} is deleted")
        self.deleted.add(number)
        location = self.savepoints.pop(number)
        layout = JobLayout(self._job.job_id)
        self._store.delete(layout.manifest(number))
        self._store.sweep(location[len(STORAGE) :].strip("/"))
        self._store.sweep(layout.checkpoint(number))

    # What happens.

    def decided(self, command: CoordinatorCommand) -> None:
        """The coordinator decided something."""
        match command:
            case RecordCompleted(completed, request):
                uri = self._uri(completed)
                if completed.kind in SAVEPOINT_KINDS:
                    self.savepoints[completed.checkpoint_id] = uri
                if completed.kind is not CheckpointKind.SAVEPOINT:
                    self._went_on(completed)
                self._answer(request.request_id, Saved(uri))
            case RecordAborted(pending, reason, cause):
                self._answer(pending.request.request_id, NotSaved(f"{reason} {cause}"))
            case CheckpointRefused(request, reason):
                self._answer(request.request_id, NotSaved(f"{reason}"))
            case _:
                pass

    def folded(self) -> None:
        """The coordinator has folded an event: what it decided goes into the operations."""
        if self._is_folding:
            return
        self._is_folding = True
        while self._waiting:
            self._fold(*self._waiting.popleft())
        self._is_folding = False

    def reached(self, status: JobStatus, cause: str) -> None:
        """The job's newest driver said that it reached this status."""
        self.status = status
        for operation in self.operations:
            if operation.end is None:
                self._tell(operation, JobReached(status, cause))
        if status is JobStatus.FINISHED and (stopped_with := self._job.finished()):
            self.stopped(stopped_with)

    def begins_with(self, checkpoint_id: CheckpointId) -> bool:
        """Whether the job's next driver is to begin with this checkpoint."""
        return self.restore is not None and self.restore.endswith(f"/chk-{checkpoint_id}")

    def _went_on(self, completed: CompletedCheckpoint) -> None:
        """From here on the job goes on from its newest."""
        if self.restore is not None and completed.attempt > self._restore_since:
            self.restore = None

    def _uri(self, completed: CompletedCheckpoint) -> str:
        if completed.kind in SAVEPOINT_KINDS:
            location = self._store.written[self._job.job_id, completed.checkpoint_id].location
            assert location is not None
            return location
        return f"{STORAGE}/{self._job.job_id}/chk-{completed.checkpoint_id}"

    def _answer(self, request_id: str | None, event: OperationEvent) -> None:
        for operation in self.operations:
            if operation.name == request_id:
                self._waiting.append((operation, event))

    def _tell(self, operation: Operation, event: OperationEvent) -> None:
        self._waiting.append((operation, event))
        self.folded()

    def _fold(self, operation: Operation, event: OperationEvent) -> None:
        before = operation.state
        step = advance(before, event)
        # As it is stored, and read by the handler of the next event.
        operation.state = from_wire(OperationState, to_wire(step.state))
        for command in step.commands:
            self._carry_out(operation, command)
        if step.state.phase is not before.phase:
            self._note(f"{operation.name} is {step.state.phase}: {step.commands}")
            self._arm(f"{before.kind}.{step.state.phase}", FAULT_SHARES[step.state.phase])
            if step.state.phase in (Phase.LAUNCH_DUE, Phase.RETURN_DUE):
                self._later(lambda: self._tell(operation, LaunchTick()))
            if step.state.phase in (Phase.ENDING, Phase.RELAUNCHING) and self._rng.random() < 0.1:
                self._hurry(operation, self._rng.randint(0, 10))

    def _carry_out(self, operation: Operation, command: OperationCommand) -> None:
        match command:
            case Save(kind):
                self._control.fold(CheckpointRequested(operation.name, kind, operation.target))
            case Relaunch(restore):
                if restore is not None:
                    self.restore = restore
                    self._restore_since = self._control.newest_attempt()
                self.stopped_with = None
                kind = operation.state.kind
                if kind is OperationKind.UPGRADE and self._rng.random() < 0.3:
                    self._raises(operation)
                    return
                changes = kind in (OperationKind.RESCALE, OperationKind.UPGRADE)
                self._job.relaunch(rescaled=changes)
            case Return(_, _, restore):
                self._happened["taken back"] += 1
                if restore is not None:
                    self.restore = restore
                    self._restore_since = self._control.newest_attempt()
                self.stopped_with = None
                self._job.relaunch(rescaled=False, returned=operation.state.is_changed)
            case SubmitFork(restore):
                self.forks_wanted += 1
                self._job.fork(restore)
                self._tell(operation, ForkRuns())
            case Succeed() | Fail():
                if operation.end is not None:
                    raise InvariantBroken(f"{operation.name} ends twice: {command}")
                operation.end = command
                self._ended(operation, command)

    def _raises(self, operation: Operation) -> None:
        """The new pipeline of an upgrade raises before its job runs."""
        self._happened["upgrade to what does not run"] += 1
        self._job.halt()
        self.status = JobStatus.FAILED
        self._later(lambda: self._tell(operation, JobReached(JobStatus.FAILED, "it raised")))

    def _ended(self, operation: Operation, end: Succeed | Fail) -> None:
        kind, saved = operation.state.kind, operation.state.saved
        self._happened[f"{kind} {'succeeded' if isinstance(end, Succeed) else 'failed'}"] += 1
        if isinstance(end, Fail) and saved is not None:
            if saved not in end.error:
                raise InvariantBroken(f"{operation.name} took {saved}, and says only: {end.error}")
            self._happened["failed with its savepoint kept"] += 1
        if operation.state.has_returned:
            self._happened["runs again as before"] += 1
        if operation.is_taken and saved is not None:
            raise InvariantBroken(f"{operation.name} took the place of another savepoint")
        if saved is not None:
            self.check_whole(saved)

    def check_whole(self, uri: str) -> None:
        """Look whether a savepoint or checkpoint is there, and restorable.

        Raises:
            InvariantBroken: It is not.
        """
        try:
            if "/chk-" in uri:
                return  # A checkpoint of a rescale: let go as any other.
            directory = uri[len(STORAGE) :].strip("/")
            own = self._store.peek(f"{directory}/manifest")
            manifest = load(own, uri)
            assert isinstance(manifest, Manifest)
            key = JobLayout(manifest.job_id).manifest(manifest.checkpoint_id)
            if self._store.peek(key) != own:
                raise InvariantBroken(f"{uri} and {key} differ")
            verify(self._store.silent(), manifest, directory)
        except WeirError as error:
            raise InvariantBroken(f"{uri} is not whole: {error}") from error

    # Ending and beginning.

    def stopped(self, uri: str) -> None:
        """The job finished because of a stop: the operator will resume it, or an upgrade."""
        self.stopped_with = uri
        if upgrades := [o for o in self.operations if o.upgrades_from(uri)]:
            if upgrades[0].end is not None:
                raise InvariantBroken(f"{upgrades[0].name} has ended, and left the job stopped")
            return  # A tick launches it.
        self._happened["stopped"] += 1
        delay_ms = self._rng.randint(1, 40)
        self._events.after(delay_ms * MS, lambda: self._control.when_there(self._resume))

    def _resume(self) -> None:
        uri, self.stopped_with = self.stopped_with, None
        if uri is None:
            return
        if any(o.end is None for o in self.operations):
            self.stopped_with = uri
            self._events.after(MS, lambda: self._control.when_there(self._resume))
            return
        self._note(f"the job is resumed from {uri}")
        self._happened["resumed"] += 1
        self.restore, self._restore_since = uri, self._control.newest_attempt()
        self._job.relaunch(rescaled=self._rng.random() < 0.3)

    def _arm(self, point: str, share: float) -> None:
        if not self._is_faulty or self._faults >= FAULTS_MAX or self._rng.random() > share:
            return
        self._faults += 1
        action = self._rng.choice(STEP_FAULTS)
        delay_ns = 0 if self._rng.random() < 0.4 else self._rng.randint(0, 12 * MS)

        def strike(tries_left: int = 10) -> None:
            if self._job.strike(action, point):
                self._happened[f"{point}: {action}"] += 1
            elif tries_left and not self._job.is_done:  # Nothing to strike, as between two drivers.
                self._events.after(3 * MS, lambda: strike(tries_left - 1))

        self._events.after(delay_ns, strike)

    def check_end(self) -> None:
        """Everything ended, and every savepoint that was not deleted is whole.

        Raises:
            InvariantBroken: It is not so.
        """
        if open_ := [o for o in self.operations if o.end is None]:
            raise InvariantBroken(f"{open_[0].name} never ended: {open_[0].state}")
        if self.stopped_with is not None:
            raise InvariantBroken(f"the job was left stopped with {self.stopped_with}")
        for key, manifest in self._store.written.items():
            if key[0] != self._job.job_id or manifest.kind not in SAVEPOINT_KINDS:
                continue
            if key[1] not in self.deleted:
                assert manifest.location is not None
                self.check_whole(manifest.location)
                if key[1] not in self.savepoints:
                    raise InvariantBroken(f"savepoint {key[1]} is lost: no operation names it")
