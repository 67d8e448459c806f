"""The page of retention, for viewers."""

from dataclasses import dataclass
from datetime import datetime

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path

from controlplane.accounts.models import Role
from controlplane.base import clock
from controlplane.base.formatting import number, plural, size
from controlplane.retention import report
from controlplane.retention.report import Kept
from frontend.base.access import page_for

# Looks come twice a minute; later than this they do not come at all.
LATE_S = 300.0


@dataclass(frozen=True, slots=True)
class Line:
    """One rule as the page shows it."""

    text: str
    stays: str
    rows: str
    size: str
    limit: str
    settings: str  # The names of the settings.
    oldest: datetime | None
    goes_at: datetime | None
    goes: str  # Where no point in time says it.
    removed: str
    removed_at: datetime | None
    problem: str


@page_for(Role.VIEWER)
def retention(request: HttpRequest) -> HttpResponse:
    """The rows and files that the control plane keeps, and when they go."""
    looked_at, now = report.latest_look(), clock.now()
    is_late = looked_at is not None and (now - looked_at).total_seconds() > LATE_S
    limit = settings.WEIR_DRIVER_LOG_BYTES_MAX
    context = {
        "lines": [_line(kept, now) for kept in report.kept_rows()],
        "files": [
            {
                "place": tally.place,
                "kept": plural(tally.kept or 0, "directory", "directories"),
                "size": size(tally.kept_bytes),
                "removed": number(tally.removed),
                "problem": tally.problem,
            }
            for tally in report.kept_files()
        ],
        "log_limit": size(limit) if limit else "",
        "looked_at": looked_at,
        "is_late": is_late,
    }
    return render(request, "frontend/retention.html", context)


def _line(kept: Kept, now: datetime) -> Line:
    rule = kept.rule
    days, most = rule.days_kept, rule.most_kept
    limits = [plural(days, "day")] if days else []
    if most is not None:
        limits.append(f"the newest {number(most)} of a job")
    is_due = kept.goes_at is not None and kept.goes_at <= now
    return Line(
        text=rule.text,
        stays=rule.stays,
        rows=("about " if kept.is_estimate else "") + number(kept.rows),
        size=size(kept.size),
        limit=" and ".join(limits) or "no limit",
        settings=", ".join(name for name in (rule.days, rule.most) if name),
        oldest=kept.oldest,
        goes_at=None if is_due else kept.goes_at,
        goes="with the next looks" if is_due else "–" if kept.oldest is None else "at no age",
        removed=number(kept.tally.removed),
        removed_at=kept.tally.removed_at,
        problem=kept.tally.problem,
    )


urlpatterns = [path("retention/", retention, name="retention")]
