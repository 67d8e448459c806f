"""The list of secrets, and the pages that store, replace and delete one."""

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.models import Role
from controlplane.base.errors import NotFound, Refusal
from controlplane.secrets import services
from controlplane.secrets.models import Secret
from frontend.base import pages
from frontend.base.access import account, role_required
from frontend.base.forms import Words
from frontend.secrets.forms import NewForm, ValueForm
from jobs.models import FINAL_JOB_STATUSES, Job

SHOWN = 200  # On one page of the list.
JOBS_NAMED = 10


@never_cache
@require_GET
@role_required(Role.VIEWER)
def list_secrets(request: HttpRequest) -> HttpResponse:
    """The names of all secrets. Two queries."""
    paginator = Paginator(services.listed().order_by("name"), SHOWN)
    context = {
        "page": paginator.get_page(request.GET.get("page")),
        "may_operate": pages.may_operate(request),
    }
    return render(request, "frontend/secret_list.html", context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def new_secret(request: HttpRequest) -> HttpResponse:
    """Store a secret under a new name."""
    form = NewForm(request.POST if request.method == "POST" else None)
    words = Words(
        "Store a secret",
        "Store the secret",
        "Jobs that name the secret when they are submitted get its value.",
    )
    refusal = None
    if request.method == "POST" and form.is_valid():
        name = form.cleaned_data["name"]
        if not services.missing([name]):
            form.add_error("name", "There is a secret of this name; replace its value instead.")
        else:
            refusal = _store(request, name, form)
            if refusal is None and not form.errors:
                messages.success(request, f"Secret {name} was stored.")
                return HttpResponseRedirect(reverse("secret-list"))
    return _form_page(request, words, form, refusal)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def replace_secret(request: HttpRequest, secret: str) -> HttpResponse:
    """Replace the value of a secret."""
    known = _secret(secret)
    form = ValueForm(request.POST if request.method == "POST" else None)
    words = Words(
        f"Replace the value of {known.name}",
        "Replace the value",
        "The old value is lost. Drivers that run keep it until they are started again; restart "
        "their jobs to use the new one.",
    )
    refusal = None
    if request.method == "POST" and form.is_valid():
        refusal = _store(request, known.name, form)
        if refusal is None and not form.errors:
            messages.success(request, f"The value of secret {known.name} was replaced.")
            return HttpResponseRedirect(reverse("secret-list"))
    return _form_page(request, words, form, refusal, users=_users(known))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.OPERATOR)
def delete_secret(request: HttpRequest, secret: str) -> HttpResponse:
    """Confirm the deletion of a secret, and delete it once the form is sent."""
    known = _secret(secret)
    if request.method == "POST":
        try:
            services.delete(account(request), known.name)
        except NotFound as refusal:
            raise Http404(refusal.detail) from refusal
        messages.success(request, f"Secret {known.name} was deleted.")
        return HttpResponseRedirect(reverse("secret-list"))
    words = Words(
        f"Delete secret {known.name}?",
        f"Delete secret {known.name} for good",
        "Its value is lost. Drivers that run keep it; the next driver of a job that names the "
        "secret cannot start.",
        is_danger=True,
    )
    return _form_page(request, words, None, None, users=_users(known))


def _store(request: HttpRequest, name: str, form: ValueForm) -> Refusal | None:
    """Store a value; a refusal about fields is put beside them, any other is returned."""
    try:
        services.store(account(request), name, form.cleaned_data["value"])
    except Refusal as refusal:
        errors = refusal.extra.get("errors")
        if not errors:
            return refusal
        form.refuse(errors)
    return None


def _form_page(
    request: HttpRequest,
    words: Words,
    form: ValueForm | None,
    refusal: Refusal | None,
    users: list[Job] | None = None,
) -> HttpResponse:
    context = {
        "words": words,
        "form": form,
        "refusal": refusal,
        "users": (users or [])[:JOBS_NAMED],
        "has_more_users": len(users or []) > JOBS_NAMED,
    }
    code = refusal.status if refusal else 400 if form is not None and form.errors else 200
    return render(request, "frontend/secret_form.html", context, status=code)


def _users(secret: Secret) -> list[Job]:
    """Jobs that are not over and name the secret; one more than are shown."""
    rows = Job.objects.exclude(status__in=FINAL_JOB_STATUSES)
    rows = rows.filter(options__secrets__contains=[secret.name])
    return list(rows.only("id", "name").order_by("name", "id")[: JOBS_NAMED + 1])


def _secret(name: str) -> Secret:
    try:
        return services.one(name)
    except NotFound as refusal:
        raise Http404(refusal.detail) from refusal


urlpatterns = [
    path("secrets/", list_secrets, name="secret-list"),
    path("secrets/new", new_secret, name="secret-new"),
    path("secrets/<str:secret>/replace", replace_secret, name="secret-replace"),
    path("secrets/<str:secret>/delete", delete_secret, name="secret-delete"),
]
