"""The state of the operator graph at one moment: barriers on edges, load of chains.

A pure function of rows. One entry per chain and per edge, however many subtasks there are: those
that delay a checkpoint are named, the others are counted. Barriers are known from two reports only:
an acknowledgement (all barriers of that subtask have arrived, and its own are sent), and the
alignment that a subtask reports while it waits (the barriers that have arrived so far).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from checkpoints.models import COMPLETED_ONCE, Checkpoint
from controlplane.base.formatting import (
    duration,
    event_time,
    iso,
    listed,
    plural,
    rough_duration,
    size,
)
from frontend.graph.picture import Chain, Graph, Link

MISSING_NAMED = 6  # Per chain; the rest is counted.
STALE_MS = 15_000.0  # Measurements come every second or so.
BACK_PRESSURE_SHOWN = 0.05
# The wait for a processor: in the hint, and from the share on at which verdicts name it in the box.
CPU_WAIT_TOLD, CPU_WAIT_SHOWN = 0.01, 0.25
NAME_CHARACTERS = 17  # What fits between two boxes.
CLOCKS_APART_MS = 24 * 3_600_000.0  # A larger lag of event time means a replay.

Json = dict[str, Any]


class Barrier(StrEnum):
    """The state of the barrier on an edge."""

    NONE = ""  # No checkpoint, or its details are no longer kept.
    NOT_SENT = "not-sent"
    ON_ITS_WAY = "on-its-way"
    ALIGNING = "aligning"
    THROUGH = "through"


@dataclass(frozen=True, slots=True)
class Load:
    """The load of a chain's subtasks during the last seconds.

    Units: per second, summed over the subtasks; ``busy``, ``back_pressured`` and ``idle`` are their
    mean shares of the time, 0 to 1.
    """

    measured_at: datetime
    records_in: float
    records_out: float
    bytes_in: float
    bytes_out: float
    busy: float
    back_pressured: float
    idle: float
    busiest: int  # Index of the busiest subtask.
    busiest_busy: float  # The busy share of that subtask.
    # Index of the subtask whose slot waits most for a processor, and the share of that wait.
    waiting_most: int = 0
    cpu_wait: float = 0.0


@dataclass(frozen=True, slots=True)
class ChainSubtasks:
    """The subtasks of one chain: their number, state and load."""

    total: int
    running: int
    finished: frozenset[int]  # They take part in no checkpoint any more.
    load: Load | None = None
    watermark_ms: int | None = None  # The lowest of the subtasks.
    bad_records: int = 0  # Since the attempt began.


@dataclass(frozen=True, slots=True)
class WaitingGate:
    """One input gate of a subtask that aligns; sequences have one entry per channel."""

    gate: int
    upstream: Sequence[str]
    has_come: Sequence[bool]  # Also true for ended channels, which bring no barrier.

    @property
    def missing(self) -> list[str]:
        """The senders whose barriers have not arrived."""
        pairs = zip(self.upstream, self.has_come, strict=True)
        return [sender for sender, has_come in pairs if not has_come]


@dataclass(frozen=True, slots=True)
class Waiting:
    """A subtask that waits for barriers of the checkpoint that is shown."""

    chain: str
    index: int
    since_ms: float  # Wall clock, at the arrival of its first barrier.
    gates: Sequence[WaitingGate]

    @property
    def name(self) -> str:
        """The name of the subtask."""
        return f"{self.chain}-{self.index}"


@dataclass(frozen=True, slots=True)
class Stall:
    """A subtask whose loop has been in one call for too long."""

    chain: str
    index: int
    since_ms: float


@dataclass(frozen=True, slots=True)
class Slow:
    """The channel that holds, or held, the barrier back."""

    link: int  # Position of its edge.
    sender: str
    receiver: str
    since_ms: float | None  # Wall clock; None once the checkpoint has settled.
    took: str = ""  # The delay of a settled checkpoint's barrier, as text.
    text: str = ""  # The arrival of that barrier, in words.
    tone: str = "warn"


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """The facts that the state is computed from."""

    now: datetime
    checkpoint: Checkpoint | None = None  # Whose barriers are shown.
    chains: Mapping[str, ChainSubtasks]
    acknowledged: Mapping[str, Sequence[int]]  # By chain.
    waiting: Sequence[Waiting] = ()
    stalls: Sequence[Stall] = ()
    slow: Slow | None = None  # Of a settled checkpoint; computed while one is under way.
    # Bytes of records that barriers overtook at receivers, by receiving chain and input gate.
    in_flight: Mapping[tuple[str, int], int] = field(default_factory=dict)
    is_over: bool = False


def graph_state(graph: Graph, moment: Moment) -> Json:
    """The state of every chain and edge, as JSON."""
    progress = {chain.uid: _Progress(chain, moment) for chain in graph.chains}
    slow = moment.slow
    if moment.checkpoint is not None and moment.checkpoint.settled_at is None:
        slow = slowest(graph, moment.waiting, moment.acknowledged)
    barriers = {link.position: _barrier(link, progress, moment) for link in graph.links}
    newest = max(
        (row.watermark_ms for row in moment.chains.values() if row.watermark_ms is not None),
        default=None,
    )
    return {
        "revision": graph.revision,
        "chains": [
            _chain(chain, graph, moment, progress[chain.uid], barriers, newest)
            for chain in graph.chains
        ],
        "links": [_link(link, barriers[link.position], slow, moment) for link in graph.links],
        "slow": _slow_sentence(slow, moment),
    }


def slowest(
    graph: Graph, waiting: Sequence[Waiting], acknowledged: Mapping[str, Sequence[int]]
) -> Slow | None:
    """The channel that the alignment waits for; None while no subtask waits.

    Channels of senders that do not align themselves go first: an aligning sender only passes a
    delay on. Then the sender that most subtasks wait for, then the longest wait.
    """
    aligning = [row for row in waiting if row.index not in acknowledged.get(row.chain, ())]
    names = {row.name for row in aligning}
    missing = [
        (row, gate, sender) for row in aligning for gate in row.gates for sender in gate.missing
    ]
    if not missing:
        return None
    wanted = Counter(sender for _, _, sender in missing)
    row, gate, sender = min(
        missing,
        key=lambda one: (one[2] in names, -wanted[one[2]], one[0].since_ms, one[0].name, one[2]),
    )
    link = next((one for one in graph.inputs.get(row.chain, ()) if one.gate == gate.gate), None)
    return None if link is None else Slow(link.position, sender, row.name, row.since_ms)


def settled_slow(
    graph: Graph, sender: str, receiver: str, took: str, text: str, tone: str
) -> Slow | None:
    """The channel that delayed a settled checkpoint, by its ends; None: of another graph."""
    chain_of = {f"{chain.uid}-": chain.uid for chain in graph.chains}

    def chain(subtask: str) -> str | None:
        return chain_of.get(subtask[: subtask.rfind("-") + 1])

    ends = (chain(sender), chain(receiver))
    link = next((one for one in graph.links if (one.source, one.target) == ends), None)
    if link is None:
        return None
    return Slow(link.position, sender, receiver, None, took, text, tone)


class _Progress:
    """The acknowledgements of a chain's subtasks for the shown checkpoint."""

    def __init__(self, chain: Chain, moment: Moment) -> None:
        checkpoint = moment.checkpoint
        subtasks = moment.chains.get(chain.uid)
        self.done = set(moment.acknowledged.get(chain.uid, ()))
        self.missing: list[int] = []
        self.is_known = checkpoint is not None and checkpoint.has_details
        self.is_completed = checkpoint is not None and checkpoint.status in COMPLETED_ONCE
        # Finished subtasks take no part.
        if self.is_known and not self.is_completed:
            gone = subtasks.finished if subtasks else frozenset()
            self.missing = sorted(set(range(chain.parallelism)) - self.done - gone)
        self.expected = len(self.done) + len(self.missing)

    @property
    def state(self) -> str:
        """The state of the chain, as the style sheet names it."""
        if not self.is_known:
            return "done" if self.is_completed else ""
        return "none" if not self.done and self.missing else "some" if self.missing else "done"


@dataclass(frozen=True, slots=True)
class _Known:
    """The barrier on one edge, for picture, list and tooltip."""

    barrier: Barrier
    text: str  # The label on the line.
    sentence: str  # For the tooltip and for screen readers.


def _barrier(link: Link, progress: Mapping[str, _Progress], moment: Moment) -> _Known:
    sending, receiving = progress[link.source], progress[link.target]
    if not receiving.is_known:
        if receiving.is_completed:
            return _Known(Barrier.THROUGH, "✓", "the barrier is through")
        return _Known(Barrier.NONE, "", "")
    if not receiving.missing:
        overtaken = moment.in_flight.get((link.target, link.gate), 0)
        if overtaken:
            return _Known(
                Barrier.THROUGH,
                f"✓ +{size(overtaken)}",
                f"the barrier is through; {size(overtaken)} of records that it overtook are in the "
                "checkpoint",
            )
        return _Known(Barrier.THROUGH, "✓", "the barrier is through")
    aligning = [
        (row, gate)
        for row in moment.waiting
        if row.chain == link.target and row.index in receiving.missing
        for gate in row.gates
        if gate.gate == link.gate
    ]
    # All subtasks that have not acknowledged report this gate as complete.
    if len(aligning) == len(receiving.missing) and not any(gate.missing for _, gate in aligning):
        return _Known(Barrier.THROUGH, "✓", "the barrier is through")
    held = [(row, gate) for row, gate in aligning if gate.missing]
    some_came = [(row, gate) for row, gate in held if any(gate.has_come)]
    if some_came:
        row, gate = max(some_came, key=lambda one: (len(one[1].missing), -one[0].since_ms))
        came, total = sum(gate.has_come), len(gate.has_come)
        return _Known(
            Barrier.ALIGNING,
            f"◐ {came:,}/{total:,} aligning",
            f"aligning: {came:,} of {plural(total, 'barrier')} have arrived at {row.name}, which "
            f"waits for {listed(gate.missing, 2)}",
        )
    if sending.done or len(receiving.done):
        came = len(receiving.done)
        so_far = f"; arrived at {came:,} of {receiving.expected:,} subtasks" if came else ""
        waits = f"; {held[0][0].name} waits for it" if held else ""
        text = f"▸ {came:,}/{receiving.expected:,} arrived" if came else "▸ on its way"
        return _Known(Barrier.ON_ITS_WAY, text, f"the barrier is on its way{so_far}{waits}")
    waits = f"; {held[0][0].name} waits for it" if held else ""
    return _Known(Barrier.NOT_SENT, "○ not sent", f"the barrier has not been sent yet{waits}")


def _link(link: Link, known: _Known, slow: Slow | None, moment: Moment) -> Json:
    is_slow = slow is not None and slow.link == link.position
    parts = [link.name, known.sentence]
    if slow is not None and is_slow:
        parts.append(_slow_sentence(slow, moment))
    return {
        "key": str(link.position),
        "barrier": str(known.barrier),
        "text": known.text,
        "title": ": ".join(part for part in parts[:2] if part)
        + (f". {parts[2]}" if len(parts) > 2 else ""),
        "slow": f"▲ {_cut(slow.sender, NAME_CHARACTERS)}" if slow and is_slow else "",
        "tone": slow.tone if slow and is_slow else "",
        "since": _iso_ms(slow.since_ms) if slow and is_slow else None,
        "took_ago": _slow_for(slow, moment) if slow and is_slow else "",
    }


def _slow_for(slow: Slow, moment: Moment) -> str:
    if slow.since_ms is None:
        return slow.took
    return rough_duration(moment.now.timestamp() * 1_000 - slow.since_ms)


def _slow_sentence(slow: Slow | None, moment: Moment) -> str:
    if slow is None:
        return ""
    if slow.since_ms is not None:
        return f"Waiting for {slow.sender} → {slow.receiver}"
    text = f"Slowest channel: {slow.sender} → {slow.receiver}"
    return f"{text}; its barrier {slow.text}" if slow.text else text


def _chain(
    chain: Chain,
    graph: Graph,
    moment: Moment,
    progress: _Progress,
    barriers: Mapping[int, _Known],
    newest_watermark_ms: int | None,
) -> Json:
    subtasks = moment.chains.get(chain.uid)
    load = subtasks.load if subtasks else None
    if load and (
        moment.is_over or (moment.now - load.measured_at).total_seconds() * 1_000 > STALE_MS
    ):
        load = None
    stuck = [stall for stall in moment.stalls if stall.chain == chain.uid]
    arrivals = [
        f"from {link.operator}: {barriers[link.position].sentence}"
        for link in graph.inputs[chain.uid]
        if barriers[link.position].sentence
    ]
    done = len(progress.done)
    if progress.is_known:
        text = f"{done:,}/{progress.expected:,}" if progress.expected else "finished"
        fraction = done / progress.expected if progress.expected else 1.0
    else:
        text, fraction = "", 1.0 if progress.is_completed else 0.0
    missing = _missing(chain, progress, moment.checkpoint)
    stalled = _stalled(stuck, moment)
    return {
        "uid": chain.uid,
        "names": ", ".join(member.uid for member in chain.members),
        "role": chain.role,
        "parallelism": f"×{chain.parallelism:,}",
        "acknowledged": done,
        "most": max(progress.expected, 1),
        "fraction": round(fraction, 4),
        "state": progress.state,
        "count": text,
        "says": f"{text} acknowledged" if progress.is_known and progress.expected else text,
        "missing": missing,
        "stalled": stalled,
        "stuck": "▲ stuck" if stalled else "",
        "arrivals": "; ".join(arrivals),
        # A subtask loop that is stuck in a call measures nothing; "stuck" says so already.
        **_rates(chain, graph, load, is_silent=moment.is_over or bool(stuck)),
        **_watermark(subtasks, newest_watermark_ms, moment),
        **_bad_records(subtasks),
    }


def _missing(chain: Chain, progress: _Progress, checkpoint: Checkpoint | None) -> str:
    missing, done = progress.missing, progress.done
    if not missing or checkpoint is None:
        return ""
    verb = "waiting for" if checkpoint.settled_at is None else "never acknowledged:"
    if not done and len(missing) > 1:
        return f"{verb} all {len(missing):,}"
    return f"{verb} {listed([f'{chain.uid}-{index}' for index in missing], MISSING_NAMED)}"


def _stalled(stuck: Sequence[Stall], moment: Moment) -> str:
    if not stuck:
        return ""
    first = min(stuck, key=lambda stall: stall.since_ms)
    others = f" and {len(stuck) - 1:,} more" if len(stuck) > 1 else ""
    since = event_time(int(first.since_ms))
    return f"{first.chain}-{first.index}{others} stuck in one call since {since}"


def _rates(chain: Chain, graph: Graph, load: Load | None, *, is_silent: bool) -> Json:
    if load is None:
        return {
            "records": "" if is_silent else "no recent measurement",
            "records_title": "",
            "load": "",
            "rest": "",
            "load_title": "",
            "busy": 0.0,
            "busiest": 0.0,
            "back_pressured": 0.0,
        }
    sends = chain.uid in graph.feeding
    records = f"in {rate(load.records_in)}" + (f" · out {rate(load.records_out)}" if sends else "")
    title = f"Records in: {load.records_in:,.0f} per second ({size(load.bytes_in)}/s)"
    if sends:
        title += f"; out: {load.records_out:,.0f} per second ({size(load.bytes_out)}/s)"
    text = f"busy {_percent(load.busy)}"
    if chain.parallelism > 1:
        most = f"subtask {load.busiest} busy {_percent(load.busiest_busy)}"
        text = f"{most} · mean {_percent(load.busy)}"
    if load.cpu_wait >= CPU_WAIT_SHOWN:
        rest = f"waits for CPU {_percent(load.cpu_wait)}"
    elif load.back_pressured >= BACK_PRESSURE_SHOWN:
        rest = f"back-pressured {_percent(load.back_pressured)}"
    else:
        rest = f"idle {_percent(load.idle)}"
    return {
        "records": records,
        "records_title": f"{title}, over all subtasks",
        "load": text,
        "rest": rest,
        "load_title": f"Shares of the time, mean of the subtasks: busy {_percent(load.busy)}, "
        f"back-pressured {_percent(load.back_pressured)}, idle {_percent(load.idle)}. "
        f"The busiest is {chain.uid}-{load.busiest}: {_percent(load.busiest_busy)}" + _waits(load),
        "busy": round(min(load.busy, 1.0), 3),
        "busiest": round(min(load.busiest_busy, 1.0), 3),
        "back_pressured": round(min(load.back_pressured, 1.0 - min(load.busy, 1.0)), 3),
    }


def _waits(load: Load) -> str:
    """The longest wait for a processor as a sentence; empty: there is none to tell of."""
    if load.cpu_wait < CPU_WAIT_TOLD:
        return ""
    return (
        f". Slot {load.waiting_most} is ready to run and has no processor for "
        f"{_percent(load.cpu_wait)} of the time"
    )


def _watermark(subtasks: ChainSubtasks | None, newest_ms: int | None, moment: Moment) -> Json:
    if subtasks is None or subtasks.watermark_ms is None or newest_ms is None:
        return {"watermark": "", "watermark_title": ""}
    at = subtasks.watermark_ms
    text = event_time(at)
    behind = f"{duration(newest_ms - at)} behind the furthest operator" if newest_ms > at else ""
    late_ms = moment.now.timestamp() * 1_000 - at
    late = f"{duration(late_ms)} behind the clock" if 0 < late_ms < CLOCKS_APART_MS else ""
    facts = ", ".join(part for part in (behind, late) if part)
    return {
        "watermark": f"watermark {text}",
        "watermark_title": f"Watermark, the lowest of its subtasks: {text}"
        + (f"; {facts}" if facts else ""),
    }


def _bad_records(subtasks: ChainSubtasks | None) -> Json:
    if subtasks is None or not subtasks.bad_records:
        return {"bad": "", "bad_title": ""}
    count = subtasks.bad_records
    return {
        "bad": f"{rate(count).removesuffix('/s')} bad",
        "bad_title": f"Bad records since the attempt began: {count:,}. A function raised on them, "
        "and they were left out.",
    }


def rate(per_second: float) -> str:
    """``"840/s"``, ``"12.4k/s"``, ``"3.1M/s"``."""
    value, unit = per_second, ""
    for unit in ("", "k", "M", "G"):  # noqa: B007 - the last one stays
        if value < 999.5:
            break
        value /= 1_000
    digits = 1 if 0 < value < 99.95 and (unit or value < 9.95) else 0
    return f"{value:.{digits}f}{unit}/s"


def _percent(share: float) -> str:
    return f"{share * 100:.0f}%"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"…{text[1 - most :]}"


def _iso_ms(at_ms: float | None) -> str | None:
    return None if at_ms is None else iso(datetime.fromtimestamp(at_ms / 1_000, UTC))
