"""The values of a verdict: headline, reasons, advice, path and channel."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Cause(StrEnum):
    """The kinds of culprits."""

    STUCK = "stuck"  # In one call.
    FROZEN = "frozen"  # A process whose threads all stand still.
    STARVED = "starved"  # A slot, a driver or a host without a processor.
    LOCKED = "locked"  # A slot whose loop was kept from Python's interpreter lock by threads.
    BUSY = "busy"
    SKEWED = "skewed"  # Busy, with many times the records of its siblings.
    CHANNEL = "channel"
    DRIVER = "driver"
    COPYING = "copying"  # State, on the loop.
    STORAGE = "storage"  # Of checkpoints.
    SINK = "sink"  # The storage that a sink writes to.
    LARGE = "large"  # State, at a good throughput.


@dataclass(frozen=True, slots=True)
class Hop:
    """One subtask on the way from a late barrier to the subtask that is slow."""

    uid: str  # Of the operator.
    name: str  # Of the subtask.
    text: str


@dataclass(frozen=True, slots=True)
class LateChannel:
    """The channel whose barrier the others waited for."""

    sender: str
    receiver: str
    text: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict on a checkpoint: its culprit, the numbers behind it, and what to do.

    ``tone``: ``good`` (nothing to do), ``warn`` (slow or late), ``bad`` (it failed), ``idle``
    (a planned end), ``busy`` (under way, and not late).
    """

    tone: str
    headline: str
    because: Sequence[str] = ()
    advice: Sequence[str] = ()
    path: Sequence[Hop] = ()
    channel: LateChannel | None = None
    culprits: Sequence[str] = ()  # Subtasks, or uids of operators; the worst first.
    stack: str = ""
    cause: Cause | None = None  # None: nothing was wrong, or nothing is known to be.


@dataclass(slots=True)
class Finding:
    """A part of a verdict: a clause that names the culprit, and what goes with it."""

    clause: str
    short: str = ""  # The culprit and its number: ``"hourly-1 (busy 97 %)"``.
    because: list[str] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    path: list[Hop] = field(default_factory=list)
    channel: LateChannel | None = None
    culprits: list[str] = field(default_factory=list)
    stack: str = ""
    cause: Cause | None = None

    def verdict(self, tone: str, headline: str, because: Sequence[str] = ()) -> Verdict:
        """The verdict with this finding as its reason; ``because`` comes first."""
        return Verdict(
            tone,
            headline,
            because=tuple(dict.fromkeys([*because, *self.because])),
            advice=tuple(dict.fromkeys(self.advice)),
            path=tuple(self.path),
            channel=self.channel,
            culprits=tuple(dict.fromkeys(self.culprits)),
            stack=self.stack,
            cause=self.cause,
        )
