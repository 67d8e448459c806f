"""A whole life of a job from one number: random pipeline, random delays, random faults.

Everything that production runs (worker, subtask, gates, credit, barrier handlers, snapshotter,
coordinator, job master, recovery) runs here too, on a clock, lines, storage and processes that a
seed drives. The same seed gives the same run. After every step it is checked that

- a channel is blocked only while its subtask aligns a checkpoint, and exactly those it must be;
- a subtask that waits has no work, and the loop wakes it in time;
- the coordinator's state is one that may be;
- a completed checkpoint is a consistent cut: on every channel the receiver's snapshot holds as many
  records as the sender's says it sent before its own;
- nothing is committed for a checkpoint that is not durable;
- nothing failed but what a fault made fail;
- local copies of state stay within their bound, also where some are damaged before a worker comes;

and at the end that the job finished, that its committed output is what the pipeline must write
(lost, duplicated and out of order counted apart), that running totals only grew, and that nothing
is left over, nor any file in the storage but the job's own records.

With ``operations`` an operator also stops, resumes, rolls back, rescales, upgrades and forks it
(``tests.simulation.operations``). Then it is checked as well that

- every operation ends, once, and names the savepoint that it took;
- an attempt goes on from what it must: what the operator asked for, or the newest on its line;
- no file goes that a checkpoint needs which is retained, was abandoned not long ago or is gone back
  to, or a savepoint that was not deleted; and every such savepoint can be restored;
- what is committed at the end is what a job would have that never went wrong, the fork's likewise,
  and neither job touches a file of the other's.

``python -m tests.simulation.simulation SEED`` runs one seed again and prints its story.
"""

import argparse
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

from tests.simulation.clock import SimClock
from tests.simulation.cluster import (
    STORAGE,
    CheckpointKey,
    DriverKilled,
    FaultyStore,
    ProcessKilled,
    SimulatedCluster,
    SimulatedWorker,
    TriggerDeclined,
    TriggerLost,
)
from tests.simulation.control_plane import DriverLink, SimulatedControlPlane
from tests.simulation.lines import Lines
from tests.simulation.network import SeededConditions
from tests.simulation.operations import SimulatedOperator
from tests.simulation.pipelines import (
    GONE,
    InvariantBroken,
    Name,
    OutputLog,
    Row,
    random_pipeline,
)
from tests.simulation.waiting_subtasks import overlooked
from weir import fault_points
from weir.config import (
    ChannelConfig,
    CheckpointConfig,
    CheckpointingMode,
    JobConfig,
    RestartConfig,
    RestartStrategyKind,
    Retention,
    StateBackendKind,
    StateConfig,
)
from weir.errors import ProtocolError, WeirError
from weir.graph.logical import JobGraph
from weir.ids import AttemptNumber, ChannelId, CheckpointId, JobId, SubtaskId
from weir.jobmaster.coordination import LocalCoordination
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import InProcessWorker
from weir.local.event_queue import Action, EventQueue
from weir.protocol.coordinator import CoordinatorState, check_invariants
from weir.protocol.deployment import WorkerReport
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    CheckpointTriggered,
    JobChanged,
    JobEvent,
    Notice,
)
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import Acknowledged, Declined, Measurement, Report, SubtaskChanged
from weir.protocol.pending import STOP_KINDS
from weir.state import chains
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import SAVEPOINT_MANIFEST, JobLayout, parse_manifest_path
from weir.storage.local_directory import COPIES, LocalDirectory
from weir.storage.manifest import Tombstone, load
from weir.storage.memory import MemoryStore
from weir.worker.versions import installed_versions

# State that is so little would be written whole by nearly each checkpoint.
LITTLE_STATE: Mapping[str, Any] = {
    "CHANGES_MAX": 20.0,
    "CHANGES_LONG": 20.0,
    "CHANGES_FILES_LONG": 3,
    "TABLE_CHANGED_MAX": 1.0,
    "TABLE_CHANGES_LONG": 20.0,
    "TABLE_FILES_LONG": 4,
}
EVENTS_MAX = 40_000  # A run has some thousands; one that needs more does not come to its end.
JOB_ID = JobId("simulated")
INJECTED = "injected by the simulation"
SHARING = 0.1  # Of the runs: those whose checkpoints share files.
COPYING = 0.3  # Of the runs whose state lies in files: those whose slots keep copies of them.

# Where a fault may strike, what it may do there, and among how many hits its own is drawn.
POINTS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "source.poll": (("raise", "kill"), 40),
    "record": (("raise", "kill", "stop"), 120),
    "trigger.received": (("kill", "lose", "decline"), 12),
    "barrier.arrived": (("kill", "stop"), 40),
    "snapshot.before": (("kill", "raise"), 40),
    "snapshot.frozen": (("kill",), 40),
    "snapshot.write": (("kill", "raise"), 40),
    "channels.write": (("kill", "raise"), 20),
    "put.before": (("kill", "storage"), 40),
    "put.after": (("kill", "storage"), 40),
    "ack.before": (("kill",), 40),
    "ack.after": (("kill",), 40),
    "commit.before": (("kill",), 12),
    "commit.after": (("kill",), 12),
    "restore.before": (("kill", "raise"), 30),
    "read": (("storage",), 20),
    "delete": (("storage",), 6),
    "trigger.sent": (("driver",), 12),
    "completed.sent": (("driver",), 10),
    "aborted.sent": (("driver",), 6),
    "deploy.sent": (("driver",), 4),
    "manifest.before": (("driver", "storage"), 5),
    "manifest.written": (("driver", "storage"), 5),
    "create.before": (("driver", "storage"), 6),
    "create.after": (("driver", "storage"), 6),
}
OPERATION_POINTS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "own_manifest.before": (("driver", "storage"), 2),
    "own_manifest.after": (("driver", "storage"), 2),
    "final.sent": (("driver",), 3),
    "rewind.before": (("kill",), 4),
    "rewind.after": (("kill",), 4),
}
LATER = ("kill", "stop", "slot_lost", "slot_silent", "zombie", "driver", "two_drivers", "damage")


class SimulationFailed(AssertionError):
    """A run broke a promise; the message names its seed and how to see it again."""


@dataclass(slots=True)
class Outcome:
    """The result of one run."""

    seed: int
    mode: CheckpointingMode
    fired: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    attempts: int = 0
    completed: int = 0
    aborted: Counter[FailureReason] = field(default_factory=Counter)
    records: int = 0
    under_way: int = 0  # Stored with unaligned checkpoints.
    stood_still: int = 0  # Workers, at checkpoints that stop the world.
    restored: Counter[str] = field(default_factory=Counter)  # Attempts with such records.
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    operations: Counter[str] = field(default_factory=Counter)  # What became of them.
    tombstones: int = 0  # Left at the end, of checkpoints that were given up.
    # Bytes taken, copies damaged, and copies taken over from a lost slot.
    copies: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault to come: its action, and the hit of a point or the time at which it strikes."""

    action: str
    point: str | None = None  # None: at a time.
    hit: int = 0
    at_ms: int = 0

    def __str__(self) -> str:
        return f"{self.point or 'any time'}: {self.action}"


class Simulation:
    """One run."""

    def __init__(
        self,
        seed: int,
        *,
        faulty: bool = True,
        trace: bool = False,
        remote: bool = False,
        operations: bool = False,
    ) -> None:
        """Prepare.

        Args:
            remote: Put the coordinator into a control plane that may be away.
            operations: The same, and an operator asks for savepoints, stops, rollbacks and forks.
        """
        self.seed = seed
        self.job_id = JOB_ID
        self.trace: list[str] | None = [] if trace else None
        self.process: InProcessWorker | None = None
        self.driver: SimulatedCluster | None = None
        self._is_faulty = faulty
        self._with_operations = operations
        self._rng = rng = random.Random(seed)
        self._clock = SimClock(seed)
        self._events = EventQueue(self._clock)
        self._conditions = SeededConditions(random.Random(rng.random()))
        self._store = FaultyStore(self.reach)
        self._log = OutputLog(self.reach, self._is_durable)
        pace = 4 if operations else 1  # Slow enough for something to be asked for meanwhile.
        self._pipeline = random_pipeline(rng, self._log, self.reach, pace)
        self._config = _may_overtake(_random_config(rng), random.Random(f"overtaking {seed}"))
        self._config = _may_share(self._config, random.Random(f"sharing {seed}"))
        self._config = _may_copy(self._config, random.Random(f"copying {seed}"))
        if operations:
            ttl_ms = rng.choice([20, 60, 1_000_000, 1_000_000])
            retained = rng.choice([1, 2, 3, 4, 4])
            checkpoints = replace(
                self._config.checkpoints,
                abandoned_ttl_ms=ttl_ms,
                retained_max=retained,
                interval_ms=10,  # So that there is something to go back to.
            )
            self._config = replace(self._config, checkpoints=checkpoints)
        self._before: set[tuple[str, Name]] = set()  # A fork: what its origin wrote, per sink.
        self._forks: list[Fork] = []
        self._hits: Counter[str] = Counter()
        self._planned: dict[tuple[str, int], PlannedFault] = {}
        self.outcome = Outcome(seed, self._config.checkpoints.mode)
        self._prepare(self._pipeline.graph, remote=remote or operations)
        if not (operations or remote):
            self._store.is_needed = self._is_retained
        if operations:
            self._store.is_needed = self._is_needed_by_any
            self._store.is_foreign = self._is_foreign
            self._operate(asks=rng.randint(3, 7))
        if faulty:
            self._plan_faults()

    def _prepare(self, graph: JobGraph, *, remote: bool) -> None:
        """Make the parts that each job has to itself."""
        self._graph = graph
        self._applications: list[SimulatedCluster] = []
        self._sent: dict[tuple[int, int], dict[ChannelId, int]] = defaultdict(dict)
        self._received: dict[tuple[int, int], dict[ChannelId, int]] = defaultdict(dict)
        # Restored records that were left, by subtask and gate.
        self._backlog: dict[tuple[int, int], dict[tuple[SubtaskId, int], int]] = defaultdict(dict)
        self._checked: object = None  # The coordinator's state that was looked at last.
        self._attempts: dict[SimulatedCluster, AttemptNumber] = {}  # The newest of each.
        self._attempts_of: dict[SimulatedCluster, list[AttemptNumber]] = {}
        self._held_back: dict[CheckpointId, list[Action]] = defaultdict(list)
        self._open: set[tuple[SimulatedCluster, CheckpointId]] = set()  # Triggered, not settled.
        self._base_ids: dict[SimulatedCluster, CheckpointId | None] = {}  # Restored or completed.
        self._ended_by: SimulatedCluster | None = None
        self._finished_first: SimulatedCluster | None = None  # Heard of or not.
        self._damaged: set[int] = set()
        self._fell_back = False
        self._notices: list[str] = []
        self.is_done = False
        self.operator: SimulatedOperator | None = None
        self._graph_before: JobGraph  # What a job that is taken back runs.
        self._requested: dict[SimulatedCluster, CheckpointId] = {}  # What a driver was to restore.
        self._lines = Lines(self.job_id, self._store, self._clock)
        self._launching: set[SimulatedCluster] = set()  # Gone, and to be followed by another.
        self.control: SimulatedControlPlane | None = None
        self._links: dict[SimulatedCluster, DriverLink] = {}
        self._of_copies = random.Random(f"copies of {self.job_id} {self.seed}")
        self._copies: set[Path] = set()  # The directories of slots.
        if remote:
            # The rest is as without one.
            whose = "" if self.job_id == JOB_ID else f" of {self.job_id}"
            self.control = SimulatedControlPlane(
                self.job_id,
                self._config.checkpoints,
                events=self._events,
                conditions=self._conditions,
                store=self._store,
                rng=random.Random(f"control plane{whose} {self.seed}"),
                note=self._note,
            )

    def _operate(self, *, asks: int) -> None:
        assert self.control is not None
        self.operator = SimulatedOperator(
            self,
            self.control,
            events=self._events,
            store=self._store,
            rng=random.Random(f"operator of {self.job_id} {self.seed}"),
            note=self._note,
            happened=self.outcome.operations,
            asks=asks,
            is_faulty=self._is_faulty,
        )

    @property
    def keeps_copies(self) -> bool:
        """Whether the slots keep local copies of state files."""
        return self._config.state.local_copies

    # The run.

    def run(self) -> Outcome:
        """Run to the end and check everything.

        Raises:
            SimulationFailed: A promise was broken.
        """
        try:
            with (
                self._directory_of_copies(),
                patch.multiple(chains, **LITTLE_STATE),
                fault_points.listening(
                    lambda point, where: self._on_production_point(point, where)
                ),
            ):
                self._start_application()
                while self._events.run_next():
                    self.outcome.steps += 1
                    if self.outcome.steps > EVENTS_MAX:
                        raise InvariantBroken(
                            f"the job is {self._newest_master.status} after {EVENTS_MAX} events"
                        )
                for job in (self, *self._forks):
                    job._check_end()
        except (InvariantBroken, ProtocolError, AssertionError) as error:
            option = "--remote " if self.control is not None else ""
            option = "--operations " if self._with_operations else option
            raise SimulationFailed(
                f"seed {self.seed}: {error}\n"
                f"replay: python -m tests.simulation.simulation {option}{self.seed}"
            ) from error
        return self.outcome

    @contextmanager
    def _directory_of_copies(self) -> Iterator[None]:
        """The machine's directory, in which no other simulation deletes what slots abandon."""
        if not self.keeps_copies:
            yield
            return
        with TemporaryDirectory(prefix="weir-simulated-") as directory:
            state = replace(self._config.state, local_copies_directory=directory)
            self._config = replace(self._config, state=state)
            yield

    def _start_application(self) -> None:
        if self.operator is not None and self._applications:
            # What it may have been writing is settled before it is decided how its successor runs.
            self.control_plane.fence(self._links[self._newest])
        cluster = SimulatedCluster(
            self,
            self._graph,
            self._config,
            self.job_id,
            events=self._events,
            conditions=self._conditions,
            open_store=self._store.at,
        )
        self._applications.append(cluster)
        self._note(f"application {len(self._applications)} starts")
        if self.control is not None:
            self._links[cluster] = self.control.connect(cluster)
        master = JobMaster(
            self._graph,
            self._config,
            self.job_id,
            program=b"",
            store=self._store,
            versions=installed_versions(),
            cluster=cluster,
            clock=self._clock,
            emit=lambda event: self._on_event(cluster, event),
            collect=lambda *delivery: None,
            seed=self._rng.randrange(1 << 30),
            control=self._links.get(cluster),
            restore_from=self._request(cluster),
            open_store=self._store.at,
        )
        cluster.start(master)

    def _request(self, cluster: SimulatedCluster) -> RestoreRequest | None:
        """The restore request of the next driver."""
        uri = self.operator.restore if self.operator is not None else None
        if uri is None:
            return None
        self._note(f"it is to begin with {uri}")
        self._requested[cluster] = self._number_of(uri)
        return RestoreRequest.parse(uri)

    def _number_of(self, uri: str) -> CheckpointId:
        if "/chk-" in uri:
            return CheckpointId(int(uri.rpartition("-")[2]))
        directory = uri[len(STORAGE) :].strip("/")
        try:
            return load(self._store.peek(f"{directory}/{SAVEPOINT_MANIFEST}")).checkpoint_id
        except WeirError as error:
            raise InvariantBroken(f"{uri} is not whole: {error}") from error

    @property
    def control_plane(self) -> SimulatedControlPlane:
        """The job's control plane, where there is one."""
        assert self.control is not None
        return self.control

    @property
    def _last(self) -> SimulatedCluster:
        """The application whose result counts."""
        return self._ended_by or self._newest

    def _finisher(self, last: SimulatedCluster) -> SimulatedCluster:
        """The application that finished the job, where the ``last`` found that one had, unheard."""
        if last in self._base_ids:
            return last
        assert self._finished_first is not None
        return self._finished_first

    @property
    def _newest(self) -> SimulatedCluster:
        return self._applications[-1]

    @property
    def _newest_master(self) -> JobMaster:
        master = self._newest.master
        assert master is not None
        return master

    def _is_durable(self, checkpoint_id: int) -> bool:
        return (self.job_id, CheckpointId(checkpoint_id)) in self._store.written

    # Faults.

    def _plan_faults(self) -> None:
        rng = self._rng
        points, later = POINTS, list(LATER)
        if self._with_operations:
            # Damage would make the operator go back to a checkpoint that cannot be restored.
            later = [action for action in LATER if action != "damage"]
            points = OPERATION_POINTS if rng.random() < 0.4 else POINTS
        for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
            if rng.random() < 0.7:
                point = rng.choice(list(points))
                actions, hits = points[point]
                hit = 1 + int(rng.random() ** 1.5 * hits)
                fault = PlannedFault(rng.choice(actions), point, hit=hit)
                self._planned[point, hit] = fault
            else:
                fault = PlannedFault(rng.choice(later), at_ms=rng.randint(5, 120))
                self._events.at(fault.at_ms * 1_000_000, partial(self._strike, fault))
            self._note(f"planned: {fault}, hit {fault.hit}, at {fault.at_ms} ms")

    def reach(self, point: str) -> None:
        """A point of the protocol is reached; a fault may fire here by raising."""
        self._hits[point] += 1
        fault = self._planned.pop((point, self._hits[point]), None)
        if fault is None:
            return
        at_worker, at_driver = self.process is not None, self.driver is not None
        match fault.action:
            case "driver" if at_driver:
                self._fired(fault)
                raise DriverKilled
            case "storage":
                self._fired(fault)
                raise FaultyStore.failure(INJECTED)
            case "kill" if at_worker:
                self._fired(fault)
                raise ProcessKilled
            case "raise" if at_worker:
                self._fired(fault)
                raise RuntimeError(INJECTED)
            case "stop" if self.process is not None:
                self._fired(fault)
                self.process.stopped = True
            case "lose":
                self._fired(fault)
                raise TriggerLost
            case "decline":
                self._fired(fault)
                raise TriggerDeclined
            case _:  # Reached by another component: strike the next one.
                self._planned[point, self._hits[point] + 1] = fault

    def strike(self, action: str, point: str) -> bool:
        """Have a fault strike at a step of an operation."""
        before = self.outcome.fired.total()
        self._strike(PlannedFault(action, point))
        return self.outcome.fired.total() > before

    def _strike(self, fault: PlannedFault) -> None:
        """A fault that comes at a time rather than at a point."""
        cluster = self._newest
        if not cluster.driver_alive or self._newest_master.is_over or self._ended_by is not None:
            return
        workers = [p for p in cluster.processes.values() if p.alive and p.worker.subtasks]
        slots = [cluster.slots[i] for i in self._newest_master._slots if i in cluster.slots]
        match fault.action:
            case "driver":
                self._fired(fault)
                cluster.crash()
            case "two_drivers":
                self._fired(fault)
                self._start_application()
            case "away" if self.control is not None:
                self._fired(fault)
                self.control.go_away()
            case "damage":
                self._damage(fault)
            case "slot_lost" if slots:
                self._fired(fault)
                cluster.lose_slot(self._rng.choice(slots))
            case "slot_silent" if slots:
                self._fired(fault)
                silent = self._rng.choice(slots)
                cluster.silence_slot(silent)
                if silent.copies is not None:  # It hears of the job's end no more.
                    self._copies.discard(silent.copies.path)
            case "kill" if workers:
                self._fired(fault)
                cluster.kill(self._rng.choice(workers))
            case "stop" if workers:
                self._fired(fault)
                self._rng.choice(workers).stopped = True
            case "zombie" if workers:
                self._fired(fault)
                self._make_zombie(cluster, self._rng.choice(workers))

    def _make_zombie(self, cluster: SimulatedCluster, process: InProcessWorker) -> None:
        """Stop a process, replace its slot, let it go on beside its successor, then end it."""
        process.stopped = self._rng.random() < 0.5
        cluster.detach(process)

        def resume() -> None:
            process.stopped = False
            process.wake()

        self._events.after(self._rng.randint(5, 60) * 1_000_000, resume)
        self._events.after(self._rng.randint(60, 120) * 1_000_000, lambda: cluster.kill(process))

    def _damage(self, fault: PlannedFault) -> None:
        """Change a file of the newest checkpoint, and kill a worker so that it is needed."""
        intact = sorted(self._store.manifests(self.job_id))
        if len(intact) < 2 or self._damaged or len(self._applications) > 1:
            return
        newest = intact[-1]
        files = self._store.list(f"{self.job_id}/chk-{newest}")
        if len(self._store.list(f"{self.job_id}/chk-{intact[-2]}")) < 1 or not files:
            return
        path = self._rng.choice(files)
        data = self._store.peek(path)
        self._damaged.add(newest)
        self._fired(fault)
        self._note(f"damaged {path}")
        if self._rng.random() < 0.5 and not path.endswith("/manifest"):
            self._store.damage(path, None)
        else:
            self._store.damage(path, data[: len(data) // 2] + b"?" + data[len(data) // 2 + 1 :])
        workers = [p for p in self._newest.processes.values() if p.alive]
        if workers:
            self._newest.kill(self._rng.choice(workers))

    def _fired(self, fault: PlannedFault) -> None:
        self.outcome.fired[str(fault)] += 1
        where = self.process.pid if self.process is not None else "driver"
        self._note(f"FAULT {fault} (hit {self._hits[fault.point or '']}) at {where}")
        if self.control is not None and fault.action in ("lose", "stop"):
            self.control.go_away()  # So a held-up checkpoint cannot be expired by it.

    def worker_comes(self, copies: Path, taken_over: int) -> None:
        """Change, cut or delete some of the copies that the workers before it left."""
        self._copies.add(copies)
        self.outcome.copies["taken over"] += taken_over
        for file in sorted(copies.iterdir()):
            if self._of_copies.random() < 0.8:
                continue
            data = file.read_bytes()
            half = len(data) // 2
            match self._of_copies.choice(["change", "cut", "delete"]):
                case "change":
                    file.write_bytes(data[:half] + bytes([data[half] ^ 1]) + data[half + 1 :])
                case "cut":
                    file.write_bytes(data[:half])
                case "delete":
                    file.unlink()

    def copies_opened(self, copies: Path) -> None:
        """A worker has its slot's copies: they are within their bound."""
        size = sum(file.stat().st_size for file in copies.iterdir())
        if size > self._config.state.local_copies_bytes_max:
            raise InvariantBroken(f"local copies of a slot have {size} bytes")

    # What the cluster tells.

    def crashed(self, cluster: SimulatedCluster) -> None:
        """A driver died: its workers end with it or some time later, and a new one starts."""
        self._note("the driver died")
        for slot in cluster.slots.values():
            if slot.worker is None:
                slot.leave_copies()
            slot.alive = False
            slot.commands.cut = True
            slot.worker = None
        for process in list(cluster.processes.values()):
            delay_ms = 0 if self._rng.random() < 0.3 else self._rng.randint(1, 150)
            self._events.after(delay_ms * 1_000_000, partial(cluster.kill, process))
        self._open = {open_ for open_ in self._open if open_[0] is not cluster}
        has_ended = self._is_stopped or (self.is_done and cluster is self._newest)
        if has_ended and self.control is not None:
            # A managed driver posts the job's end last, once no I/O is under way.
            self.control.lost(self._links[cluster])
            self.control.end(JobStatus.FINISHED)
        elif cluster is self._newest and self._ended_by is None:
            self._launch_soon(cluster)

    @property
    def _is_stopped(self) -> bool:
        return self.operator is not None and self.operator.stopped_with is not None

    def _launch_soon(self, after: SimulatedCluster) -> None:
        if after not in self._launching:
            self._launching.add(after)
            self._events.after(self._rng.randint(1, 20) * 1_000_000, partial(self._launch, after))

    # For the operator of the job.

    def finished(self) -> str | None:
        """The job ended well: the savepoint of the stop that ended it; None: all was done."""
        last = self._finisher(self._newest)
        base_id = self._base_ids[last]
        manifest = None
        if base_id is not None:
            manifest = self._store.written[self.job_id, base_id]
        if manifest is not None and manifest.kind in STOP_KINDS:
            self._check_all_committed(last)
            return manifest.location
        self._ended_by, self.is_done = last, True
        for other in self._applications:
            if other is not last and other.driver_alive:
                other.crash()
        return None

    def relaunch(self, *, rescaled: bool, returned: bool = False) -> None:
        """End the driver and start the next one; the older may linger."""
        self._ended_by, self.is_done = None, False
        if rescaled:
            self._graph_before, self._graph = self._graph, self._rescaled()
        elif returned:
            self._graph = self._graph_before
        self._launch_soon(self._newest)
        self._end_driver()

    def halt(self) -> None:
        """End the driver; none follows, as of a program that raises before it has a job."""
        self._graph_before = self._graph
        self._ended_by, self.is_done = self._newest, False
        self._end_driver()

    def _end_driver(self) -> None:
        last = self._newest
        link = self._links[last]
        self.control_plane.lost(link)
        if last.driver_alive:
            if self._rng.random() < 0.3:
                link.fence()
            else:
                last.crash()

    def _rescaled(self) -> JobGraph:
        return self._pipeline.rescaled(self._rng)

    def fork(self, uri: str) -> None:
        """Submit another job that begins with this."""
        if self._rng.random() < 0.3:
            source, moved = uri[len(STORAGE) :].strip("/"), f"moved/{len(self._forks)}"
            self._store.copy(source, moved)
            self._note(f"{uri} is copied to {moved}")
            uri = f"{STORAGE}/{moved}"
            self.outcome.operations["fork of a savepoint that was moved"] += 1
        self._forks.append(Fork(self, uri))

    def _launch(self, after: SimulatedCluster) -> None:
        """Start the application that follows one that is gone."""
        self._launching.discard(after)
        control = self.control
        if control is None:
            self._start_application()
            return

        def recover() -> None:
            if (
                after is self._newest and self._ended_by is None
            ):  # Else a second one was started meanwhile.
                control.lost(self._links[after])
                self._start_application()

        control.when_there(recover)

    def orphaned(self, process: InProcessWorker, report: Report | WorkerReport) -> None:
        """A worker outlived its driver: what it says reaches the next one, some time.

        An acknowledgement does so at the worst of times: when the next driver, which knows only of
        checkpoints that left a trace, has given the same number to a checkpoint of its own.
        """

        def arrive() -> None:
            newest, master = self._newest, self._newest_master
            if newest.driver_alive and master._attempt.number != process.attempt:
                newest.enter(lambda: master.on_worker(process.slot_index, report))
            # An equal number was never recorded; its worker does not know the attempt's secret.

        if isinstance(report, Acknowledged):
            self._held_back[report.checkpoint_id].append(arrive)
        else:
            self._events.after(self._rng.randint(0, 60) * 1_000_000, arrive)

    def stepped(self, process: SimulatedWorker) -> None:
        """Look at every subtask of the worker, unless it has failed half way."""
        if process.worker._failed:
            return
        for subtask in process.worker.subtasks:
            if work := overlooked(subtask, process.worker._ready):
                raise InvariantBroken(f"{subtask.chain} waits for ever: it has {work}")
            handler = subtask._handler
            if handler is None:
                continue
            blocked = {c.id for c in subtask.inputs.channels.values() if c.blocked}
            if blocked and handler.aligning is None:
                raise InvariantBroken(f"{subtask.chain} blocks {blocked} while nothing aligns")
            if blocked != handler.blocked:
                raise InvariantBroken(
                    f"{subtask.chain} blocks {blocked}, its handler {set(handler.blocked)}"
                )

    def entered(self, cluster: SimulatedCluster) -> None:
        """Look at the coordinator."""
        master = cluster.master
        assert master is not None
        if self.control is not None:
            if master.left is not None and cluster.driver_alive and master.is_over:
                self._note(f"a driver leaves: {master.left}")
                cluster.crash()
            return  # The control plane looks by itself.
        state = self._coordinator_of(master)
        if state is not self._checked:
            self._checked = state
            check_invariants(state)

    def _coordinator_of(self, master: JobMaster) -> CoordinatorState:
        if self.control is not None:
            return self.control.state
        coordination = master._checkpoints._coordination
        assert isinstance(coordination, LocalCoordination)
        return coordination.state

    def _on_production_point(self, point: str, where: Mapping[str, Any]) -> None:
        if point == "snapshot.frozen":
            assert isinstance(self.process, SimulatedWorker)
            job = self.process.world
            assert isinstance(job, Simulation)
            job._note_cut(self.process, where["subtask"], where["id"])
        self.reach(point)

    def _note_cut(self, process: SimulatedWorker, chain: str, checkpoint_id: CheckpointId) -> None:
        """Count what a snapshot says was sent and received, per channel."""
        subtask = next(s for s in process.worker.subtasks if str(s.chain) == chain)
        cut = process.attempt, checkpoint_id
        for gate in subtask.outputs:
            for output in gate.channels:
                waiting = sum(_count(element) for element in output.overdraft)
                self._sent[cut][output.id] = process.records_sent[output.id] + waiting
        for channel in subtask.inputs.channels.values():
            waiting = sum(_count(element) for element in channel.queue)
            self._received[cut][channel.id] = process.records_delivered[channel.id] - waiting
        left = Counter(dict.fromkeys(range(len(subtask.inputs.gates)), 0))
        for channel, records in subtask.inputs._backlog:  # Not by what the snapshot reads it with.
            left[channel.gate_index] += records.count
        for gate_index, count in left.items():
            self._backlog[cut][subtask.chain, gate_index] = count

    def _on_event(self, cluster: SimulatedCluster, event: JobEvent) -> None:
        if isinstance(event, JobChanged) and event.status is JobStatus.FINISHED:
            self._finished_first = self._finished_first or cluster
        if self.trace is not None and not isinstance(event, Measurement):
            self._note(_told(event))
        match event:
            case CheckpointTriggered(checkpoint_id=checkpoint_id):
                self._open.add((cluster, checkpoint_id))
                for arrive in self._held_back.pop(checkpoint_id, ()):
                    self._events.after(self._rng.randint(0, 10) * 1_000_000, arrive)
            case CheckpointSettled(checkpoint_id=checkpoint_id, failure=failure):
                if (cluster, checkpoint_id) not in self._open:
                    raise InvariantBroken(f"checkpoint {checkpoint_id} is settled twice")
                self._open.remove((cluster, checkpoint_id))
                if failure is not None:
                    self.outcome.aborted[failure] += 1
                    return
                self.outcome.completed += 1
                if self._lines.manifest(checkpoint_id).kind is not CheckpointKind.SAVEPOINT:
                    self._base_ids[cluster] = checkpoint_id
                self._check_cut(cluster, checkpoint_id)
            case AttemptStarted(attempt=attempt, restored_checkpoint=restored):
                self.outcome.attempts += 1
                self._note_restored(cluster, restored)
                self._finished_first = None
                self._base_ids[cluster] = restored
                if self.operator is None:
                    self._check_restored(restored)
                else:
                    self._check_went_on_from(cluster, attempt, restored)
                self._attempts_of.setdefault(cluster, []).append(attempt)
                if attempt <= self._attempts.get(cluster, 0):
                    raise InvariantBroken(f"attempt {attempt} starts twice")
                self._attempts[cluster] = attempt
            case JobChanged(status=status) if self.operator is not None:
                self._links[cluster].changed(event)
                if status is JobStatus.FAILED and cluster is self._newest:
                    self._failed(cluster, event.cause)
            case JobChanged(status=JobStatus.FINISHED) if self._speaks_for_the_job(cluster):
                self._ended_by, self.is_done = self._ended_by or cluster, True
                for other in self._applications:
                    if other is not cluster and other.driver_alive:
                        other.crash()  # The component that waits for this job has its result.
            case JobChanged(status=JobStatus.FAILED, cause=cause) if cluster is self._newest:
                self._failed(cluster, cause)
            case Notice(text=text):
                self._notices.append(text)
            case SubtaskChanged(status=SubtaskStatus.RUNNING, details=details):
                self.outcome.copies["taken"] += details.get("restored_local_bytes", 0)
                self.outcome.copies["damaged"] += len(details.get("damaged_copies", ()))
            case SubtaskChanged(status=SubtaskStatus.FAILED, cause=cause) | Declined(cause=cause):
                self._check_cause(cause)

    def _note_restored(self, cluster: SimulatedCluster, restored: int | None) -> None:
        """Count attempts that begin with records under way, and those at another parallelism."""
        key = self.job_id, CheckpointId(restored or 0)
        if not self._store.under_way.get(key):
            return
        self.outcome.restored["with records under way"] += 1
        old = {op.uid: op.parallelism for op in self._store.written[key].operators}
        receivers = {
            exchange.target: cluster.plan.operator(exchange.target).parallelism
            for exchange in cluster.plan.exchanges
            if any(name == exchange.name for name, _ in self._store.under_way[key])
        }
        for uid, parallelism in receivers.items():
            if parallelism != old[uid]:
                self.outcome.restored["scaled up" if parallelism > old[uid] else "down"] += 1

    def _failed(self, cluster: SimulatedCluster, cause: str) -> None:
        if INJECTED in cause and cluster not in self._base_ids:
            self._events.after(0, cluster.crash)  # Its user starts it again.
        elif "another driver" in cause and self._is_superseded(cluster):
            self._events.after(0, partial(self._hand_over, cluster))

    def _speaks_for_the_job(self, cluster: SimulatedCluster) -> bool:
        return self.control is None or self.control.is_newest(self._links[cluster])

    def _is_superseded(self, cluster: SimulatedCluster) -> bool:
        layout = JobLayout(self.job_id)
        newest = max(map(layout.attempt_of, self._store.list(layout.attempts)))
        return newest > self._attempts.get(cluster, 0)

    def _hand_over(self, cluster: SimulatedCluster) -> None:
        """A driver that started earlier recorded the newer attempt; it may have died since."""
        for other in self._applications:
            if other is not cluster and other.is_running:
                self._applications.remove(other)
                self._applications.append(other)
                return
        cluster.crash()

    # Checks.

    def _check_cut(self, cluster: SimulatedCluster, checkpoint_id: CheckpointId) -> None:
        cut = self._lines.manifest(checkpoint_id).attempt, checkpoint_id
        sent, received = self._sent[cut], self._received[cut]
        overtakes = self._config.checkpoints.alignment_timeout_ms is not None
        if overtakes:
            self._check_under_way(cluster, checkpoint_id)
        exact = self._config.checkpoints.mode is not CheckpointingMode.AT_LEAST_ONCE
        if self._config.checkpoints.mode is CheckpointingMode.STOP_THE_WORLD:
            self._check_still(cluster, checkpoint_id)
        for channel in cluster.plan.channels:
            before, held = sent.get(channel.id), received.get(channel.id)
            if before is None or held is None:
                raise InvariantBroken(f"checkpoint {checkpoint_id} lacks an end of {channel}")
            if overtakes and held <= before:
                continue  # The rest was under way.
            if before != held and (exact or held < before):
                raise InvariantBroken(
                    f"checkpoint {checkpoint_id} is no consistent cut: {channel.sender} sent "
                    f"{before} records to {channel.receiver} before it, whose state holds {held}"
                )

    def _check_still(self, cluster: SimulatedCluster, checkpoint_id: CheckpointId) -> None:
        """Look whether nothing flowed behind the barriers of a checkpoint that stops the world."""
        manifest = self._lines.manifest(checkpoint_id)
        if manifest.kind is not CheckpointKind.CHECKPOINT:
            return
        sent = self._sent[manifest.attempt, checkpoint_id]
        for process in cluster.processes.values():
            if not process.alive or process.attempt != manifest.attempt:
                continue
            assert isinstance(process, SimulatedWorker)
            for channel, count in process.records_sent.items():
                if count != sent[channel]:
                    raise InvariantBroken(
                        f"{count - sent[channel]} records went over {channel} behind the barrier "
                        f"of checkpoint {checkpoint_id}, which stops the world"
                    )
            self.outcome.stood_still += 1

    def _check_under_way(self, cluster: SimulatedCluster, checkpoint_id: CheckpointId) -> None:
        """Look whether a checkpoint holds each record that was under way, once, per input gate."""
        manifest = self._lines.manifest(checkpoint_id)
        cut = manifest.attempt, checkpoint_id
        plan, sent, received = cluster.plan, self._sent[cut], self._received[cut]
        stored = self._store.under_way[self.job_id, checkpoint_id].copy()
        self.outcome.under_way += stored.total()
        for subtask, gates in plan.inputs.items():
            for gate_index, channels in enumerate(gates):
                if not channels:
                    continue
                exchange = plan.exchanges[channels[0].edge_index]
                under_way = sum(sent.get(c.id, 0) - received.get(c.id, 0) for c in channels)
                under_way += self._backlog[cut].get((subtask, gate_index), 0)
                kept = stored.pop((exchange.name, subtask.index), 0)
                if kept != under_way:
                    raise InvariantBroken(
                        f"checkpoint {checkpoint_id} is no consistent cut: {under_way} records "
                        f"were under way to {subtask} from {exchange.source}, and it holds {kept}"
                    )
        if stored:
            raise InvariantBroken(f"checkpoint {checkpoint_id} holds records of {set(stored)}")

    def _check_restored(self, restored: int | None) -> None:
        newest = max(self._store.manifests(self.job_id), default=None)
        if restored == newest:
            return
        is_told = any(f"checkpoint {newest} is passed over" in text for text in self._notices)
        if self._damaged and is_told:  # That one is damaged, or one whose files it names.
            self._fell_back = True
        elif newest in self._damaged:
            raise InvariantBroken(f"checkpoint {newest} was passed over in silence")
        elif len(self._applications) == 1:  # Else the older driver may be writing one.
            raise InvariantBroken(f"restored {restored}, but {newest} is the newest checkpoint")

    def _check_went_on_from(
        self, cluster: SimulatedCluster, attempt: AttemptNumber, restored: CheckpointId | None
    ) -> None:
        """Look whether an attempt began with what it had to, as a walk over parents says."""
        requested = self._requested.get(cluster)
        may_be = self._lines.may_begin_with(attempt)
        own = [n for n in may_be if n is not None and self._is_of(cluster, n)]
        if requested is not None and not own:
            may_be = {requested}
        if restored not in may_be:
            raise InvariantBroken(
                f"attempt {attempt} restored {restored}, and not one of {may_be}"
                f"{f' although told {requested}' if requested else ''}"
            )
        self._lines.started(attempt, restored, self.control_plane.reached_running)

    def _is_of(self, cluster: SimulatedCluster, checkpoint_id: CheckpointId) -> bool:
        """Whether this driver completed the checkpoint itself."""
        return self._lines.manifest(checkpoint_id).attempt in self._attempts_of.get(cluster, ())

    def _is_needed_by_any(self, key: CheckpointKey) -> bool:
        jobs = {job.job_id: job for job in (self, *self._forks)}
        return jobs[key[0]]._is_needed(key[1])

    def _is_foreign(self, path: str) -> bool:
        """Whether a file is another job's than whose code runs now."""
        worker = self.process
        job = worker.world if isinstance(worker, SimulatedWorker) else None
        job = job or (self.driver.world if self.driver is not None else None)
        owner = path.partition("/")[0]
        return (
            isinstance(job, Simulation)
            and owner != job.job_id
            and owner in {other.job_id for other in (self, *self._forks)}
        )

    def _is_needed(self, checkpoint_id: CheckpointId) -> bool:
        """Whether no file of a checkpoint may go."""
        operator, state = self.operator, self.control_plane.state
        assert operator is not None
        manifest = self._lines.manifest(checkpoint_id)
        if state.find_pending(checkpoint_id) is not None:
            return True
        if manifest.kind is not CheckpointKind.CHECKPOINT:
            return checkpoint_id in operator.savepoints
        if operator.begins_with(checkpoint_id):
            return True
        if state.ended is not None or self._is_stopped or self.is_done:
            return False
        if checkpoint_id in self.control_plane.let_go:
            return False  # It may still be deleted while the job runs again.
        checkpoints = self._config.checkpoints
        return self._lines.must_stay(
            checkpoint_id, checkpoints.retained_max, checkpoints.abandoned_ttl_ms
        )

    def _is_retained(self, key: CheckpointKey) -> bool:
        """Whether a checkpoint of a job in library mode is the one to restore after a failure."""
        job_id, number = key
        layout = JobLayout(job_id)
        if MemoryStore.exists(self._store, layout.finished) or number in self._damaged:
            return False
        return number == max(self._store.manifests(job_id), default=None)

    def _check_files(self) -> None:
        """Look at every file that a job in library mode leaves, without the rule of its sweep."""
        if not self._last.driver_alive or self._damaged:
            return  # What a driver leaves that dies at the very end is the next one's to sweep.
        if any("stay" in text for text in self._notices):
            return  # The storage failed, and the user was told.
        assert self._last.master is not None
        if self._last.master._checkpoints._fence.is_fenced_off:
            return  # They are those of the driver that took over, which ended with the job.
        layout = JobLayout(self.job_id)
        records = (layout.attempts, layout.bases, layout.finished)
        for path in self._store.list():
            key = parse_manifest_path(path)
            if key is not None and isinstance(load(self._store.peek(path)), Tombstone):
                self.outcome.tombstones += 1
            elif not path.startswith(records):
                raise InvariantBroken(f"the job finished, and {path} is left")

    def _check_all_committed(self, cluster: SimulatedCluster) -> None:
        """Look whether everything before a stop's savepoint is there for all to see."""
        covered = self._lines.covered(self._base_ids[cluster])
        for piece in self._log.staged:
            if piece[3] <= covered.get(piece[2], 0) and piece not in self._log.committed:
                raise InvariantBroken(f"the job stopped, and {piece} was not committed")

    def _check_cause(self, cause: str) -> None:
        known: tuple[str, ...] = (
            INJECTED,
            "lost the connection",
            GONE,
            "holds a savepoint already",
        )
        if self._damaged:  # A worker is the first to read a file.
            known = (*known, "its checksum does not match", "it is missing")
        if cause and not any(text in cause for text in known):
            raise InvariantBroken(f"something failed by itself: {cause}")

    def _check_end(self) -> None:
        master = self._last.master
        assert master is not None
        if master.status is not JobStatus.FINISHED:
            raise InvariantBroken(f"the job ended {master.status}: {master.cause}")
        state = self._coordinator_of(master)
        # What the control plane says after the job's end, the driver does not hear any more.
        is_open = bool(self._open) and self.control is None
        if self._last.driver_alive and (
            state.pending or state.queue or master._checkpoints.is_busy or is_open
        ):
            raise InvariantBroken(f"left over: {state.pending} {state.queue} {self._open}")
        if processes := [p for a in self._applications for p in a.processes.values()]:
            raise InvariantBroken(f"{len(processes)} worker processes are left")
        if self.keeps_copies and not (len(self._applications) == 1 and self._last.driver_alive):
            # What slots left that ended with their driver goes with a later one of the job.
            directory = self._config.state.local_copies_directory
            LocalDirectory(directory, COPIES, self.job_id).close()
        if left := [str(directory) for directory in self._copies if directory.exists()]:
            raise InvariantBroken(f"local copies are left in {left}")
        if self.operator is not None:
            self.operator.check_end()
        if self.control is None:
            self._check_files()
        self._check_output()

    def _check_output(self) -> None:
        base_id = self._base_ids[self._finisher(self._last)]
        outcome, lineage = self.outcome, set(self._lines.behind(base_id))
        covered = self._lines.covered(base_id)
        rows: dict[str, list[list[Row]]] = defaultdict(list)
        by_subtask: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for name in sorted(self._log.committed, key=lambda name: (name[0], name[1], name[3])):
            piece = self._log.committed[name]
            is_on_line = bool(piece.checkpoints & lineage)
            if self.operator is not None:
                is_on_line = name[3] <= covered.get(name[2], 0)
            if is_on_line:
                by_subtask[name[0], name[1]] += piece.rows
            elif not self._fell_back:
                raise InvariantBroken(
                    f"{name} was committed for {piece.checkpoints}, outside of {sorted(lineage)}"
                )
        for (sink, _), of_subtask in by_subtask.items():
            rows[sink].append(of_subtask)
            outcome.out_of_order += _out_of_order(of_subtask)
        for sink, expected in self._pipeline.expected.items():
            names = Counter((row[0], row[1]) for part in rows[sink] for row in part)
            expected = {name for name in expected if (sink, name) not in self._before}
            outcome.records += len(expected)
            outcome.lost += len(expected - names.keys())
            outcome.duplicated += names.total() - len(expected & names.keys())
            if outcome.mode is not CheckpointingMode.AT_LEAST_ONCE:
                self._check_totals(row for part in rows[sink] for row in part)
        exact = outcome.mode is not CheckpointingMode.AT_LEAST_ONCE
        if outcome.lost or (exact and (outcome.duplicated or outcome.out_of_order)):
            raise InvariantBroken(
                f"of {outcome.records} records lost {outcome.lost}, duplicated "
                f"{outcome.duplicated}, out of order {outcome.out_of_order}"
            )

    def _check_totals(self, rows: Iterator[Row]) -> None:
        last: dict[str, int] = {}
        for origin, number, _, total, _ in sorted(rows):
            if total < last.get(origin, 0):
                raise InvariantBroken(f"the running total of {origin} fell at {number}")
            last[origin] = total
            if self._pipeline.totals.get((origin, number), total) != total:
                raise InvariantBroken(f"the last total of {origin} is {total}")

    # The story.

    def _note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self._clock.monotonic_ns() / 1e6:9.3f} ms  {text}")


class Fork(Simulation):
    """A job that began with a savepoint of another one, in the same world."""

    def __init__(self, origin: Simulation, uri: str) -> None:
        self.seed = origin.seed
        self.job_id = JobId(f"{origin.job_id}-fork-{len(origin._forks) + 1}")
        self.trace = origin.trace
        self.outcome = origin.outcome
        self._origin = origin
        self._is_faulty = origin._is_faulty
        self._with_operations = True
        self._rng = origin._rng
        self._clock = origin._clock
        self._events = origin._events
        self._conditions = origin._conditions
        self._store = origin._store
        self._config = origin._config
        self._pipeline = origin._pipeline
        self._forks = []
        self._log = OutputLog(origin.reach, self._is_durable)
        self._begins_with = origin._number_of(uri)
        covered = origin._lines.covered(self._begins_with)
        self._before = {
            (piece[0], (row[0], row[1]))
            for piece, rows in origin._log.staged.items()
            if piece[3] <= covered.get(piece[2], 0)
            for row in rows
        }
        graph = origin._pipeline.writing_to(self._log, origin.reach)
        self._prepare(graph, remote=True)
        self._operate(asks=0)
        assert self.operator is not None
        self.operator.restore = uri
        self._start_application()

    @property
    def process(self) -> InProcessWorker | None:
        """Whose code runs now, of all jobs."""
        return self._origin.process

    @process.setter
    def process(self, process: InProcessWorker | None) -> None:
        self._origin.process = process

    @property
    def driver(self) -> SimulatedCluster | None:
        """Whose driver runs now, of all jobs."""
        return self._origin.driver

    @driver.setter
    def driver(self, driver: SimulatedCluster | None) -> None:
        self._origin.driver = driver

    def reach(self, point: str) -> None:
        """A point of the protocol is reached; faults are those of the whole run."""
        self._origin.reach(point)

    def _number_of(self, uri: str) -> CheckpointId:
        return self._begins_with

    def _rescaled(self) -> JobGraph:
        return self._graph

    def _note(self, text: str) -> None:
        super()._note(f"{self.job_id}: {text}")


def _count(element: Any) -> int:
    return getattr(element, "count", 0)


def _told(event: JobEvent) -> str:
    text = str(event)
    return text if len(text) <= 300 else f"{text[:300]}..."


def _out_of_order(rows: list[Row]) -> int:
    """Records that came behind a later one of their origin by the same route."""
    last: dict[tuple[str, tuple[str, ...]], int] = {}
    wrong = 0
    for origin, number, _, _, route in rows:
        wrong += number < last.get((origin, route), -1)
        last[origin, route] = number
    return wrong


def _random_config(rng: random.Random) -> JobConfig:
    exactly_once = rng.random() < 0.85
    restart = rng.choice(
        [
            RestartConfig(
                kind=RestartStrategyKind.FIXED_DELAY, attempts_max=1_000, delay_ms=rng.randint(0, 9)
            ),
            RestartConfig(initial_backoff_ms=5, max_backoff_ms=20),
        ]
    )
    return JobConfig(
        name="simulated",
        parallelism=3,
        max_parallelism=8,
        checkpoints=CheckpointConfig(
            interval_ms=rng.randint(10, 20),
            mode=CheckpointingMode.EXACTLY_ONCE
            if exactly_once
            else CheckpointingMode.AT_LEAST_ONCE,
            timeout_ms=rng.randint(80, 200),
            min_pause_ms=rng.choice([0, 0, 5]),
            concurrent_max=rng.randint(1, 3),
            tolerable_failures=rng.choice([0, 3, 1_000]),
            retention=rng.choice(list(Retention)),
            inline_max_bytes=rng.choice([1, 60, 20_000, 20_000]),
            storage=STORAGE,
        ),
        restart=restart,
        channels=ChannelConfig(
            batch_rows_max=rng.randint(1, 6),
            frame_bytes_max=rng.choice([200, 2_000]),
            credit_bytes=rng.choice([1, 150, 600, 5_000]),
            batch_credit_bytes=40,
        ),
        spare_slots=rng.choice([0, 0, 1]),
        heartbeat_interval_ms=10,
        heartbeat_timeout_ms=80,
    )


def _may_share(config: JobConfig, rng: random.Random) -> JobConfig:
    """The same with checkpoints that share files, of either backend, in some of the runs."""
    if rng.random() >= SHARING:
        return config
    checkpoints = replace(config.checkpoints, inline_max_bytes=1)
    state = StateConfig(backend=rng.choice(list(StateBackendKind)), incremental=True)
    return replace(config, checkpoints=checkpoints, state=state)


def _may_copy(config: JobConfig, rng: random.Random) -> JobConfig:
    """The same with local copies of state, in some of the runs whose state lies in files."""
    if config.checkpoints.inline_max_bytes > 100 or rng.random() >= COPYING:
        return config
    bytes_max = rng.choice([1_500, 6_000, 1 << 20, 1 << 20])
    return replace(
        config, state=replace(config.state, local_copies=True, local_copies_bytes_max=bytes_max)
    )


def _may_overtake(config: JobConfig, rng: random.Random) -> JobConfig:
    """The same with barriers that overtake, in about half of the runs where they may.

    In some of the others the world stops.
    """
    checkpoints = config.checkpoints
    if checkpoints.mode is not CheckpointingMode.EXACTLY_ONCE:
        return config
    if (draw := rng.random()) < 0.12:
        stopping = replace(checkpoints, mode=CheckpointingMode.STOP_THE_WORLD, concurrent_max=1)
        return replace(config, checkpoints=stopping)
    if draw < 0.5:
        return config
    timeout_ms = rng.choice([0, 0, rng.randint(1, 8), rng.randint(1, 30)])
    overtaking = replace(checkpoints, alignment_timeout_ms=timeout_ms, concurrent_max=1)
    return replace(config, checkpoints=overtaking)


def simulate(
    seed: int, *, faulty: bool = True, remote: bool = False, operations: bool = False
) -> Outcome:
    """Run one seed.

    Raises:
        SimulationFailed: A promise was broken.
    """
    return Simulation(seed, faulty=faulty, remote=remote, operations=operations).run()


def main(arguments: list[str] | None = None) -> int:
    """Run one seed and print its story."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.simulation.simulation", description=main.__doc__
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--undisturbed", action="store_true", help="the same without faults")
    parser.add_argument("--remote", action="store_true", help="the same under a control plane")
    parser.add_argument("--operations", action="store_true", help="and go back and on")
    options = parser.parse_args(arguments)
    simulation = Simulation(
        options.seed,
        faulty=not options.undisturbed,
        trace=True,
        remote=options.remote,
        operations=options.operations,
    )
    try:
        outcome = simulation.run()
    except SimulationFailed as error:
        print("\n".join(simulation.trace or ()))
        print(error)
        return 1
    print("\n".join(simulation.trace or ()))
    print(outcome)
    return 0


if __name__ == "__main__":
    sys.exit(main())
