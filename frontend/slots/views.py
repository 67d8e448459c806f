"""The page of a job's slots; it is rendered from the value that its ``data`` returns."""

from typing import NamedTuple

from django.core.paginator import Page, Paginator
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.formatting import iso, plural
from frontend.base import pages
from frontend.base.access import data_for, may, page_for
from frontend.base.query_parameters import PAGE_MAX, whole_number
from frontend.slots import queries, rows
from jobs.models import Driver, Job


class _Part(NamedTuple):
    """One page of the slots, and the page's value."""

    live: rows.Json
    page: "Page[queries.Slot]"
    driver: Driver | None


@page_for(Role.VIEWER)
def slots(request: HttpRequest, job_id: str) -> HttpResponse:
    """The job's slots; ``?slot=7`` opens the page that has it. Six queries for any number."""
    job = pages.job_or_404(job_id)
    sort = _sort(request)
    part = _part(request, job)
    number = None if part.driver is None else part.driver.number
    context = {
        "live": part.live,
        "sort": sort,
        "sorts": rows.SORTS.values(),
        "page": part.page,
        "query": f"sort={sort.key}&",
        "data_url": reverse("slots-data", args=[job_id])
        + f"?sort={sort.key}&page={part.page.number}",
        "log": f"driver {number:,}" if number and may(request.user, Role.OPERATOR) else "",
        "log_url": f"{reverse('job-logs', args=[job_id])}?driver={number}",
    }
    return pages.job_page(request, "frontend/slots.html", job, "job-slots", context)


@data_for(Role.VIEWER)
def slots_data(request: HttpRequest, job_id: str) -> HttpResponse:
    """A page of the slots and the summary, as JSON. Six queries for any number."""
    return JsonResponse(_part(request, pages.job_or_404(job_id)).live)


def _sort(request: HttpRequest) -> rows.Sort:
    return rows.SORTS.get(request.GET.get("sort", ""), rows.SORTS["slot"])


def _part(request: HttpRequest, job: Job) -> _Part:
    """The page of slots that a request means, or the first or the last one. Five queries."""
    sort, now = _sort(request), clock.now()
    driver = queries.newest_driver(job.pk)
    known = queries.slots(job.pk, driver)
    loads = queries.loads(job.pk) if sort.needs_loads else {}
    ordered = rows.in_order(known, sort, loads)
    page = Paginator(ordered, rows.PER_PAGE).get_page(_number(request, ordered))
    shown = page.object_list
    if not sort.needs_loads:
        loads = queries.loads(job.pk, [slot.index for slot in shown])
    chains = queries.chains(job.pk)
    live = {
        "now": iso(now),
        "count": plural(len(known), "slot"),
        "tiles": rows.tiles(
            known, job.slot_count, driver.load if driver else {}, is_over=job.is_over
        ),
        "memory_advice": rows.memory_advice(known, is_over=job.is_over),
        "has_pressure": any(load.cpu_pressure is not None for load in loads.values()),
        "slots": [
            rows.slot_row(
                job.pk,
                slot,
                loads.get(slot.index, queries.NOTHING_RUNS),
                chains,
                is_over=job.is_over,
            )
            for slot in shown
        ],
    }
    return _Part(live, page, driver)


def _number(request: HttpRequest, ordered: list[queries.Slot]) -> int | str | None:
    slot = whole_number(request.GET.get("slot"), PAGE_MAX)
    if slot is not None:
        places = (at for at, known in enumerate(ordered) if known.index == slot)
        return next(places, 0) // rows.PER_PAGE + 1
    return request.GET.get("page")


_OF = f"{pages.OF_JOB}/slots"
urlpatterns = [
    path(f"{_OF}/", slots, name="job-slots"),
    path(f"{_OF}/data", slots_data, name="slots-data"),
]
