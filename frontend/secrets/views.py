"""The list of secrets, and the pages that store, replace and delete one."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.secrets import services
from controlplane.secrets.models import Secret
from frontend.base import pages
from frontend.base.access import account, form_for, page_for
from frontend.base.forms import Words, form_page, sent
from frontend.secrets.forms import NewForm, ValueForm
from jobs.models import FINAL_JOB_STATUSES, Job

SHOWN = 200  # On one page of the list.
JOBS_NAMED = 10


@page_for(Role.VIEWER)
def list_secrets(request: HttpRequest) -> HttpResponse:
    """The names of all secrets. Two queries."""
    paginator = Paginator(services.listed().order_by("name"), SHOWN)
    context = {
        "page": paginator.get_page(request.GET.get("page")),
        "may_operate": pages.may_operate(request),
    }
    return render(request, "frontend/secret_list.html", context)


@form_for(Role.OPERATOR)
def new_secret(request: HttpRequest) -> HttpResponse:
    """Store a secret under a new name."""
    form = NewForm(sent(request))
    words = Words(
        "Store a secret",
        "Store the secret",
        "Jobs that name the secret when they are submitted get its value.",
    )
    if form.is_valid():
        name = form.cleaned_data["name"]
        if not services.missing([name]):
            form.add_error("name", "There is a secret of this name; replace its value instead.")
        else:
            with form.refusals():
                services.store(account(request), name, form.cleaned_data["value"])
                messages.success(request, f"Secret {name} was stored.")
                return HttpResponseRedirect(reverse("secret-list"))
    return _form_page(request, words, form)


@form_for(Role.OPERATOR)
def replace_secret(request: HttpRequest, secret: str) -> HttpResponse:
    """Replace the value of a secret."""
    known = services.one(secret)
    form = ValueForm(sent(request))
    words = Words(
        f"Replace the value of {known.name}",
        "Replace the value",
        "The old value is lost. Drivers that run keep it until they are started again; restart "
        "their jobs to use the new one.",
    )
    if form.is_valid():
        with form.refusals():
            services.store(account(request), known.name, form.cleaned_data["value"])
            messages.success(request, f"The value of secret {known.name} was replaced.")
            return HttpResponseRedirect(reverse("secret-list"))
    return _form_page(request, words, form, users=_users(known))


@form_for(Role.OPERATOR)
def delete_secret(request: HttpRequest, secret: str) -> HttpResponse:
    """Confirm the deletion of a secret, and delete it once the form is sent."""
    known = services.one(secret)
    if request.method == "POST":
        services.delete(account(request), known.name)
        messages.success(request, f"Secret {known.name} was deleted.")
        return HttpResponseRedirect(reverse("secret-list"))
    words = Words(
        f"Delete secret {known.name}?",
        f"Delete secret {known.name} for good",
        "Its value is lost. Drivers that run keep it; the next driver of a job that names the "
        "secret cannot start.",
        is_danger=True,
    )
    return _form_page(request, words, None, users=_users(known))


def _form_page(
    request: HttpRequest,
    words: Words,
    form: ValueForm | None,
    users: list[Job] | None = None,
) -> HttpResponse:
    context = {
        "words": words,
        "back": reverse("secret-list"),
        "crumb": "Secrets",
        "users": (users or [])[:JOBS_NAMED],
        "has_more_users": len(users or []) > JOBS_NAMED,
    }
    return form_page(request, "frontend/secret_form.html", form, context)


def _users(secret: Secret) -> list[Job]:
    """Jobs that are not over and name the secret; one more than are shown."""
    rows = Job.objects.exclude(status__in=FINAL_JOB_STATUSES)
    rows = rows.filter(options__secrets__contains=[secret.name])
    return list(rows.only("id", "name").order_by("name", "id")[: JOBS_NAMED + 1])


urlpatterns = [
    path("secrets/", list_secrets, name="secret-list"),
    path("secrets/new", new_secret, name="secret-new"),
    path("secrets/<str:secret>/replace", replace_secret, name="secret-replace"),
    path("secrets/<str:secret>/delete", delete_secret, name="secret-delete"),
]
