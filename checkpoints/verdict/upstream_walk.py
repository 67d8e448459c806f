"""A walk over the channels, from a late barrier to the subtask that made it late. Pure.

A barrier's way is known from the acknowledgements: a subtask sends its own barriers on when it has
the last of its inputs' (start delay and alignment after the trigger), and its receivers report when
those arrived. The difference is the time a barrier spent in one channel, behind the records in it:
its *transit*. Walked back from the subtask that was last, channel by channel along the barrier
that came last each time, the transits add up to the whole delay, and the greatest one says where
it was spent. A receiver whose alignment is long only because its sender was late itself has a
transit of nothing, so a delay is not blamed on every subtask behind it.

The shares of time at the ends of a channel tell why it was slow. Records wait in front of a subtask
that is busy. In front of one that is back-pressured they wait because of a subtask further down, so
the walk follows the back pressure downstream, to the first that is busy. A subtask that is neither
shares its loop with the others of its slot: one of those may be busy instead. And the loop of a
slot may find no processor, or wait for threads of user code (``starvation``): then the host or
these are to blame, not a subtask or the network.
"""

from dataclasses import dataclass
from enum import Enum, auto

from checkpoints.verdict.facts import Facts, Gate, Key, Rates, Stall, key_of
from checkpoints.verdict.starvation import cpu_wait, is_locked_out, is_starved

# Half of a loop that several subtasks share: one that has more keeps it from the others.
BUSY_SHARE = 0.5
# Flink's web UI calls back pressure low from 10 % and high from 50 %; a third of all time is no
# accident of a full buffer any more.
BACK_PRESSURED_SHARE = 0.3
TOGETHER_MS = 1.0  # Barriers closer than this came together: clocks and polls are no finer.
WALK_MAX = 64  # Operators in a row; a graph is acyclic, rows may not be.


class Why(Enum):
    """The reason why a subtask keeps others waiting, or that it does not."""

    STUCK = auto()  # In one call.
    SILENT = auto()
    BUSY = auto()
    NEIGHBOUR = auto()  # Its slot's loop is taken by another subtask.
    LOCKED = auto()  # Its slot's loop waited for the interpreter lock, which threads had.
    STARVED = auto()  # Its slot's loop was ready to run and had no processor.
    IDLE = auto()  # It had time, so it is not to blame.
    UNKNOWN = auto()  # Nothing was reported of it.


@dataclass(frozen=True, slots=True)
class Hop:
    """A barrier's way over one channel."""

    sender: Key
    receiver: Key
    arrived_ms: float  # After the receiver's first.
    transit_ms: float  # In the channel; equals arrived_ms without the sender's acknowledgement.
    own_ms: float  # The part of it beyond the receiver's quickest channel.
    behind_bytes: int
    is_alone: bool  # The receiver has no other channel.

    @property
    def is_all(self) -> bool:
        """Whether all the receiver's barriers were late, or there is only one: none was blocked."""
        return self.arrived_ms < self.transit_ms / 2


@dataclass(frozen=True, slots=True)
class Blame:
    """The end of a walk: the subtask to blame, and the way to it."""

    key: Key
    why: Why
    way: tuple[Key, ...]  # From where the walk began to ``key``, both included.
    rates: Rates | None = None
    stall: Stall | None = None
    silent_ms: float | None = None


def trace(facts: Facts, last: Key) -> list[Hop]:
    """The way of the barrier that ``last`` waited for, from it back to a source."""
    hops: list[Hop] = []
    at = last
    while len(hops) < WALK_MAX:
        hop = _latest(facts, at)
        if hop is None:
            break
        hops.append(hop)
        at = hop.sender
    return hops


def _latest(facts: Facts, receiver: Key) -> Hop | None:
    """The channel whose barrier a subtask got last."""
    gates = facts.gates.get(receiver, ())
    latest = max((ms for gate in gates for ms in gate.arrived_ms if ms is not None), default=None)
    if latest is None:
        return None
    # Of channels that came together, the receiver waited for the one whose sender was latest.
    _, gate, at = max(
        (
            (_left_ms(facts, gate, at), gate, at)
            for gate in gates
            for at, ms in enumerate(gate.arrived_ms)
            if ms is not None and ms >= latest - TOGETHER_MS
        ),
        key=lambda channel: channel[0],
    )
    sender, arrived = key_of(gate.upstream[at]), gate.arrived_ms[at] or 0.0
    transit, own = arrived, arrived
    if (ack := facts.acks.get(receiver)) is not None and sender in facts.acks:
        transits = [
            max(0.0, ack.start_delay_ms + ms - facts.acks[key].left_ms)
            for g in gates
            for name, ms in zip(g.upstream, g.arrived_ms, strict=True)
            if ms is not None and (key := key_of(name)) in facts.acks
        ]
        transit = max(0.0, ack.start_delay_ms + arrived - facts.acks[sender].left_ms)
        own = transit - min(transits)
    is_alone = sum(len(g.upstream) for g in gates) == 1
    return Hop(sender, receiver, arrived, transit, own, gate.bytes_during[at], is_alone)


def _left_ms(facts: Facts, gate: Gate, at: int) -> float:
    sent = facts.acks.get(key_of(gate.upstream[at]))
    return sent.left_ms if sent else 0.0


def blame(facts: Facts, key: Key) -> Blame:
    """The subtask to blame for a barrier that waited in front of ``key``, and why."""
    return (
        _direct(facts, key, (key,))
        or _down(facts, key)
        or lacking_slot(facts, key, (key,))
        or _idle(facts, key)
    )


def _direct(facts: Facts, key: Key, way: tuple[Key, ...]) -> Blame | None:
    """Blame a subtask, or one of its slot, that is stuck, silent or busy; None: none is.

    A subtask that only looks busy has a slot that lacks something. One that is held back is not
    slow itself, with or without it.
    """
    seen = facts.evidence.subtasks.get(key)
    rates = seen.rates if seen else None
    if (stall := facts.evidence.stall(key)) is not None:
        return Blame(key, Why.STUCK, way, rates, stall)
    for other, held in facts.evidence.stalled.items():  # One loop per slot: a call holds all.
        if other[1] == key[1]:
            return Blame(other, Why.STUCK, (*way, other), facts.evidence.rates(other), held)
    if seen is not None and seen.silent_ms is not None:
        return Blame(key, Why.SILENT, way, rates, silent_ms=seen.silent_ms)
    if rates is None or not is_held_back(rates):
        lacking = lacking_slot(facts, key, way)
        if lacking is not None:
            return lacking
    if rates is not None and is_busy(rates):
        return Blame(key, Why.BUSY, way, rates)
    return None


def lacking_slot(facts: Facts, key: Key, way: tuple[Key, ...]) -> Blame | None:
    """Blame a slot that had no processor, or not the interpreter lock; None: it had both."""
    if is_locked_out(facts, key):
        return Blame(key, Why.LOCKED, way, facts.evidence.rates(key))
    if is_starved(facts, key):
        return Blame(key, Why.STARVED, way, facts.evidence.rates(key))
    return None


def is_busy(rates: Rates) -> bool:
    """Whether a subtask is a reason for others to wait."""
    return rates.busy >= BUSY_SHARE and rates.busy >= rates.back_pressured


def is_held_back(rates: Rates) -> bool:
    """Whether a subtask waits for those that it sends to."""
    return rates.back_pressured >= BACK_PRESSURED_SHARE and rates.back_pressured > rates.busy


def _down(facts: Facts, key: Key) -> Blame | None:
    """Follow back pressure to the first subtask that is busy, stuck or silent.

    Without such a one it is the first starved slot on the way.
    """
    rates = facts.evidence.rates(key)
    if rates is None or not is_held_back(rates):
        return None
    way: tuple[Key, ...] = (key,)
    visited, starved = {key[0]}, None
    while len(way) < WALK_MAX:
        receivers = [
            receiver
            for chain, partitioning in facts.downstream.get(way[-1][0], ())
            if chain not in visited
            for receiver in _receivers(facts, chain, partitioning, way[-1][1])
        ]
        blamed = [b for r in receivers if (b := _direct(facts, r, (*way, r))) is not None]
        slow = [b for b in blamed if b.why is not Why.STARVED]
        if slow:
            return max(slow, key=_weight)
        if blamed and starved is None:
            starved = max(blamed, key=lambda b: cpu_wait(facts, b.key[1]))
        held = [r for r in receivers if (s := facts.evidence.rates(r)) and is_held_back(s)]
        if not held:
            return starved
        worst = max(held, key=lambda r: _back_pressure(facts, r))
        way = (*way, worst)
        visited.add(worst[0])
    return starved


def _receivers(facts: Facts, chain: str, partitioning: str, index: int) -> list[Key]:
    if partitioning == "forward":
        return [(chain, index)]
    return [key for key in facts.evidence.subtasks if key[0] == chain]


def _back_pressure(facts: Facts, key: Key) -> float:
    rates = facts.evidence.rates(key)
    return rates.back_pressured if rates else 0.0


def _weight(blame: Blame) -> tuple[bool, float]:
    return blame.why in (Why.STUCK, Why.SILENT), blame.rates.busy if blame.rates else 0.0


def _idle(facts: Facts, key: Key) -> Blame:
    """Blame for a subtask that had time, as those further down: its slot may work for another."""
    rates = facts.evidence.rates(key)
    busy = [
        (other_rates.busy, other)
        for other, seen in facts.evidence.subtasks.items()
        if other[1] == key[1] and other != key and (other_rates := seen.rates) is not None
        if is_busy(other_rates)
    ]
    if busy:
        _, other = max(busy)
        return Blame(other, Why.NEIGHBOUR, (key, other), facts.evidence.rates(other))
    if rates is None:
        return Blame(key, Why.UNKNOWN, (key,))
    return Blame(key, Why.IDLE, (key,), rates)
