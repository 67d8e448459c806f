"""Inspections on the operator page: where a subtask's time goes, and the records that pass it."""

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.base.errors import NotFound, Refusal
from controlplane.base.formatting import event_time, plural
from frontend.base import pages
from frontend.base.access import account, action_for, data_for
from frontend.base.query_parameters import whole_number
from frontend.operator import flames
from jobs.inspections import requests
from jobs.inspections.requests import SUBTASKS_MAX, Result, refusal_of_taps
from jobs.inspections.store import KEPT_S
from jobs.models import Job, Operator
from weir.bounds import PARALLELISM_MAX
from weir.protocol.inspection import InspectionKind, TappedRecords

Json = dict[str, Any]


def forms(request: HttpRequest, job: Job, operator: Operator) -> Json:
    """The parts of the page with which a user asks."""
    address = [job.pk, operator.uid]
    shared = _shared(request.GET.get("stacks", ""))
    may_tap = pages.may_operate(request)
    return {
        "over": f"The job is over ({job.status}), so there is nothing to look into."
        if job.is_over
        else "",
        "last": operator.parallelism - 1,
        "stacks_url": reverse("operator-ask-stacks", args=address),
        "stacks_max": SUBTASKS_MAX[InspectionKind.STACKS],
        "stacks_shown": None if shared is None else _addresses(job.pk, shared),
        "stacks_kept": plural(KEPT_S[InspectionKind.STACKS] // 60, "minute"),
        "may_tap": may_tap,
        "records_url": reverse("operator-ask-records", args=address),
        "records_max": SUBTASKS_MAX[InspectionKind.RECORDS],
        "no_tap": refusal_of_taps(job, operator) if may_tap else "",
    }


def _shared(given: str) -> UUID | None:
    """The inspection that the page's address names; None where it names none."""
    try:
        return UUID(given)
    except ValueError:
        return None


def _addresses(job_id: str, inspection_id: UUID | str) -> Json:
    address = [job_id, inspection_id]
    return {
        "id": str(inspection_id),
        "url": reverse("inspection-data", args=address),
        "figure": reverse("inspection-figure", args=address),
    }


@action_for(Role.VIEWER)
def ask_stacks(request: HttpRequest, job_id: str, uid: str) -> HttpResponse:
    """Ask for stacks; the answer says where to look for them."""
    return _ask(request, job_id, uid, InspectionKind.STACKS)


@action_for(Role.OPERATOR)
def ask_records(request: HttpRequest, job_id: str, uid: str) -> HttpResponse:
    """Ask for records; the answer says where to look for them."""
    return _ask(request, job_id, uid, InspectionKind.RECORDS)


def _ask(request: HttpRequest, job_id: str, uid: str, kind: InspectionKind) -> HttpResponse:
    given = request.POST.get("subtask", "").strip()
    subtask = whole_number(given, PARALLELISM_MAX)
    if given and subtask is None:
        return JsonResponse({"detail": "A subtask is a number from 0 on."}, status=400)
    try:
        inspection = requests.ask(account(request), job_id, uid, kind, subtask)
    except NotFound:
        raise
    except Refusal as refusal:
        return JsonResponse({"detail": _sentence(refusal)}, status=refusal.status)
    return JsonResponse(_addresses(job_id, inspection.id), status=202)


def _sentence(refusal: Refusal) -> str:
    problems = [text for texts in refusal.extra.get("errors", {}).values() for text in texts]
    said = ": ".join([refusal.detail.rstrip("."), *problems]).rstrip(".")
    return f"{said[0].upper()}{said[1:]}."


def _answer(
    request: HttpRequest, job_id: str, inspection_id: object, show: Callable[[Result], Json]
) -> HttpResponse:
    may_tap = pages.may_operate(request)
    try:
        result = requests.read(account(request), job_id, str(inspection_id), may_tap=may_tap)
    except NotFound:
        raise
    except Refusal as refusal:
        return JsonResponse({"detail": _sentence(refusal)}, status=refusal.status)
    return JsonResponse(show(result))


@data_for(Role.VIEWER)
def inspection_data(request: HttpRequest, job_id: str, inspection_id: object) -> HttpResponse:
    """An inspection in words and tables, as JSON."""
    return _answer(request, job_id, inspection_id, _live)


def _live(result: Result) -> Json:
    inspection = result.inspection
    live: Json = {"is_over": result.is_over, "notes": _notes(result)}
    if not result.is_over:
        return live
    if inspection.kind == InspectionKind.STACKS:
        merged = result.flames()
        return live | {
            "summary": flames.summary(merged) if merged.subtasks else "",
            "has_figure": bool(merged.stacks),
            "calls": flames.table(merged),
        }
    tables = [
        _table(f"{inspection.operator}-{index}", answer.records)
        for index, answer in sorted(result.answers.items())
        if answer.records is not None
    ]
    return live | {"tables": tables}


def _notes(result: Result) -> list[str]:
    """Remarks: subtasks that have nothing to show, and those that were not asked."""
    inspection = result.inspection
    notes = [
        f"{inspection.operator}-{index}: {cause}." for index, cause in sorted(result.causes.items())
    ]
    if result.is_over and inspection.left_out:
        asked = len(inspection.subtasks)
        left_out = plural(inspection.left_out, "running subtask")
        notes.append(f"The {asked} busiest were asked; {left_out} more were not.")
    return notes


def _table(name: str, tapped: TappedRecords) -> Json:
    has_times = any(record.at_ms is not None for record in tapped.records)
    count = plural(len(tapped.records), "record")
    cut = "; what is too long, or too many, was cut" if tapped.is_cut else ""
    return {
        "caption": f"{name}: {count}{cut}",
        "columns": [*(["Event time"] if has_times else []), *tapped.columns],
        "rows": [
            [*([event_time(record.at_ms)] if has_times else []), *record.values]
            for record in tapped.records
        ],
    }


@data_for(Role.VIEWER)
def inspection_figure(request: HttpRequest, job_id: str, inspection_id: object) -> HttpResponse:
    """The stacks of an inspection, for Plotly."""
    return _answer(request, job_id, inspection_id, lambda result: flames.figure(result.flames()))


_OPERATOR = f"{pages.OF_JOB}/operators/<page_uid:uid>"
_INSPECTION = f"{pages.OF_JOB}/inspections/<uuid:inspection_id>"
urlpatterns = [
    path(f"{_OPERATOR}/stacks", ask_stacks, name="operator-ask-stacks"),
    path(f"{_OPERATOR}/records", ask_records, name="operator-ask-records"),
    path(f"{_INSPECTION}/data", inspection_data, name="inspection-data"),
    path(f"{_INSPECTION}/figure", inspection_figure, name="inspection-figure"),
]
