"""The form by which an operator submits a job."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods

from controlplane.accounts.models import Role
from frontend.access import role_required


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def submit(request: HttpRequest) -> HttpResponse:
    """Ask what to run, and submit it."""
    return render(request, "frontend/submit.html", {})


urlpatterns = [path("jobs/new", submit, name="job-new")]
