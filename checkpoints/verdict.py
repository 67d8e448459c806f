"""Why a checkpoint took as long as it did, in words. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from controlplane.formatting import duration, size

TOGETHER_MS = 1.0  # Barriers closer than this came together: clocks and polls are no finer.


@dataclass(frozen=True, slots=True)
class Hop:
    """One operator on the way from a late barrier to what is slow."""

    uid: str
    name: str
    text: str


@dataclass(frozen=True, slots=True)
class LateChannel:
    """The channel whose barrier the others waited for."""

    sender: str
    receiver: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What held a checkpoint up, what that rests on, and what to do."""

    tone: str
    headline: str
    because: Sequence[str] = ()
    advice: Sequence[str] = ()
    path: Sequence[Hop] = ()
    channel: LateChannel | None = None
    culprits: Sequence[str] = ()  # Uids of operators, or subtasks.
    stack: str = ""


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


def of(gates: Sequence[Gate]) -> Verdict:
    """The slowest channel, or that none was."""
    late, worst, position = 0.0, None, 0
    for gate in gates:
        for at, arrived in enumerate(gate.arrived_ms):
            if arrived is not None and arrived > late:
                late, worst, position = arrived, gate, at
    if worst is None or late < TOGETHER_MS:
        return Verdict("good", "All barriers came together; nothing waited.")
    sender, receiver = worst.upstream[position], f"{worst.operator}-{worst.index}"
    behind = worst.bytes_during[position]
    text = f"came {duration(late)} after the first" + (f", behind {size(behind)}" if behind else "")
    return Verdict(
        "warn",
        f"The barrier from {sender} held {receiver} up: it {text}.",
        channel=LateChannel(sender, receiver, text),
        culprits=(sender,),
    )
