"""The pages of uploads. A script may hold anything, so only operators see its source."""

import re
from typing import Any

from django.db.models import Count, OuterRef, Subquery
from django.db.models.functions import Coalesce
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path

from controlplane.accounts.models import Role
from controlplane.base.formatting import moment, size
from frontend.base import pages
from frontend.base.access import page_for
from frontend.base.paging import paged
from frontend.uploads import difference, sources
from jobs import uploads
from jobs.api.filters import UploadFilter
from jobs.models import Artifact, Job

JOBS_NAMED = 10  # Of an upload, the newest.
OTHERS_OFFERED = 50  # Uploads to compare one with: those of the same name first.
_DIGEST = re.compile(r"[0-9a-f]{64}")


@page_for(Role.VIEWER)
def upload_list(request: HttpRequest) -> HttpResponse:
    """The uploaded pipelines, those uploaded last first. One query."""
    of_upload = Job.objects.filter(artifact=OuterRef("pk"))
    counted = of_upload.order_by().values("artifact").annotate(count=Count("pk")).values("count")
    newest = of_upload.order_by("-created_at", "id")
    rows = Artifact.objects.select_related("uploaded_by").annotate(
        job_count=Coalesce(Subquery(counted), 0),
        job_id=Subquery(newest.values("pk")[:1]),
        job_name=Subquery(newest.values("name")[:1]),
    )
    given = {name: request.GET.get(name, "") for name in ("file_name", "uploaded_by", "used")}
    page = paged(request, rows, UploadFilter, "uploaded_at", tie="digest")
    context = {
        "page": page,
        "uploads": [_shown(row) | {"jobs": row} for row in page.rows],
        "given": given,
        "is_narrow": any(given.values()),
        "may_operate": pages.may_operate(request),
    }
    return render(request, "frontend/upload_list.html", context)


@page_for(Role.OPERATOR)
def upload_page(request: HttpRequest, digest: str) -> HttpResponse:
    """The source of an upload, its jobs, and other uploads to compare it with. Three queries."""
    artifact = _one(digest)
    jobs = list(
        Job.objects.filter(artifact=artifact)
        .only("id", "name")
        .order_by("-created_at", "id")[: JOBS_NAMED + 1]
    )
    context = {
        "upload": _shown(artifact),
        "source": sources.read(artifact),
        "source_max": size(sources.SOURCE_BYTES_MAX),
        "jobs": jobs[:JOBS_NAMED],
        "has_more_jobs": len(jobs) > JOBS_NAMED,
        "others": _others(artifact),
    }
    return render(request, "frontend/upload_page.html", context)


@page_for(Role.OPERATOR)
def upload_difference(request: HttpRequest, digest: str) -> HttpResponse:
    """The difference from the upload ``?from=``; without it, from the one before of its name."""
    new = _one(digest)
    old = _one(request.GET["from"]) if request.GET.get("from") else _before(new)
    read = [sources.read(old), sources.read(new)]
    why_not = next((source.why_not for source in read if source.why_not), "")
    context = {
        "old": _shown(old),
        "new": _shown(new),
        "why_not": why_not,
        "is_cut": any(source.is_cut for source in read),
        "source_max": size(sources.SOURCE_BYTES_MAX),
        "lines_max": difference.LINES_MAX,
        "difference": None if why_not else difference.compare(read[0].lines, read[1].lines),
    }
    return render(request, "frontend/upload_difference.html", context)


def _one(digest: str) -> Artifact:
    if not _DIGEST.fullmatch(digest):
        raise Http404("An upload is named by the SHA-256 of its content, 64 hexadecimal digits.")
    return uploads.one(digest)


def _before(artifact: Artifact) -> Artifact:
    """The upload before it of the same name; itself where there is none."""
    rows = Artifact.objects.select_related("uploaded_by").filter(file_name=artifact.file_name)
    earlier = rows.filter(uploaded_at__lt=artifact.uploaded_at)
    return earlier.order_by("-uploaded_at", "digest").first() or artifact


def _others(artifact: Artifact) -> list[tuple[str, str]]:
    """Digests and labels of other uploads: earlier and later ones of the same name first."""
    rows = Artifact.objects.exclude(pk=artifact.pk).order_by("-uploaded_at", "digest")
    namesakes = list(rows.filter(file_name=artifact.file_name)[:OTHERS_OFFERED])
    rest = rows.exclude(file_name=artifact.file_name)[: OTHERS_OFFERED - len(namesakes)]
    return [
        (row.digest, f"{row.file_name}, {moment(row.uploaded_at)} ({row.digest[:8]})")
        for row in [*namesakes, *rest]
    ]


def _shown(artifact: Artifact) -> dict[str, Any]:
    by = artifact.uploaded_by
    return {
        "digest": artifact.digest,
        "short": artifact.digest[:12],
        "file_name": artifact.file_name,
        "size": size(artifact.size),
        "uploaded_at": artifact.uploaded_at,
        "by": by.get_username() if by else "",
    }


urlpatterns = [
    path("uploads/", upload_list, name="upload-list"),
    path("uploads/<str:digest>", upload_page, name="upload-page"),
    path("uploads/<str:digest>/difference", upload_difference, name="upload-difference"),
]
