"""A control plane in simulated time: the coordinator of one job, apart from its drivers.

Events reach it late and commands reach the driver late, some of them twice, but each in order. It
goes away now and then, for longer than checkpoints may take; then nothing moves between the two,
and each goes on by itself. It outlives drivers: it fences the older one, settles what that one may
have been writing, and launches the next.
"""

import random
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Protocol

from tests.simulation.cluster import STORAGE, FaultyStore, SimulatedCluster
from weir.config import CheckpointConfig
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.jobmaster.job_master import JobMaster
from weir.local.event_queue import Action, EventQueue, Latencies
from weir.protocol.coordinator import (
    CoordinatorState,
    Step,
    check_invariants,
    next_due_ms,
    reopened,
    step,
    withdraw,
)
from weir.protocol.driver_messages import DriverEvent
from weir.protocol.events import JobChanged
from weir.protocol.lifecycle import FailureReason, JobStatus
from weir.protocol.messages import (
    CheckpointGivenUp,
    CheckpointingStarted,
    CheckpointingStopped,
    CheckpointsRestored,
    CoordinatorCommand,
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    JobEnded,
    ManifestFailed,
    ManifestWritten,
    RecordAborted,
    Tick,
    TimeLost,
)
from weir.protocol.pending import PendingCheckpoint
from weir.storage.attempt_claims import ManagedClaim
from weir.storage.layout import (
    SAVEPOINT_MANIFEST,
    JobLayout,
    in_job,
    savepoint_state,
    within,
    writer_of_shared,
)
from weir.storage.manifest import Manifest, Tombstone, dump, load
from weir.storage.memory import MemoryStore
from weir.storage.shared_files import discard_checkpoint
from weir.storage.store import PathNotFoundError

AWAY_AFTER_MS = 10  # As long as a driver takes to notice.
REPEATED_SHARE = 0.05  # Of the commands.
MS = 1_000_000


class Listener(Protocol):
    """The operator of the job, told of decisions, events and statuses."""

    def decided(self, command: CoordinatorCommand) -> None:
        """The coordinator decided something."""

    def folded(self) -> None:
        """All that follows from an event was decided."""

    def reached(self, status: JobStatus, cause: str) -> None:
        """The job reached a status."""

    def begins_with(self, checkpoint_id: CheckpointId) -> bool:
        """Whether the job's next driver is to begin with this checkpoint."""


class SimulatedControlPlane:
    """The control plane of one job; ``note`` tells its story."""

    def __init__(
        self,
        job_id: JobId,
        config: CheckpointConfig,
        *,
        events: EventQueue,
        conditions: Latencies,
        store: FaultyStore,
        rng: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self.state = CoordinatorState(config=config)
        self.outages = 0
        self.given_up = 0  # Checkpoints that a driver gave up, as the control plane could not.
        self.withheld = 0  # Manifests whose command came too late.
        self.listener: Listener | None = None
        self._job_id = job_id
        self._layout = JobLayout(job_id)
        self._config = config
        self._events = events
        self._conditions = conditions
        self._store = store
        self._rng = rng
        self._note = note
        self._newest: DriverLink | None = None
        self._away_since_ms: int | None = None
        self._back_at_ms = 0
        self._heard = True  # From the driver, since the last outage: else nothing is ticked.
        self._tick_at_ms: int | None = None
        self._discarding: set[CheckpointId] = set()
        self._due: set[CheckpointId] = set()  # Of them those whose files are still there.
        self.reached_running: set[AttemptNumber] = set()
        self.let_go: set[CheckpointId] = set()  # Of a job that ended; it may be started again.
        self._aborted: dict[CheckpointId, PendingCheckpoint] = {}
        for _ in range(rng.choice([0, 1, 1, 2])):
            self._events.at(rng.randint(5, 200) * MS, self.go_away)

    @property
    def now_ms(self) -> int:
        """Wall clock."""
        return self._events.clock.now_ms()

    # Being away.

    @property
    def is_away(self) -> bool:
        """Whether nothing gets through."""
        return self._away_since_ms is not None

    def is_away_for(self) -> int:
        """For how many milliseconds already."""
        return 0 if self._away_since_ms is None else self.now_ms - self._away_since_ms

    def go_away(self) -> None:
        """Be away for a while."""
        if self.is_away or self.state.ended is not None:
            return
        self.outages += 1
        self._away_since_ms = self.now_ms
        lasts_ms = self._rng.randint(5, 400)
        self._back_at_ms = self.now_ms + lasts_ms
        self._note(f"the control plane is away for {lasts_ms} ms")
        self._events.after(lasts_ms * MS, self._come_back)

    def _come_back(self) -> None:
        away_ms = self.is_away_for()
        self._away_since_ms = None
        self._heard = self._newest is None
        self._note("the control plane is back")
        if self._newest is not None:
            self._newest.greet(away_ms)
        self._arm()

    def when_there(self, action: Action) -> None:
        """Do something, now or when the control plane is back."""
        if self.is_away:
            self._events.after(
                (self._back_at_ms - self.now_ms + 1) * MS, lambda: self.when_there(action)
            )
        else:
            action()

    # Drivers.

    def connect(self, cluster: SimulatedCluster) -> "DriverLink":
        """The line of a driver that was just launched; older ones are fenced."""
        older, self._newest = self._newest, DriverLink(self, cluster)
        if older is not None:
            older.fence()
            self._settle()
        if self.state.ended is not None:
            self.state = reopened(self.state, self._config)
        return self._newest

    def lost(self, link: "DriverLink") -> None:
        """A driver is gone; its successor is not there yet."""
        link.is_cut = True
        if link is self._newest:
            self._newest = None
            self._settle()

    def newest_attempt(self) -> AttemptNumber:
        """The newest attempt that was recorded."""
        names = MemoryStore.list(self._store, self._layout.attempts)
        return AttemptNumber(max(map(self._layout.attempt_of, names), default=0))

    def job_changed(self, status: JobStatus, cause: str) -> None:
        """The newest driver said how the job is."""
        if self.listener is not None:
            self.listener.reached(status, cause)

    def end(self, status: JobStatus) -> None:
        """The job ended, and its driver was gone before it had said so to the end."""
        if self.state.ended is None:
            self.fold(JobEnded(status))

    def fence(self, link: "DriverLink") -> None:
        """A driver is not the job's any more, and hears of it when it speaks next."""
        if link is self._newest:
            link.fence()
            self.lost(link)

    def is_newest(self, link: "DriverLink") -> bool:
        """Whether this driver speaks for the job."""
        return link is self._newest

    def _settle(self) -> None:
        """Stop the lost driver's attempt, and find out about a manifest it may have written."""
        if self.state.attempt:
            self.fold(CheckpointingStopped(self.state.attempt, FailureReason.JOB_FAILOVER))
        for pending in self.state.pending:
            path = self._layout.manifest(pending.checkpoint_id)
            cause = "its driver is gone"
            tombstone = Tombstone(
                job_id=self._job_id,
                checkpoint_id=pending.checkpoint_id,
                attempt=pending.attempt,
                given_up_ms=self.now_ms,
                reason=cause,
            )
            # Not the store's own methods: what those count and break is the drivers' storage.
            if MemoryStore.create_if_absent(self._store, path, dump(tombstone)):
                self.fold(ManifestFailed(pending.checkpoint_id, cause))
            elif isinstance(load(MemoryStore.read(self._store, path), path), Manifest):
                self.fold(ManifestWritten(pending.checkpoint_id))
            else:
                self.fold(ManifestFailed(pending.checkpoint_id, cause))

    # The coordinator.

    def fold(self, event: CoordinatorEvent) -> None:
        """Something happened."""
        if isinstance(event, CheckpointsRestored):
            kept = tuple(c for c in event.completed if c.checkpoint_id not in self._discarding)
            event = CheckpointsRestored(kept, event.next_id)
        self.given_up += isinstance(event, CheckpointGivenUp)
        if isinstance(event, CheckpointingStarted):
            self.reached_running.add(event.attempt)
        if isinstance(event, ManifestFailed) and "command to write its manifest" in event.cause:
            self.withheld += self.state.find_pending(event.checkpoint_id) is not None
        done = step(self.state, event, self.now_ms)
        if done.state.ended is not None:
            gone = (c.checkpoint for c in done.commands if isinstance(c, DiscardCheckpoint))
            self.let_go.update(checkpoint.checkpoint_id for checkpoint in gone)
        self._take(done)

    def withdraw(self, request_id: str) -> bool:
        """An operation is out of time; whether its request still waited or ran."""
        done = withdraw(self.state, request_id, "too slow", self.now_ms)
        self._take(done)
        return bool(done.commands)

    def _take(self, done: Step) -> None:
        check_invariants(done.state)
        self.state = done.state
        for command in done.commands:
            self._carry_out(command)
            if self.listener is not None:
                self.listener.decided(command)
        if self.listener is not None:
            self.listener.folded()
        self._discard()
        self._arm()

    def heard(self, away_ms: int = 0) -> None:
        """The driver gave a sign of life."""
        if away_ms:
            self.fold(TimeLost(away_ms))
        self._heard = True
        self._arm()

    def _carry_out(self, command: CoordinatorCommand) -> None:
        match command:
            case DiscardCheckpoint(completed):
                number = completed.checkpoint_id
                self._discarding.add(number)
                self._later(lambda: self._discard(number))
            case DiscardPending(checkpoint_id):
                aborted = self._aborted[checkpoint_id]
                for directory in self._written_by(aborted):
                    self._later(partial(self._store.sweep, directory))
            case DiscardHandles(handles):
                for path in [h.path for h in handles if h.path is not None]:
                    if writer_of_shared(path) is None:  # Others' are among these.
                        self._later(partial(self._store.delete, in_job(self._job_id, path)))
            case _:
                if isinstance(command, RecordAborted):
                    self._aborted[command.checkpoint.checkpoint_id] = command.checkpoint
                if self._newest is not None:
                    self._newest.send(command)

    def _discard(self, *numbers: CheckpointId) -> None:
        """Delete checkpoints that are due, but for one that the next driver is to begin with."""
        self._due.update(numbers)
        for number in sorted(self._due):
            if self.listener is None or not self.listener.begins_with(number):
                self._due.remove(number)
                discard_checkpoint(self._store.reliable(), self._job_id, number)

    def _written_by(self, aborted: PendingCheckpoint) -> list[str]:
        """The directories that hold what was written of a checkpoint that came to nothing."""
        number, attempt, target = aborted.checkpoint_id, aborted.attempt, aborted.request.target
        if target is None:
            return [
                self._layout.shared_state(number, attempt),
                self._layout.attempt_state(number, attempt),
            ]
        directory = target[len(STORAGE) :].strip("/")
        own = within(directory, SAVEPOINT_MANIFEST)
        with suppress(PathNotFoundError):
            manifest = load(self._store.peek(own), own)
            if isinstance(manifest, Manifest) and manifest.checkpoint_id == number:
                self._later(partial(self._store.delete, own))
        return [within(directory, savepoint_state(number, attempt))]

    def _later(self, action: Action) -> None:
        self._events.after(self._conditions.delay_ns("io"), action)

    def _arm(self) -> None:
        due_ms = next_due_ms(self.state)
        if due_ms is None or self.is_away or not self._heard:
            return
        if self._tick_at_ms is not None and self._tick_at_ms <= due_ms:
            return
        self._tick_at_ms = due_ms

        def tick() -> None:
            if self._tick_at_ms == due_ms:
                self._tick_at_ms = None
                if not self.is_away and self._heard and self._newest is not None:
                    self.fold(Tick())

        self._events.after(max(0, due_ms - self.now_ms) * MS, tick)

    # For the links.

    def after(self, what: str, action: Action) -> None:
        """Do something after a delay of this kind."""
        self._events.after(self._conditions.delay_ns(what), action)

    def is_repeated(self) -> bool:
        """Whether a command comes twice."""
        return self._rng.random() < REPEATED_SHARE


class DriverLink:
    """Between the control plane and one driver; for the job master it is the control plane."""

    def __init__(self, control: SimulatedControlPlane, cluster: SimulatedCluster) -> None:
        self.is_cut = False
        self.claim = ManagedClaim("simulated", "").dump()
        self._control = control
        self._cluster = cluster
        self._up: deque[CoordinatorEvent | JobChanged] = deque()
        self._down: deque[CoordinatorCommand] = deque()
        self._away_ms = 0

    @property
    def is_away(self) -> bool:
        """Whether the driver has noticed that the control plane does not answer."""
        return self._control.is_away_for() >= AWAY_AFTER_MS

    def post(self, event: DriverEvent) -> None:
        """An event sets out; of what else the job tells, nothing is decided by."""
        if isinstance(event, CoordinatorEvent):
            self._send_up(event)

    def changed(self, event: JobChanged) -> None:
        """The job reached a status, which its driver tells, the last one too."""
        self._send_up(event)

    def _send_up(self, event: CoordinatorEvent | JobChanged) -> None:
        self._up.append(event)
        self._control.after("report", lambda: self._control.when_there(self._deliver))

    def greet(self, away_ms: int) -> None:
        """The control plane is back: a sign of life reaches it, which says how long that took."""
        self._away_ms += away_ms
        self._control.after("report", lambda: self._control.when_there(self._deliver))

    def _deliver(self) -> None:
        if self.is_cut or not self._cluster.driver_alive:
            return
        away_ms, self._away_ms = self._away_ms, 0
        self._control.heard(away_ms)
        while self._up and not self.is_cut:
            event = self._up.popleft()
            if isinstance(event, JobChanged):
                self._control.job_changed(event.status, event.cause)
            else:
                self._control.fold(event)

    def send(self, command: CoordinatorCommand) -> None:
        """A command sets out."""
        self._down.append(command)
        if self._control.is_repeated():
            self._down.append(command)
        self._control.after("command", lambda: self._control.when_there(self._obey))

    def _obey(self) -> None:
        while self._down and not self.is_cut:
            self._cluster.enter(partial(self._master.on_command, self._down.popleft()))

    def fence(self) -> None:
        """Another driver was launched: this one hears of it when it speaks next."""
        self.is_cut = True
        self._control.after(
            "command",
            lambda: self._control.when_there(
                lambda: self._cluster.enter(lambda: self._master.fence("fenced"))
            ),
        )

    @property
    def _master(self) -> JobMaster:
        assert self._cluster.master is not None
        return self._cluster.master
