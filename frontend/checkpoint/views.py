"""The pages of a job's checkpoints: all of them, and one in detail.

What is long comes by itself: how channels aligned (``alignment``) and what lies in the storage
(``storage``) are pages of their own, which one checkpoint's page fetches into its sections; with
``?part=1`` they are that section alone. Each section's address says what of it is shown, so that a
chain's subtasks or an operator's acknowledgements can be sent to somebody.
"""

import hashlib
import json
from importlib.metadata import version
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.cache import cache_control, never_cache
from django.views.decorators.http import condition, require_GET

from checkpoints.models import Checkpoint
from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.formatting import iso, plural, size
from frontend.base import pages, verdict_cache
from frontend.base.access import role_required
from frontend.checkpoint import alignment, details, figures, queries, sections
from frontend.checkpoint import listing as lists
from frontend.checkpoint import manifest as storage
from frontend.job import queries as shared
from frontend.job.figures import Figure
from jobs.models import Job
from weir.protocol.lifecycle import CheckpointStatus

VERSION = version("weir-streaming")  # Another one may say the same thing in another way.

Json = dict[str, Any]


# The list -----------------------------------------------------------------------------------------


@never_cache
@require_GET
@role_required(Role.VIEWER)
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


@cache_control(private=True, no_cache=True)  # Kept by the browser, and asked about each time.
@require_GET
@role_required(Role.VIEWER)
def checkpoint_list_data(request: HttpRequest, job_id: str) -> HttpResponse:
    """The same page of the list as JSON."""
    job = pages.job_or_404(job_id)
    return _json(request, lists.checkpoint_list(job.pk, lists.Wanted.from_query(request.GET)))


# One checkpoint -----------------------------------------------------------------------------------


@never_cache
@require_GET
@role_required(Role.VIEWER)
def checkpoint_page(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """One checkpoint: what it is, why it took as long, and what it consists of."""
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
        "is_completed": checkpoint.status in shared.COMPLETED_ONCE,
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


@cache_control(private=True, no_cache=True)
@require_GET
@role_required(Role.VIEWER)
def checkpoint_data(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """What of the page changes while the checkpoint is under way, as JSON."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    return _json(request, _live(job, checkpoint, shared.operators(job.pk)))


def _live(job: Job, checkpoint: Checkpoint, operators: list[Any]) -> Json:
    settled = checkpoint.status in shared.COMPLETED_ONCE
    return details.live_value(
        checkpoint,
        checkpoint.now,
        operators,
        {} if settled else queries.finished(checkpoint),
        {} if settled else shared.acknowledged(checkpoint.pk),
        verdict_cache.cached_verdict(checkpoint),
    )


def _checkpoint_or_404(job: Job, number: int) -> Checkpoint:
    found = queries.found(job.pk, number) if number <= 2**63 - 1 else None
    if found is None:
        raise Http404(f"There is no checkpoint {number} of {job.pk!r}.")
    return found


# Its pictures -------------------------------------------------------------------------------------


def _mark(request: HttpRequest, job_id: str, number: int, **_: object) -> str | None:
    """A settled checkpoint's details do not change, but for being trimmed."""
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


@cache_control(private=True, no_cache=True)
@require_GET
@role_required(Role.VIEWER)
@condition(etag_func=_mark)
def checkpoint_figure(request: HttpRequest, job_id: str, number: int, name: str) -> HttpResponse:
    """One of the page's pictures, for Plotly."""
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


# What comes by itself -----------------------------------------------------------------------------


def _alignment_of(request: HttpRequest, checkpoint: Checkpoint) -> alignment.Wanted:
    base = reverse("checkpoint-alignment", args=[checkpoint.job_id, checkpoint.number])
    return alignment.Wanted.from_query(request.GET, base)


@cache_control(private=True, no_cache=True)
@require_GET
@role_required(Role.VIEWER)
@condition(etag_func=_mark)
def checkpoint_alignment(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """How each channel delivered the barrier: by pair of operators, then an input's channels."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    wanted = _alignment_of(request, checkpoint)
    base = reverse("checkpoint-page", args=[job.pk, number])
    context = {
        "alignment": alignment.alignment_section(checkpoint, wanted, f"{base}figures/alignment")
    }
    return _part(request, job, checkpoint, "alignment", "How its barriers arrived", context)


@cache_control(private=True, no_cache=True)
@require_GET
@role_required(Role.VIEWER)
def checkpoint_storage(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """What lies in the storage: the manifest, the positions of the sources, and the files."""
    job = pages.job_or_404(job_id)
    checkpoint = _checkpoint_or_404(job, number)
    stored, problem = None, ""
    if checkpoint.status == CheckpointStatus.DISCARDED:
        problem = "Its files are deleted; nothing of it lies in the storage any more."
    elif checkpoint.status in shared.COMPLETED_ONCE:
        try:
            stored = storage.read(job, checkpoint)
        except storage.NotReadable as error:
            problem = str(error)
    else:
        problem = "It has no manifest: only a checkpoint that completed has one."
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
        f"The manifest has {size(stored.size)} and was written by Weir {stored.weir_version}. It "
        f"names {plural(stored.pieces, 'piece')} of state: {size(stored.file_bytes)} in files, and "
        f"{size(stored.inline_bytes)} ({plural(stored.inline_pieces, 'small piece')}) inside it."
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
        splits = "Nothing is left to read."
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
    """A section alone, or the page that holds nothing but it."""
    context |= {"checkpoint": checkpoint, "job": job, "part": f"frontend/checkpoint_{name}.html"}
    if request.GET.get("part") == "1":
        return render(request, context["part"], context)
    context["part_title"] = title
    return pages.job_page(request, "frontend/checkpoint_part.html", job, "job-checkpoints", context)


def _json(request: HttpRequest, value: Json) -> HttpResponse:
    """A value, or that it is as it was; times that only grow do not count."""
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
