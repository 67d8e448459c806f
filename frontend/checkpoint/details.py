"""One checkpoint as values of its page: texts from the rows of ``queries``."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.urls import reverse

from checkpoints.catalog.restore_targets import uri_of
from checkpoints.models import COMPLETED_ONCE, Checkpoint, SharesFiles
from controlplane.base.formatting import (
    NOTHING,
    duration,
    event_time,
    iso,
    listed,
    milliseconds_between,
    moment,
    number,
    plural,
    rough_duration,
    size,
)
from frontend.base import in_flight, status
from frontend.base.texts import has_more, headline, tail
from frontend.checkpoint import listing
from frontend.checkpoint.queries import Ack, ChainSpan, OperatorTotal, SubtaskPhases
from frontend.job import snapshot
from jobs.models import Job, Operation, OperationKind, Operator
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import UNCOMPLETED, CheckpointStatus

MISSING_NAMED = 8  # Per chain; the rest is counted.

Json = dict[str, Any]


# Values that change while it is under way ---------------------------------------------------------


def live_value(
    checkpoint: Checkpoint,
    now: datetime,
    operators: Sequence[Operator],
    finished: Mapping[str, frozenset[int]],
    acknowledged: Mapping[str, Sequence[int]],
    verdict: Json,
) -> Json:
    """The values of the page that change while the checkpoint is under way, as JSON.

    Args:
        finished: Indices of the finished subtasks, which take part no more, by chain.
        acknowledged: Indices of the subtasks that acknowledged, by chain.
    """
    under_way = checkpoint.settled_at is None
    took = milliseconds_between(checkpoint.triggered_at, now)
    return {
        "now": iso(now),
        "is_under_way": under_way,
        "status": status.of_checkpoint(checkpoint.status),
        "why": listing.why(checkpoint),
        "since": iso(checkpoint.triggered_at) if under_way else "",
        "took_ago": rough_duration(took) if under_way else duration(checkpoint.duration_ms),
        "acknowledged": f"{checkpoint.acknowledged_count:,}/{checkpoint.subtask_count:,}",
        "acknowledged_text": f"{checkpoint.acknowledged_count:,} of "
        f"{plural(checkpoint.subtask_count, 'subtask')} acknowledged",
        # The revision of the data behind pictures and tables.
        "revision": f"{checkpoint.status} {checkpoint.acknowledged_count}",
        "chains": progress(checkpoint, operators, finished, acknowledged),
        "verdict": verdict,
    }


def progress(
    checkpoint: Checkpoint,
    operators: Sequence[Operator],
    finished: Mapping[str, frozenset[int]],
    acknowledged: Mapping[str, Sequence[int]],
) -> list[Json]:
    """The missing subtasks by chain, of a checkpoint that is under way or failed.

    The graph may have changed since the trigger; subtasks are named only where the expected ones
    add up to the checkpoint's subtask count.
    """
    if checkpoint.status in COMPLETED_ONCE or not checkpoint.has_details:
        return []
    chains: dict[str, list[Operator]] = {}
    for row in operators:
        chains.setdefault(row.chain, []).append(row)
    all_indices = {uid: set(range(rows[0].parallelism)) for uid, rows in chains.items()}
    expected = {uid: indices - finished.get(uid, set()) for uid, indices in all_indices.items()}
    if _asked(chains, expected) != checkpoint.subtask_count:
        expected = all_indices  # The finished ones finished after the trigger.
    is_known = _asked(chains, expected) == checkpoint.subtask_count
    items = []
    for uid, rows in chains.items():
        done = set(acknowledged.get(uid, ()))
        missing = sorted(expected[uid] - done) if is_known else []
        asked = len(done) + len(missing)
        items.append(
            {
                "uid": uid,
                "name": " → ".join(row.name for row in rows),
                "acknowledged": len(done),
                "most": max(asked, 1),
                "text": f"{len(done):,}/{asked:,}" if is_known else f"{len(done):,}",
                "state": "done" if done and not missing else "some" if done else "none",
                "missing": _missing(checkpoint, uid, missing, len(done)),
            }
        )
    return items


def _asked(chains: Mapping[str, Sequence[Operator]], expected: Mapping[str, set[int]]) -> int:
    """The number of operator subtasks: every operator of a chain acknowledges."""
    return sum(len(rows) * len(expected[uid]) for uid, rows in chains.items())


def _missing(checkpoint: Checkpoint, uid: str, missing: list[int], done: int) -> str:
    if not missing:
        return ""
    verb = "waiting for" if checkpoint.settled_at is None else "never acknowledged:"
    if not done and len(missing) > 1:
        return f"{verb} all {len(missing):,}"
    return f"{verb} {listed([f'{uid}-{index}' for index in missing], MISSING_NAMED)}"


# Its head ----------------------------------------------------------------------------------------


def head(checkpoint: Checkpoint, asked: Operation | None) -> Json:
    """The head of the page: title, numbers and facts."""
    is_uncompleted = checkpoint.status in UNCOMPLETED
    is_known = checkpoint.settled_at is not None and not is_uncompleted
    kind = listing.kind_of(checkpoint)
    return {
        "number": number(checkpoint.number),
        "kind": kind,
        "title": f"{kind.partition(',')[0].capitalize()} {checkpoint.number:,}",
        "name": listing.name_of(checkpoint),
        "left_behind": checkpoint.abandoned_at is not None,
        "left_behind_help": listing.LEFT_BEHIND,
        "cause": tail(checkpoint.cause) if is_uncompleted and has_more(checkpoint.cause) else "",
        "state": size(checkpoint.state_bytes) if is_known else NOTHING,
        "written": size(checkpoint.written_bytes) if is_known else NOTHING,
        "shared": size(checkpoint.shared_bytes) if is_known and checkpoint.shared_bytes else "",
        "previous": _beside(checkpoint, getattr(checkpoint, "previous_number", None)),
        "next": _beside(checkpoint, getattr(checkpoint, "next_number", None)),
        "facts": _facts(checkpoint, asked),
        "gone": _gone(checkpoint),
    }


def _beside(checkpoint: Checkpoint, other: int | None) -> Json | None:
    if other is None:
        return None
    return {
        "number": number(other),
        "url": reverse("checkpoint-page", args=[checkpoint.job_id, other]),
    }


def _facts(checkpoint: Checkpoint, asked: Operation | None) -> list[Json]:
    """Terms with their values and explanations."""
    facts: list[Json] = [
        _fact(
            "Requested by", _asked_by(checkpoint, asked), "The schedule, an account, or the driver"
        ),
        _fact("Attempt", number(checkpoint.attempt), "The attempt that took it"),
    ]
    if asked is not None:
        facts[0]["url"] = reverse("job-operation", args=[checkpoint.job_id, asked.pk])
    if checkpoint.parent is not None:
        facts.append(
            _fact(
                "Parent",
                f"checkpoint {checkpoint.parent.number:,}",
                "The checkpoint that its attempt last completed or was restored from",
            )
            | {
                "url": reverse(
                    "checkpoint-page", args=[checkpoint.job_id, checkpoint.parent.number]
                )
            }
        )
    if checkpoint.watermark_ms is not None:
        facts.append(
            _fact(
                "Event time",
                event_time(checkpoint.watermark_ms),
                "The lowest watermark of the subtasks at its barriers",
            )
        )
    if outcome := in_flight.outcome_text(checkpoint):
        facts.append(_fact("Alignment", outcome, in_flight.outcome_help(checkpoint)))
    if checkpoint.in_flight_bytes:
        facts.append(
            _fact(
                "Persisted in-flight data",
                size(checkpoint.in_flight_bytes),
                in_flight.PERSISTED,
            )
        )
    if checkpoint.sinks_acknowledged_at is not None:
        after = milliseconds_between(checkpoint.triggered_at, checkpoint.sinks_acknowledged_at)
        facts.append(
            _fact(
                "Sinks acknowledged",
                f"after {duration(after)}",
                "From the trigger to the acknowledgement of the last sink",
            )
        )
    if checkpoint.abandoned_at is not None:
        facts.append(_at("Left behind", checkpoint.abandoned_at, listing.LEFT_BEHIND))
    if checkpoint.discarded_at is not None:
        facts.append(_at("Discarded", checkpoint.discarded_at, "When its files were deleted"))
    return facts


def _fact(term: str, text: str, means: str) -> Json:
    return {"term": term, "text": text, "help": means, "at": None, "url": ""}


def _at(term: str, at: datetime, means: str) -> Json:
    return _fact(term, moment(at), means) | {"at": iso(at)}


def _asked_by(checkpoint: Checkpoint, asked: Operation | None) -> str:
    if asked is not None:
        who = asked.requested_by.get_username() if asked.requested_by else "the control plane"
        return f"{who} ({status.OPERATION_KIND[OperationKind(asked.kind)].lower()})"
    savepoint = getattr(checkpoint, "savepoint", None)
    if savepoint is not None and savepoint.created_by is not None:
        return str(savepoint.created_by.get_username())
    if checkpoint.request_id:
        return f"request {checkpoint.request_id}"
    return "the schedule" if checkpoint.kind == CheckpointKind.CHECKPOINT else "the job's driver"


def _gone(checkpoint: Checkpoint) -> str:
    """The reason why the checkpoint cannot be restored; empty where its files are kept."""
    if checkpoint.settled_at is None:
        return "It can be restored once it has completed."
    if checkpoint.status == CheckpointStatus.FAILED:
        return "It failed and cannot be restored."
    if checkpoint.status == CheckpointStatus.ABORTED:
        return "It was aborted and cannot be restored."
    if checkpoint.status == CheckpointStatus.DISCARDED:
        return "Its files have been deleted: it can no longer be restored."
    savepoint = getattr(checkpoint, "savepoint", None)
    is_deleted = savepoint is not None and savepoint.deleted_at is not None
    is_kept = checkpoint.status == CheckpointStatus.COMPLETED
    if not is_kept or checkpoint.discard_due_at is not None or is_deleted:
        if checkpoint.discard_error:
            return (
                "It can no longer be restored. Its files cannot be deleted so far, and are tried "
                f"again: {headline(checkpoint.discard_error)}"
            )
        return "Its files are being deleted: it can no longer be restored."
    return ""


def actions(job: Job, checkpoint: Checkpoint, operations: Sequence[Operation]) -> Json:
    """Addresses of the operations from this checkpoint, empty where impossible, and the reason.

    Args:
        operations: The job's newest; those under way block others.
    """
    if gone := _gone(checkpoint):
        return {"rollback": "", "fork": "", "preview": "", "why_not": gone}
    savepoint = getattr(checkpoint, "savepoint", None)
    which = (
        f"?checkpoint={checkpoint.number}" if savepoint is None else f"?savepoint={savepoint.pk}"
    )
    why_not = snapshot.actions(job, operations)
    addresses = {
        name: "" if why_not[name] else reverse(f"job-{name}", args=[job.pk]) + which
        for name in ("rollback", "fork", "preview")
    }
    refused = why_not["rollback"]
    return addresses | {"why_not": f"No rollback now: {refused}" if refused else ""}


# Tables ------------------------------------------------------------------------------------------

PHASES = ("start_delay", "alignment", "sync", "async")


def chains(spans: Sequence[ChainSpan], operators: Sequence[Operator]) -> list[Json]:
    """The phases of each chain, in the order of the stream: minimum, maximum and its subtask."""
    order = {row.uid: at for at, row in enumerate(operators)}
    members: dict[str, list[Operator]] = {}
    for row in operators:
        members.setdefault(row.chain, []).append(row)
    return [
        {
            "uid": span.chain,
            "names": " → ".join(row.name for row in members.get(span.chain, ())),
            "count": number(span.count),
            "slowest": f"{span.chain}-{span.slowest}",
            "total": between(span.least_total_ms, span.most_total_ms),
            "phases": [_phase(span, phase) for phase in PHASES],
        }
        for span in sorted(spans, key=lambda span: order.get(span.chain, len(order)))
    ]


def _phase(span: ChainSpan, phase: str) -> Json:
    most_ms = getattr(span, f"most_{phase}_ms")
    return {
        "name": phase,
        "text": between(getattr(span, f"least_{phase}_ms"), most_ms),
        "whose": f"{span.chain}-{getattr(span, f'most_{phase}_index')}"
        if span.count > 1 and most_ms > 0
        else "",
    }


def between(least_ms: float, most_ms: float) -> str:
    """A range of durations as text; a single one where both ends read the same."""
    least, most = duration(least_ms), duration(most_ms)
    return most if least == most else f"{least} to {most}"


def subtasks(rows: Sequence[SubtaskPhases]) -> list[Json]:
    """The phases of chain subtasks."""
    return [
        {
            "subtask": f"{row.chain}-{row.index}",
            "start_delay": duration(row.start_delay_ms),
            "alignment": duration(row.alignment_ms),
            "sync": duration(row.sync_ms),
            "async": duration(row.async_ms),
            "total": duration(row.total_ms),
            "acknowledged": duration(row.acknowledged_ms),
        }
        for row in rows
    ]


def states(
    totals: Sequence[OperatorTotal],
    operators: Sequence[Operator],
    checkpoint: Checkpoint,
    before: Checkpoint | None,
) -> list[Json]:
    """The state of each operator, here and in the checkpoint before.

    While subtasks of an operator are missing, no difference is given.
    """
    now = {row.operator: row for row in totals if row.checkpoint_id == checkpoint.pk}
    then = {
        row.operator: row for row in totals if before is not None and row.checkpoint_id == before.pk
    }
    names = {row.uid: row.name for row in operators}
    subtask_counts = {row.uid: row.parallelism for row in operators}
    is_whole = checkpoint.status in COMPLETED_ONCE
    order = {row.uid: at for at, row in enumerate(operators)}
    rows = []
    for uid in sorted({*now, *then}, key=lambda uid: (order.get(uid, len(order)), uid)):
        here, there = now.get(uid), then.get(uid)
        state_bytes = here.state_bytes if here else 0
        before_bytes = there.state_bytes if there else 0
        is_all = is_whole or (here is not None and here.count == subtask_counts.get(uid))
        rows.append(
            {
                "uid": uid,
                "name": names.get(uid, ""),
                "count": here.count if here else 0,
                "count_text": number(here.count if here else 0),
                "state_bytes": state_bytes,
                "before_bytes": before_bytes if then else None,
                "state": size(state_bytes) if here else NOTHING,
                "before": size(before_bytes) if there else NOTHING,
                "difference": _difference(state_bytes, before_bytes)
                if then and is_all
                else NOTHING,
                "written": size(here.written_bytes) if here else NOTHING,
                "shared": _shared(here) if here else "",
                "in_flight": size(here.in_flight_bytes) if here else NOTHING,
                "at_outputs": in_flight.at_outputs(here.in_flight_output_bytes) if here else "",
            }
        )
    return rows


def _shared(row: SharesFiles) -> str:
    """The state in files of earlier checkpoints; empty: there is none."""
    return f"{size(row.shared_bytes)} shared" if row.shared_bytes else ""


def _difference(now: int, then: int) -> str:
    if now == then:
        return "no change"
    sign, text = ("+", now - then) if now > then else ("−", then - now)
    share = f" ({sign}{abs(now - then) / then:.0%})" if then else ""
    return f"{sign}{size(text)}{share}"


def acks(rows: Sequence[Ack], triggered_at: datetime) -> list[Json]:
    """Acknowledgements as rows, one per operator subtask."""
    return [
        {
            "subtask": f"{row.operator}-{row.index}",
            "acknowledged": duration(milliseconds_between(triggered_at, row.acknowledged_at)),
            "at_text": moment(row.acknowledged_at),
            "start_delay": duration(row.start_delay_ms),
            "alignment": duration(row.alignment_ms),
            "sync": duration(row.sync_ms),
            "async": duration(row.async_ms),
            "total": duration(row.total_ms),
            "state": size(row.state_bytes),
            "written": size(row.written_bytes),
            "shared": _shared(row),
            "during": size(row.bytes_during_alignment),
            "in_flight": size(row.in_flight_bytes),
            "at_outputs": in_flight.at_outputs(row.in_flight_output_bytes),
            "unaligned": in_flight.subtask_text(
                unaligned=row.unaligned, switched_ms=row.switched_ms
            ),
            "why_unaligned": in_flight.subtask_help(row.switched),
            "records": number(row.records),
        }
        for row in rows
    ]


def place(job: Job, checkpoint: Checkpoint) -> Json:
    """The location of a checkpoint: the URI that a restore takes, and its manifest."""
    uri = uri_of(job, checkpoint)
    return {"uri": uri, "manifest": f"{uri.rstrip('/')}/manifest"}
