"""How one checkpoint's barriers arrived, channel by channel. Pure."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from frontend.formatting import duration, plural, size

TOGETHER_MS = 1.0  # Barriers closer than this came together: clocks and polls are no finer.


@dataclass(frozen=True, slots=True)
class Gate:
    """One input gate of one receiving subtask.

    Shape: all sequences have one entry per channel, in channel order.
    """

    operator: str
    index: int
    gate: int
    upstream: Sequence[str]
    arrived_ms: Sequence[float | None]
    blocked_ms: Sequence[float]
    bytes_during: Sequence[int]

    @property
    def slowest_ms(self) -> float:
        """When its last barrier came, after the subtask's first."""
        return max((arrived for arrived in self.arrived_ms if arrived is not None), default=0.0)


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel of one gate."""

    sender: str
    receiver: str
    position: int  # In its gate.
    arrived_ms: float | None  # None: its sender had ended.
    blocked_ms: float
    bytes_during: int


def receiver_name(gate: Gate, gates_of: Mapping[tuple[str, int], int]) -> str:
    """A receiving subtask; with its input's number where it has several."""
    name = f"{gate.operator}-{gate.index}"
    if gates_of.get((gate.operator, gate.index), 1) > 1:
        return f"{name} input {gate.gate + 1}"
    return name


def gate_counts(gates: Iterable[Gate]) -> dict[tuple[str, int], int]:
    """How many gates each receiving subtask has."""
    counts: dict[tuple[str, int], int] = {}
    for gate in gates:
        counts[gate.operator, gate.index] = counts.get((gate.operator, gate.index), 0) + 1
    return counts


def channels(gates: Sequence[Gate]) -> list[Channel]:
    """All channels in the gates' order."""
    counts = gate_counts(gates)
    return [
        Channel(
            sender=gate.upstream[position],
            receiver=receiver_name(gate, counts),
            position=position,
            arrived_ms=gate.arrived_ms[position],
            blocked_ms=gate.blocked_ms[position],
            bytes_during=gate.bytes_during[position],
        )
        for gate in gates
        for position in range(len(gate.upstream))
    ]


def slowest(gates: Sequence[Gate], at_most: int) -> list[Channel]:
    """The channels whose barriers came last, the slowest first; those that ended come last."""
    return heapq.nlargest(
        at_most, channels(gates), key=lambda c: -1.0 if c.arrived_ms is None else c.arrived_ms
    )


def channel_count(gates: Iterable[Gate]) -> int:
    """Of all gates."""
    return sum(len(gate.upstream) for gate in gates)


def sentence(gates: Sequence[Gate]) -> str:
    """Which channel held its barrier back, for how long, and what that blocked."""
    total = channel_count(gates)
    if total == 0:
        return "No subtask of this job has a channel to align."
    worst = slowest(gates, 1)[0]
    if worst.arrived_ms is None or worst.arrived_ms < TOGETHER_MS:
        return f"The barriers of all {plural(total, 'channel')} came together; nothing waited."
    blocked = max((ms for gate in gates for ms in gate.blocked_ms), default=0.0)
    text = (
        f"Slowest channel: {worst.sender} → {worst.receiver}. Its barrier came "
        f"{duration(worst.arrived_ms)} after the first one"
    )
    if worst.bytes_during:
        text += f", behind {size(worst.bytes_during)}"
    if blocked >= TOGETHER_MS:
        return f"{text}; meanwhile other channels were blocked for up to {duration(blocked)}."
    return f"{text}; no channel was blocked meanwhile."
