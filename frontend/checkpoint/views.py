"""The pages of a job's checkpoints: all of them, and one in detail.

Two slow sections, the alignment by channel (``alignment``) and the contents of the storage
(``manifest``), are pages of their own, which a checkpoint's page fetches into its sections; with
``?part=1`` they are that section alone. The address selects the part of each section, so that links
to a chain's subtasks or an operator's acknowledgements can be shared.
"""

import hashlib
import json
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.http import condition

from checkpoints.models import COMPLETED_ONCE, Checkpoint
from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.formatting import iso, plural, size
from frontend.base import pages, verdict_cache
from frontend.base.access import data_for, page_for
from frontend.checkpoint import alignment, details, figures, queries, sections
from frontend.checkpoint import listing as lists
from frontend.checkpoint import manifest as storage
from frontend.job import queries as shared
from frontend.job.marks import Figure
from jobs.models import Job
from weir.protocol.lifecycle import CheckpointStatus

if TYPE_CHECKING:  # Not there at run time: it comes with the stubs.
    from django_stubs_ext import WithAnnotations

VERSION = version("weir-streaming")  # Part of ETags: another version may render differently.

Json = dict[str, Any]


# The list -----------------------------------------------------------------------------------------


@page_for(Role.VIEWER)
def checkpoint_list(request: HttpRequest, job_id: str) -> HttpResponse:
    """The job's checkpoints, newest first."""
    job, wanted = pages.job_or_404(job_id), lists.Wanted.from_query(request.GET)
    context = {
        "live": lists.checkpoint_list(job.pk, wanted),
        "filters": lists.filters(wanted),
        "wanted": wanted,
        "query": request.GET.urlencode(),
        "now": clock.now(),
    }
    return pages.job_page(request, "frontend/checkpoint_list.html", job, "job-checkpoints", context)


@data_for(Role.VIEWER)
def checkpoint_list_data(request: HttpRequest, job_id: str) -> HttpResponse:
    """The same page of the list as JSON."""
    job = pages.job_or_404(job_id)
    return _json(request, lists.checkpoint_list(job.pk, lists.Wanted.from_query(request.GET)))


# One checkpoint -----------------------------------------------------------------------------------


@page_for(Role.VIEWER)
def checkpoint_page(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """One checkpoint: its progress, verdict, phases, alignment, state and files."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    operators = shared.operators(job.pk)
    names = {row.uid: row.name for row in operators}
    given = sections.Sections(request.GET, reverse("checkpoint-page", args=[job.pk, number]))
    context: Json = {
        "checkpoint": checkpoint,
        "live": _live(job, checkpoint, operators),
        "about": details.head(checkpoint, queries.asked(checkpoint)),
        "place": details.place(job, checkpoint),
        "has_details": checkpoint.has_details,
        "is_completed": checkpoint.status in COMPLETED_ONCE,
        "operator_names": names,
        "here": given,
    }
    if pages.may_operate(request):
        operations = shared.recent_operations(job.pk)
        context["actions"] = details.actions(job, checkpoint, operations)
    if checkpoint.has_details:
        before = queries.compared(checkpoint)
        compared = before is not None and before.has_details
        ids = [checkpoint.pk, *([before.pk] if before is not None and compared else [])]
        states = details.states(
            queries.operator_totals(ids), operators, checkpoint, before if compared else None
        )
        context |= {
            "timeline": sections.timeline(checkpoint, operators, given),
            "before": before,
            "is_compared": compared,
            "states": states,
            "has_state": any(row["state_bytes"] for row in states),
            "acks": sections.acks(checkpoint, given, {row["uid"]: row["count"] for row in states}),
        }
    return pages.job_page(request, "frontend/checkpoint_page.html", job, "job-checkpoints", context)


@data_for(Role.VIEWER)
def checkpoint_data(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """The values of the page that change while the checkpoint is under way, as JSON."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    return _json(request, _live(job, checkpoint, shared.operators(job.pk)))


def _live(
    job: Job, checkpoint: "WithAnnotations[Checkpoint, queries.PageColumns]", operators: list[Any]
) -> Json:
    settled = checkpoint.status in COMPLETED_ONCE
    return details.live_value(
        checkpoint,
        checkpoint.now,
        operators,
        {} if settled else queries.finished(checkpoint),
        {} if settled else shared.acknowledged(checkpoint.pk),
        verdict_cache.cached_verdict(checkpoint, is_diagnosed=False),
    )


def _checkpoint_or_404(job: Job, number: int) -> "WithAnnotations[Checkpoint, queries.PageColumns]":
    checkpoint = queries.checkpoint_by_number(job.pk, number) if number <= 2**63 - 1 else None
    if checkpoint is None:
        raise Http404(f"Job {job.pk!r} has no checkpoint {number}.")
    return checkpoint


# Its figures --------------------------------------------------------------------------------------


def _mark(request: HttpRequest, job_id: str, number: int, **_: object) -> str | None:
    """An ETag: the details of a settled checkpoint do not change, except when trimmed."""
    row = (
        Checkpoint.objects.filter(job=job_id, number=number)
        .values_list("pk", "status", "acknowledged_count", "settled_at", "has_details")
        .first()
        if number <= 2**63 - 1
        else None
    )
    if row is None:
        return None
    pk, status, count, settled_at, has_details = row
    text = (
        f"{VERSION}/{pk}/{status}/{count}/{iso(settled_at)}/{has_details}/{request.GET.urlencode()}"
    )
    return f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'


@data_for(Role.VIEWER)
@condition(etag_func=_mark)
def checkpoint_figure(request: HttpRequest, job_id: str, number: int, name: str) -> HttpResponse:
    """One of the page's figures, for Plotly."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    given = sections.Sections(request.GET, reverse("checkpoint-page", args=[job.pk, number]))
    match name:
        case "timeline":
            return JsonResponse(_timeline_figure(job, checkpoint, given))
        case "alignment":
            return JsonResponse(alignment.figure(checkpoint, _alignment_of(request, checkpoint)))
        case "state":
            before = queries.compared(checkpoint)
            compared = before if before is not None and before.has_details else None
            ids = [row.pk for row in (checkpoint, compared) if row is not None]
            totals = queries.operator_totals(ids)
            rows = details.states(totals, shared.operators(job.pk), checkpoint, compared)
            return JsonResponse(figures.state_bars(rows))
    raise Http404(f"There is no figure {name!r}.")


def _timeline_figure(job: Job, checkpoint: Checkpoint, given: sections.Sections) -> Figure:
    ended_ms = None if checkpoint.settled_at is None else checkpoint.duration_ms
    if given.chain:
        if given.shows_all:
            rows = queries.subtask_phases(checkpoint, given.chain, at_most=sections.SUBTASKS_MAX)
            return figures.overview_of_subtasks(rows, ended_ms)
        rows = queries.subtask_phases(checkpoint, given.chain, at_most=sections.SUBTASKS_SLOWEST)
        return figures.timeline_of_subtasks(rows, ended_ms)
    operators = shared.operators(job.pk)
    spans = queries.chain_spans(checkpoint)
    if sum(span.count for span in spans) <= sections.SUBTASKS_TOGETHER_MAX:
        rows = queries.subtask_phases(
            checkpoint, None, at_most=sections.SUBTASKS_TOGETHER_MAX, in_order=True
        )
        return figures.timeline_of_subtasks(sections.streamwise(rows, operators), ended_ms)
    order = {row.uid: at for at, row in enumerate(operators)}
    spans.sort(key=lambda span: order.get(span.chain, len(order)))
    links = {span.chain: given.address("timeline", chain=span.chain) for span in spans}
    return figures.timeline_of_chains(spans, links, ended_ms)


# Sections that are fetched by themselves ----------------------------------------------------------


def _alignment_of(request: HttpRequest, checkpoint: Checkpoint) -> alignment.Wanted:
    base = reverse("checkpoint-alignment", args=[checkpoint.job_id, checkpoint.number])
    return alignment.Wanted.from_query(request.GET, base)


@data_for(Role.VIEWER)
@condition(etag_func=_mark)
def checkpoint_alignment(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """The alignment section: by pair of operators, then the channels of an input."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    wanted = _alignment_of(request, checkpoint)
    base = reverse("checkpoint-page", args=[job.pk, number])
    context = {
        "alignment": alignment.alignment_section(checkpoint, wanted, f"{base}figures/alignment")
    }
    return _part(request, job, checkpoint, "alignment", "Alignment by channel", context)


@data_for(Role.VIEWER)
def checkpoint_storage(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """The storage section: the manifest, the positions of the sources, and the files."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    stored, problem = None, ""
    if checkpoint.status == CheckpointStatus.DISCARDED:
        problem = "Its files have been deleted from the storage."
    elif checkpoint.status in COMPLETED_ONCE:
        try:
            stored = storage.read(job, checkpoint)
        except storage.NotReadable as error:
            problem = str(error)
    else:
        problem = "No manifest: only completed checkpoints have one."
    files = queries.files(checkpoint)
    context: Json = {
        "place": details.place(job, checkpoint),
        "stored": stored,
        "stored_text": "" if stored is None else _stored_text(stored),
        "sources": [] if stored is None else [_source(source) for source in stored.sources],
        "problem": problem,
        "is_expected": checkpoint.status
        not in (CheckpointStatus.COMPLETED, CheckpointStatus.SUBSUMED),
        "files": files,
        "files_text": f"{plural(files.count, 'file')}, {size(files.size)} in all",
        "has_details": checkpoint.has_details,
        "rows": [
            {
                "subtask": f"{file.operator}-{file.index}",
                "name": file.name,
                "path": file.path,
                "size": size(file.size),
                "bytes": f"{file.size:,} B",
                "checksum": file.checksum,
            }
            for file in files.largest
        ],
    }
    return _part(request, job, checkpoint, "storage", "Manifest, files and positions", context)


def _stored_text(stored: storage.Stored) -> str:
    return (
        f"The manifest of {size(stored.size)} was written by Weir {stored.weir_version}. It lists "
        f"{plural(stored.pieces, 'piece')} of state: {size(stored.file_bytes)} in files, and "
        f"{size(stored.inline_bytes)} ({plural(stored.inline_pieces, 'small piece')}) inline."
    )


def _source(source: storage.SourcePositions) -> Json:
    emitted = (
        ""
        if source.records is None
        else f", {plural(source.records, 'record')} emitted since the job began"
    )
    if source.problem:
        splits = source.problem
    elif not source.begun and not source.waiting:
        splits = "All splits are finished."
    else:
        splits = f"{plural(source.begun, 'split')} being read, {source.waiting:,} not begun."
    return {
        "uid": source.uid,
        "name": source.name,
        "text": f"{emitted}. {splits}",
        "splits": source.splits,
        "left_out": f"{source.left_out:,}" if source.left_out else "",
    }


def _part(
    request: HttpRequest, job: Job, checkpoint: Checkpoint, name: str, title: str, context: Json
) -> HttpResponse:
    """Render a section alone, or a page with only this section."""
    context |= {"checkpoint": checkpoint, "job": job, "part": f"frontend/checkpoint_{name}.html"}
    if request.GET.get("part") == "1":
        return render(request, context["part"], context)
    context["part_title"] = title
    return pages.job_page(request, "frontend/checkpoint_part.html", job, "job-checkpoints", context)


def _json(request: HttpRequest, value: Json) -> HttpResponse:
    """A value as JSON, or 304 where it is unchanged apart from growing times."""
    timeless = {key: item for key, item in value.items() if key not in ("now", "took_ago")}
    text = json.dumps(timeless, sort_keys=True)
    etag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'

    @condition(etag_func=lambda _: etag)
    def answer(_: HttpRequest) -> HttpResponse:
        return JsonResponse(value)

    return answer(request)


_ONE = f"{pages.OF_JOB}/checkpoints/<int:number>/"

urlpatterns = [
    path(f"{pages.OF_JOB}/checkpoints/", checkpoint_list, name="job-checkpoints"),
    path(f"{pages.OF_JOB}/checkpoints/data", checkpoint_list_data, name="job-checkpoints-data"),
    path(_ONE, checkpoint_page, name="checkpoint-page"),
    path(f"{_ONE}data", checkpoint_data, name="checkpoint-data"),
    path(f"{_ONE}alignment", checkpoint_alignment, name="checkpoint-alignment"),
    path(f"{_ONE}storage", checkpoint_storage, name="checkpoint-storage"),
    path(f"{_ONE}figures/<str:name>", checkpoint_figure, name="checkpoint-figure"),
]
