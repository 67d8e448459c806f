"""Queries of the operator page; their number does not depend on the job's size."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from django.db.models import BigIntegerField, F, FloatField, OrderBy
from django.db.models.fields.json import KT
from django.db.models.functions import Cast

from checkpoints.models import Checkpoint, SubtaskAck
from jobs.models import Attempt, Edge, Operator, Subtask, Worker
from weir.protocol.lifecycle import CheckpointStatus

PER_PAGE = 50  # Subtasks.


@dataclass(frozen=True, slots=True)
class Sort:
    """An order of subtasks; those without a value come last, equal ones by their index."""

    key: str  # The value in addresses.
    text: str
    order: OrderBy | None = None  # None: by their index.


def _measured(lookup: str) -> Cast:
    return Cast(KT(lookup), FloatField())


SORTS = {
    sort.key: sort
    for sort in (
        Sort("index", "Subtask"),
        Sort("busy", "Busiest", _measured("rates__busy").desc(nulls_last=True)),
        Sort(
            "pressed",
            "Most back-pressured",
            _measured("rates__back_pressured").desc(nulls_last=True),
        ),
        Sort(
            "lag",
            "Furthest behind",
            Cast(KT("metrics__watermark_ms"), BigIntegerField()).asc(nulls_last=True),
        ),
    )
}


def graph(job_id: str) -> tuple[list[Operator], list[Edge]]:
    """The operators in topological order, and the edges. Two queries."""
    operators = Operator.objects.filter(job=job_id).order_by("position")
    edges = Edge.objects.filter(job=job_id).order_by("position")
    return list(operators), list(edges)


def subtasks(job_id: str, chain: str, sort: Sort, page: int) -> list[Subtask]:
    """One page of a chain's subtasks; the first is 1."""
    first = (page - 1) * PER_PAGE
    order = ("index",) if sort.order is None else (sort.order, F("index").asc())
    rows = Subtask.objects.filter(job=job_id, chain=chain).order_by(*order)
    return list(rows.defer("samples", "aligning", "bad_marks")[first : first + PER_PAGE])


def hosts(job_id: str, slots: Sequence[int]) -> Mapping[int, str]:
    """The hosts of the newest attempt's workers, by slot."""
    newest = Attempt.objects.filter(job=job_id).order_by("-number").values("pk")[:1]
    rows = Worker.objects.filter(attempt__in=newest, slot_index__in=slots)
    return dict(rows.values_list("slot_index", "host"))


def newest_completed(job_id: str) -> Checkpoint | None:
    """The newest completed checkpoint whose acknowledgements are kept."""
    rows = Checkpoint.objects.filter(
        job=job_id, status=CheckpointStatus.COMPLETED, has_details=True
    )
    return rows.order_by("-number").first()


def state_bytes(
    checkpoint: Checkpoint | None, operator: str, indices: Sequence[int]
) -> Mapping[int, int]:
    """The state of these subtasks of an operator in a checkpoint, by index. Units: bytes."""
    if checkpoint is None:
        return {}
    rows = SubtaskAck.objects.filter(checkpoint=checkpoint, operator=operator, index__in=indices)
    return dict(rows.order_by().values_list("index", "state_bytes"))
