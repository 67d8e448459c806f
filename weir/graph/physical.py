"""The execution graph: chains, subtasks and channels of one attempt.

Operators joined by forward edges run as one *chain*: a tree whose head alone reads from channels.
Every chain has as many subtasks as its head's parallelism; subtask *i* of every chain lives in slot
*i* (slot sharing), so a job needs as many slots as its highest parallelism.

Channels are numbered densely and in a fixed order, so that driver and slots derive the same
numbers from the same graph.
"""

from dataclasses import dataclass
from functools import cached_property

from weir.graph.exchanges import Exchange, exchanges_of
from weir.graph.logical import Chaining, Edge, JobGraph, Operator, Partitioning
from weir.ids import ChannelId, OperatorId, SubtaskId


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators that share a subtask: the head, then the rest in topological order."""

    head: OperatorId
    operators: tuple[OperatorId, ...]
    parallelism: int
    inner_edges: tuple[Edge, ...]  # Between operators of the chain: plain calls.
    in_edges: tuple[Edge, ...]  # Into the head: one input gate each, in this order.
    out_edges: tuple[Edge, ...]  # Leaving any operator of the chain: one output gate each.


@dataclass(frozen=True, slots=True)
class Channel:
    """One strictly ordered connection from a sending to a receiving subtask."""

    id: ChannelId
    edge_index: int  # Into JobGraph.edges.
    sender: SubtaskId  # By chain head.
    receiver: SubtaskId
    sender_index: int  # Position among the channels of the sender's output gate.
    receiver_index: int  # Position among the channels of the receiver's input gate.


class ExecutionGraph:
    """A job graph laid out over parallel subtasks."""

    def __init__(self, graph: JobGraph) -> None:
        self.graph = graph
        self.chains = _chains(graph)
        self.channels = tuple(_channels(graph, self.chains))

    @cached_property
    def exchanges(self) -> tuple[Exchange, ...]:
        """The exchange of each edge, chained ones included."""
        return exchanges_of(self.graph)

    @cached_property
    def open_exchanges(self) -> tuple[Exchange, ...]:
        """The exchanges with channels: those of edges between chains."""
        inner = {id(edge) for chain in self.chains for edge in chain.inner_edges}
        pairs = zip(self.graph.edges, self.exchanges, strict=True)
        return tuple(exchange for edge, exchange in pairs if id(edge) not in inner)

    @cached_property
    def slot_count(self) -> int:
        """The number of slots that the job needs."""
        return max(chain.parallelism for chain in self.chains)

    @cached_property
    def chain_subtasks(self) -> tuple[SubtaskId, ...]:
        """Every subtask, by the head of its chain; chains in topological order."""
        return tuple(
            SubtaskId(chain.head, index)
            for chain in self.chains
            for index in range(chain.parallelism)
        )

    @cached_property
    def operator_subtasks(self) -> tuple[SubtaskId, ...]:
        """Every operator subtask: each must acknowledge a checkpoint."""
        return tuple(
            SubtaskId(uid, index)
            for chain in self.chains
            for uid in chain.operators
            for index in range(chain.parallelism)
        )

    @cached_property
    def source_subtasks(self) -> tuple[SubtaskId, ...]:
        """Chain subtasks whose head is a source: barriers are injected there."""
        return tuple(
            SubtaskId(chain.head, index)
            for chain in self.chains
            if self.operator(chain.head).is_source
            for index in range(chain.parallelism)
        )

    @cached_property
    def sink_subtasks(self) -> tuple[SubtaskId, ...]:
        """Operator subtasks without output edges."""
        feeding = {edge.source for edge in self.graph.edges}
        return tuple(s for s in self.operator_subtasks if s.operator not in feeding)

    @cached_property
    def _operators(self) -> dict[OperatorId, Operator]:
        return {op.uid: op for op in self.graph.operators}

    def operator(self, uid: OperatorId) -> Operator:
        """The operator with this uid."""
        return self._operators[uid]

    @cached_property
    def _chain_of(self) -> dict[OperatorId, Chain]:
        return {uid: chain for chain in self.chains for uid in chain.operators}

    def chain_of(self, uid: OperatorId) -> Chain:
        """The chain that runs this operator."""
        return self._chain_of[uid]

    @cached_property
    def inputs(self) -> dict[SubtaskId, tuple[tuple[Channel, ...], ...]]:
        """Per chain subtask: its input gates in edge order, each with its channels in order."""
        return self._by_gate(receiving=True)

    @cached_property
    def outputs(self) -> dict[SubtaskId, tuple[tuple[Channel, ...], ...]]:
        """Per chain subtask: its output gates in edge order, each with its channels in order."""
        return self._by_gate(receiving=False)

    def _by_gate(self, *, receiving: bool) -> dict[SubtaskId, tuple[tuple[Channel, ...], ...]]:
        edge_index = {id(edge): i for i, edge in enumerate(self.graph.edges)}
        gates: dict[SubtaskId, dict[int, list[Channel]]] = {}
        for chain in self.chains:
            edges = chain.in_edges if receiving else chain.out_edges
            for index in range(chain.parallelism):
                gates[SubtaskId(chain.head, index)] = {edge_index[id(e)]: [] for e in edges}
        for channel in self.channels:
            end = channel.receiver if receiving else channel.sender
            gates[end][channel.edge_index].append(channel)
        return {
            subtask: tuple(tuple(channels) for channels in by_edge.values())
            for subtask, by_edge in gates.items()
        }


def _chains(graph: JobGraph) -> tuple[Chain, ...]:
    by_uid = {op.uid: op for op in graph.operators}
    in_edges = {uid: [e for e in graph.edges if e.target == uid] for uid in by_uid}
    head_of: dict[OperatorId, OperatorId] = {}
    for uid in graph.topological():
        edges = in_edges[uid]
        joins = (
            len(edges) == 1
            and edges[0].partitioning is Partitioning.FORWARD
            and by_uid[uid].chaining is Chaining.ALWAYS
            and by_uid[edges[0].source].chaining is not Chaining.NEVER
        )
        head_of[uid] = head_of[edges[0].source] if joins else uid
    members: dict[OperatorId, list[OperatorId]] = {}
    for uid in graph.topological():
        members.setdefault(head_of[uid], []).append(uid)
    return tuple(
        Chain(
            head=head,
            operators=tuple(uids),
            parallelism=by_uid[head].parallelism,
            inner_edges=tuple(
                e for e in graph.edges if e.target in uids and e.target != head and e.source in uids
            ),
            in_edges=tuple(in_edges[head]),
            out_edges=tuple(
                e for e in graph.edges if e.source in uids and head_of[e.target] != head
            ),
        )
        for head, uids in members.items()
    )


def _channels(graph: JobGraph, chains: tuple[Chain, ...]) -> list[Channel]:
    chain_of = {uid: chain for chain in chains for uid in chain.operators}
    channels: list[Channel] = []
    for edge_index, edge in enumerate(graph.edges):
        sender, receiver = chain_of[edge.source], chain_of[edge.target]
        if sender is receiver:
            continue
        sent = [0] * sender.parallelism
        received = [0] * receiver.parallelism
        for i, j in _pairs(edge.partitioning, sender.parallelism, receiver.parallelism):
            channels.append(
                Channel(
                    id=ChannelId(len(channels)),
                    edge_index=edge_index,
                    sender=SubtaskId(sender.head, i),
                    receiver=SubtaskId(receiver.head, j),
                    sender_index=sent[i],
                    receiver_index=received[j],
                )
            )
            sent[i] += 1
            received[j] += 1
    return channels


def _pairs(partitioning: Partitioning, senders: int, receivers: int) -> list[tuple[int, int]]:
    """Index pairs of the sending and receiving subtasks that a channel joins."""
    match partitioning:
        case Partitioning.FORWARD:
            return [(i, i) for i in range(senders)]
        case Partitioning.RESCALE if senders <= receivers:
            return [(j * senders // receivers, j) for j in range(receivers)]
        case Partitioning.RESCALE:
            return [(i, i * receivers // senders) for i in range(senders)]
        case _:
            return [(i, j) for i in range(senders) for j in range(receivers)]
