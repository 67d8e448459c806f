"""The facts that a verdict is made from: plain values, read from rows or made up by a test.

A *subtask* here is a chain's: the unit that has a loop's share, takes barriers and acknowledges. It
is known by its ``Key`` and called by its name, ``"hourly-1"``. A value that was not reported is
None, never zero: "not busy" and "not known" lead to different sentences.

Units: ``*_ms`` milliseconds, ``*_at_ms`` wall clock milliseconds, shares between 0 and 1.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, SubtaskStatus

Key: TypeAlias = tuple[str, int]  # A chain's head and the index in it.


def name_of(key: Key) -> str:
    """The name of a subtask: ``"hourly-1"``."""
    return f"{key[0]}-{key[1]}"


def key_of(name: str) -> Key:
    """The subtask of a name; uids may have dashes themselves."""
    chain, _, index = name.rpartition("-")
    return chain, int(index)


@dataclass(frozen=True, slots=True)
class Call:
    """A place in the code at which samples met a subtask at work."""

    operator: str  # The uid of an operator of its chain.
    function: str  # Of the user's innermost frame; empty: there was none.
    file: str
    line: int
    share: float  # Of the samples that met the subtask at work.

    @property
    def text(self) -> str:
        """``"enrich (pipeline.py:41)"``; empty without a frame of the user's."""
        return place_text(self.function, self.file, self.line)


def place_text(function: str, file: str, line: int) -> str:
    """A line of a function; empty without one."""
    return f"{function} ({file.rpartition('/')[2]}:{line})" if function else ""


@dataclass(frozen=True, slots=True)
class Rates:
    """Shares of about the last two seconds of the loop that a subtask shares with its slot."""

    busy: float
    back_pressured: float
    idle: float
    records_in_per_s: float | None = None
    calls: Sequence[Call] = ()  # Where it worked, the largest share first; a few.

    @property
    def known(self) -> str:
        """The larger share of busy and back-pressured, in words."""
        if self.back_pressured > self.busy:
            return f"back-pressured {share(self.back_pressured)}"
        return f"busy {share(self.busy)}"


def share(value: float) -> str:
    """A share in percent: ``"97 %"``, ``"<1 %"``."""
    return "<1 %" if 0 < value < 0.005 else f"{round(100 * min(1.0, max(0.0, value)))} %"


@dataclass(frozen=True, slots=True)
class Stall:
    """One call of one subtask that has held the loop of its slot since then."""

    since_ms: int
    stalled_ms: float
    stack: str  # Innermost last.


@dataclass(frozen=True, slots=True)
class Aligning:
    """A subtask has some of a checkpoint's barriers and waits for others."""

    since_ms: int
    waited_ms: float
    missing: Sequence[str]  # Sending subtasks; bounded.
    missing_count: int


@dataclass(frozen=True, slots=True)
class Seen:
    """One subtask by its last report, when the evidence was taken."""

    status: SubtaskStatus
    rates: Rates | None = None
    aligning: Aligning | None = None
    stall: Stall | None = None
    silent_ms: float | None = None  # Since its last report: too long, while others reported.
    sent_on: bool = False  # A receiver has its barrier: its snapshot is taken, and being written.
    records: int | None = None  # Taken in since the attempt began.


@dataclass(frozen=True, slots=True)
class ThreadsBeside:
    """Threads that user code started in one slot."""

    lock_wait_ms: float  # Mean, of a thread of the slot that wakes: for the interpreter lock.
    cpu_share: float  # Of one processor, all of them.
    loop_share: float  # Of the slot's loop.
    function: str  # Where they were met most; empty: in no code of the user's.
    file: str
    line: int

    @property
    def text(self) -> str:
        """As ``Call.text``."""
        return place_text(self.function, self.file, self.line)


@dataclass(frozen=True, slots=True)
class CpuWait:
    """The loop of one slot was ready to run, and waited for a processor."""

    share: float
    busiest: float  # Busy share of the slot's busiest subtask, which includes such waits.
    pressure: float = 0.0  # Share of the time in which any thread of the slot's host waited so.


@dataclass(frozen=True, slots=True)
class DriverSeen:
    """The driver's threads over about two seconds: their work, and their wait for a processor."""

    window_ms: float
    ran_ms: float
    waited_ms: float
    stood_ms: float = 0.0  # The longest time in which none of them ran Python, nor waited.

    @property
    def lack(self) -> float:
        """The share of the time in which they had work that they waited for a processor."""
        wanted_ms = self.ran_ms + self.waited_ms
        return self.waited_ms / wanted_ms if wanted_ms > 0 else 0.0


@dataclass(frozen=True, slots=True)
class ChainSeen:
    """A chain's subtasks together."""

    count: int
    busy: float | None = None  # Means, of those that reported.
    back_pressured: float | None = None
    records_in_per_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evidence:
    """The work of the subtasks: now, or when the checkpoint settled."""

    taken_at_ms: int | None = None  # None: no evidence was kept.
    chains: Mapping[str, ChainSeen] = field(default_factory=dict)
    subtasks: Mapping[Key, Seen] = field(default_factory=dict)  # Some of each chain, see evidence.
    missing: Sequence[Key] = ()  # Subtasks that never acknowledged; bounded.
    missing_count: int = 0
    stalls: Mapping[Key, Stall] = field(default_factory=dict)  # Noticed meanwhile, over or not.
    cpu_waits: Mapping[int, CpuWait] = field(default_factory=dict)  # By slot, those worth telling.
    driver: DriverSeen | None = None  # None: not reported.
    beside: Mapping[int, ThreadsBeside] = field(default_factory=dict)  # By slot.

    def rates(self, key: Key) -> Rates | None:
        """The rates of a subtask; None: it reported none."""
        seen = self.subtasks.get(key)
        return seen.rates if seen else None

    def stall(self, key: Key) -> Stall | None:
        """The call that held the subtask's loop; None: none did."""
        seen = self.subtasks.get(key)
        return (seen.stall if seen else None) or self.stalls.get(key)

    @property
    def stalled(self) -> dict[Key, Stall]:
        """All stalls by subtask, the longest first."""
        stalls = dict(self.stalls)
        stalls |= {key: seen.stall for key, seen in self.subtasks.items() if seen.stall}
        return dict(sorted(stalls.items(), key=lambda item: -item[1].stalled_ms))


@dataclass(frozen=True, slots=True)
class Ack:
    """A chain subtask's acknowledgement; bytes are of all its operators."""

    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float  # Without what passed before an overtaking barrier was in on all channels.
    state_bytes: int
    written_bytes: int
    records: int  # Since the attempt began.
    acknowledged_at_ms: int
    # By operator, for how long its own part was written; empty: not reported.
    writing_ms: Mapping[str, float] = field(default_factory=dict)

    @property
    def left_ms(self) -> float:
        """The time from the trigger until its own barriers went out."""
        return self.start_delay_ms + self.alignment_ms

    @property
    def total_ms(self) -> float:
        """The time from the trigger until its snapshot was written."""
        return self.left_ms + self.sync_ms + self.async_ms


@dataclass(frozen=True, slots=True)
class Gate:
    """One input gate of one receiving subtask.

    Shape: all sequences have one entry per channel, in channel order.
    """

    operator: str
    index: int
    gate: int
    upstream: Sequence[str]
    arrived_ms: Sequence[float | None]  # After the subtask's first barrier; None: ended.
    blocked_ms: Sequence[float]
    bytes_during: Sequence[int]
    in_flight: Sequence[int] = ()  # Bytes of persisted records; empty: none of any channel.

    @property
    def slowest_ms(self) -> float:
        """The time from the subtask's first barrier until this gate's last one."""
        return max((arrived for arrived in self.arrived_ms if arrived is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of the graph, in topological order."""

    uid: str
    name: str
    chain: str
    parallelism: int
    is_source: bool = False
    is_keyed: bool = False
    is_sink: bool = False
    files: str | None = None  # The directory that a file sink commits to.


@dataclass(frozen=True, slots=True)
class Edge:
    """One edge of the graph, between operators."""

    source: str
    target: str
    partitioning: str


@dataclass(frozen=True, slots=True)
class Slot:
    """The process in which the subtasks of one index run, with one loop."""

    host: str = ""
    pid: int | None = None  # Of the worker process.

    @property
    def text(self) -> str:
        """Its host and process, as far as known: ``" (host node-3, process 4711)"``."""
        parts = [f"host {self.host}"] if self.host else []
        parts += [f"process {self.pid}"] if self.pid is not None else []
        return f" ({', '.join(parts)})" if parts else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Status, times and totals of the checkpoint, from its own row."""

    number: int
    status: CheckpointStatus
    triggered_at_ms: int
    now_ms: int
    settled_at_ms: int | None = None
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    is_aligned: bool = False  # Whether its barriers waited behind records, without a time-out.
    stops_the_world: bool = False  # Whether each subtask paused until it was settled.
    in_flight_bytes: int = 0  # Of records that barriers overtook.
    duration_ms: float | None = None
    reason: FailureReason | None = None
    cause: str = ""
    subtask_count: int = 0
    acknowledged_count: int = 0
    interval_ms: int | None = None
    timeout_ms: int | None = None
    typical_ms: float | None = None  # The median of the completed ones before it.
    start_delay_ms: float = 0.0  # The largest among the subtasks, as the next three.
    alignment_ms: float = 0.0
    sync_ms: float = 0.0
    async_ms: float = 0.0
    written_bytes: int = 0
    has_details: bool = True
    attempt: int = 1
    attempt_cause: str = ""  # Why the checkpoint's attempt ended.
    driver_silent_ms: float | None = None  # Since a live driver's last sign of life, if too long.
    lost_driver: str = ""  # Why the driver of its attempt was lost; empty: it was not.

    @property
    def elapsed_ms(self) -> float:
        """The time that the checkpoint took, or has taken so far."""
        if self.duration_ms is not None:
            return self.duration_ms
        return max(0.0, float((self.settled_at_ms or self.now_ms) - self.triggered_at_ms))

    @property
    def noun(self) -> str:
        """Its word in a sentence: checkpoint or savepoint."""
        return "checkpoint" if self.kind is CheckpointKind.CHECKPOINT else "savepoint"


@dataclass(frozen=True)
class Facts:
    """All facts about one checkpoint. Immutable; derived ones are worked out once."""

    times: Times
    operators: Sequence[Operator] = ()
    edges: Sequence[Edge] = ()
    acks: Mapping[Key, Ack] = field(default_factory=dict)
    gates: Mapping[Key, Sequence[Gate]] = field(default_factory=dict)  # Of receiving subtasks.
    evidence: Evidence = Evidence()
    slots: Mapping[int, Slot] = field(default_factory=dict)
    # Records of subtasks at the barrier of the checkpoint before, of the same attempt; empty: the
    # attempt has none before, or its acknowledgements are not kept any more.
    records_before: Mapping[Key, int] = field(default_factory=dict)

    @cached_property
    def by_uid(self) -> dict[str, Operator]:
        """Operators by uid."""
        return {operator.uid: operator for operator in self.operators}

    @cached_property
    def chain_names(self) -> dict[str, str]:
        """The names of the chains' heads by uid."""
        return {o.uid: o.name for o in self.operators if o.chain == o.uid}

    @cached_property
    def keyed_chains(self) -> frozenset[str]:
        """Chains that get their records by key."""
        hashed = {edge.target for edge in self.edges if edge.partitioning == "hash"}
        return frozenset(
            o.chain for o in self.operators if o.chain == o.uid and (o.is_keyed or o.uid in hashed)
        )

    @cached_property
    def downstream(self) -> dict[str, list[tuple[str, str]]]:
        """Per chain the chains it sends to, with the partitioning."""
        return self._neighbours(forward=True)

    @cached_property
    def upstream(self) -> dict[str, list[tuple[str, str]]]:
        """Per chain the chains it gets from, with the partitioning."""
        return self._neighbours(forward=False)

    def _neighbours(self, *, forward: bool) -> dict[str, list[tuple[str, str]]]:
        chain = {o.uid: o.chain for o in self.operators}
        neighbours: dict[str, list[tuple[str, str]]] = {o.chain: [] for o in self.operators}
        for edge in self.edges:
            source, target = chain.get(edge.source), chain.get(edge.target)
            if source is None or target is None or source == target:
                continue
            here, there = (source, target) if forward else (target, source)
            neighbours[here].append((there, edge.partitioning))
        return neighbours

    @cached_property
    def has_sent(self) -> frozenset[str]:
        """Subtasks whose barrier reached one that acknowledged: their snapshot is taken."""
        return frozenset(
            sender
            for gates in self.gates.values()
            for gate in gates
            for sender, arrived in zip(gate.upstream, gate.arrived_ms, strict=True)
            if arrived is not None
        )

    @cached_property
    def parallelism(self) -> dict[str, int]:
        """The parallelism of each chain."""
        return {o.chain: o.parallelism for o in self.operators if o.chain == o.uid}

    def label(self, chain: str) -> str:
        """The name that its user gave a chain's head; else its uid."""
        return self.chain_names.get(chain, chain)

    def operator_label(self, uid: str) -> str:
        """The name that its user gave an operator; else its uid."""
        return self.by_uid[uid].name if uid in self.by_uid else uid

    def slot(self, key: Key) -> Slot:
        """The slot that a subtask runs in: slot *i* has the subtasks *i* of every chain."""
        return self.slots.get(key[1], Slot())

    def share_host(self, one: int, other: int) -> bool:
        """Whether two slots are one, or known to be on one host."""
        host = self.slots[one].host if one in self.slots else ""
        return one == other or (other in self.slots and host == self.slots[other].host != "")

    @cached_property
    def records_since(self) -> dict[Key, int]:
        """The records between the barriers of the checkpoint before and of this one.

        Every subtask took the same stretch of its stream in between, however its siblings waited
        meanwhile. Of one that has not acknowledged these are its records so far.
        """
        now = {key: ack.records for key, ack in self.acks.items()}
        for key, seen in self.evidence.subtasks.items():
            if key not in now and seen.records is not None:
                now[key] = seen.records
        before = self.records_before
        return {key: max(0, n - before[key]) for key, n in now.items() if key in before}
