"""Values for tests of the protocol: plain functions, each with a default for what does not matter.

The dataflow they describe has a source of two subtasks, ``source`` (chained with ``parse``), and a
sink of two, ``sink``; every sink subtask reads from both sources.
"""

from collections.abc import Iterable
from typing import Any

from weir.config import CheckpointConfig
from weir.graph.logical import Edge, JobGraph, Operator, Partitioning
from weir.ids import AttemptNumber, CheckpointId, OperatorId, StateHandle, SubtaskId
from weir.protocol.coordinator import CoordinatorState, Step, step
from weir.protocol.elements import BarrierOptions, CheckpointBarrier, CheckpointKind
from weir.protocol.failures import FailureCount
from weir.protocol.lifecycle import CheckpointStatus, FailureReason
from weir.protocol.lineage import UNKNOWN, Lineage, Span
from weir.protocol.messages import (
    Acknowledged,
    CheckpointGivenUp,
    CheckpointingStarted,
    CheckpointRequested,
    CoordinatorCommand,
    CoordinatorEvent,
    Declined,
    ManifestFailed,
    ManifestWritten,
    OperatorAck,
    SubtaskFinished,
)
from weir.protocol.pending import (
    CheckpointPlan,
    CompletedCheckpoint,
    PendingCheckpoint,
    PlannedChain,
    SubtaskRange,
    TriggerRequest,
)

CHAIN_OPERATORS = {"source": ("source", "parse"), "sink": ("sink",)}
CHAINS = ("source-0", "source-1", "sink-0", "sink-1")


def subtask(name: str) -> SubtaskId:
    """``subtask("map-0")`` is subtask 0 of operator ``map``."""
    operator, _, index = name.rpartition("-")
    return SubtaskId(OperatorId(operator), int(index))


def subtasks(*names: str) -> frozenset[SubtaskId]:
    return frozenset(map(subtask, names))


def barrier(
    checkpoint_id: int,
    *,
    triggered_at_ms: int = 0,
    options: BarrierOptions | None = None,
    **kwargs: Any,
) -> CheckpointBarrier:
    """A barrier; further keywords are options of it, such as ``alignment``."""
    return CheckpointBarrier(
        CheckpointId(checkpoint_id), triggered_at_ms, options or BarrierOptions(**kwargs)
    )


def handle(name: str = "counts", *, inline: bytes = b"1", **kwargs: Any) -> StateHandle:
    """A small piece of inline keyed state."""
    fields: dict[str, Any] = {
        "kind": "keyed",
        "size": len(inline),
        "checksum": "00",
        "inline": inline,
    }
    return StateHandle(name=name, **{**fields, **kwargs})


def plan(*, finished: Iterable[str] = ()) -> CheckpointPlan:
    """Two sources that feed two sinks, all to all."""
    source, sink = OperatorId("source"), OperatorId("sink")
    from_sources = (SubtaskRange(source, 0, 1),)
    return CheckpointPlan(
        chains=(
            PlannedChain(source, (source, OperatorId("parse")), ((), ())),
            PlannedChain(sink, (sink,), (from_sources, from_sources)),
        ),
        sinks=subtasks("sink-0", "sink-1"),
        finished=subtasks(*finished),
    )


def ack(
    chain: str = "source-0",
    checkpoint_id: int = 1,
    *,
    attempt: int = 1,
    handles: tuple[StateHandle, ...] = (),
) -> Acknowledged:
    """A chain's acknowledgement, one for each of its operators; the head saved ``handles``."""
    head = subtask(chain)
    operators = CHAIN_OPERATORS[head.operator]
    return Acknowledged(
        AttemptNumber(attempt),
        CheckpointId(checkpoint_id),
        head,
        tuple(
            OperatorAck(
                SubtaskId(OperatorId(uid), head.index), handles if uid == operators[0] else ()
            )
            for uid in operators
        ),
    )


def acks(checkpoint_id: int = 1, *, attempt: int = 1) -> list[CoordinatorEvent]:
    """The acknowledgements of all chains."""
    return [ack(chain, checkpoint_id, attempt=attempt) for chain in CHAINS]


def decline(
    chain: str = "sink-0",
    checkpoint_id: int = 1,
    *,
    attempt: int = 1,
    reason: FailureReason = FailureReason.CHECKPOINT_DECLINED,
    cause: str = "",
) -> Declined:
    return Declined(
        AttemptNumber(attempt), CheckpointId(checkpoint_id), subtask(chain), reason, cause
    )


def given_up(
    checkpoint_id: int = 1,
    *,
    attempt: int = 1,
    reason: FailureReason = FailureReason.CONTROL_PLANE_AWAY,
    cause: str = "",
) -> CheckpointGivenUp:
    return CheckpointGivenUp(AttemptNumber(attempt), CheckpointId(checkpoint_id), reason, cause)


def finished(chain: str, *, attempt: int = 1) -> SubtaskFinished:
    return SubtaskFinished(AttemptNumber(attempt), subtask(chain))


def written(checkpoint_id: int = 1) -> ManifestWritten:
    return ManifestWritten(CheckpointId(checkpoint_id))


def not_written(checkpoint_id: int = 1, *, may_exist: bool = False) -> ManifestFailed:
    return ManifestFailed(CheckpointId(checkpoint_id), "disk full", may_exist)


def started(
    attempt: int = 1,
    *,
    first_delay_ms: int | None = None,
    restored_from: int | None = None,
    lineage: Lineage = UNKNOWN,
    config: CheckpointConfig | None = None,
) -> CheckpointingStarted:
    """The job runs; the clock begins after the interval unless told otherwise."""
    if first_delay_ms is None:
        interval_ms = (config or CheckpointConfig()).interval_ms or 0
        first_delay_ms = max(interval_ms, (config or CheckpointConfig()).min_pause_ms)
    return CheckpointingStarted(
        AttemptNumber(attempt),
        plan(),
        first_delay_ms,
        None if restored_from is None else CheckpointId(restored_from),
        lineage,
    )


def line(*spans: tuple[int, int, int]) -> Lineage:
    """A line of spans ``(attempt, first, last)``, newest first."""
    return Lineage(
        tuple(
            Span(AttemptNumber(attempt), CheckpointId(first), CheckpointId(last))
            for attempt, first, last in spans
        )
    )


def requested(
    request_id: str = "r1",
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    *,
    target: str | None = None,
) -> CheckpointRequested:
    return CheckpointRequested(request_id, kind, target)


def request(
    request_id: str | None = "r1",
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    *,
    at_ms: int = 0,
) -> TriggerRequest:
    """A request in the queue; without an id it is the clock's."""
    return TriggerRequest(at_ms, kind, request_id)


def pending(
    checkpoint_id: int = 1,
    *,
    attempt: int = 1,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    missing: frozenset[SubtaskId] | None = None,
    expires_at_ms: int = 600_000,
    status: CheckpointStatus = CheckpointStatus.PENDING,
    **kwargs: Any,
) -> PendingCheckpoint:
    """A checkpoint under way that no subtask has acknowledged."""
    return PendingCheckpoint(
        barrier=barrier(checkpoint_id, kind=kind),
        attempt=AttemptNumber(attempt),
        request=kwargs.pop("request", request()),
        expires_at_ms=expires_at_ms,
        missing=plan().to_acknowledge() if missing is None else missing,
        status=status,
        **kwargs,
    )


def completed(
    checkpoint_id: int = 1,
    *,
    attempt: int = 1,
    kind: CheckpointKind = CheckpointKind.CHECKPOINT,
    triggered_at_ms: int = 0,
    completed_at_ms: int = 0,
    parent_id: int | None = None,
    **kwargs: Any,
) -> CompletedCheckpoint:
    return CompletedCheckpoint(
        CheckpointId(checkpoint_id),
        AttemptNumber(attempt),
        kind,
        triggered_at_ms,
        completed_at_ms,
        None if parent_id is None else CheckpointId(parent_id),
        **kwargs,
    )


def state(*, attempt: int = 1, running: bool = True, **kwargs: Any) -> CoordinatorState:
    """A coordinator whose job runs; settings of ``CheckpointConfig`` may be given by name."""
    settings = {
        name: kwargs.pop(name)
        for name in tuple(kwargs)
        if name in CheckpointConfig.__dataclass_fields__
    }
    kwargs.setdefault("config", CheckpointConfig(**settings))
    kwargs.setdefault("plan", plan() if running else None)
    kwargs.setdefault("failures", FailureCount())
    return CoordinatorState(attempt=AttemptNumber(attempt), **kwargs)


def run(
    state: CoordinatorState, *events: CoordinatorEvent, now_ms: int = 0
) -> tuple[CoordinatorState, list[CoordinatorCommand]]:
    """Fold events in at one moment; the state reached and all commands."""
    commands: list[CoordinatorCommand] = []
    for event in events:
        done: Step = step(state, event, now_ms)
        state = done.state
        commands += done.commands
    return state, commands


def node(uid: str, parallelism: int = 1, **kwargs: Any) -> Operator:
    """An operator of a job graph; one whose uid begins with ``source`` is a source."""
    kwargs.setdefault("factory", object)
    kwargs.setdefault("is_source", uid.startswith("source"))
    return Operator(OperatorId(uid), uid, parallelism, **kwargs)


def edge(
    source: str, target: str, partitioning: Partitioning = Partitioning.FORWARD, **kwargs: Any
) -> Edge:
    return Edge(OperatorId(source), OperatorId(target), partitioning, **kwargs)


def graph(operators: Iterable[Operator], edges: Iterable[Edge] = ()) -> JobGraph:
    return JobGraph("job", tuple(operators), tuple(edges))
