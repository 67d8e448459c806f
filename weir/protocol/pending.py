"""The coordinator's checkpoints: planned, pending and completed.

Only counters and the set of subtasks still missing are kept here. The shell that runs the
coordinator keeps the acknowledgements themselves, with their state handles, by checkpoint id, until
the manifest is written from them.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Self

from weir.bounds import Count, DueMs, Index, PointMs, Word
from weir.errors import ProtocolError
from weir.graph.physical import ExecutionGraph
from weir.ids import AttemptNumber, CheckpointId, OperatorId, SubtaskId
from weir.protocol.elements import CheckpointBarrier, CheckpointKind
from weir.protocol.lifecycle import TRANSITIONS, CheckpointStatus

SAVEPOINT_KINDS: Set[CheckpointKind] = frozenset(
    {CheckpointKind.SAVEPOINT, CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN}
)
STOP_KINDS: Set[CheckpointKind] = frozenset(
    {CheckpointKind.STOP_SUSPEND, CheckpointKind.STOP_DRAIN}
)


class AckResult(StrEnum):
    """The outcome of a report about a checkpoint or an attempt."""

    ACCEPTED = "accepted"
    DUPLICATE = "duplicate"  # It was known already; nothing changed.
    LATE = "late"  # Its checkpoint is settled; nothing changed.
    STALE_ATTEMPT = "stale_attempt"  # Its attempt is over; nothing changed.


class TriggerResult(StrEnum):
    """The outcome of a request for a checkpoint."""

    TRIGGERED = "triggered"
    POSTPONED = "postponed"  # It waits for its turn; triggered or refused later.
    REFUSED = "refused"
    DUPLICATE = "duplicate"  # A request with this id waits or runs already.


@dataclass(frozen=True, slots=True)
class TriggerRequest:
    """A request for a checkpoint, by a user or by the clock."""

    requested_at_ms: PointMs
    kind: CheckpointKind = CheckpointKind.CHECKPOINT
    request_id: Word | None = None  # None: periodic, without a requester to answer.
    target: Word | None = None  # Savepoints: the directory to write to. None: the job's own.

    @property
    def is_periodic(self) -> bool:
        """Whether the clock requested it."""
        return self.request_id is None


@dataclass(frozen=True, slots=True)
class SubtaskRange:
    """The subtasks ``first`` to ``last`` of one operator, both included."""

    operator: OperatorId
    first: Index
    last: Index


@dataclass(frozen=True, slots=True)
class PlannedChain:
    """One chain as the coordinator sees it.

    Shape: ``upstream`` has one entry per subtask of the chain: the chain subtasks that feed it.
    Every partitioning feeds each subtask from a contiguous range, so a range per edge suffices.
    """

    head: OperatorId
    operators: tuple[OperatorId, ...]
    upstream: tuple[tuple[SubtaskRange, ...], ...]

    @property
    def parallelism(self) -> int:
        """The number of subtasks of the chain."""
        return len(self.upstream)


@dataclass(frozen=True)  # No slots: what is asked for at every checkpoint is made once.
class CheckpointPlan:
    """The entry points of barriers in one attempt, and the subtasks that must acknowledge them."""

    chains: tuple[PlannedChain, ...]
    sinks: frozenset[SubtaskId] = frozenset()  # Operator subtasks without output edges.
    finished: frozenset[SubtaskId] = frozenset()  # Chain subtasks that ended.

    @classmethod
    def for_graph(cls, graph: ExecutionGraph) -> Self:
        """The plan for an execution graph in which no subtask has finished yet."""
        return cls(
            chains=tuple(
                PlannedChain(
                    head=chain.head,
                    operators=chain.operators,
                    upstream=tuple(
                        tuple(
                            SubtaskRange(
                                operator=gate[0].sender.operator,
                                first=min(channel.sender.index for channel in gate),
                                last=max(channel.sender.index for channel in gate),
                            )
                            for gate in graph.inputs[SubtaskId(chain.head, index)]
                            if gate
                        )
                        for index in range(chain.parallelism)
                    ),
                )
                for chain in graph.chains
            ),
            sinks=frozenset(graph.sink_subtasks),
        )

    def operators_of(self, chain: SubtaskId) -> frozenset[SubtaskId]:
        """The operator subtasks that one chain subtask runs.

        Raises:
            ProtocolError: The plan has no such chain subtask.
        """
        planned = self._chain_by_head.get(chain.operator)
        if planned is None or not 0 <= chain.index < planned.parallelism:
            raise ProtocolError(f"{chain} is no chain of the attempt's plan")
        return frozenset(SubtaskId(uid, chain.index) for uid in planned.operators)

    @cached_property
    def _chain_by_head(self) -> Mapping[OperatorId, PlannedChain]:
        return {planned.head: planned for planned in self.chains}

    def entries(self) -> tuple[SubtaskId, ...]:
        """Chain subtasks where a barrier is injected: they run and nothing that runs feeds them.

        At first these are the sources. Once all inputs of a subtask have ended, no barrier can
        reach it through them any more, and it becomes an entry itself.
        """
        ended: dict[OperatorId, list[int]] = {}
        for chain in self.finished:
            ended.setdefault(chain.operator, []).append(chain.index)
        for indexes in ended.values():
            indexes.sort()
        return tuple(
            subtask
            for planned in self.chains
            for index, upstream in enumerate(planned.upstream)
            if (subtask := SubtaskId(planned.head, index)) not in self.finished
            and all(_has_all(ended.get(feeding.operator, []), feeding) for feeding in upstream)
        )

    def to_acknowledge(self) -> frozenset[SubtaskId]:
        """Operator subtasks that run, each of which must acknowledge."""
        return self._running

    @cached_property
    def _running(self) -> frozenset[SubtaskId]:
        return frozenset(
            SubtaskId(uid, index)
            for planned in self.chains
            for index in range(planned.parallelism)
            if SubtaskId(planned.head, index) not in self.finished
            for uid in planned.operators
        )

    def without(self, chain: SubtaskId) -> "CheckpointPlan":
        """The plan after one chain subtask ended."""
        return replace(self, finished=self.finished | {chain})


def _has_all(indexes: Sequence[int], subtasks: SubtaskRange) -> bool:
    """Whether the sorted indexes hold a whole range."""
    count = bisect_right(indexes, subtasks.last) - bisect_left(indexes, subtasks.first)
    return count >= subtasks.last - subtasks.first + 1


@dataclass(frozen=True, slots=True)
class PendingCheckpoint:
    """A checkpoint that was triggered and is not settled."""

    barrier: CheckpointBarrier
    attempt: AttemptNumber
    request: TriggerRequest
    expires_at_ms: DueMs
    missing: frozenset[SubtaskId]  # Operator subtasks that have not acknowledged.
    acknowledged_count: Count = 0
    finished: frozenset[SubtaskId] = frozenset()  # Chains that ended instead of acknowledging.
    sinks_acknowledged_at_ms: PointMs | None = None
    parent_id: CheckpointId | None = None  # Known once it is finalizing.
    status: CheckpointStatus = CheckpointStatus.PENDING

    @property
    def checkpoint_id(self) -> CheckpointId:
        """The id its barrier carries."""
        return self.barrier.checkpoint_id

    @property
    def kind(self) -> CheckpointKind:
        """The kind that its barrier carries."""
        return self.barrier.options.kind

    @property
    def is_finalizing(self) -> bool:
        """Whether its manifest is being written, so that only the writer can settle it."""
        return self.status is CheckpointStatus.FINALIZING

    def moved_to(self, status: CheckpointStatus) -> "PendingCheckpoint":
        """The same checkpoint one status further.

        Raises:
            ProtocolError: ``TRANSITIONS`` does not allow this change of status.
        """
        if status not in TRANSITIONS.get(self.status, frozenset()):
            raise ProtocolError(
                f"checkpoint {self.checkpoint_id} cannot go from {self.status} to {status}"
            )
        return replace(self, status=status)


@dataclass(frozen=True, slots=True)
class CompletedCheckpoint:
    """A checkpoint whose manifest is durable: it may be restored from."""

    checkpoint_id: CheckpointId
    attempt: AttemptNumber
    kind: CheckpointKind
    triggered_at_ms: PointMs
    completed_at_ms: PointMs
    parent_id: CheckpointId | None = None  # The attempt's last completed or restored checkpoint.
    sinks_acknowledged_at_ms: PointMs | None = None
    target: Word | None = None  # Savepoints: the directory that it lies in.
    abandoned_at_ms: PointMs | None = None  # When a restore left it off the job's lineage.
