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
    return [_channel(gate, position, counts) for gate in gates for position in _all(gate)]


def slowest(gates: Sequence[Gate], at_most: int) -> list[Channel]:
    """The channels whose barriers came last, the slowest first; those that ended come last."""
    # Each of so many gates has a channel that is as slow as any of the other gates'.
    places = heapq.nlargest(at_most, range(len(gates)), key=lambda n: _latest(gates[n].arrived_ms))
    counts = gate_counts(gates)
    candidates = (_channel(gates[n], at, counts) for n in sorted(places) for at in _all(gates[n]))
    return heapq.nlargest(at_most, candidates, key=lambda channel: _latest([channel.arrived_ms]))


def _latest(arrived_ms: Sequence[float | None]) -> float:
    return max((-1.0 if ms is None else ms for ms in arrived_ms), default=-2.0)


def _all(gate: Gate) -> range:
    return range(len(gate.upstream))


def _channel(gate: Gate, position: int, gates_of: Mapping[tuple[str, int], int]) -> Channel:
    return Channel(
        sender=gate.upstream[position],
        receiver=receiver_name(gate, gates_of),
        position=position,
        arrived_ms=gate.arrived_ms[position],
        blocked_ms=gate.blocked_ms[position],
        bytes_during=gate.bytes_during[position],
    )


def channel_count(gates: Iterable[Gate]) -> int:
    """Of all gates."""
    return sum(len(gate.upstream) for gate in gates)


def sentence(gates: Sequence[Gate]) -> str:
    """Which channel held its barrier back, for how long, and what that blocked."""
    total = channel_count(gates)
    if total == 0:
        return "No subtask reported a channel with this checkpoint: there was nothing to align."
    worst = slowest(gates, 1)[0]
    if worst.arrived_ms is None or worst.arrived_ms < TOGETHER_MS:
        return f"The barriers of all {plural(total, 'channel')} came together; nothing waited."
    blocked = max((max(gate.blocked_ms, default=0.0) for gate in gates), default=0.0)
    text = (
        f"Slowest channel: {worst.sender} → {worst.receiver}. Its barrier came "
        f"{duration(worst.arrived_ms)} after the first one"
    )
    if worst.bytes_during:
        text += f", behind {size(worst.bytes_during)}"
    if blocked >= TOGETHER_MS:
        return f"{text}; meanwhile other channels were blocked for up to {duration(blocked)}."
    return f"{text}; no channel was blocked meanwhile."
