"""Exchanges: edges with channels, and the rules for records that are under way on them.

A checkpoint names an exchange by the ends of its edge, since numbers of edges and channels change
with the pipeline. Records under way belong to a channel between two old subtasks; the partitioning
says which new receivers take them over:

=====================  =====================================================================
hash                   the receivers whose key groups they are; each keeps its own records
rebalance, shuffle     old receiver i: new receiver i mod n
global                 the first
forward, rescale,      none: without a key or a free choice nothing says where a record goes;
broadcast, custom      so no barrier overtakes on these, and no record is ever stored
=====================  =====================================================================

Senders do not matter: everything that was under way is restored at the receiving end.

Source: Flink, SubtaskStateMapper and the stream partitioners.
"""

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b

from weir.graph.key_groups import key_group_range
from weir.graph.logical import Edge, JobGraph, Partitioning
from weir.ids import OperatorId

# Those on whose channels a barrier may overtake records.
OVERTAKABLE = frozenset(
    {
        Partitioning.HASH,
        Partitioning.REBALANCE,
        Partitioning.SHUFFLE,
        Partitioning.GLOBAL,
    }
)
_NAME_LENGTH_MAX = 512  # Beside it, a handle's name holds a few words more.


@dataclass(frozen=True, slots=True)
class Exchange:
    """An edge of the graph as the state of its channels names it."""

    name: str
    source: OperatorId
    target: OperatorId
    partitioning: Partitioning

    @property
    def may_be_overtaken(self) -> bool:
        """Whether a barrier may overtake records on its channels."""
        return self.partitioning in OVERTAKABLE


def exchanges_of(graph: JobGraph) -> tuple[Exchange, ...]:
    """The exchange of each edge, in the order of the edges; chained ones included.

    Edges with the same ends and inputs are told apart by their order.
    """
    seen: Counter[str] = Counter()
    exchanges = []
    for edge in graph.edges:
        ends = _ends(edge)
        exchanges.append(
            Exchange(f"{ends}/{seen[ends]}", edge.source, edge.target, edge.partitioning)
        )
        seen[ends] += 1
    return tuple(exchanges)


def input_name(exchange: Exchange, part: int) -> str:
    """The name of the state of records under way to a subtask on an exchange: one of the parts."""
    return f"in/{exchange.name}/{part}"


def output_name(exchange: Exchange, receiver: int) -> str:
    """The name of the state of records that waited at a subtask for this receiver's credit."""
    return f"out/{exchange.name}/{receiver}"


def exchange_name(state: str) -> str:
    """The exchange in the name of the state of one of its channels."""
    return state.partition("/")[2].rpartition("/")[0]


def output_receiver(state: str) -> int | None:
    """The receiver in the name that ``output_name`` made; None: it is of an input.

    Raises:
        ValueError: It is no name of the state of channels.
    """
    direction, _, rest = state.partition("/")
    number = int(rest.rpartition("/")[2])
    match direction:
        case "in":
            return None
        case "out":
            return number
    raise ValueError(f"{state} is no state of a channel")


def old_receivers(
    partitioning: Partitioning, index: int, parallelism: int, old: int, groups: int
) -> Collection[int]:
    """The old receivers whose records under way a new receiver takes over, some or all of them.

    Args:
        index: Of the new receiver, among ``parallelism``.
        old: The number of old receivers.
        groups: The number of key groups.

    Raises:
        ValueError: No rule moves records of this partitioning to another number of receivers.
    """
    if old == parallelism:
        return (index,)
    match partitioning:
        case Partitioning.HASH:
            own = key_group_range(groups, parallelism, index)
            ranges = (key_group_range(groups, old, i) for i in range(old))
            return [i for i, owned in enumerate(ranges) if owned.intersection(own)]
        case Partitioning.REBALANCE | Partitioning.SHUFFLE:
            return range(index, old, parallelism)
        case Partitioning.GLOBAL:
            return range(old) if index == 0 else ()
        case _:
            raise ValueError(f"records under way of {partitioning} cannot move")


def _ends(edge: Edge) -> str:
    tag = "" if edge.side_tag is None else f"+{_escaped(edge.side_tag)}"
    ends = f"{_escaped(edge.source)}{tag}>{_escaped(edge.target)}.{edge.input_index}"
    if len(ends) <= _NAME_LENGTH_MAX:
        return ends
    return blake2b(ends.encode(), digest_size=16).hexdigest()


def _escaped(name: str) -> str:
    return "".join(f"%{ord(c):02X}" if c in "%/>+." else c for c in name)
