"""The pages of endpoints: their list, and the forms that make, change, test and delete one."""

from datetime import timedelta
from uuid import UUID

from django.contrib import messages
from django.core.paginator import Paginator
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.base import formatting
from controlplane.deliveries import endpoints, redelivery
from controlplane.deliveries.models import Endpoint
from controlplane.deliveries.receivers import KINDS
from frontend.base import alert_tabs
from frontend.base.access import account, action_for, form_for, page_for
from frontend.base.forms import ServiceForm, Words, form_page, sent
from frontend.base.pages import refusals_as_messages
from frontend.deliveries import endpoint_list
from frontend.deliveries.forms import EndpointForm, RotationForm

SHOWN = 100  # On one page of the list.
# The sort of message and the receiver's own words, beside the titles of the kinds.
HINTS = {
    "webhook": "Weir’s own JSON, signed by Standard Webhooks: for services of your own.",
    "cloudevents": "CloudEvents in structured mode, signed in the same way.",
    "alertmanager": "Alerts for a Prometheus Alertmanager, which groups and routes them.",
    "alertmanager_webhook": "For receivers that were made for an Alertmanager’s webhook.",
    "pagerduty": "Triggers and resolves incidents by a service’s routing key.",
    "slack": "A message in a channel, by an incoming webhook.",
    "teams": "A card in a channel, by a workflow’s URL.",
    "email": "Plain text; the mails of one alert are one thread.",
}


@page_for(Role.VIEWER)
def list_endpoints(request: HttpRequest) -> HttpResponse:
    """All endpoints with their states. Three queries."""
    page = Paginator(endpoints.listed().order_by("name"), SHOWN).get_page(request.GET.get("page"))
    context = {"page": page, "rows": endpoint_list.rows(page.object_list)}
    head = alert_tabs.head(request, "endpoint-list")
    return render(request, "frontend/endpoint_list.html", head | context)


@page_for(Role.ADMIN)
def choose_kind(request: HttpRequest) -> HttpResponse:
    """The kinds of endpoints, each with a link to its form."""
    kinds = [(kind, receiver.title, HINTS[kind]) for kind, receiver in KINDS.items()]
    head = alert_tabs.head(request, "endpoint-list")
    return render(request, "frontend/endpoint_kinds.html", head | {"kinds": kinds})


@form_for(Role.ADMIN)
def new_endpoint(request: HttpRequest, kind: str) -> HttpResponse:
    """Make an endpoint; its signing secret is on the answer to the form, and nowhere else."""
    if kind not in KINDS:
        raise Http404(f"There is no kind of endpoint {kind!r}.")
    form = EndpointForm(sent(request), KINDS[kind])
    words = Words(f"New endpoint: {KINDS[kind].title}", "Make the endpoint", HINTS[kind])
    if form.is_valid():
        with form.refusals():
            made, secret = endpoints.create(account(request), kind, form.given())
            if secret and not form.cleaned_data.get("secret"):
                return _secret_page(request, made, secret, f"Endpoint {made.name} was made.")
            messages.success(request, f"Endpoint {made.name} was made. Send it a test.")
            return HttpResponseRedirect(reverse("endpoint-list"))
    return _form_page(request, words, form)


@form_for(Role.ADMIN)
def change_endpoint(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    """Change an endpoint."""
    known = endpoints.one(endpoint_id)
    receiver = KINDS[known.kind]
    form = EndpointForm(sent(request), receiver, known)
    words = Words(
        f"Change endpoint {known.name}", "Change the endpoint", f"Its kind stays {receiver.title}."
    )
    if form.is_valid():
        with form.refusals():
            changed = endpoints.change(account(request), known.pk, form.given())
            messages.success(request, f"Endpoint {changed.name} was changed.")
            return HttpResponseRedirect(reverse("endpoint-list"))
    return _form_page(request, words, form, known)


@form_for(Role.ADMIN)
def rotate_secret(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    """Replace an endpoint's signing secret; the new one is on the answer, and nowhere else."""
    known = endpoints.one(endpoint_id)
    if "secret" not in KINDS[known.kind].takes:
        raise Http404(f"Endpoint {known.name} has no signing secret.")
    version = formatting.iso(known.secret_set_at) or ""
    form = RotationForm(sent(request), initial={"version": version})
    words = Words(
        f"Replace the signing secret of {known.name}",
        "Replace the secret",
        "Requests are signed with the new secret from now on.",
    )
    if form.is_valid():
        given = form.cleaned_data
        if given["version"] != version:
            form.add_error(None, "The secret was replaced since this form was opened. Begin anew.")
        else:
            keep = timedelta(seconds=given["keep_previous_s"])
            with form.refusals():
                changed, secret = endpoints.rotate(
                    account(request), known.pk, given["secret"] or None, keep
                )
                said = f"The signing secret of {changed.name} was replaced."
                if not given["secret"]:
                    return _secret_page(request, changed, secret, said)
                messages.success(request, said)
                return HttpResponseRedirect(reverse("endpoint-list"))
    return _form_page(request, words, form, known)


@form_for(Role.ADMIN)
def delete_endpoint(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    """Confirm the deletion of an endpoint, and delete it once the form is sent."""
    known = endpoints.one(endpoint_id)
    if request.method == "POST":
        endpoints.delete(account(request), known.pk)
        messages.success(request, f"Endpoint {known.name} was deleted.")
        return HttpResponseRedirect(reverse("endpoint-list"))
    words = Words(
        f"Delete endpoint {known.name}?",
        f"Delete endpoint {known.name} for good",
        "Its URL and keys are lost, and its waiting deliveries are not sent. The delivery log "
        "stays. To pause it, disable it instead.",
        is_danger=True,
    )
    return _form_page(request, words, None, known)


@action_for(Role.ADMIN)
def switch_endpoint(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    """Enable or disable an endpoint."""
    known = endpoints.one(endpoint_id)
    is_enabled = request.POST.get("enabled") == "yes"
    with refusals_as_messages(request):
        endpoints.change(account(request), known.pk, {"is_enabled": is_enabled})
        now = "enabled" if is_enabled else "disabled"
        messages.success(request, f"Endpoint {known.name} is {now}.")
    return HttpResponseRedirect(reverse("endpoint-list"))


@action_for(Role.OPERATOR)
def test_endpoint(request: HttpRequest, endpoint_id: UUID) -> HttpResponse:
    """Send a test notice; the page of its delivery shows how it goes."""
    known = endpoints.one(endpoint_id)
    with refusals_as_messages(request):
        posted = redelivery.test(account(request), known.pk)
        messages.success(request, f"A test for {known.name} is on its way.")
        return HttpResponseRedirect(reverse("delivery-page", args=[posted[0].pk]))
    return HttpResponseRedirect(reverse("endpoint-list"))


def _form_page(
    request: HttpRequest,
    words: Words,
    form: ServiceForm | None,
    endpoint: Endpoint | None = None,
) -> HttpResponse:
    context = {"words": words, "endpoint": endpoint}
    return form_page(request, "frontend/endpoint_form.html", form, context)


def _secret_page(request: HttpRequest, endpoint: Endpoint, secret: str, said: str) -> HttpResponse:
    """The only page that shows a signing secret."""
    context = {"endpoint": endpoint, "secret": secret, "said": said}
    return render(request, "frontend/endpoint_secret.html", context)


_ONE = "alerts/endpoints/<uuid:endpoint_id>"

urlpatterns = [
    path("alerts/endpoints/", list_endpoints, name="endpoint-list"),
    path("alerts/endpoints/new", choose_kind, name="endpoint-kinds"),
    path("alerts/endpoints/new/<str:kind>", new_endpoint, name="endpoint-new"),
    path(f"{_ONE}/change", change_endpoint, name="endpoint-change"),
    path(f"{_ONE}/secret", rotate_secret, name="endpoint-secret"),
    path(f"{_ONE}/delete", delete_endpoint, name="endpoint-delete"),
    path(f"{_ONE}/switch", switch_endpoint, name="endpoint-switch"),
    path(f"{_ONE}/test", test_endpoint, name="endpoint-test"),
]
