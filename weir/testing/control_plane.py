"""A control plane in simulated time: the coordinator of one job, apart from its drivers.

Events reach it late and commands reach the driver late, some of them twice, but each in order. It
goes away now and then, for longer than checkpoints may take; then nothing moves between the two,
and each goes on by itself. It outlives drivers: it fences the older one, settles what that one may
have been writing, and launches the next.
"""

import random
from collections import deque
from collections.abc import Callable
from functools import partial

from weir.config import CheckpointConfig
from weir.ids import AttemptNumber, CheckpointId, JobId
from weir.protocol.coordinator import (
    CoordinatorState,
    check_invariants,
    next_due_ms,
    reopened,
    step,
)
from weir.protocol.lifecycle import FailureReason
from weir.protocol.messages import (
    CheckpointGivenUp,
    CheckpointingStopped,
    CheckpointsRestored,
    CoordinatorCommand,
    CoordinatorEvent,
    DiscardCheckpoint,
    DiscardHandles,
    DiscardPending,
    ManifestFailed,
    ManifestWritten,
    RecordAborted,
    Tick,
    TimeLost,
)
from weir.runtime.in_process import Action, Conditions, EventQueue
from weir.runtime.job_master import JobMaster
from weir.storage.layout import JobLayout, in_job
from weir.storage.manifest import Manifest, Tombstone, dump, load
from weir.storage.memory import MemoryStore
from weir.testing.cluster import SimulatedCluster

AWAY_AFTER_MS = 10  # As long as a driver takes to notice.
REPEATED_SHARE = 0.05  # Of the commands.
MS = 1_000_000


class SimulatedControlPlane:
    """The control plane of one job; ``note`` tells its story."""

    def __init__(
        self,
        job_id: JobId,
        config: CheckpointConfig,
        *,
        events: EventQueue,
        conditions: Conditions,
        store: MemoryStore,
        rng: random.Random,
        note: Callable[[str], None],
    ) -> None:
        self.state = CoordinatorState(config=config)
        self.outages = 0
        self.given_up = 0  # Checkpoints that a driver gave up, as nobody else could.
        self.withheld = 0  # Manifests that were asked for too late.
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
        self._attempt_of: dict[CheckpointId, AttemptNumber] = {}  # Of aborted checkpoints.
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
        if isinstance(event, ManifestFailed) and "asked for" in event.cause:
            self.withheld += self.state.find_pending(event.checkpoint_id) is not None
        done = step(self.state, event, self.now_ms)
        check_invariants(done.state)
        self.state = done.state
        for command in done.commands:
            self._carry_out(command)
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
                self._discarding.add(completed.checkpoint_id)
                directory = self._layout.checkpoint(completed.checkpoint_id)
                manifest = self._layout.manifest(completed.checkpoint_id)
                self._later(lambda: MemoryStore.delete(self._store, manifest))
                self._later(lambda: MemoryStore.delete_prefix(self._store, directory))
            case DiscardPending(checkpoint_id):
                attempt = self._attempt_of[checkpoint_id]
                directory = self._layout.attempt_state(checkpoint_id, attempt)
                self._later(lambda: MemoryStore.delete_prefix(self._store, directory))
            case DiscardHandles(handles):
                for path in [h.path for h in handles if h.path is not None]:
                    self._later(
                        partial(MemoryStore.delete, self._store, in_job(self._job_id, path))
                    )
            case _:
                if isinstance(command, RecordAborted):
                    aborted = command.checkpoint
                    self._attempt_of[aborted.checkpoint_id] = aborted.attempt
                if self._newest is not None:
                    self._newest.send(command)

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
        self._control = control
        self._cluster = cluster
        self._up: deque[CoordinatorEvent] = deque()
        self._down: deque[CoordinatorCommand] = deque()
        self._away_ms = 0

    @property
    def is_away(self) -> bool:
        """Whether the driver has noticed that the control plane does not answer."""
        return self._control.is_away_for() >= AWAY_AFTER_MS

    def post(self, event: CoordinatorEvent) -> None:
        """An event sets out."""
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
        while self._up:
            self._control.fold(self._up.popleft())

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
