"""A program's job in a simulated cluster, under one variation of what must not matter.

The classes that run are those of production; time, lines, processes and storage are those of
``weir.local.cluster`` and ``tests.simulation``. Every worker process has a graph of its own,
unpickled as in a slot, and with ``encoded`` every element of a channel is written as frames and
read again.
"""

import pickle
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any
from unittest.mock import patch

import cloudpickle

from tests.programs.build import MAX_PARALLELISM, graph_of
from tests.simulation.clock import EPOCH_MS, WORK_MAX_NS, SimClock
from tests.simulation.cluster import STORAGE, FaultyStore
from tests.simulation.network import SeededConditions
from tests.simulation.simulation import LITTLE_STATE
from weir.channels.framing import ElementDecoder, ElementEncoder, FrameDecoder, FrameEncoder
from weir.common import clock
from weir.common.clock import SystemClock
from weir.common.row_codec import decode_rows
from weir.config import (
    ChannelConfig,
    CheckpointConfig,
    JobConfig,
    RestartConfig,
    RestartStrategyKind,
    StateBackendKind,
    StateConfig,
)
from weir.graph.logical import JobGraph
from weir.ids import ChannelId, CheckpointId, JobId, SubtaskId
from weir.jobmaster.job_master import JobMaster
from weir.local.cluster import InProcessCluster, InProcessWorker
from weir.local.event_queue import EventQueue, Latencies
from weir.protocol.deployment import Delivered, Deploy, WorkerCommand, WorkerReport
from weir.protocol.elements import CheckpointKind, Element, Records
from weir.protocol.events import CheckpointSettled, JobChanged, JobEvent
from weir.protocol.lifecycle import JobStatus, SubtaskStatus
from weir.protocol.messages import Report, SubtaskChanged, SubtaskCommand
from weir.protocol.restore import CHANGES
from weir.state import chains
from weir.state.backends import mapped, rocksdb_items, rocksdb_timers
from weir.storage.catalog import RestoreRequest
from weir.worker.versions import installed_versions

JOB_ID = JobId("program")
HEAP = StateBackendKind.HASHMAP
STEPS_MAX = 60_000  # A run has some hundreds or thousands.
LOOP_US = (2_000, 14_000)  # So slow that checkpoints come in the middle of a few records.
LAZY_SNAPSHOT_US = (10_000, 60_000)
INTERVAL_MS = 25
WINDOWS = re.compile(r"Windows\.of\(\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Variation:
    """Conditions of a run; none of them may change the output.

    ``kills`` and ``stop`` are moments between 0, when all subtasks run, and 1, when the first of
    them has ended: a worker process is killed, or the job is stopped with a savepoint and goes on
    with parallelism ``rescaled_to``.
    """

    parallelism: int = 1
    rows_max: int = 32_768
    chaining: bool = True
    encoded: bool = False
    seed: int | None = None  # Of delays; None: nothing takes time.
    checkpointing: bool = False
    interval_ms: int = INTERVAL_MS
    lazy_snapshots: bool = False  # Writing takes long, and the loop goes on meanwhile.
    kills: tuple[float, ...] = ()
    stop: float | None = None
    rescaled_to: int = 1
    wall_jumps: bool = False
    windows_ms: int | None = None  # The size of all windows after the stop; changes the meaning.

    @property
    def increments(self) -> bool:
        """Whether checkpoints hold what changed, which is so for a quarter of the seeds."""
        return self.seed is not None and self.seed % 4 == 2

    def __repr__(self) -> str:
        plain = Variation()
        changed = (
            f"{name}={getattr(self, name)!r}"
            for name in self.__dataclass_fields__
            if getattr(self, name) != getattr(plain, name)
        )
        return f"Variation({', '.join(changed)})"


@dataclass(slots=True)
class Outcome:
    """The end of a run, and its output."""

    status: str = ""
    cause: str = ""
    outputs: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    steps: int = 0
    running_ns: int = 0  # When all subtasks ran.
    ended_ns: int = 0  # When the first of them had no input any more.
    fired: Counter[str] = field(default_factory=Counter)


def run(text: str, variation: Variation) -> Outcome:
    """Run a program's job to its end.

    Faults of the variation that had no occasion are missing in ``fired``.

    Raises:
        WeirError: The pipeline is refused while it is being written.
    """
    if not variation.kills and variation.stop is None:
        return _Run(text, variation).to_its_end()
    # A run is the same up to its first fault, so an undisturbed one tells when that has to come.
    calm = replace(variation, kills=(), stop=None, checkpointing=True)
    measured = _Run(text, calm).to_its_end()
    if measured.status != JobStatus.FINISHED:
        return measured
    return _Run(text, variation, measured).to_its_end()


class Machine:
    """A machine's time in place of the module ``time``; its wall clock is set now and then."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._set_at_ns = 0
        self._ns = 0
        self._worked_ns = 0
        self._wall_ms = EPOCH_MS
        self.times_set = 0

    def move_to(self, monotonic_ns: int) -> None:
        """It is that moment now, at least."""
        self._ns = max(self._ns, monotonic_ns)
        if self._ns >= self._set_at_ns:
            self._set_at_ns = self._ns + self._rng.randint(3_000_000, 30_000_000)
            self._wall_ms += self._rng.randint(-3_600_000, 3_600_000)
            self.times_set += 1

    def time_ns(self) -> int:
        return self._wall_ms * 1_000_000 + self._ns

    def monotonic_ns(self) -> int:
        return self._ns

    def thread_time_ns(self) -> int:
        self._worked_ns += self._rng.randrange(WORK_MAX_NS)
        return self._worked_ns


class MachineClock(SystemClock):
    """Production's clock over such a machine."""

    def __init__(self, machine: Machine) -> None:
        super().__init__()
        self._machine = machine

    def wait_until(self, monotonic_ns: int) -> None:
        """Be at that moment at once."""
        self._machine.move_to(monotonic_ns)


class SlowConditions(SeededConditions):
    """Seeded delays in which a loop takes its time, and with ``lazy`` also the snapshot thread."""

    def __init__(self, rng: random.Random, *, lazy: bool) -> None:
        super().__init__(rng)
        self._rng = rng
        self._lazy = lazy

    def delay_ns(self, what: str) -> int:
        """A delay of this kind."""
        if what == "loop":
            return self._rng.randint(*LOOP_US) * 1_000
        if what == "snapshot" and self._lazy:
            return self._rng.randint(*LAZY_SNAPSHOT_US) * 1_000
        return super().delay_ns(what)


class ProgramWorker(InProcessWorker):
    """A worker process whose channels may carry bytes."""

    _cluster: "ProgramCluster"

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._frames = FrameEncoder(self.attempt, self._cluster.config.channels.frame_bytes_max)
        self._codecs: dict[ChannelId, Callable[[Element], Element]] = {}

    def send(self, channel: ChannelId, element: Element) -> None:
        """Send an element, through frames where the variation says so."""
        if self._cluster.encoded:
            codec = self._codecs.get(channel)
            if codec is None:
                codec = self._codecs[channel] = self._codec(channel)
            element = codec(element)
        super().send(channel, element)

    def _codec(self, channel: ChannelId) -> Callable[[Element], Element]:
        bytes_max = self._cluster.config.channels.frame_bytes_max
        frames = FrameEncoder(self.attempt, bytes_max)
        encoder = ElementEncoder(channel, frames, pickles=True)
        cutter, decoder = (
            FrameDecoder(self.attempt, bytes_max),
            ElementDecoder(channel, pickles=True),
        )

        def through_bytes(element: Element) -> Element:
            data = b"".join(bytes(part) for part in encoder.encode(element))
            read = [decoder.decode(frame) for frame in cutter.feed(data)]
            (come_out,) = [element for element in read if element is not None]
            if isinstance(element, Records):
                self._cluster.encoded_records += element.count
            return come_out

        return through_bytes


class ProgramCluster(InProcessCluster):
    """A cluster whose worker processes share nothing but what channels hand over."""

    worker_class = ProgramWorker

    def __init__(
        self,
        graph: JobGraph,
        *args: Any,
        encoded: bool,
        delivered_up_to: int,
        **settings: Any,
    ) -> None:
        super().__init__(graph, *args, **settings)
        self.encoded = encoded
        self.delivered_up_to = delivered_up_to  # The checkpoint that an earlier driver ended with.
        self.encoded_records = 0
        self.restored_changes: Counter[str] = Counter()  # Pieces of state, by their kind.

    def to_worker(self, slot_index: int, command: SubtaskCommand | WorkerCommand) -> None:
        """Send a command to a worker; what it restores of changes is counted."""
        if isinstance(command, Deploy):
            pieces = [piece.handle for one in command.restores for piece in one.handles]
            changes = [handle for handle in pieces if handle.mode == CHANGES]
            self.restored_changes.update(handle.name.partition(".")[0] for handle in changes)
        super().to_worker(slot_index, command)

    @property
    def graph(self) -> JobGraph:
        """The job's graph, as a process gets it."""
        graph: JobGraph = pickle.loads(self._pickled)
        return graph

    @graph.setter
    def graph(self, graph: JobGraph) -> None:
        self._pickled = cloudpickle.dumps(graph)

    def reported(self, process: InProcessWorker, report: Report | WorkerReport) -> None:
        """A report reaches the driver; a new driver is handed again what the savepoint covers."""
        if isinstance(report, Delivered) and 0 < report.checkpoint_id <= self.delivered_up_to:
            return
        super().reported(process, report)

    def release(self, process: InProcessWorker, exit_code: int) -> None:
        """Close the operators of a process that ends well; one that is killed closes nothing."""
        if exit_code == 0:
            super().release(process, exit_code)


class _Run:
    def __init__(self, text: str, variation: Variation, measured: Outcome | None = None) -> None:
        self._text = text
        self._variation = variation
        self._rng = random.Random(variation.seed)
        self._machine = Machine(random.Random(f"machine {variation.seed}"))
        self._clock: SimClock | MachineClock = SimClock(variation.seed or 0)
        self._conditions = (
            Latencies()
            if variation.seed is None
            else SlowConditions(self._rng, lazy=variation.lazy_snapshots)
        )
        self._victims = random.Random(f"victims {variation.seed}")
        self._store = FaultyStore(lambda point: None)
        measured = measured or Outcome()
        start_ns, length_ns = measured.running_ns, measured.ended_ns - measured.running_ns
        self._kills_ns = sorted(start_ns + int(length_ns * at) for at in variation.kills)
        self._stop_ns = (
            None if variation.stop is None else start_ns + int(length_ns * variation.stop)
        )
        self._stopped_with: str | None = None
        self._settled_id = 0
        self.outcome = Outcome()

    def to_its_end(self) -> Outcome:
        """Run the job, and once more from the savepoint that it was stopped with."""
        # With RocksDB columns lie in files, all timers but two on disk, and all windows apart.
        in_files = patch.object(mapped, "FILE_BYTES_MIN", 1)
        on_disk = patch.object(rocksdb_timers, "NEAR_MAX", 1)
        apart = patch.object(rocksdb_items, "WHOLE_MAX", 1)
        with patch.multiple(chains, **LITTLE_STATE), in_files, on_disk, apart:
            return self._jumping() if self._variation.wall_jumps else self._run()

    def _jumping(self) -> Outcome:
        with patch.object(clock, "time", self._machine):
            self._clock = MachineClock(self._machine)
            outcome = self._run()
        outcome.fired["wall jump"] += self._machine.times_set > 1
        return outcome

    def _run(self) -> Outcome:
        variation = self._variation
        self.outcome.fired["increments"] += variation.increments
        self._one(variation.parallelism, None)
        uri, self._stopped_with = self._stopped_with, None
        if uri is not None and self.outcome.status == JobStatus.FINISHED:
            self.outcome.fired["stop"] += 1
            self.outcome.fired["rescale"] += variation.rescaled_to != variation.parallelism
            self._one(variation.rescaled_to, uri)
        return self.outcome

    def _one(self, parallelism: int, restore: str | None) -> None:
        variation, outcome = self._variation, self.outcome
        text = self._text
        if restore is not None and variation.windows_ms is not None:
            text = WINDOWS.sub(f"Windows.of({variation.windows_ms}", text)
        graph = graph_of(text, parallelism, chaining=variation.chaining)
        config = _config(variation, parallelism)
        events = EventQueue(self._clock)
        cluster = ProgramCluster(
            graph,
            config,
            JOB_ID,
            encoded=variation.encoded,
            delivered_up_to=self._settled_id,
            events=events,
            conditions=self._conditions,
            open_store=self._store.at,
        )
        master = JobMaster(
            graph,
            config,
            JOB_ID,
            program=b"",
            store=self._store,
            versions=installed_versions(),
            cluster=cluster,
            clock=self._clock,
            emit=self._note,
            collect=self._collect,
            restore_from=None if restore is None else RestoreRequest.parse(restore),
            seed=variation.seed or 0,
            open_store=self._store.at,
        )
        cluster.start(master)
        while not master.is_over and events.run_next():
            outcome.steps += 1
            if outcome.steps > STEPS_MAX:
                outcome.status, outcome.cause = "stuck", f"the job is {master.status} and goes on"
                return
            self._disturb(cluster, master)
        outcome.status, outcome.cause = master.status.value, master.cause
        while cluster.processes and events.run_next():
            pass  # The workers stop, and their operators are closed.
        outcome.fired["encoded"] += cluster.encoded_records > 0
        for kind in cluster.restored_changes:
            outcome.fired[f"changes of a {kind} restored"] += 1

    def _disturb(self, cluster: ProgramCluster, master: JobMaster) -> None:
        if master.status is not JobStatus.RUNNING:
            return
        now_ns = self._clock.monotonic_ns()
        if self._kills_ns and now_ns >= self._kills_ns[0]:
            running = [p for p in cluster.processes.values() if p.alive and p.worker.subtasks]
            if running:
                del self._kills_ns[0]
                self.outcome.fired["kill"] += 1
                cluster.kill(self._victims.choice(running))
        elif self._stop_ns is not None and now_ns >= self._stop_ns:
            self._stop_ns = None
            ask = partial(
                master.savepoint,
                "stop",
                CheckpointKind.STOP_SUSPEND,
                f"{STORAGE}/savepoints/stop",
                done=self._stopped,
                failed=lambda why: None,
            )
            cluster.enter(ask)

    def _stopped(self, uri: str) -> None:
        self._stopped_with = uri

    def _note(self, event: JobEvent) -> None:
        now_ns = self._clock.monotonic_ns()
        if isinstance(event, JobChanged) and event.status is JobStatus.RUNNING:
            self.outcome.running_ns = self.outcome.running_ns or now_ns
        if isinstance(event, SubtaskChanged) and event.status is SubtaskStatus.ENDED:
            self.outcome.ended_ns = self.outcome.ended_ns or now_ns
        if isinstance(event, CheckpointSettled) and event.failure is None:
            self.outcome.fired["checkpoint"] += 1
            self._settled_id = max(self._settled_id, event.checkpoint_id)

    def _collect(self, subtask: SubtaskId, checkpoint_id: CheckpointId, payload: bytes) -> None:
        self.outcome.outputs[subtask.operator] += decode_rows(payload, pickles=True)


def _config(variation: Variation, parallelism: int) -> JobConfig:
    restarts = RestartConfig(
        kind=RestartStrategyKind.FIXED_DELAY,
        attempts_max=len(variation.kills) + 1,
        delay_ms=1,
    )
    checkpointing = variation.checkpointing or variation.kills or variation.stop is not None
    return JobConfig(
        name="program",
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        checkpoints=CheckpointConfig(
            interval_ms=variation.interval_ms if checkpointing else None,
            storage=STORAGE,
            inline_max_bytes=20_000 if (variation.seed or 0) % 2 else 1,
            tolerable_failures=1_000,
            timeout_ms=2_000,
        ),
        restart=restarts if checkpointing else RestartConfig(kind=RestartStrategyKind.NONE),
        state=StateConfig(backend=StateBackendKind.ROCKSDB if variation.increments else HEAP),
        channels=ChannelConfig(batch_rows_max=variation.rows_max),
        allow_pickled_state=True,
    )
