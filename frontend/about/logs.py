"""The page of driver logs: for operators, because a log holds all that the pipeline printed."""

from dataclasses import asdict
from typing import Any

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.base.errors import existing
from controlplane.base.formatting import size
from frontend.about import log_tail
from frontend.about.log_tail import LastBytes, Part
from frontend.base import pages, status
from frontend.base.access import page_for
from frontend.base.query_parameters import BIGINT_MAX, PAGE_MAX, whole_number
from frontend.base.texts import headline
from jobs.drivers import driver_files
from jobs.models import Driver, DriverStatus, Job
from weir.untrusted_files import UntrustedFileError

DOWNLOAD_BYTES_MAX = 1 << 30  # User code can make its log seem exabytes long.
DRIVERS_SHOWN = 50  # The newest; the page of an older one is reached by its number.


@page_for(Role.OPERATOR)
def logs(request: HttpRequest, job_id: str) -> HttpResponse:
    """The end of the newest driver's log; ``?driver=`` of another one, ``?end=`` the part before an
    offset, ``?from=`` the part after one.
    """
    job = pages.job_or_404(job_id)
    drivers = list(Driver.objects.filter(job=job).order_by("-number")[: DRIVERS_SHOWN + 1])
    chosen = _chosen(request, job, drivers)
    part, why_not = _read(request, chosen) if chosen is not None else (None, "")
    context = {
        "drivers": [_driver(driver, chosen) for driver in drivers[:DRIVERS_SHOWN]],
        "has_more_drivers": len(drivers) > DRIVERS_SHOWN,
        "chosen": chosen and _driver(chosen, chosen),
        "part": part,
        "why_not": why_not,
        "is_end": part is not None and not part.has_later,
        "where": part and _where(part),
        "data_url": chosen and reverse("job-logs-data", args=[job.pk, chosen.number]),
        "download_url": chosen and reverse("job-logs-download", args=[job.pk, chosen.number]),
    }
    return pages.job_page(request, "frontend/logs.html", job, "job-logs", context)


@page_for(Role.OPERATOR)
def logs_data(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """A driver's log from the offset ``?from=`` on, as JSON: whole lines, and the next offset."""
    driver = _driver_or_404(pages.job_or_404(job_id), number)
    try:
        with driver_files.open_log(driver) as log:
            part = log_tail.after(log, _offset(request, "from") or 0)
    except OSError as error:
        return JsonResponse({"detail": _why_not(driver, error)}, status=404)
    newest = Driver.objects.filter(job=driver.job_id).order_by("-number").first()
    return JsonResponse(
        {
            "lines": [asdict(line) for line in part.lines],
            "unfinished": part.unfinished,
            "next": part.next_offset,
            "has_later": part.has_later,
            "is_rotated": part.is_rotated,
            "where": f"followed up to {size(part.end)}",
            "status": status.of_driver(driver.status, is_silent=False),
            "newest": newest.number if newest is not None else number,
        }
    )


@page_for(Role.OPERATOR)
def download(request: HttpRequest, job_id: str, number: int) -> FileResponse:
    """The log as it is now; of a huge one, the last ``DOWNLOAD_BYTES_MAX``."""
    driver = _driver_or_404(pages.job_or_404(job_id), number)
    try:
        file = driver_files.open_log(driver)
    except OSError as error:
        raise Http404(_why_not(driver, error)) from error
    last = LastBytes(file, DOWNLOAD_BYTES_MAX)
    return FileResponse(
        last,
        as_attachment=True,
        filename=f"{driver.job_id}-driver-{driver.number}.log",
        content_type="text/plain; charset=utf-8",
        headers={"Content-Length": str(last.length)},
    )


def _chosen(request: HttpRequest, job: Job, drivers: list[Driver]) -> Driver | None:
    """The driver that the address names, else the newest one; None before the first launch."""
    given = request.GET.get("driver", "")
    if not given:
        return drivers[0] if drivers else None
    number = whole_number(given, PAGE_MAX) or 0
    known = next((driver for driver in drivers if driver.number == number), None)
    return known or _driver_or_404(job, number)


def _driver_or_404(job: Job, number: int) -> Driver:
    return existing(
        Driver.objects.filter(job=job, number=min(number, 2**31 - 1)),
        f"Job {job.pk} has no driver {number}.",
    )


def _read(request: HttpRequest, driver: Driver) -> tuple[Part | None, str]:
    """The part of the log that the address selects, or why there is none."""
    try:
        with driver_files.open_log(driver) as log:
            if (begin := _offset(request, "from")) is not None:
                return log_tail.after(log, begin), ""
            return log_tail.before(log, _offset(request, "end")), ""
    except OSError as error:
        return None, _why_not(driver, error)


def _offset(request: HttpRequest, name: str) -> int | None:
    given = whole_number(request.GET.get(name), 10**19 - 1)
    return None if given is None else min(given, BIGINT_MAX)  # None: the end of the log.


def _why_not(driver: Driver, error: OSError) -> str:
    """The reason why a driver's log cannot be read here."""
    if isinstance(error, UntrustedFileError):
        return (
            f"This driver’s log is not read, because {error.problem}. Weir writes a plain file, so "
            "the pipeline, or another program of its user, has replaced it: look at its code."
        )
    if isinstance(error, TimeoutError):
        return "The disk of this driver’s log did not answer in time; reload the page to try again."
    if driver.status == DriverStatus.REQUESTED:
        return "This driver has not been launched yet; its log begins once a launcher takes it."
    on = f" Its launcher ran on {driver.launched_by}." if driver.launched_by else ""
    return (
        f"This driver’s log is not on this server.{on} Either the file was deleted or rotated "
        "away, or launcher and server do not share the drivers’ directory (WEIR_DRIVERS)."
    )


def _where(part: Part) -> str:
    """The range of a part within the log, in words."""
    if part.size == 0:
        return "empty"
    if part.offset == 0 and not part.has_later:
        return f"the whole log, {size(part.size)}"
    gone = f"; the first {size(part.begin)} are no longer kept" if part.begin else ""
    return f"{size(part.end - part.offset)} ending at {size(part.end)} of {size(part.size)}{gone}"


def _driver(driver: Driver, chosen: Driver | None) -> dict[str, Any]:
    return {
        "number": driver.number,
        "url": f"?driver={driver.number}",
        "is_chosen": chosen is not None and driver.number == chosen.number,
        "status": status.of_driver(driver.status, is_silent=False),
        "created_at": driver.created_at,
        "ended_at": driver.ended_at,
        "host": driver.launched_by,
        "why": headline(driver.cause),
    }


urlpatterns = [
    path(f"{pages.OF_JOB}/logs/", logs, name="job-logs"),
    path(f"{pages.OF_JOB}/logs/<int:number>/data", logs_data, name="job-logs-data"),
    path(f"{pages.OF_JOB}/logs/<int:number>/download", download, name="job-logs-download"),
]
