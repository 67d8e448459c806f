"""A job master, or its checkpoint runner, in a world that does nothing by itself.

The job is ``source -> sink`` with two subtasks each, joined by key: two slots, four chains.
"""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from tests.builders import edge, graph, node
from tests.unit.operators.operator_harness import ManualClock
from weir.config import CheckpointConfig, JobConfig, RestartConfig, RestartStrategyKind
from weir.graph.logical import JobGraph, Partitioning
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, JobId, StateHandle, SubtaskId
from weir.jobmaster.coordination import LocalCoordination
from weir.jobmaster.job_master import JobMaster
from weir.jobmaster.remote_coordination import ControlPlane
from weir.jobmaster.restorer import NO_PROGRESS, JobProgress
from weir.protocol.deployment import (
    Address,
    Deploy,
    SlotCommand,
    SlotHeartbeat,
    SlotRegistered,
    StartWorker,
    Versions,
    WorkerCommand,
    WorkerExited,
    WorkerHeartbeat,
    WorkerReady,
)
from weir.protocol.elements import CheckpointKind
from weir.protocol.events import JobChanged, JobEvent, Notice
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import (
    Acknowledged,
    CheckpointCompleted,
    OperatorAck,
    SnapshotMetrics,
    SubtaskChanged,
    SubtaskCommand,
    TriggerCheckpoint,
)
from weir.storage.catalog import RestoreRequest
from weir.storage.layout import JobLayout, in_job
from weir.storage.manifest import Manifest, OperatorSummary, dump
from weir.storage.memory import MemoryStore
from weir.storage.store import CheckpointStore, checksum_of

JOB = JobId("job")
VERSIONS = Versions("1", "3.11", "20")
GRAPH = graph([node("source", 2), node("sink", 2)], [edge("source", "sink", Partitioning.HASH)])
PLAN = ExecutionGraph(GRAPH)
LAYOUT = JobLayout(JOB)
NO_RESTART = RestartConfig(kind=RestartStrategyKind.NONE)

T = TypeVar("T")


class IoQueue:
    """I/O that happens when it is told to."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Callable[[], Any], Callable[[Any], None]]] = deque()

    def io(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.waiting.append((work, done))

    def run(self, times: int | None = None) -> None:
        """Do the next ``times`` works, or all there are."""
        while self.waiting and times != 0:
            work, done = self.waiting.popleft()
            try:
                outcome = work()
            except Exception as error:
                outcome = error
            done(outcome)
            times = None if times is None else times - 1


def acknowledgement(
    chain: SubtaskId, checkpoint_id: int = 1, attempt: int = 1, *handles: StateHandle
) -> Acknowledged:
    ack = OperatorAck(chain, handles, SnapshotMetrics(records=10))
    return Acknowledged(AttemptNumber(attempt), CheckpointId(checkpoint_id), chain, (ack,))


def delayed(delay_ms: int = 5_000) -> RestartConfig:
    return RestartConfig(kind=RestartStrategyKind.FIXED_DELAY, attempts_max=100, delay_ms=delay_ms)


def exited(slot: int, *, attempt: int = 1, code: int = -9, stderr: str = "") -> WorkerExited:
    return WorkerExited(slot, AttemptNumber(attempt), 100 + slot, code, stderr)


def abandoned_ids(master: JobMaster) -> list[int]:
    """The checkpoints that the coordinator knows as given up, but not yet deleted."""
    coordination = master._checkpoints._coordination
    assert isinstance(coordination, LocalCoordination)
    completed = coordination.state.completed
    return [c.checkpoint_id for c in completed if c.abandoned_at_ms is not None]


def state_file(
    store: CheckpointStore, path: str = "chk-1/1/sink-0-x", data: bytes = b"state"
) -> StateHandle:
    """A file of state in the storage, and its handle."""
    store.put(in_job(JOB, path), data)
    return StateHandle("operator", "x", len(data), checksum_of(data), path=path, mode="split")


def stored_checkpoint(
    store: CheckpointStore,
    checkpoint_id: int,
    *handles: StateHandle,
    attempt: int = 1,
    job: JobId = JOB,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    operators: tuple[str, ...] = ("source", "sink"),
    parallelism: int = 2,
    max_parallelism: int = 128,
    location: str | None = None,
) -> Manifest:
    """A completed checkpoint in the storage; ``sink-0`` saved the handles."""
    names = [(node(uid).uid, uid) for uid in operators]
    manifest = Manifest(
        job_id=job,
        job_name="job",
        checkpoint_id=CheckpointId(checkpoint_id),
        parent_id=None,
        kind=kind,
        attempt=AttemptNumber(attempt),
        triggered_ms=0,
        completed_ms=checkpoint_id,
        versions=VERSIONS,
        operators=tuple(
            OperatorSummary(uid, name, parallelism, max_parallelism) for uid, name in names
        ),
        acks=(OperatorAck(SubtaskId(names[-1][0], 0), handles),),
        location=location,
    )
    store.put(JobLayout(job).manifest(manifest.checkpoint_id), dump(manifest))
    return manifest


class FakeCluster(IoQueue):
    """Records what the job master asks of the world."""

    def __init__(self) -> None:
        super().__init__()
        self.slot_commands: list[tuple[int, SlotCommand]] = []
        self.worker_commands: list[tuple[int, SubtaskCommand | WorkerCommand]] = []
        self.replaced: list[int] = []
        self.replaced_executors: list[int] = []  # Of these slots.
        self.failure = ""  # Of a slot's task.

    def to_slot(self, slot_index: int, command: SlotCommand) -> None:
        self.slot_commands.append((slot_index, command))

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        self.worker_commands.append((slot_index, command))

    def replace_slot(self, slot_index: int) -> None:
        self.replaced.append(slot_index)

    def replace_executor(self, slot_index: int) -> None:
        self.replaced_executors.append(slot_index)

    def core_count(self) -> int:
        return 4

    def slot_failure(self) -> str:
        return self.failure


class JobHarness:
    """A job master and short ways to say what happens to it."""

    def __init__(
        self,
        *,
        store: CheckpointStore | None = None,
        restore_from: RestoreRequest | None = None,
        checkpoints: dict[str, Any] | None = None,
        control: ControlPlane | None = None,
        progress: JobProgress = NO_PROGRESS,
        job: JobGraph = GRAPH,
        **config: Any,
    ) -> None:
        self.store = store or MemoryStore()
        self.cluster = FakeCluster()
        self.clock = ManualClock()
        self.events: list[JobEvent] = []
        self.delivered: list[tuple[str, bytes]] = []
        settings = {"interval_ms": 1_000, **(checkpoints or {})}
        self.master = JobMaster(
            job,
            JobConfig(parallelism=2, checkpoints=CheckpointConfig(**settings), **config),
            JOB,
            program=b"program",
            store=self.store,
            versions=VERSIONS,
            cluster=self.cluster,
            clock=self.clock,
            emit=self.events.append,
            collect=lambda subtask, _, payload: self.delivered.append((str(subtask), payload)),
            restore_from=restore_from,
            progress=progress,
            seed=1,
            control=control,
        )

    # What happens.

    def register(self, *slots: int, spark_attempt: int = 0, versions: Versions = VERSIONS) -> None:
        for slot in slots:
            self.master.on_slot(SlotRegistered(slot, spark_attempt, f"host-{slot}", 1, versions))

    def ready(self, *slots: int) -> None:
        """The worker processes of these slots of the plan run."""
        for slot in slots:
            ready = WorkerReady(self.attempt, slot, 100 + slot, Address("here", slot))
            self.master.on_worker(slot, ready)

    def subtasks(self, status: SubtaskStatus, *only: str, cause: str = "", **details: Any) -> None:
        """All chains, or those named, report this status."""
        for chain in PLAN.chain_subtasks:
            if not only or str(chain) in only:
                report = SubtaskChanged(self.attempt, chain, status, cause, details)
                self.master.on_worker(chain.index, report)

    def acknowledge(self, checkpoint_id: int) -> None:
        for chain in PLAN.chain_subtasks:
            ack = acknowledgement(chain, checkpoint_id, self.attempt)
            self.master.on_worker(chain.index, ack)

    def alive(self, *, rounds: int | None = None) -> None:
        """Everybody sends a heartbeat."""
        for slot in (0, 1):
            self.master.on_slot(SlotHeartbeat(slot))
            beat = WorkerHeartbeat(self.attempt, slot, self.clock.ms if rounds is None else rounds)
            self.master.on_worker(slot, beat)

    def wait(self, ms: int) -> None:
        """Time passes, and the job master does what is due."""
        self.clock.ms += ms
        self.master.tick()

    def deployed(self) -> "JobHarness":
        self.master.start()
        self.cluster.run()
        self.register(0, 1)
        self.ready(0, 1)
        self.cluster.run()
        return self

    def running(self) -> "JobHarness":
        self.deployed()
        self.subtasks(SubtaskStatus.RUNNING)
        assert self.status is JobStatus.RUNNING
        return self

    def redeployed(self, after_ms: int = 0) -> None:
        """The restart is due by then; the next attempt is deployed."""
        self.wait(after_ms)
        self.cluster.run()
        self.ready(0, 1)
        self.cluster.run()

    def restarted(self, after_ms: int = 0) -> None:
        """The restart is due by then; the next attempt comes up and runs."""
        self.redeployed(after_ms)
        self.subtasks(SubtaskStatus.RUNNING)

    def checkpointed(self) -> int:
        """The next periodic checkpoint completes; its number."""
        self.alive()
        self.wait(1_000)
        trigger = self.told(TriggerCheckpoint)[-1]
        self.acknowledge(trigger.barrier.checkpoint_id)
        self.cluster.run()
        return trigger.barrier.checkpoint_id

    # What came of it.

    @property
    def status(self) -> JobStatus:
        return self.master.status

    @property
    def attempt(self) -> AttemptNumber:
        return self.master._attempt.number

    @property
    def statuses(self) -> list[str]:
        return [event.status.value for event in self.events if isinstance(event, JobChanged)]

    @property
    def notices(self) -> list[str]:
        return [event.text for event in self.events if isinstance(event, Notice)]

    def told(self, kind: type[T], slot: int = 0) -> list[T]:
        """Commands of a kind that the worker of one slot got."""
        return [c for to, c in self.cluster.worker_commands if to == slot and isinstance(c, kind)]

    def asked(self, kind: type[T], slot: int | None = None) -> list[tuple[int, T]]:
        """Commands of a kind that slots got."""
        return [
            (to, command)
            for to, command in self.cluster.slot_commands
            if isinstance(command, kind) and slot in (None, to)
        ]

    def happened(self, kind: type[T]) -> list[T]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def started(self) -> list[tuple[int, int, int]]:
        """``(slot, attempt, slot of the plan)`` of every worker asked for."""
        return [(slot, c.attempt, c.plan_slot) for slot, c in self.asked(StartWorker)]

    @property
    def completions(self) -> list[tuple[int, bool]]:
        return [(c.checkpoint_id, c.final) for c in self.told(CheckpointCompleted)]

    @property
    def deploys(self) -> list[Deploy]:
        return self.told(Deploy)
