"""The page of driver logs: for operators, because a log holds all that the pipeline printed."""

from collections.abc import Callable, Mapping
from typing import Any, BinaryIO
from urllib.parse import urlencode

from django.http import FileResponse, Http404, HttpRequest, HttpResponse, JsonResponse
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.base.errors import existing
from controlplane.base.formatting import iso, size
from controlplane.base.threads import FileOnThreads
from frontend.about import log_search
from frontend.about.log_entries import Entry, Wanted, cut
from frontend.about.log_search import Shown
from frontend.about.log_tail import LastBytes
from frontend.base import pages, status
from frontend.base.access import page_for
from frontend.base.query_parameters import BIGINT_MAX, PAGE_MAX, whole_number
from frontend.base.texts import headline
from jobs.drivers import driver_files
from jobs.models import Driver, DriverStatus, Job
from weir.untrusted_files import UntrustedFileError

DOWNLOAD_BYTES_MAX = 1 << 30  # User code can make its log seem exabytes long.
DRIVERS_SHOWN = 50  # The newest; the page of an older one is reached by its number.
WORDS_CHARACTERS_MAX = 200

# Filters by their value in the address; a level lets through those of more weight as well.
LEVELS: Mapping[str, str] = {
    "": "All levels",
    "info": "Info and above",
    "warning": "Warnings and errors",
    "error": "Errors",
}


@page_for(Role.OPERATOR)
def logs(request: HttpRequest, job_id: str) -> HttpResponse:
    """The end of the newest driver's log; ``?driver=`` of another one, ``?end=`` the part before an
    offset, ``?from=`` the part after one. ``?q=`` and ``?level=`` search from the end back.
    """
    job = pages.job_or_404(job_id)
    drivers = list(Driver.objects.filter(job=job).order_by("-number")[: DRIVERS_SHOWN + 1])
    chosen = _chosen(request, job, drivers)
    wanted = _wanted(request)
    part, why_not = _read(request, chosen, wanted) if chosen is not None else (None, "")
    given = {"level": wanted.level, "q": wanted.words}
    context = {
        "drivers": [_driver(driver, chosen) for driver in drivers[:DRIVERS_SHOWN]],
        "has_more_drivers": len(drivers) > DRIVERS_SHOWN,
        "chosen": chosen and _driver(chosen, chosen),
        "part": part,
        "why_not": why_not,
        "is_end": part is not None and not part.has_later,
        "entries": [_row(entry) for entry in part.entries] if part else [],
        "unfinished": part and cut(part.unfinished),
        "where": part and (_searched(part) if wanted else _where(part)),
        "unsearched": part and size(part.offset - part.begin),
        "wanted": wanted,
        "filters": urlencode({name: value for name, value in given.items() if value}),
        "levels": LEVELS.items(),
        "is_following": "follow" in request.GET,
        "data_url": chosen and reverse("job-logs-data", args=[job.pk, chosen.number]),
        "download_url": chosen and reverse("job-logs-download", args=[job.pk, chosen.number]),
    }
    return pages.job_page(request, "frontend/logs.html", job, "job-logs", context)


@page_for(Role.OPERATOR)
def logs_data(request: HttpRequest, job_id: str, number: int) -> HttpResponse:
    """A driver's log from the offset ``?from=`` on, as JSON: the entries that ``?q=`` and
    ``?level=`` let through, and the next offset.
    """
    driver = _driver_or_404(pages.job_or_404(job_id), number)
    wanted = _wanted(request)
    begin = _offset(request, "from") or 0
    try:
        part = _of_log(driver, lambda log: log_search.after(log, begin, wanted))
    except OSError as error:
        return JsonResponse({"detail": _why_not(driver, error)}, status=404)
    newest = Driver.objects.filter(job=driver.job_id).order_by("-number").first()
    return JsonResponse(
        {
            "entries": [
                {**_row(entry), "matches": wanted.matches(entry)} for entry in part.entries
            ],
            "count": part.count,
            "unfinished": cut(part.unfinished),
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
        last = driver_files.log_readers.run(
            lambda: LastBytes(driver_files.open_log(driver), DOWNLOAD_BYTES_MAX)
        )
    except OSError as error:
        raise Http404(_why_not(driver, error)) from error
    return FileResponse(
        FileOnThreads(driver_files.log_readers, last),
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


def _read(request: HttpRequest, driver: Driver, wanted: Wanted) -> tuple[Shown | None, str]:
    """The part of the log that the address selects, or why there is none."""
    begin, end = _offset(request, "from"), _offset(request, "end")

    def part(log: BinaryIO) -> Shown:
        if wanted:
            return log_search.search(log, end, wanted)
        if begin is not None:
            return log_search.after(log, begin, wanted)
        return log_search.before(log, end)

    try:
        return _of_log(driver, part), ""
    except OSError as error:
        return None, _why_not(driver, error)


def _of_log(driver: Driver, part: Callable[[BinaryIO], Shown]) -> Shown:
    """A part of the log, read on a thread that may hang with the directory of drivers."""

    def read() -> Shown:
        with driver_files.open_log(driver) as log:
            return part(log)

    return driver_files.log_readers.run(read)


def _wanted(request: HttpRequest) -> Wanted:
    level = request.GET.get("level", "")
    words = " ".join(request.GET.get("q", "").split())[:WORDS_CHARACTERS_MAX].replace("\0", "")
    return Wanted(words, level if level in LEVELS else "")


def _row(entry: Entry) -> dict[str, Any]:
    """An entry as template and script have it."""
    return {
        "text": entry.text,
        "tone": entry.tone,
        "level": entry.level_text,
        "at": iso(entry.at),
        "clock": entry.clock,
        "fields": entry.fields,
        "more": entry.more,
        "offset": entry.offset,
        "end": entry.end,
        "is_rest": entry.is_rest,
    }


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


def _searched(part: Shown) -> str:
    """The range that a search has looked at, in words."""
    lines = f"{len(part.entries):,} line{'' if len(part.entries) == 1 else 's'}"
    if not part.has_earlier and not part.has_later:
        return f"{lines} in the whole log, {size(part.size)}"
    if not part.has_later:
        return f"{lines} in the last {size(part.end - part.offset)} of {size(part.size)}"
    searched = f"{lines} in {size(part.end - part.offset)} ending at {size(part.end)}"
    return f"{searched} of {size(part.size)}"


def _where(part: Shown) -> str:
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
