"""Alignment of one checkpoint by channel: first pairs of operators, then the subtasks of an input.

A pair of operators is shown with its maximum and its 95th percentile over the receiving subtasks.
An input (a *gate* in each receiving subtask) is shown with the slowest subtasks and all of their
channels. Few channels are all shown at once. ``figure`` chooses its rows and one of two pictures.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from checkpoints.models import Checkpoint
from controlplane.base.formatting import duration, plural, size
from frontend.base.alignment import Channel, Measure
from frontend.base.query_parameters import whole_number
from frontend.checkpoint import figures, queries
from frontend.checkpoint.queries import GateSpan, Input
from frontend.job.marks import Figure

CHANNELS_TOGETHER_MAX = 600  # Up to this number one picture shows all of them.
GATES_TOGETHER_MAX = 60

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The part of the section that an address selects."""

    base: str
    receiver: str = ""  # Empty: by pair of operators.
    gate: int = 0
    by: Measure = Measure.ARRIVED

    @classmethod
    def from_query(cls, parameters: Mapping[str, str], base: str) -> "Wanted":
        """From ``?receiver=``, ``?gate=`` and ``?by=``."""
        return cls(
            base,
            parameters.get("receiver", "").replace("\0", ""),
            whole_number(parameters.get("gate"), 99_999) or 0,
            Measure(by) if (by := parameters.get("by")) in set(Measure) else Measure.ARRIVED,
        )

    def address(self, **changes: object) -> str:
        """The section's address with changed parameters."""
        return f"{self.base}{self.query(**changes)}"

    def query(self, **changes: object) -> str:
        """The query of the section's address with changed parameters."""
        given = {
            "receiver": self.receiver,
            "gate": self.gate or "",
            "by": "" if self.by is Measure.ARRIVED else self.by,
        } | changes
        query = urlencode({name: value for name, value in given.items() if value})
        return f"?{query}" if query else ""


def alignment_section(checkpoint: Checkpoint, wanted: Wanted, figure_url: str) -> Json:
    """The section as JSON."""
    shared = {
        "unknown": "",
        "is_empty": False,
        "pairs": [],
        "chosen": "",
        "channels": [],
        "cut": "",
        "back": wanted.address(receiver="", gate=""),
        "by": _by(wanted, has_in_flight=bool(checkpoint.in_flight_bytes)),
        "measure": _MEASURES[wanted.by].heat,
        "is_sum": wanted.by is Measure.IN_FLIGHT,
        "has_in_flight": bool(checkpoint.in_flight_bytes),
        "figure": f"{figure_url}{wanted.query()}",
    }
    if wanted.receiver:
        chosen = queries.gate_input(checkpoint, wanted.receiver, wanted.gate)
        if chosen is None:
            return shared | {"unknown": wanted.receiver}
        rows = shown_rows(chosen)
        return shared | {
            "chosen": f"{figures.sender_of(chosen.first_sender)} → "
            f"{figures.input_name(chosen.receiver, chosen.gate, chosen.inputs)}",
            # The page says so where the picture leaves rows out.
            "cut": f"The picture shows {rows:,} of {chosen.gates:,} receiving subtasks."
            if rows < chosen.gates
            else "",
            **_channels(checkpoint, wanted, chosen.gates * chosen.senders),
        }
    spans = queries.gate_spans(checkpoint)
    total = sum(span.channels for span in spans)
    return (
        shared
        | {"is_empty": not spans, "pairs": [_pair(span, spans, wanted) for span in spans]}
        | (_channels(checkpoint, wanted, total) if is_small(spans) else {})
    )


def _channels(checkpoint: Checkpoint, wanted: Wanted, total: int) -> Json:
    rows = queries.slowest_channels(checkpoint, wanted.receiver, wanted.gate, by=wanted.by)
    caption = plural(total, "channel")
    if len(rows) < total:
        which = "largest" if wanted.by is Measure.IN_FLIGHT else "slowest"
        caption = f"The {len(rows):,} {which} of {caption}"
    return {"channels": [_channel(row) for row in rows], "caption": caption}


@dataclass(frozen=True, slots=True)
class _Shown:
    """A measure in words."""

    text: str
    help: str
    heat: str  # What its heat map is of.


_MEASURES = {
    Measure.ARRIVED: _Shown(
        "Barrier after the first",
        "The time from the receiving subtask's first barrier to this one",
        "barrier arrival after the first",
    ),
    Measure.BLOCKED: _Shown(
        "Time blocked",
        "The time for which a channel was blocked, until the last barrier",
        "the time channels were blocked",
    ),
    Measure.IN_FLIGHT: _Shown(
        "Persisted in-flight data",
        "Records that the channel's barrier overtook at the receiving subtask, in the checkpoint",
        "persisted in-flight data",
    ),
}


def _by(wanted: Wanted, *, has_in_flight: bool) -> list[Json]:
    return [
        {
            "text": shown.text,
            "help": shown.help,
            "url": wanted.address(by="" if by is Measure.ARRIVED else by),
            "is_current": by is wanted.by,
        }
        for by, shown in _MEASURES.items()
        if has_in_flight or by is not Measure.IN_FLIGHT
    ]


def figure(checkpoint: Checkpoint, wanted: Wanted) -> Figure:
    """The section's heat map."""
    at_most = GATES_TOGETHER_MAX
    if wanted.receiver:
        chosen = queries.gate_input(checkpoint, wanted.receiver, wanted.gate)
        at_most = 0 if chosen is None else shown_rows(chosen)
    else:
        spans = queries.gate_spans(checkpoint)
        if not is_small(spans):
            links = {
                _receiver(span, spans): wanted.address(receiver=span.receiver, gate=span.gate or "")
                for span in spans
            }
            names = [_receiver(span, spans) for span in spans]
            return figures.pair_map(spans, names, links, by=wanted.by)
    gates = queries.gates(checkpoint, wanted.receiver, wanted.gate, by=wanted.by, at_most=at_most)
    return figures.channel_map(gates, by=wanted.by)


def is_small(spans: list[GateSpan]) -> bool:
    """Whether all channels fit into one picture."""
    channels, gates = sum(span.channels for span in spans), sum(span.gates for span in spans)
    return channels <= CHANNELS_TOGETHER_MAX and gates <= GATES_TOGETHER_MAX


def shown_rows(chosen: Input) -> int:
    """The number of receiving subtasks in the heat map of an input."""
    return min(chosen.gates, figures.heat_rows(chosen.senders))


def _receiver(span: GateSpan, spans: list[GateSpan]) -> str:
    inputs = len({other.gate for other in spans if other.receiver == span.receiver})
    return figures.input_name(span.receiver, span.gate, inputs)


def _pair(span: GateSpan, spans: list[GateSpan], wanted: Wanted) -> Json:
    return {
        "sender": figures.sender_of(span.first_sender),
        "receiver": _receiver(span, spans),
        "url": wanted.address(receiver=span.receiver, gate=span.gate or ""),
        "channels": f"{span.channels:,}",
        "most_arrived": _arrival(span.most_arrived_ms),
        "p95_arrived": _arrival(span.p95_arrived_ms),
        "most_blocked": duration(span.most_blocked_ms),
        "p95_blocked": duration(span.p95_blocked_ms),
        "slowest": f"{span.receiver}-{span.slowest}" if span.most_arrived_ms else "",
        "in_flight": size(span.in_flight_bytes),
    }


def _arrival(ms: float | None) -> str:
    return "all senders had ended" if ms is None else duration(ms)


def _channel(channel: Channel) -> Json:
    return {
        "sender": channel.sender,
        "receiver": channel.receiver,
        "arrived": "its sender had ended"
        if channel.arrived_ms is None
        else duration(channel.arrived_ms),
        "blocked": duration(channel.blocked_ms),
        "during": size(channel.bytes_during),
        "in_flight": size(channel.in_flight_bytes),
    }
