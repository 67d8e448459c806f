"""The job graph: operators and edges as the user wrote them.

Nothing here runs. An operator carries a ``factory`` that the runtime calls once per subtask; to the
graph it is opaque, as are the key selectors on edges.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from graphlib import CycleError, TopologicalSorter
from typing import Any

from weir.errors import GraphError
from weir.ids import OperatorId


class Partitioning(StrEnum):
    """The rule by which an edge spreads records over the subtasks of its target."""

    FORWARD = "forward"  # Subtask i to subtask i; equal parallelism.
    HASH = "hash"  # By key group.
    REBALANCE = "rebalance"  # Round robin over all.
    RESCALE = "rescale"  # Round robin over a local group.
    SHUFFLE = "shuffle"  # Uniformly at random.
    BROADCAST = "broadcast"  # Every record to all.
    GLOBAL = "global"  # Every record to subtask 0.
    CUSTOM = "custom"  # By the user's partitioner.


class Chaining(StrEnum):
    """Whether an operator may run in one subtask with its input."""

    ALWAYS = "always"
    HEAD = "head"  # Starts a chain; others may join behind it.
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Operator:
    """One node of the graph."""

    uid: OperatorId
    name: str
    parallelism: int
    factory: Any = field(repr=False)  # Callable[[], weir.operators.base.Operator].
    max_parallelism: int | None = None  # None: the job's.
    chaining: Chaining = Chaining.ALWAYS
    is_source: bool = False
    is_sink: bool = False
    keyed: bool = False  # Whether it may hold keyed state.
    files: str | None = None  # The directory that a file sink commits its output to.
    location: str = ""  # File and line of the call that created it, for messages.
    on_error: Any = None  # weir.operators.bad_records.ErrorPolicy; None: an error fails the job.


@dataclass(frozen=True, slots=True)
class Edge:
    """Records of ``source`` go to input ``input_index`` of ``target``."""

    source: OperatorId
    target: OperatorId
    partitioning: Partitioning = Partitioning.FORWARD
    input_index: int = 0  # 0, or 1 for the second input of a two-input operator.
    side_tag: str | None = None  # A side output of the source instead of its main output.
    selector: Any = field(default=None, repr=False)  # Key selector or custom partitioner.


@dataclass(frozen=True, slots=True)
class JobGraph:
    """A checked graph of operators.

    Raises:
        GraphError: Names a duplicate uid, an edge to nowhere, a cycle, an operator without input,
            or a forward edge between different parallelisms; the pipeline's author can repair it.
    """

    name: str
    operators: tuple[Operator, ...]
    edges: tuple[Edge, ...]

    def __post_init__(self) -> None:
        counts = Counter(op.uid for op in self.operators)
        if repeated := sorted(uid for uid, n in counts.items() if n > 1):
            raise GraphError(f"uid used twice: {', '.join(repeated)}; give each operator its own")
        if not any(op.is_source for op in self.operators):
            raise GraphError(
                "the pipeline has no source; begin with env.from_collection(...) or "
                "env.from_source(...)"
            )
        by_uid = {op.uid: op for op in self.operators}
        for edge in self.edges:
            for end in (edge.source, edge.target):
                if end not in by_uid:
                    raise GraphError(f"an edge names the operator {end}, which is not in the graph")
            one, other = by_uid[edge.source], by_uid[edge.target]
            if edge.partitioning is Partitioning.FORWARD and one.parallelism != other.parallelism:
                raise GraphError(
                    f"forward from {one.name} (parallelism {one.parallelism}) to {other.name} "
                    f"({other.parallelism}) needs equal parallelism; use rebalance() or rescale()"
                )
        fed = {edge.target for edge in self.edges}
        for op in self.operators:
            if op.is_source and op.uid in fed:
                raise GraphError(f"the source {op.name} cannot have an input")
            if not op.is_source and op.uid not in fed:
                raise GraphError(f"the operator {op.name} has no input")
        self.topological()

    def operator(self, uid: OperatorId) -> Operator:
        """The operator with this uid."""
        return next(op for op in self.operators if op.uid == uid)

    def topological(self) -> tuple[OperatorId, ...]:
        """All uids, every operator after the ones that feed it, otherwise in the given order."""
        sorter: TopologicalSorter[OperatorId] = TopologicalSorter()
        for op in self.operators:
            sorter.add(op.uid, *inputs_of(self.edges, op.uid))
        try:
            return tuple(sorter.static_order())
        except CycleError as error:
            raise GraphError(f"the pipeline has a cycle: {' -> '.join(error.args[1])}") from error


def inputs_of(edges: Iterable[Edge], uid: OperatorId) -> list[OperatorId]:
    """Uids that feed ``uid``, in edge order."""
    return [edge.source for edge in edges if edge.target == uid]
