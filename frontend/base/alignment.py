"""Barrier arrivals of one checkpoint, channel by channel. Pure."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from checkpoints.verdict.facts import Gate
from controlplane.base.formatting import duration, plural, size

TOGETHER_MS = 1.0  # Barriers closer than this arrived together: clocks and polls are no finer.


class Measure(StrEnum):
    """The measure of channels that a picture or a table shows."""

    ARRIVED = "arrived"  # Of the barrier, after the receiving subtask's first.
    BLOCKED = "blocked"
    IN_FLIGHT = "in_flight"  # Bytes of persisted records.


@dataclass(frozen=True, slots=True)
class Channel:
    """One channel of one gate."""

    sender: str
    receiver: str
    position: int  # Within the gate.
    arrived_ms: float | None  # None: the sender had ended.
    blocked_ms: float
    bytes_during: int
    in_flight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Aligned:
    """The slowest gates of one checkpoint, and the totals over all of its gates."""

    gates: Sequence[Gate]  # In the graph's order.
    inputs: Mapping[tuple[str, int], int]  # The number of gates of each subtask.
    gate_count: int
    channel_count: int  # Of all gates.
    channels_max: int  # Of the widest gate.
    blocked_ms: float  # The longest time that a channel was blocked.


NOTHING_ALIGNED = Aligned([], {}, 0, 0, 0, 0.0)


def receiver_name(gate: Gate, gates_of: Mapping[tuple[str, int], int]) -> str:
    """The name of a receiving subtask, with the input's number where it has several."""
    name = f"{gate.operator}-{gate.index}"
    if gates_of.get((gate.operator, gate.index), 1) > 1:
        return f"{name} input {gate.gate + 1}"
    return name


def gate_counts(gates: Iterable[Gate]) -> dict[tuple[str, int], int]:
    """The number of gates of each receiving subtask."""
    counts: dict[tuple[str, int], int] = {}
    for gate in gates:
        counts[gate.operator, gate.index] = counts.get((gate.operator, gate.index), 0) + 1
    return counts


def channels(aligned: Aligned) -> list[Channel]:
    """The channels of these gates, in the gates' order."""
    return [_channel(gate, at, aligned.inputs) for gate in aligned.gates for at in _all(gate)]


def slowest(aligned: Aligned, at_most: int) -> list[Channel]:
    """The channels whose barriers arrived last, the slowest first; ended channels come last.

    They are the slowest of all channels if there are at least ``at_most`` gates: each of the
    slowest gates has a channel that is as slow as any channel of the other gates.
    """
    return heapq.nlargest(at_most, channels(aligned), key=_latest)


def _latest(channel: Channel) -> float:
    return -1.0 if channel.arrived_ms is None else channel.arrived_ms


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
        in_flight_bytes=gate.in_flight[position] if gate.in_flight else 0,
    )


def sentence(aligned: Aligned) -> str:
    """The channel with the latest barrier, its delay, and the blocking that it caused."""
    total = aligned.channel_count
    if total == 0:
        return "No subtask reported channels for this checkpoint: there was nothing to align."
    worst = slowest(aligned, 1)[0]
    if worst.arrived_ms is None or worst.arrived_ms < TOGETHER_MS:
        return f"The barriers of all {plural(total, 'channel')} arrived together; none was blocked."
    text = (
        f"Slowest channel: {worst.sender} → {worst.receiver}. Its barrier arrived "
        f"{duration(worst.arrived_ms)} after the first one"
    )
    if worst.bytes_during:
        text += f", behind {size(worst.bytes_during)}"
    if aligned.blocked_ms >= TOGETHER_MS:
        longest = duration(aligned.blocked_ms)
        return f"{text}; meanwhile other channels were blocked for up to {longest}."
    return f"{text}; no channel was blocked meanwhile."
