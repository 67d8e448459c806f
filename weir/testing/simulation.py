"""A whole life of a job from one number: random pipeline, random delays, random faults.

Everything that production runs (worker, subtask, gates, credit, barrier handlers, snapshotter,
coordinator, job master, recovery) runs here too, on a clock, lines, storage and processes that a
seed drives. The same seed gives the same run. After every step it is checked that

- a channel is blocked only while its subtask aligns a checkpoint, and exactly those it must be;
- the coordinator's state is one that may be;
- a completed checkpoint is a consistent cut: on every channel the receiver's snapshot holds as many
  records as the sender's says it sent before its own;
- nothing is committed for a checkpoint that is not durable;
- nothing failed but what a fault made fail;

and at the end that the job finished, that its committed output is what the pipeline must write
(lost, duplicated and out of order counted apart), that running totals only grew, and that nothing
is left over.

``python -m weir.testing.simulation SEED`` runs one seed again and prints its story.
"""

import argparse
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from weir.config import (
    ChannelConfig,
    CheckpointConfig,
    CheckpointingMode,
    JobConfig,
    RestartConfig,
    RestartStrategyKind,
    Retention,
)
from weir.errors import ProtocolError
from weir.ids import AttemptNumber, ChannelId, CheckpointId, JobId
from weir.protocol.coordinator import CoordinatorState, check_invariants
from weir.protocol.deployment import WorkerReport
from weir.protocol.events import (
    AttemptStarted,
    CheckpointSettled,
    CheckpointTriggered,
    JobChanged,
    JobEvent,
    Notice,
)
from weir.protocol.lifecycle import FailureReason, JobStatus, SubtaskStatus
from weir.protocol.messages import Acknowledged, Declined, Report, SubtaskChanged, SubtaskMetrics
from weir.runtime.coordination import LocalCoordination
from weir.runtime.in_process import Action, EventQueue, InProcessWorker
from weir.runtime.job_master import JobMaster
from weir.runtime.versions import installed_versions
from weir.storage.layout import JobLayout
from weir.testing import faults
from weir.testing.clock import SimClock
from weir.testing.cluster import (
    DriverKilled,
    FaultyStore,
    ProcessKilled,
    SimulatedCluster,
    SimulatedWorker,
    TriggerDeclined,
    TriggerLost,
)
from weir.testing.control_plane import DriverLink, SimulatedControlPlane
from weir.testing.network import SeededConditions
from weir.testing.pipelines import InvariantBroken, OutputLog, Row, random_pipeline

EVENTS_MAX = 40_000  # A run has some thousands; one that needs more does not come to its end.
JOB_ID = JobId("simulated")
STORAGE = "simulated:"
INJECTED = "injected by the simulation"

# Where a fault may strike, what it may do there, and among how many hits its own is drawn.
POINTS: Mapping[str, tuple[tuple[str, ...], int]] = {
    "source.poll": (("raise", "kill"), 40),
    "record": (("raise", "kill", "stop"), 120),
    "trigger.received": (("kill", "lose", "decline"), 12),
    "barrier.arrived": (("kill", "stop"), 40),
    "snapshot.before": (("kill", "raise"), 40),
    "snapshot.frozen": (("kill",), 40),
    "snapshot.write": (("kill", "raise"), 40),
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
LATER = ("kill", "stop", "slot_lost", "slot_silent", "zombie", "driver", "two_drivers", "damage")


class SimulationFailed(AssertionError):
    """A run broke a promise; the message names its seed and how to see it again."""


@dataclass(slots=True)
class Outcome:
    """What happened in one run."""

    seed: int
    mode: CheckpointingMode
    fired: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    attempts: int = 0
    completed: int = 0
    aborted: Counter[FailureReason] = field(default_factory=Counter)
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """What strikes, and at which hit of a point or which time."""

    action: str
    point: str | None = None  # None: at a time.
    hit: int = 0
    at_ms: int = 0

    def __str__(self) -> str:
        return f"{self.point or 'any time'}: {self.action}"


class Simulation:
    """One run."""

    def __init__(
        self, seed: int, *, faulty: bool = True, trace: bool = False, remote: bool = False
    ) -> None:
        """Prepare; ``remote`` puts the coordinator into a control plane that may be away."""
        self.seed = seed
        self.trace: list[str] | None = [] if trace else None
        self.process: InProcessWorker | None = None
        self.driver: SimulatedCluster | None = None
        self._rng = rng = random.Random(seed)
        self._clock = SimClock()
        self._events = EventQueue(self._clock)
        self._conditions = SeededConditions(random.Random(rng.random()))
        self._store = FaultyStore(self.reach)
        self._log = OutputLog(self.reach, self._is_durable)
        self._pipeline = random_pipeline(rng, self._log, self.reach)
        self._config = _random_config(rng)
        self._applications: list[SimulatedCluster] = []
        self._hits: Counter[str] = Counter()
        self._planned: dict[tuple[str, int], PlannedFault] = {}
        self._sent: dict[tuple[int, int], dict[ChannelId, int]] = defaultdict(dict)
        self._received: dict[tuple[int, int], dict[ChannelId, int]] = defaultdict(dict)
        self._checked: object = None  # The coordinator's state that was looked at last.
        self._attempts: dict[SimulatedCluster, AttemptNumber] = {}  # The newest of each.
        self._held_back: dict[CheckpointId, list[Action]] = defaultdict(list)
        self._open: set[tuple[SimulatedCluster, CheckpointId]] = set()  # Triggered, not settled.
        self._base_ids: dict[SimulatedCluster, CheckpointId | None] = {}  # Restored or completed.
        self._ended_by: SimulatedCluster | None = None
        self._damaged: set[int] = set()
        self._fell_back = False
        self._notices: list[str] = []
        self.outcome = Outcome(seed, self._config.checkpoints.mode)
        self.control: SimulatedControlPlane | None = None
        self._links: dict[SimulatedCluster, DriverLink] = {}
        if remote:
            self.control = SimulatedControlPlane(
                JOB_ID,
                self._config.checkpoints,
                events=self._events,
                conditions=self._conditions,
                store=self._store,
                rng=random.Random(f"control plane {seed}"),  # The rest is as without one.
                note=self._note,
            )
        if faulty:
            self._plan_faults()

    # The run.

    def run(self) -> Outcome:
        """Run to the end and check everything.

        Raises:
            SimulationFailed: A promise was broken.
        """
        try:
            with faults.listening(lambda point, where: self._on_production_point(point, where)):
                self._start_application()
                while self._events.run_next():
                    self.outcome.steps += 1
                    if self.outcome.steps > EVENTS_MAX:
                        raise InvariantBroken(
                            f"the job is {self._newest_master.status} after {EVENTS_MAX} events"
                        )
            self._check_end()
        except (InvariantBroken, ProtocolError, AssertionError) as error:
            option = "--remote " if self.control is not None else ""
            raise SimulationFailed(
                f"seed {self.seed}: {error}\n"
                f"replay: python -m weir.testing.simulation {option}{self.seed}"
            ) from error
        return self.outcome

    def _start_application(self) -> None:
        cluster = SimulatedCluster(
            self,
            self._pipeline.graph,
            self._config,
            JOB_ID,
            events=self._events,
            conditions=self._conditions,
            open_store=lambda uri: self._store,
        )
        self._applications.append(cluster)
        self._note(f"application {len(self._applications)} starts")
        if self.control is not None:
            self._links[cluster] = self.control.connect(cluster)
        master = JobMaster(
            self._pipeline.graph,
            self._config,
            JOB_ID,
            program=b"",
            store=self._store,
            versions=installed_versions(),
            cluster=cluster,
            clock=self._clock,
            emit=lambda event: self._on_event(cluster, event),
            collect=lambda subtask, payload: None,
            seed=self._rng.randrange(1 << 30),
            control=self._links.get(cluster),
        )
        cluster.start(master)

    @property
    def _last(self) -> SimulatedCluster:
        """The application whose result counts."""
        return self._ended_by or self._newest

    @property
    def _newest(self) -> SimulatedCluster:
        return self._applications[-1]

    @property
    def _newest_master(self) -> JobMaster:
        master = self._newest.master
        assert master is not None
        return master

    def _is_durable(self, checkpoint_id: int) -> bool:
        return checkpoint_id in self._store.parents

    # Faults.

    def _plan_faults(self) -> None:
        rng = self._rng
        for _ in range(rng.choice([1, 1, 2, 2, 3, 4])):
            if rng.random() < 0.7:
                point = rng.choice(list(POINTS))
                actions, hits = POINTS[point]
                hit = 1 + int(rng.random() ** 1.5 * hits)
                fault = PlannedFault(rng.choice(actions), point, hit=hit)
                self._planned[point, hit] = fault
            else:
                fault = PlannedFault(rng.choice(LATER), at_ms=rng.randint(5, 120))
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
            case _:  # Reached by somebody else: strike the next one.
                self._planned[point, self._hits[point] + 1] = fault

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
            case "damage":
                self._damage(fault)
            case "slot_lost" if slots:
                self._fired(fault)
                cluster.lose_slot(self._rng.choice(slots))
            case "slot_silent" if slots:
                self._fired(fault)
                cluster.silence_slot(self._rng.choice(slots))
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
        intact = sorted(self._store.manifests)
        if len(intact) < 2 or self._damaged or len(self._applications) > 1:
            return
        newest = intact[-1]
        files = self._store.list(f"{JOB_ID}/chk-{newest}")
        if len(self._store.list(f"{JOB_ID}/chk-{intact[-2]}")) < 1 or not files:
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
            self.control.go_away()  # So that a checkpoint is held up and nobody can expire it.

    # What the cluster tells.

    def crashed(self, cluster: SimulatedCluster) -> None:
        """A driver died: its workers end with it or some time later, and a new one starts."""
        self._note("the driver died")
        for slot in cluster.slots.values():
            slot.alive = False
            slot.commands.cut = True
            slot.worker = None
        for process in list(cluster.processes.values()):
            delay_ms = 0 if self._rng.random() < 0.3 else self._rng.randint(1, 150)
            self._events.after(delay_ms * 1_000_000, partial(cluster.kill, process))
        self._open = {open_ for open_ in self._open if open_[0] is not cluster}
        if cluster is self._newest and self._ended_by is None:
            self._events.after(self._rng.randint(1, 20) * 1_000_000, partial(self._launch, cluster))

    def _launch(self, after: SimulatedCluster) -> None:
        """Start the application that follows one that is gone."""
        control = self.control
        if control is None:
            self._start_application()
            return

        def recover() -> None:
            if after is self._newest:  # Else a second one was started meanwhile.
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
        """Look at the gates of every subtask of the worker, unless it has failed half way."""
        if process.worker._failed:
            return
        for subtask in process.worker.subtasks:
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
        coordination = master._checkpoints.coordination
        assert isinstance(coordination, LocalCoordination)
        return coordination.state

    def _on_production_point(self, point: str, where: Mapping[str, Any]) -> None:
        if point == "snapshot.frozen":
            self._note_cut(where["subtask"], where["id"])
        self.reach(point)

    def _note_cut(self, chain: str, checkpoint_id: CheckpointId) -> None:
        """Count what a snapshot says was sent and received, per channel."""
        process = self.process
        assert isinstance(process, SimulatedWorker)
        subtask = next(s for s in process.worker.subtasks if str(s.chain) == chain)
        cut = process.attempt, checkpoint_id
        for gate in subtask.outputs:
            for output in gate.channels:
                waiting = sum(_count(element) for element in output.overdraft)
                self._sent[cut][output.id] = process.records_sent[output.id] + waiting
        for channel in subtask.inputs.channels.values():
            waiting = sum(_count(element) for element in channel.queue)
            self._received[cut][channel.id] = process.records_delivered[channel.id] - waiting

    def _on_event(self, cluster: SimulatedCluster, event: JobEvent) -> None:
        if self.trace is not None and not isinstance(event, SubtaskMetrics):
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
                self._base_ids[cluster] = checkpoint_id
                self._check_cut(cluster, checkpoint_id)
            case AttemptStarted(attempt=attempt, restored_checkpoint=restored):
                self.outcome.attempts += 1
                self._base_ids[cluster] = restored
                self._check_restored(restored)
                if attempt <= self._attempts.get(cluster, 0):
                    raise InvariantBroken(f"attempt {attempt} starts twice")
                self._attempts[cluster] = attempt
            case JobChanged(status=JobStatus.FINISHED) if self._speaks_for_the_job(cluster):
                self._ended_by = self._ended_by or cluster
                for other in self._applications:
                    if other is not cluster and other.driver_alive:
                        other.crash()  # Whoever waits for this job has its result.
            case JobChanged(status=JobStatus.FAILED, cause=cause) if cluster is self._newest:
                if INJECTED in cause and cluster not in self._base_ids:
                    self._events.after(0, cluster.crash)  # Its user starts it again.
                elif "another driver" in cause and self._is_superseded(cluster):
                    self._events.after(0, partial(self._hand_over, cluster))
            case Notice(text=text):
                self._notices.append(text)
            case SubtaskChanged(status=SubtaskStatus.FAILED, cause=cause) | Declined(cause=cause):
                self._check_cause(cause)

    def _speaks_for_the_job(self, cluster: SimulatedCluster) -> bool:
        return self.control is None or self.control.is_newest(self._links[cluster])

    def _is_superseded(self, cluster: SimulatedCluster) -> bool:
        layout = JobLayout(JOB_ID)
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
        cut = self._store.attempt_of[checkpoint_id], checkpoint_id
        sent, received = self._sent[cut], self._received[cut]
        exact = self._config.checkpoints.mode is CheckpointingMode.EXACTLY_ONCE
        for channel in cluster.plan.channels:
            before, held = sent.get(channel.id), received.get(channel.id)
            if before is None or held is None:
                raise InvariantBroken(f"checkpoint {checkpoint_id} lacks an end of {channel}")
            if before != held and (exact or held < before):
                raise InvariantBroken(
                    f"checkpoint {checkpoint_id} is no consistent cut: {channel.sender} sent "
                    f"{before} records to {channel.receiver} before it, whose state holds {held}"
                )

    def _check_restored(self, restored: int | None) -> None:
        newest = max(self._store.manifests, default=None)
        if restored == newest:
            return
        if newest in self._damaged:
            if not any(f"checkpoint {newest} is passed over" in text for text in self._notices):
                raise InvariantBroken(f"checkpoint {newest} was passed over in silence")
            self._fell_back = True
        elif len(self._applications) == 1:  # Else the older driver may be writing one.
            raise InvariantBroken(f"restored {restored}, but {newest} is the newest checkpoint")

    def _check_cause(self, cause: str) -> None:
        known = (INJECTED, "lost the connection")
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
        self._check_output()

    def _check_output(self) -> None:
        outcome, lineage = self.outcome, set(self._lineage())
        rows: dict[str, list[list[Row]]] = defaultdict(list)
        by_subtask: dict[tuple[str, int], list[Row]] = defaultdict(list)
        for name in sorted(self._log.committed, key=lambda name: (name[0], name[1], name[3])):
            piece = self._log.committed[name]
            if piece.checkpoints & lineage:
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
            outcome.records += len(expected)
            outcome.lost += len(expected - names.keys())
            outcome.duplicated += names.total() - len(expected & names.keys())
            if outcome.mode is CheckpointingMode.EXACTLY_ONCE:
                self._check_totals(row for part in rows[sink] for row in part)
        exact = outcome.mode is CheckpointingMode.EXACTLY_ONCE
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

    def _lineage(self) -> Iterator[CheckpointId]:
        """The checkpoint that the job ended with, and those it builds on."""
        checkpoint_id = self._base_ids[self._last]
        while checkpoint_id is not None:
            yield checkpoint_id
            checkpoint_id = self._store.parents[checkpoint_id]

    # The story.

    def _note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self._clock.monotonic_ns() / 1e6:9.3f} ms  {text}")


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
        ),
        spare_slots=rng.choice([0, 0, 1]),
        heartbeat_interval_ms=10,
        heartbeat_timeout_ms=80,
    )


def simulate(seed: int, *, faulty: bool = True, remote: bool = False) -> Outcome:
    """Run one seed.

    Raises:
        SimulationFailed: A promise was broken.
    """
    return Simulation(seed, faulty=faulty, remote=remote).run()


def main(arguments: list[str] | None = None) -> int:
    """Run one seed and print its story."""
    parser = argparse.ArgumentParser(
        prog="python -m weir.testing.simulation", description=main.__doc__
    )
    parser.add_argument("seed", type=int)
    parser.add_argument("--undisturbed", action="store_true", help="the same without faults")
    parser.add_argument("--remote", action="store_true", help="the same under a control plane")
    options = parser.parse_args(arguments)
    simulation = Simulation(
        options.seed, faulty=not options.undisturbed, trace=True, remote=options.remote
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
