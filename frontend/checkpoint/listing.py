"""A job's checkpoints as a list: filters, pages by number, and rows as JSON."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django.urls import reverse

from checkpoints.conditions.reasons import reason_text
from checkpoints.models import Checkpoint
from controlplane.base.formatting import NOTHING, duration, iso, moment, number, size
from frontend.base import in_flight, status
from frontend.base.query_parameters import BIGINT_MAX, whole_number
from frontend.base.texts import headline
from frontend.checkpoint import queries
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import UNCOMPLETED

STATUS_TEXTS = {
    "": "All",
    "completed": "Completed",
    "failed": "Failed",
    "aborted": "Aborted",
    "pending": "Under way",
}
KIND_TEXTS = {"": "All", "checkpoint": "Checkpoints", "savepoint": "Savepoints"}
LEFT_BEHIND = "The job went back to an earlier checkpoint: later ones do not follow from this one."

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """The filters in an address; invalid ones are ignored."""

    status: str = ""
    kind: str = ""
    before: int | None = None
    after: int | None = None

    @classmethod
    def from_query(cls, parameters: Mapping[str, str]) -> "Wanted":
        """From ``?status=``, ``?kind=``, ``?before=`` and ``?after=``."""
        wanted_status, kind = parameters.get("status", ""), parameters.get("kind", "")
        return cls(
            wanted_status if wanted_status in STATUS_TEXTS else "",
            kind if kind in KIND_TEXTS else "",
            whole_number(parameters.get("before"), BIGINT_MAX),
            whole_number(parameters.get("after"), BIGINT_MAX),
        )

    @property
    def is_filtered(self) -> bool:
        """Whether some checkpoints are left out."""
        return bool(self.status or self.kind)

    def address(self, **changes: object) -> str:
        """The list's address with changed parameters: ``?status=failed&before=7``."""
        given = {"status": self.status, "kind": self.kind} | changes
        query = urlencode({name: value for name, value in given.items() if value})
        return f"?{query}" if query else "?"


def checkpoint_list(job_id: str, wanted: Wanted) -> Json:
    """One page of the list as JSON, with the addresses of the next pages. One query."""
    page = queries.listed(
        job_id, status=wanted.status, kind=wanted.kind, before=wanted.before, after=wanted.after
    )
    rows = page.rows
    return {
        "rows": [row_of(row) for row in rows],
        "newer": wanted.address(after=rows[0].number) if page.has_newer and rows else "",
        "older": wanted.address(before=rows[-1].number) if page.has_older and rows else "",
        "newest": "" if wanted.before is None and wanted.after is None else wanted.address(),
    }


def filters(wanted: Wanted) -> list[Json]:
    """The filters above the list, each choice with its address."""
    return [
        {
            "label": label,
            "choices": [
                {
                    "text": text,
                    "url": wanted.address(**{name: value}),
                    "is_current": value == current,
                }
                for value, text in texts.items()
            ],
        }
        for label, name, texts, current in (
            ("State", "status", STATUS_TEXTS, wanted.status),
            ("Kind", "kind", KIND_TEXTS, wanted.kind),
        )
    ]


def row_of(row: Checkpoint) -> Json:
    """One checkpoint as texts."""
    under_way = row.settled_at is None
    is_whole = not under_way and row.status not in UNCOMPLETED
    return {
        "number": number(row.number),
        "url": reverse("checkpoint-page", args=[row.job_id, row.number]),
        "tag": "" if row.kind == CheckpointKind.CHECKPOINT else kind_of(row),
        "name": name_of(row),
        "unaligned": in_flight.outcome_text(row),
        "unaligned_help": in_flight.outcome_help(row),
        "left_behind": "left behind" if row.abandoned_at is not None else "",
        "status": status.of_checkpoint(row.status),
        "why": why(row),
        "at": iso(row.triggered_at),
        "at_text": moment(row.triggered_at),
        # One under way has no duration yet: the page counts up from here.
        "since": iso(row.triggered_at) if under_way else "",
        "duration": "" if under_way else duration(row.duration_ms),
        "start_delay": NOTHING if under_way else duration(row.start_delay_ms),
        "alignment": NOTHING if under_way else duration(row.alignment_ms),
        "sync": NOTHING if under_way else duration(row.sync_ms),
        "async": NOTHING if under_way else duration(row.async_ms),
        "state": size(row.state_bytes) if is_whole else NOTHING,
        "written": size(row.written_bytes) if is_whole else NOTHING,
        "in_flight": size(row.in_flight_bytes) if is_whole else NOTHING,
        "acknowledged": f"{row.acknowledged_count:,}/{row.subtask_count:,}",
    }


def kind_of(row: Checkpoint) -> str:
    """The kind in words: a checkpoint, or a savepoint of some kind."""
    if row.kind == CheckpointKind.CHECKPOINT:
        return "checkpoint"
    kind = status.SAVEPOINT_KIND.get(row.kind, "")
    return f"savepoint, {kind}" if kind else "savepoint"


def name_of(row: Checkpoint) -> str:
    """The name of a savepoint; empty for a checkpoint."""
    savepoint = getattr(row, "savepoint", None)
    return savepoint.name if savepoint is not None else ""


def why(row: Checkpoint) -> str:
    """The reason of a failure or a planned end, in a line; empty for others."""
    if row.status not in UNCOMPLETED:
        return ""
    reason, cause = reason_text(row.reason), headline(row.cause)
    return f"{reason}: {cause}" if cause else reason
