"""The page of an operator: its subtasks, and its load over time.

The page is rendered from the value that its ``data`` returns. The figure has the newest sample as
ETag, so that repeated requests cost one query while there is no newer one.
"""

from typing import Any, NamedTuple
from urllib.parse import urlencode

from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path, reverse
from django.views.decorators.http import condition

from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.errors import existing
from controlplane.base.formatting import iso, plural
from frontend.base import pages
from frontend.base.access import data_for, page_for
from frontend.job.views import VERSION
from frontend.operator import figures, inspections, queries, rows
from jobs import chain_series
from jobs.models import ChainSample, Job, Operator


class _Asked(NamedTuple):
    """The part of the operator that an address means."""

    window: rows.Window
    sort: queries.Sort
    page: "Page[int]"  # Of the indices of subtasks.

    @classmethod
    def from_request(cls, request: HttpRequest, parallelism: int) -> "_Asked":
        """The part that a request means; the first or the last page where there is no such page."""
        page = Paginator(range(parallelism), queries.PER_PAGE).get_page(request.GET.get("page"))
        sort = queries.SORTS.get(request.GET.get("sort", ""), queries.SORTS["index"])
        return cls(rows.window(request.GET.get("window")), sort, page)

    def query(self, **other: Any) -> str:
        """The query of an address with other values."""
        known = {"window": self.window.key, "sort": self.sort.key, "page": self.page.number}
        given = known | other
        return f"?{urlencode(given)}"


@page_for(Role.VIEWER)
def operator_page(request: HttpRequest, job_id: str, uid: str) -> HttpResponse:
    """One operator. Ten queries for an operator of any parallelism in a job of any size."""
    job = pages.job_or_404(job_id)
    operators, edges = queries.graph(job_id)
    operator = next((row for row in operators if row.uid == uid), None) or _operator(job, uid)
    asked = _Asked.from_request(request, operator.parallelism)
    address = [job_id, uid]
    context = {
        "operator": operator,
        "live": _live(job, operator, asked),
        "neighbours": rows.neighbours(job, operator, operators, edges),
        "window": asked.window,
        "windows": [(one, asked.query(window=one.key)) for one in rows.WINDOWS.values()],
        "sort": asked.sort,
        "sorts": [(one, asked.query(sort=one.key, page=1)) for one in queries.SORTS.values()],
        "page": asked.page,
        "query": f"window={asked.window.key}&sort={asked.sort.key}&",
        "count": plural(operator.parallelism, "subtask"),
        "inspections": inspections.forms(request, job, operator),
        "data_url": reverse("operator-data", args=address) + asked.query(),
        "figure_url": reverse("operator-figure", args=address) + asked.query(),
    }
    return pages.job_page(request, "frontend/operator_page.html", job, "job-page", context)


def _operator(job: Job, uid: str) -> Operator:
    """The operator of the job's graph.

    Raises:
        NotFound: The graph has no such operator.
    """
    rows_of = Operator.objects.filter(job=job, uid=uid)
    return existing(rows_of, f"Job {job.pk} has no operator {uid!r}.")


def _live(job: Job, operator: Operator, asked: _Asked) -> rows.Json:
    """The value of the page. Seven queries."""
    now = clock.now()
    checkpoint = queries.newest_completed(job.pk)
    subtasks = queries.subtasks(job.pk, operator.chain, asked.sort, asked.page.number)
    indices = [row.index for row in subtasks]
    hosts = queries.hosts(job.pk, indices)
    state_bytes = queries.state_bytes(checkpoint, operator.uid, indices)
    samples = chain_series.read(job.pk, operator.chain, asked.window.span)
    points = chain_series.points(samples, operator.uid, rows.TABLE_ROWS)
    recent = chain_series.read(job.pk, operator.chain, rows.LAST_SECONDS)
    newest = next(reversed(chain_series.points(recent, operator.uid)), None)
    state = points[-1].state_bytes if points else None
    return {
        "now": iso(now),
        "newest": iso(samples[-1].at) if samples else "",
        "tiles": rows.tiles(job, operator, newest, state, checkpoint, now),
        "subtasks": [
            rows.subtask(
                row,
                hosts.get(row.index, ""),
                state_bytes.get(row.index),
                now,
                is_over=job.is_over,
            )
            for row in subtasks
        ],
        "points": [rows.point(one) for one in reversed(points)],
    }


@data_for(Role.VIEWER)
def operator_data(request: HttpRequest, job_id: str, uid: str) -> HttpResponse:
    """The newest figures, a page of the subtasks and the charts' values, as JSON. Nine queries."""
    job = pages.job_or_404(job_id)
    operator = _operator(job, uid)
    return JsonResponse(_live(job, operator, _Asked.from_request(request, operator.parallelism)))


def _revision(request: HttpRequest, job_id: str, uid: str) -> str | None:
    """The newest sample of the operator's chain; None where there is none."""
    chain = Operator.objects.filter(job=job_id, uid=uid).values("chain")[:1]
    newest = ChainSample.objects.filter(job=job_id, chain__in=chain).order_by("-at")
    at = newest.values_list("at", flat=True).first()
    key = rows.window(request.GET.get("window")).key
    return None if at is None else f'"operator/{VERSION}/{key}/{iso(at)}"'


@data_for(Role.VIEWER)
@condition(etag_func=_revision)
def operator_figure(request: HttpRequest, job_id: str, uid: str) -> HttpResponse:
    """The operator's load over time, for Plotly. Three queries, and the one of its ETag."""
    operator = _operator(pages.job_or_404(job_id), uid)
    span = rows.window(request.GET.get("window")).span
    samples = chain_series.read(job_id, operator.chain, span)
    return JsonResponse(figures.series(chain_series.points(samples, uid)))


_OF = f"{pages.OF_JOB}/operators/<page_uid:uid>"
urlpatterns = [
    path(f"{_OF}/", operator_page, name="operator-page"),
    path(f"{_OF}/data", operator_data, name="operator-data"),
    path(f"{_OF}/figure", operator_figure, name="operator-figure"),
    *inspections.urlpatterns,
]
