"""Made-up checkpoints for verdicts: an operator graph, and delays on its barriers' way.

``run`` sends barriers through the graph as the runtime does: a subtask has its last barrier when
the slowest of its channels delivered, sends its own on, and acknowledges later. What it gives are
facts as they would be read from rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from checkpoints.verdict.facts import (
    Ack,
    ChainSeen,
    CpuWait,
    Edge,
    Evidence,
    Facts,
    Gate,
    Key,
    Operator,
    Rates,
    Seen,
    Slot,
    ThreadsBeside,
    Times,
    name_of,
)
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, SubtaskStatus

T0 = 1_763_728_200_000
Channel = tuple[Key, Key]


@dataclass(frozen=True)
class Graph:
    """Chains by parallelism in topological order, and edges between them."""

    chains: Mapping[str, int]
    edges: Sequence[tuple[str, str, str]]  # Source, target, partitioning.
    keyed: Sequence[str] = ()

    @property
    def operators(self) -> list[Operator]:
        fed = {target for _, target, _ in self.edges}
        return [
            Operator(uid, f"{uid.capitalize()} step", uid, n, uid not in fed, uid in self.keyed)
            for uid, n in self.chains.items()
        ]

    def channels(self, receiver: Key) -> list[list[Key]]:
        """The senders of each gate of a subtask."""
        return [
            [(source, receiver[1])]
            if kind == "forward"
            else [(source, index) for index in range(self.chains[source])]
            for source, target, kind in self.edges
            if target == receiver[0]
        ]

    def subtasks(self) -> list[Key]:
        return [(uid, index) for uid, n in self.chains.items() for index in range(n)]


# source -> map -> keyed window -> sink, 3 wide, all to all but the last.
LINE = Graph(
    {"source": 3, "enrich": 3, "hourly": 3, "sink": 3},
    [("source", "enrich", "rebalance"), ("enrich", "hourly", "hash"), ("hourly", "sink", "hash")],
    keyed=("hourly",),
)


@dataclass
class Case:
    """A checkpoint with what was injected into it."""

    graph: Graph = field(default_factory=lambda: LINE)
    channel_ms: dict[Channel, float] = field(default_factory=dict)  # Extra time of a channel.
    front_ms: dict[Key, float] = field(default_factory=dict)  # Records wait before all its inputs.
    sync_ms: dict[Key, float] = field(default_factory=dict)
    async_ms: dict[Key, float] = field(default_factory=dict)
    written: dict[Key, int] = field(default_factory=dict)
    writing: dict[Key, dict[str, float]] = field(default_factory=dict)  # By operator.
    records: dict[Key, int] = field(default_factory=dict)
    queued: dict[Channel, int] = field(default_factory=dict)
    rates: dict[Key, Rates] = field(default_factory=dict)
    cpu_wait: dict[int, float] = field(default_factory=dict)  # By slot.
    beside: dict[int, ThreadsBeside] = field(default_factory=dict)
    noise: dict[Any, float] = field(default_factory=dict)  # Per channel and subtask.

    def run(self, **given: Any) -> Facts:
        """The facts of a completed checkpoint; ``given`` replaces some."""
        acks: dict[Key, Ack] = {}
        gates: dict[Key, list[Gate]] = {}
        for key in self.graph.subtasks():
            at, its_gates = self._barriers(key, acks)
            first = min(at, default=self.noise.get(key, 1.0) + self.front_ms.get(key, 0.0))
            last = max(at, default=first)
            gates[key] = its_gates
            is_aligned = sum(len(gate.upstream) for gate in its_gates) > 1
            acks[key] = Ack(
                first,
                last - first if is_aligned else 0.0,
                self.sync_ms.get(key, 1.0),
                self.async_ms.get(key, 5.0),
                self.written.get(key, 40_000),
                self.written.get(key, 40_000),
                self.records.get(key, 10_000),
                0,
                self.writing.get(key, {}),
            )
        took = max(ack.total_ms for ack in acks.values())
        acks = {
            key: replace(ack, acknowledged_at_ms=T0 + round(ack.total_ms) + 2)
            for key, ack in acks.items()
        }
        facts: dict[str, Any] = {
            "times": times(duration_ms=took + 8, settled_at_ms=T0 + round(took) + 8),
            "operators": self.graph.operators,
            "edges": [Edge(*edge) for edge in self.graph.edges],
            "acks": acks,
            "gates": gates,
            "evidence": seen(
                self.graph,
                self.rates,
                cpu_waits=cpu_waits(self.rates, self.cpu_wait),
                beside=self.beside,
            ),
            "slots": {index: Slot(f"node-{index}", 4_700 + index) for index in range(8)},
        }
        return Facts(**facts | given)

    def _barriers(self, key: Key, acks: Mapping[Key, Ack]) -> tuple[list[float], list[Gate]]:
        arrivals = [
            [
                acks[sender].left_ms
                + 0.5
                + self.noise.get((sender, key), 0.0)
                + self.channel_ms.get((sender, key), 0.0)
                + self.front_ms.get(key, 0.0)
                for sender in senders
            ]
            for senders in self.graph.channels(key)
        ]
        everything = [at for gate in arrivals for at in gate]
        first, last = min(everything, default=0.0), max(everything, default=0.0)
        gates = [
            Gate(
                key[0],
                key[1],
                number,
                [name_of(sender) for sender in senders],
                [at - first for at in arrived],
                [last - at for at in arrived],
                [self.queued.get((sender, key), 0) for sender in senders],
            )
            for number, (senders, arrived) in enumerate(
                zip(self.graph.channels(key), arrivals, strict=True)
            )
        ]
        return everything, gates


def times(**given: Any) -> Times:
    """A completed checkpoint's row, one every ten seconds."""
    values: dict[str, Any] = {
        "number": 7,
        "status": CheckpointStatus.COMPLETED,
        "triggered_at_ms": T0,
        "now_ms": T0 + 60_000,
        "interval_ms": 10_000,
        "timeout_ms": 600_000,
        "typical_ms": 300.0,
        "subtask_count": 12,
        "acknowledged_count": 12,
    }
    return Times(**values | given)


def expired(**given: Any) -> Times:
    """One that was given up after its timeout."""
    values: dict[str, Any] = {
        "status": CheckpointStatus.FAILED,
        "reason": FailureReason.CHECKPOINT_EXPIRED,
        "duration_ms": None,
        "settled_at_ms": T0 + 600_000,
        "acknowledged_count": 8,
    }
    return times(**values | given)


def seen(graph: Graph, rates: Mapping[Key, Rates], **given: Any) -> Evidence:
    """Evidence of subtasks that run, with these rates."""
    values: dict[str, Any] = {
        "taken_at_ms": T0 + 5_000,
        "chains": {
            uid: ChainSeen(
                n,
                *(
                    _mean([getattr(rates[uid, i], name) for i in range(n) if (uid, i) in rates])
                    for name in ("busy", "back_pressured")
                ),
            )
            for uid, n in graph.chains.items()
        },
        "subtasks": {key: Seen(SubtaskStatus.RUNNING, rates.get(key)) for key in graph.subtasks()},
    }
    return Evidence(**values | given)


def cpu_waits(rates: Mapping[Key, Rates], shares: Mapping[int, float]) -> dict[int, CpuWait]:
    """The waits for a processor of slots, beside what their busiest subtask did."""
    return {
        slot: CpuWait(share, max((r.busy for (_, i), r in rates.items() if i == slot), default=0.0))
        for slot, share in shares.items()
    }


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def busy(share: float, records_per_s: float | None = None) -> Rates:
    """A subtask that works."""
    return Rates(share, 0.0, 1 - share, records_per_s)


def held(share: float) -> Rates:
    """A subtask that waits for those behind it."""
    return Rates(0.05, share, 0.95 - share)


IDLE = Rates(0.03, 0.0, 0.97)
