"""Queries of the checkpoint pages: a fixed number of them, each with a named bound.

A checkpoint of a thousand subtasks has thousands of acknowledgements and a million channels, so the
database aggregates for the first view; single rows are read in pages, or only the slowest. Cursors
are checkpoint numbers: each page of the list costs the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar
from uuid import UUID

from django.db import connection
from django.db.models import (
    Count,
    ExpressionWrapper,
    F,
    FloatField,
    OuterRef,
    Q,
    Subquery,
    Sum,
)

from checkpoints.models import COMPLETED_ONCE, UNSETTLED, Checkpoint, SharesFiles, SubtaskAck
from checkpoints.verdict.facts import Gate
from controlplane.base import clock
from controlplane.base.lookups import only
from frontend.base.alignment import Channel, Measure
from frontend.base.query_parameters import BIGINT_MAX
from jobs.models import Operation, Subtask
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, SubtaskStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

LISTED = 50
ACKS_LISTED = 25
FILES_LISTED = 100
CHANNELS_LISTED = 50

Row = TypeVar("Row")

# From the trigger until its snapshot was durable, of one acknowledgement.
_TOTAL = "start_delay_ms + alignment_ms + sync_ms + async_ms"
TOTAL_MS = ExpressionWrapper(
    F("start_delay_ms") + F("alignment_ms") + F("sync_ms") + F("async_ms"),
    output_field=FloatField(),
)

# The values of `?status=` and `?kind=` of the list.
STATUSES = {
    "completed": COMPLETED_ONCE,
    "failed": (CheckpointStatus.FAILED.value,),
    "aborted": (CheckpointStatus.ABORTED.value,),
    "pending": UNSETTLED,
}
KINDS = {
    "checkpoint": Q(kind=CheckpointKind.CHECKPOINT),
    "savepoint": ~Q(kind=CheckpointKind.CHECKPOINT),
}


# Checkpoints --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Listed:
    """One page of checkpoints, newest first, and whether there are newer and older ones."""

    rows: list[Checkpoint]
    has_newer: bool
    has_older: bool


def listed(job_id: str, *, status: str, kind: str, before: int | None, after: int | None) -> Listed:
    """One page of a job's checkpoints: above or below a number, or the newest ones."""
    rows = Checkpoint.objects.filter(job=job_id).select_related("savepoint")
    if status in STATUSES:
        rows = rows.filter(status__in=STATUSES[status])
    if kind in KINDS:
        rows = rows.filter(KINDS[kind])
    if after is not None:  # The ones right above the number, not the newest of all.
        above = list(rows.filter(number__gt=after).order_by("number")[: LISTED + 1])
        return Listed(above[:LISTED][::-1], len(above) > LISTED, has_older=True)
    if before is not None:
        rows = rows.filter(number__lt=before)
    newest = list(rows.order_by("-number")[: LISTED + 1])
    return Listed(newest[:LISTED], before is not None, len(newest) > LISTED)


class PageColumns(TypedDict):
    """The further columns of a checkpoint on its page."""

    now: datetime
    previous_number: int | None
    next_number: int | None


def checkpoint_by_number(
    job_id: str, number: int
) -> "WithAnnotations[Checkpoint, PageColumns] | None":
    """One checkpoint with its savepoint, its parent, ``now`` and its neighbours' numbers."""
    others = Checkpoint.objects.filter(job=OuterRef("job"))
    earlier = others.filter(number__lt=OuterRef("number")).order_by("-number")
    later = others.filter(number__gt=OuterRef("number")).order_by("number")
    return only(
        Checkpoint.objects.filter(job=job_id, number=number)
        .select_related("savepoint", "savepoint__created_by", "parent")
        .annotate(
            now=clock.DatabaseNow(),
            previous_number=Subquery(earlier.values("number")[:1]),
            next_number=Subquery(later.values("number")[:1]),
        )
    )


def compared(checkpoint: Checkpoint) -> Checkpoint | None:
    """The last checkpoint that completed before and was not left behind, to compare state with."""
    rows = Checkpoint.objects.filter(
        job=checkpoint.job_id, number__lt=checkpoint.number, status__in=COMPLETED_ONCE
    )
    if checkpoint.abandoned_at is None:
        rows = rows.filter(abandoned_at__isnull=True)
    last: Checkpoint | None = rows.order_by("-number").first()
    return last


def asked(checkpoint: Checkpoint) -> Operation | None:
    """The operation that requested a checkpoint; None for the schedule or the driver."""
    try:
        operation_id = UUID(checkpoint.request_id)
    except ValueError:
        return None
    rows = Operation.objects.filter(pk=operation_id, job=checkpoint.job_id)
    operation: Operation | None = rows.select_related("requested_by").first()
    return operation


def finished(checkpoint: Checkpoint) -> dict[str, frozenset[int]]:
    """The finished subtasks of the checkpoint's attempt, by chain: they take part no more."""
    rows = Subtask.objects.filter(
        job=checkpoint.job_id, attempt=checkpoint.attempt, status=SubtaskStatus.FINISHED
    )
    indices: dict[str, set[int]] = {}
    for chain, index in rows.values_list("chain", "index"):
        indices.setdefault(chain, set()).add(index)
    return {chain: frozenset(subtasks) for chain, subtasks in indices.items()}


# Acknowledgements ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChainSpan:
    """The phases of all subtasks of one chain that acknowledged, and of the slowest of them.

    Units: milliseconds; ``slowest_*`` and ``least_*``, ``most_*`` are after the trigger.
    """

    chain: str
    slowest: int  # The index of the slowest subtask.
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    count: int
    least_total_ms: float
    most_total_ms: float
    least_start_delay_ms: float
    most_start_delay_ms: float
    most_start_delay_index: int
    least_alignment_ms: float
    most_alignment_ms: float
    most_alignment_index: int
    least_sync_ms: float
    most_sync_ms: float
    most_sync_index: int
    least_async_ms: float
    most_async_ms: float
    most_async_index: int


_PHASES = ("start_delay_ms", "alignment_ms", "sync_ms", "async_ms")
_OF_PHASES = ", ".join(
    f"min({phase}) OVER whole, max({phase}) OVER whole, "
    f'first_value("index") OVER (PARTITION BY chain ORDER BY {phase} DESC, "index")'
    for phase in _PHASES
)
# A chain acknowledges as one: the head's row has the times of all its operators.
_SPANS = f"""
    SELECT DISTINCT ON (chain) chain, "index", {", ".join(_PHASES)},
           count(*) OVER whole, min({_TOTAL}) OVER whole, max({_TOTAL}) OVER whole, {_OF_PHASES}
    FROM checkpoints_subtaskack
    WHERE checkpoint_id = %s AND operator = chain
    WINDOW whole AS (PARTITION BY chain)
    ORDER BY chain, {_TOTAL} DESC, "index"
"""


def chain_spans(checkpoint: Checkpoint) -> list[ChainSpan]:
    """The durations of each chain's subtasks, by chain."""
    return _rows(ChainSpan, _SPANS, [checkpoint.pk])


@dataclass(frozen=True, slots=True)
class SubtaskPhases:
    """The phases of one chain subtask. Units: milliseconds."""

    chain: str
    index: int
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    acknowledged_ms: float  # After the trigger, by the control plane's clock.

    @property
    def total_ms(self) -> float:
        """From the trigger until its snapshot was durable."""
        return self.start_delay_ms + self.alignment_ms + self.sync_ms + self.async_ms


def subtask_phases(
    checkpoint: Checkpoint, chain: str | None, *, at_most: int, in_order: bool = False
) -> list[SubtaskPhases]:
    """The slowest subtasks of a chain (None: of all), the slowest first; or all in order."""
    rows = SubtaskAck.objects.filter(checkpoint=checkpoint, operator=F("chain"))
    if chain is not None:
        rows = rows.filter(chain=chain)
    rows = rows.annotate(total=TOTAL_MS).order_by(
        *(("chain", "index") if in_order else ("-total", "chain", "index"))
    )
    values = rows.values_list("chain", "index", *_PHASES, "acknowledged_at")[:at_most]
    began = checkpoint.triggered_at
    return [
        SubtaskPhases(
            chain,
            index,
            start,
            alignment,
            sync,
            rest,
            max(0.0, (at - began).total_seconds() * 1_000),
        )
        for chain, index, start, alignment, sync, rest, at in values
    ]


@dataclass(frozen=True, slots=True)
class OperatorTotal(SharesFiles):
    """The state that the subtasks of one operator snapshotted. Units: bytes."""

    checkpoint_id: int
    operator: str
    count: int
    state_bytes: int
    written_bytes: int
    in_flight_bytes: int
    in_flight_output_bytes: int


def operator_totals(checkpoint_ids: Sequence[int]) -> list[OperatorTotal]:
    """State by operator, of several checkpoints."""
    rows = (
        SubtaskAck.objects.filter(checkpoint__in=checkpoint_ids)
        .order_by()
        .values_list("checkpoint_id", "operator")
        .annotate(
            Count("id"),
            Sum("state_bytes"),
            Sum("written_bytes"),
            Sum("in_flight_bytes"),
            Sum("in_flight_output_bytes"),
        )
    )
    return [OperatorTotal(*row) for row in rows]


# The values of `?sort=`, with a minus for descending order.
ACK_ORDERINGS: dict[str, tuple[str, ...]] = {
    "subtask": ("operator", "index"),
    "acknowledged": ("acknowledged_at",),
    "start_delay": ("start_delay_ms",),
    "alignment": ("alignment_ms",),
    "sync": ("sync_ms",),
    "async": ("async_ms",),
    "total": ("total",),
    "state": ("state_bytes",),
    "written": ("written_bytes",),
    "in_flight": ("in_flight_bytes",),
    "during": ("bytes_during_alignment",),
}


@dataclass(frozen=True, slots=True)
class Ack(SharesFiles):
    """One operator subtask's acknowledgement. Units: milliseconds, bytes."""

    operator: str
    index: int
    acknowledged_at: Any
    start_delay_ms: float
    alignment_ms: float
    sync_ms: float
    async_ms: float
    total_ms: float
    state_bytes: int
    written_bytes: int
    in_flight_bytes: int
    bytes_during_alignment: int
    unaligned: bool
    records: int
    in_flight_output_bytes: int
    switched: str
    switched_ms: float | None


def acks(checkpoint: Checkpoint, *, sort: str, operator: str, page: int) -> tuple[list[Ack], bool]:
    """One page of acknowledgements, and whether there is a next one.

    A checkpoint has thousands of acknowledgements at most, and sorting reads all of them anyway, so
    an offset costs nothing extra.
    """
    sign, name = ("-", sort[1:]) if sort.startswith("-") else ("", sort)
    order = [f"{sign}{column}" for column in ACK_ORDERINGS[name]]
    rows = SubtaskAck.objects.filter(checkpoint=checkpoint).annotate(total=TOTAL_MS)
    if operator:
        rows = rows.filter(operator=operator)
    begin = (page - 1) * ACKS_LISTED
    page_rows = list(
        rows.order_by(*order, "operator", "index").values_list(
            "operator",
            "index",
            "acknowledged_at",
            *_PHASES,
            "total",
            "state_bytes",
            "written_bytes",
            "in_flight_bytes",
            "bytes_during_alignment",
            "unaligned",
            "records",
            "in_flight_output_bytes",
            "switched",
            "switched_ms",
        )[begin : begin + ACKS_LISTED + 1]
    )
    return [Ack(*row) for row in page_rows[:ACKS_LISTED]], len(page_rows) > ACKS_LISTED


# Files --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StateFile:
    """A file of a checkpoint, from a state handle of an acknowledgement."""

    operator: str
    index: int
    name: str
    kind: str
    path: str
    size: int
    checksum: str


@dataclass(frozen=True, slots=True)
class Files:
    """The largest files of a checkpoint, with number and size of all of them."""

    largest: list[StateFile]
    count: int
    size: int


_FILES = """
    SELECT a.operator, a."index", h.name, h.kind, h.path, h.size, h.checksum,
           count(*) OVER (), sum(h.size) OVER ()
    FROM checkpoints_subtaskack a
    CROSS JOIN LATERAL jsonb_to_recordset(a.handles)
        AS h (name text, kind text, path text, size bigint, checksum text)
    WHERE a.checkpoint_id = %s AND a.handles <> '[]'::jsonb AND h.path IS NOT NULL
    ORDER BY h.size DESC, a.operator, a."index", h.name
    LIMIT %s
"""


def files(checkpoint: Checkpoint) -> Files:
    """The files that a checkpoint's acknowledgements name, the largest first."""
    with connection.cursor() as cursor:
        cursor.execute(_FILES, [checkpoint.pk, FILES_LISTED])
        rows = cursor.fetchall()
    if not rows:
        return Files([], 0, 0)
    return Files([StateFile(*row[:-2]) for row in rows], rows[0][-2], int(rows[0][-1]))


# Alignment ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class GateSpan:
    """The alignment of all channels from one operator to another.

    All channels of a gate come from one operator, for a gate is one edge of the graph.

    Units: milliseconds. *Arrived* is a receiving subtask's last barrier after its first, *blocked*
    its longest blocked channel: the maximum and the 95th percentile over the receiving subtasks.
    """

    receiver: str
    gate: int
    first_sender: str  # A subtask; its operator is the part before the last "-".
    gates: int
    channels: int
    most_arrived_ms: float | None  # None: all inputs had ended.
    p95_arrived_ms: float | None
    most_blocked_ms: float
    p95_blocked_ms: float
    slowest: int  # The receiving subtask whose last barrier came latest.
    in_flight_bytes: int  # Of all channels.


_GATE_SPANS = f"""
    SELECT operator, gate, min(first_sender), count(*), sum(channels)::bigint,
           max(arrived), percentile_disc(0.95) WITHIN GROUP (ORDER BY arrived),
           max(blocked), percentile_disc(0.95) WITHIN GROUP (ORDER BY blocked),
           (array_agg("index" ORDER BY arrived DESC NULLS LAST, "index"))[1],
           least(coalesce(sum(in_flight), 0), {BIGINT_MAX})::bigint
    FROM (
        SELECT operator, gate, "index", upstream[1] AS first_sender,
               cardinality(arrived_ms) AS channels,
               (SELECT max(ms) FROM unnest(arrived_ms) AS ms) AS arrived,
               (SELECT max(ms) FROM unnest(blocked_ms) AS ms) AS blocked,
               (SELECT sum(bytes) FROM unnest(in_flight) AS bytes) AS in_flight
        FROM checkpoints_gatealignment
        WHERE checkpoint_id = %s
    ) AS g
    GROUP BY operator, gate
    ORDER BY max(arrived) DESC NULLS LAST, operator, gate
"""


def gate_spans(checkpoint: Checkpoint) -> list[GateSpan]:
    """The alignment by pair of operators, the pair with the latest barrier first."""
    return _rows(GateSpan, _GATE_SPANS, [checkpoint.pk])


@dataclass(frozen=True, slots=True)
class Input:
    """One input of a receiving operator: as many gates as it has subtasks."""

    receiver: str
    gate: int
    first_sender: str  # A subtask.
    gates: int
    senders: int  # Of one gate.
    inputs: int  # Of the operator.


_INPUT = """
    SELECT operator, gate, upstream[1],
           (SELECT count(*) FROM checkpoints_gatealignment o
            WHERE o.checkpoint_id = g.checkpoint_id AND o.operator = g.operator
              AND o.gate = g.gate),
           cardinality(upstream),
           (SELECT count(*) FROM checkpoints_gatealignment o
            WHERE o.checkpoint_id = g.checkpoint_id AND o.operator = g.operator
              AND o."index" = g."index")
    FROM checkpoints_gatealignment g
    WHERE checkpoint_id = %s AND operator = %s AND gate = %s
    ORDER BY "index"
    LIMIT 1
"""


def gate_input(checkpoint: Checkpoint, receiver: str, gate: int) -> Input | None:
    """The size of an operator's input; None: no subtask of the operator aligned on it."""
    rows = _rows(Input, _INPUT, [checkpoint.pk, receiver, gate])
    return rows[0] if rows else None


_SLOWEST_GATES = """
    SELECT operator, "index", gate, upstream, arrived_ms, blocked_ms, bytes_during,
           coalesce(in_flight, '{{}}') AS in_flight
    FROM checkpoints_gatealignment g
    WHERE checkpoint_id = %s AND (%s = '' OR operator = %s AND gate = %s)
    ORDER BY (SELECT max(most) FROM unnest(g.{column}) AS most) DESC NULLS LAST,
             operator, "index", gate
    LIMIT %s
"""


_COLUMN = {
    Measure.ARRIVED: "arrived_ms",
    Measure.BLOCKED: "blocked_ms",
    Measure.IN_FLIGHT: "in_flight",
}


def gates(
    checkpoint: Checkpoint, receiver: str, gate: int, *, by: Measure, at_most: int
) -> list[Gate]:
    """The gates of a receiving operator's input (``""``: of all), the largest first."""
    query = _SLOWEST_GATES.format(column=_COLUMN[by])
    return _rows(Gate, query, [checkpoint.pk, receiver, receiver, gate, at_most])


# The n slowest channels are in the n slowest gates: only these are unnested. So are the largest.
_CHANNELS = f"""
    SELECT c.sender, g.operator || '-' || g."index", c.position - 1, c.arrived_ms, c.blocked_ms,
           c.during, coalesce(c.in_flight, 0)
    FROM ({_SLOWEST_GATES}) AS g
    CROSS JOIN LATERAL
        unnest(g.upstream, g.arrived_ms, g.blocked_ms, g.bytes_during, g.in_flight)
        WITH ORDINALITY AS c (sender, arrived_ms, blocked_ms, during, in_flight, position)
    ORDER BY c.{{column}} DESC NULLS LAST, g.operator, g."index", g.gate, c.position
    LIMIT %s
"""


def slowest_channels(
    checkpoint: Checkpoint, receiver: str, gate: int, *, by: Measure
) -> list[Channel]:
    """The slowest or largest channels of a receiving operator's input (``""``: of all)."""
    query = _CHANNELS.format(column=_COLUMN[by])
    most = CHANNELS_LISTED
    return _rows(Channel, query, [checkpoint.pk, receiver, receiver, gate, most, most])


def _rows(shape: type[Row], query: str, values: Sequence[Any]) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(query, values)
        return [shape(*row) for row in cursor.fetchall()]
