"""The verdict on one checkpoint, from its rows, in a fixed number of queries."""

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from django.db import connection
from django.db.models import F, Func, QuerySet, Subquery, TextField
from django.db.models.functions import Cast

from checkpoints.models import COMPLETED_ONCE, Checkpoint, GateAlignment, SubtaskAck
from checkpoints.verdict import evidence, judge
from checkpoints.verdict.facts import (
    Ack,
    Edge,
    Evidence,
    Facts,
    Gate,
    Key,
    Operator,
    Slot,
    Times,
)
from checkpoints.verdict.result import Verdict
from checkpoints.verdict.uploaded_names import stored_digests, with_names
from controlplane.base import clock
from jobs.models import Artifact, Attempt, DriverStatus, Worker
from jobs.models import Edge as EdgeRow
from jobs.models import Operator as OperatorRow
from weir.bounds import COUNT_MAX
from weir.config import CheckpointingMode
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason, SubtaskStatus

TYPICAL_OF = 20  # Checkpoints before it, for the usual duration.

_DRIVER_COLUMNS = [
    f"driver__{column}" for column in ("number", "slots", "load", "status", "cause", "heard_at")
]
_NOW = clock.DatabaseNow()

__all__ = ["Verdict", "of_checkpoint"]


def of_checkpoint(checkpoint: Checkpoint) -> Verdict:
    """The verdict on a checkpoint: nine queries, ten while it is under way.

    One more where it names code of an upload. The text is the same for pages, API and alerts.
    """
    verdict = judge.judge_checkpoint(facts_of(checkpoint))
    if not (digests := stored_digests(verdict)):
        return verdict
    uploads = Artifact.objects.filter(pk__in=digests)
    return with_names(verdict, dict(uploads.values_list("digest", "file_name")))


def facts_of(checkpoint: Checkpoint) -> Facts:
    """The facts that the verdict is made from."""
    kept, config, now = (
        Checkpoint.objects.filter(pk=checkpoint.pk)
        .values_list("evidence", "job__checkpoint_config", _NOW)
        .get()
    )
    now_ms = clock.to_ms(now)
    acks = _acks(checkpoint)
    attempt = (
        Attempt.objects.filter(job=checkpoint.job_id, number=checkpoint.attempt)
        .select_related("driver")
        .only("cause", *_DRIVER_COLUMNS)
        .order_by("number")
        .first()
    )
    return Facts(
        times=_times(checkpoint, attempt, config or {}, now_ms),
        operators=_operators(checkpoint.job_id),
        edges=[
            Edge(*row)
            for row in EdgeRow.objects.filter(job=checkpoint.job_id)
            .order_by("position")
            .values_list("source", "target", "partitioning")
        ],
        acks=acks,
        gates=_Gates(checkpoint),
        evidence=_evidence(
            checkpoint, kept or {}, acks, now_ms, attempt.driver.load if attempt else None
        ),
        slots=_slots(attempt),
        records_before=_records_before(checkpoint),
    )


def _times(
    checkpoint: Checkpoint, attempt: Attempt | None, config: dict[str, Any], now_ms: int
) -> Times:
    settled = checkpoint.settled_at
    return Times(
        number=checkpoint.number,
        status=CheckpointStatus(checkpoint.status),
        triggered_at_ms=clock.to_ms(checkpoint.triggered_at),
        now_ms=now_ms,
        settled_at_ms=None if settled is None else clock.to_ms(settled),
        kind=CheckpointKind(checkpoint.kind),
        is_aligned=config.get("mode") == CheckpointingMode.EXACTLY_ONCE
        and config.get("alignment_timeout_ms") is None,
        stops_the_world=config.get("mode") == CheckpointingMode.STOP_THE_WORLD,
        in_flight_bytes=checkpoint.in_flight_bytes,
        duration_ms=checkpoint.duration_ms,
        reason=FailureReason(checkpoint.reason) if checkpoint.reason else None,
        cause=checkpoint.cause,
        subtask_count=checkpoint.subtask_count,
        acknowledged_count=checkpoint.acknowledged_count,
        interval_ms=config.get("interval_ms"),
        timeout_ms=config.get("timeout_ms"),
        typical_ms=_typical_ms(checkpoint),
        start_delay_ms=checkpoint.start_delay_ms,
        alignment_ms=checkpoint.alignment_ms,
        sync_ms=checkpoint.sync_ms,
        async_ms=checkpoint.async_ms,
        written_bytes=checkpoint.written_bytes,
        attempt_cause=attempt.cause if attempt else "",
        driver_silent_ms=_driver_silent_ms(attempt, now_ms),
        lost_driver=_lost_driver(attempt),
    )


def _driver_silent_ms(attempt: Attempt | None, now_ms: int) -> float | None:
    if attempt is None or attempt.driver.status != DriverStatus.RUNNING:
        return None
    heard_at = attempt.driver.heard_at
    silent_ms = 0 if heard_at is None else now_ms - clock.to_ms(heard_at)
    return float(silent_ms) if silent_ms >= evidence.SILENT_MS else None


def _lost_driver(attempt: Attempt | None) -> str:
    if attempt is None or attempt.driver.status != DriverStatus.LOST:
        return ""
    return attempt.driver.cause or f"driver {attempt.driver.number} was lost"


def _records_before(checkpoint: Checkpoint) -> dict[Key, int]:
    """The records of subtasks at the barrier of the completed checkpoint before; one query."""
    before = (
        Checkpoint.objects.filter(
            job=checkpoint.job_id,
            attempt=checkpoint.attempt,
            number__lt=checkpoint.number,
            status__in=COMPLETED_ONCE,
        )
        .order_by("-number")
        .values("pk")[:1]
    )
    rows = SubtaskAck.objects.filter(checkpoint=Subquery(before), operator=F("chain"))
    return {(chain, i): n for chain, i, n in rows.values_list("chain", "index", "records")}


def _typical_ms(checkpoint: Checkpoint) -> float | None:
    before: QuerySet[Checkpoint] = Checkpoint.objects.filter(
        job=checkpoint.job_id, number__lt=checkpoint.number, status__in=COMPLETED_ONCE
    )
    newest = before.order_by("-number").values_list("duration_ms", flat=True)[:TYPICAL_OF]
    durations = [ms for ms in newest if ms is not None]
    return median(durations) if durations else None


def _operators(job_id: str) -> list[Operator]:
    rows = OperatorRow.objects.filter(job=job_id).order_by("position")
    return [
        Operator(*row)
        for row in rows.values_list(
            "uid", "name", "chain", "parallelism", "is_source", "is_keyed", "is_sink", "files"
        )
    ]


# The database adds up: of a large job there are several times as many rows. In the order of
# ``Ack``'s fields; an unaligned snapshot is written while barriers are still to come.
_ACKS = f"""
    SELECT chain, "index",
        max(start_delay_ms) FILTER (WHERE operator = chain),
        max(alignment_ms) FILTER (WHERE operator = chain),
        max(sync_ms) FILTER (WHERE operator = chain),
        greatest(0.0, max(async_ms) FILTER (WHERE operator = chain)
            - coalesce(max(alignment_ms) FILTER (WHERE operator = chain AND unaligned), 0.0)),
        greatest(least(sum(state_bytes), {COUNT_MAX}), 0)::bigint,
        greatest(least(sum(written_bytes), {COUNT_MAX}), 0)::bigint,
        max(records) FILTER (WHERE operator = chain),
        max(acknowledged_at) FILTER (WHERE operator = chain),
        json_object_agg(operator, writing_ms) FILTER (WHERE writing_ms IS NOT NULL)
    FROM checkpoints_subtaskack
    WHERE checkpoint_id = %s
    GROUP BY chain, "index"
    ORDER BY chain, "index"
"""


def _acks(checkpoint: Checkpoint) -> dict[Key, Ack]:
    """Acknowledgements by chain subtask: times are the head's, bytes those of all operators."""
    with connection.cursor() as cursor:
        cursor.execute(_ACKS, [checkpoint.pk])
        return {
            (chain, index): Ack(*(*figures, clock.to_ms(at), writing or {}))
            for chain, index, *figures, at, writing in cursor.fetchall()
            if at is not None
        }


def _evidence(
    checkpoint: Checkpoint,
    kept: dict[str, Any],
    acks: dict[Key, Ack],
    now_ms: int,
    load: dict[str, Any] | None,
) -> Evidence:
    if checkpoint.settled_at is not None:
        return evidence.read(kept)
    rows = evidence.rows_of(checkpoint.job_id, aligning=[checkpoint.number])
    gone = SubtaskStatus.FINISHED  # A subtask that takes part in no checkpoint any more.
    missing = {row.key for row in rows if row.key not in acks and row.status != gone}
    picture = evidence.take(
        rows,
        number=checkpoint.number,
        attempt=checkpoint.attempt,
        now_ms=now_ms,
        missing=missing,
        noted=kept,
        driver=load,
    )
    return evidence.read(picture)


class _Gates(Mapping[Key, Sequence[Gate]]):
    """The gates of a checkpoint's receiving subtasks; one query, each made of its text when needed.

    A walk looks at a few of them; making all of 200 × 200 channels would take longer than the rest
    of the verdict.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        arrays = (F(name) for name in ("upstream", "arrived_ms", "blocked_ms", "bytes_during"))
        array = Func(*arrays, function="JSON_BUILD_ARRAY", output_field=TextField())
        rows = (
            GateAlignment.objects.filter(checkpoint=checkpoint)
            .order_by("operator", "index", "gate")
            .values_list("operator", "index", "gate", Cast(array, TextField()))
        )
        self._texts: dict[Key, list[tuple[int, str]]] = {}
        for operator, index, gate, channels in rows:
            self._texts.setdefault((operator, index), []).append((gate, channels))
        self._made: dict[Key, Sequence[Gate]] = {}

    def __getitem__(self, key: Key) -> Sequence[Gate]:
        if key not in self._made:
            self._made[key] = [Gate(*key, gate, *json.loads(t)) for gate, t in self._texts[key]]
        return self._made[key]

    def __iter__(self) -> Iterator[Key]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def _slots(attempt: Attempt | None) -> dict[int, Slot]:
    """Host and process of each slot of the attempt: its worker's process, else the slot's own."""
    if attempt is None:
        return {}
    slots = {
        int(index): Slot(slot.get("host", ""), slot.get("pid"))
        for index, slot in attempt.driver.slots.items()
    }
    workers = Worker.objects.filter(attempt=attempt).values_list("slot_index", "host", "pid")
    return slots | {index: Slot(host, pid) for index, host, pid in workers}
