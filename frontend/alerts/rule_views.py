"""The pages of rules: their list, one rule tried on the past, and the forms that change one."""

from uuid import UUID

import msgspec
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.models import Role
from controlplane.alerts import past, rules
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.models import Alert, Rule
from controlplane.alerts.past import Tried
from controlplane.base import clock
from controlplane.base.errors import NotFound, Refusal
from frontend.alerts import alert_rows, rule_rows
from frontend.alerts.rule_forms import RuleForm
from frontend.base import alert_tabs
from frontend.base.access import account, may, role_required
from frontend.base.forms import Words

TRIED_HOURS = 24
ALERTS_SHOWN = 20


@never_cache
@require_GET
@role_required(Role.VIEWER)
def list_rules(request: HttpRequest) -> HttpResponse:
    """All rules with their states. Two queries."""
    context = {"rows": [rule_rows.row(rule) for rule in rules.listed().order_by("name")]}
    return render(
        request, "frontend/rule_list.html", alert_tabs.head(request, "rule-list") | context
    )


@never_cache
@require_GET
@role_required(Role.VIEWER)
def show_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """One rule and its alerts; for operators, what it would have fired in the last day."""
    rule = _rule(rule_id)
    alerts = Alert.objects.filter(rule=rule).select_related("silence")
    newest = alerts.order_by("-fired_at", "-id")[:ALERTS_SHOWN]
    is_tried = "tried" in request.GET and may(request.user, Role.OPERATOR)
    context = {
        "rule": rule_rows.row(rule),
        "alerts": alert_rows.rows(newest, clock.now()),
        "tried": _tried(rule) if is_tried else None,
        "hours": TRIED_HOURS,
    }
    return render(
        request, "frontend/rule_page.html", alert_tabs.head(request, "rule-list") | context
    )


@never_cache
@require_GET
@role_required(Role.ADMIN)
def choose_kind(request: HttpRequest) -> HttpResponse:
    """The kinds of rules, each with a link to its form."""
    context = {"kinds": [(kind.name, kind.title, kind.text) for kind in KINDS.values()]}
    head = alert_tabs.head(request, "rule-list")
    return render(request, "frontend/rule_kinds.html", head | context)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.ADMIN)
def new_rule(request: HttpRequest, kind: str) -> HttpResponse:
    """Make a rule, or try it on the past first."""
    if kind not in KINDS:
        raise Http404(f"There is no kind of rule {kind!r}.")
    form = RuleForm(request.POST if request.method == "POST" else None, KINDS[kind])
    words = Words(f"New rule: {KINDS[kind].title}", "Make the rule", KINDS[kind].text)
    refusal, tried = None, None
    if request.method == "POST" and form.is_valid():
        try:
            if "try" in request.POST:
                tried = past.would_have_fired(rules.draft(kind, form.given()), TRIED_HOURS)
            else:
                made = rules.create(account(request), kind, form.given())
                messages.success(request, f"Rule {made.name} was made.")
                return HttpResponseRedirect(reverse("rule-page", args=[made.pk]))
        except Refusal as refused:
            refusal = form.refuse(refused)
    return _form_page(request, words, form, refusal, tried=tried)


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.ADMIN)
def change_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """Change a rule, or try the change on the past first."""
    known = _rule(rule_id)
    kind = KINDS[known.kind]
    form = RuleForm(request.POST if request.method == "POST" else None, kind, known)
    words = Words(
        f"Change rule {known.name}",
        "Change the rule",
        f"{kind.text} Alerts that fire are resolved if the condition changes.",
    )
    refusal, tried = None, None
    if request.method == "POST" and form.is_valid():
        try:
            if "try" in request.POST:
                tried = past.would_have_fired(rules.draft(known.kind, form.given()), TRIED_HOURS)
            else:
                changed = rules.change(account(request), known.pk, form.given())
                messages.success(request, f"Rule {changed.name} was changed.")
                return HttpResponseRedirect(reverse("rule-page", args=[changed.pk]))
        except Refusal as refused:
            refusal = form.refuse(refused)
    return _form_page(request, words, form, refusal, known, tried)


@never_cache
@require_POST
@role_required(Role.ADMIN)
def switch_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """Enable or disable a rule."""
    is_enabled = request.POST.get("enabled") == "yes"
    try:
        changed = rules.change(account(request), rule_id, {"is_enabled": is_enabled})
    except NotFound as refused:
        raise Http404(refused.detail) from refused
    except Refusal as refused:
        messages.error(request, refused.detail)
    else:
        now = "enabled" if is_enabled else "disabled"
        messages.success(request, f"Rule {changed.name} is {now}.")
    return HttpResponseRedirect(reverse("rule-list"))


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
@role_required(Role.ADMIN)
def delete_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """Confirm the deletion of a rule, and delete it once the form is sent."""
    known = _rule(rule_id)
    if request.method == "POST":
        try:
            rules.delete(account(request), known.pk)
        except NotFound as refused:
            raise Http404(refused.detail) from refused
        messages.success(request, f"Rule {known.name} was deleted.")
        return HttpResponseRedirect(reverse("rule-list"))
    words = Words(
        f"Delete rule {known.name}?",
        f"Delete rule {known.name} for good",
        "Its alerts are resolved and stay in the list; silences of this rule alone go with it. "
        "To pause it, disable it instead.",
        is_danger=True,
    )
    return _form_page(request, words, None, None, known)


def _form_page(
    request: HttpRequest,
    words: Words,
    form: RuleForm | None,
    refusal: Refusal | None,
    rule: Rule | None = None,
    tried: Tried | None = None,
) -> HttpResponse:
    context = {
        "words": words,
        "form": form,
        "refusal": refusal,
        "rule": rule,
        "tried": tried,
        "hours": TRIED_HOURS,
    }
    code = refusal.status if refusal else 400 if form is not None and form.errors else 200
    return render(request, "frontend/rule_form.html", context, status=code)


def _tried(rule: Rule) -> Tried | None:
    """The alerts of the last day; None: the stored parameters are not those of the kind."""
    try:
        return past.would_have_fired(rule, TRIED_HOURS)
    except msgspec.ValidationError:  # As long as it is so, the rule is set aside and says why.
        return None


def _rule(rule_id: UUID) -> Rule:
    try:
        return rules.one(rule_id)
    except NotFound as refused:
        raise Http404(refused.detail) from refused


urlpatterns = [
    path("alerts/rules/", list_rules, name="rule-list"),
    path("alerts/rules/new", choose_kind, name="rule-kinds"),
    path("alerts/rules/new/<str:kind>", new_rule, name="rule-new"),
    path("alerts/rules/<uuid:rule_id>", show_rule, name="rule-page"),
    path("alerts/rules/<uuid:rule_id>/change", change_rule, name="rule-change"),
    path("alerts/rules/<uuid:rule_id>/switch", switch_rule, name="rule-switch"),
    path("alerts/rules/<uuid:rule_id>/delete", delete_rule, name="rule-delete"),
]
