"""The pages of rules: their list, one rule tried on the past, and the forms that change one."""

from uuid import UUID

import msgspec
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import render
from django.urls import path, reverse

from controlplane.accounts.models import Role
from controlplane.alerts import past, rules
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.models import Alert, Rule
from controlplane.alerts.past import Tried
from controlplane.base import clock
from frontend.alerts import alert_rows, rule_rows
from frontend.alerts.rule_forms import RuleForm
from frontend.base import alert_tabs
from frontend.base.access import account, action_for, form_for, may, page_for
from frontend.base.forms import Words, form_page, sent
from frontend.base.pages import refusals_as_messages

TRIED_HOURS = 24
ALERTS_SHOWN = 20


@page_for(Role.VIEWER)
def list_rules(request: HttpRequest) -> HttpResponse:
    """All rules with their states. Two queries."""
    context = {"rows": [rule_rows.row(rule) for rule in rules.listed().order_by("name")]}
    return render(
        request, "frontend/rule_list.html", alert_tabs.head(request, "rule-list") | context
    )


@page_for(Role.VIEWER)
def show_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """One rule and its alerts; for operators, what it would have fired in the last day."""
    rule = rules.one(rule_id)
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


@page_for(Role.ADMIN)
def choose_kind(request: HttpRequest) -> HttpResponse:
    """The kinds of rules, each with a link to its form."""
    context = {"kinds": [(kind.name, kind.title, kind.text) for kind in KINDS.values()]}
    head = alert_tabs.head(request, "rule-list")
    return render(request, "frontend/rule_kinds.html", head | context)


@form_for(Role.ADMIN)
def new_rule(request: HttpRequest, kind: str) -> HttpResponse:
    """Make a rule, or try it on the past first."""
    if kind not in KINDS:
        raise Http404(f"There is no kind of rule {kind!r}.")
    form = RuleForm(sent(request), KINDS[kind])
    words = Words(f"New rule: {KINDS[kind].title}", "Make the rule", KINDS[kind].text)
    tried = None
    if form.is_valid():
        with form.refusals():
            if "try" in request.POST:
                tried = past.would_have_fired(rules.draft(kind, form.given()), TRIED_HOURS)
            else:
                made = rules.create(account(request), kind, form.given())
                messages.success(request, f"Rule {made.name} was made.")
                return HttpResponseRedirect(reverse("rule-page", args=[made.pk]))
    return _form_page(request, words, form, tried=tried)


@form_for(Role.ADMIN)
def change_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """Change a rule, or try the change on the past first."""
    known = rules.one(rule_id)
    kind = KINDS[known.kind]
    form = RuleForm(sent(request), kind, known)
    words = Words(
        f"Change rule {known.name}",
        "Change the rule",
        f"{kind.text} Alerts that fire are resolved if the condition changes.",
    )
    tried = None
    if form.is_valid():
        with form.refusals():
            if "try" in request.POST:
                tried = past.would_have_fired(rules.draft(known.kind, form.given()), TRIED_HOURS)
            else:
                changed = rules.change(account(request), known.pk, form.given())
                messages.success(request, f"Rule {changed.name} was changed.")
                return HttpResponseRedirect(reverse("rule-page", args=[changed.pk]))
    return _form_page(request, words, form, known, tried)


@action_for(Role.ADMIN)
def switch_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """Enable or disable a rule."""
    is_enabled = request.POST.get("enabled") == "yes"
    with refusals_as_messages(request):
        changed = rules.change(account(request), rule_id, {"is_enabled": is_enabled})
        now = "enabled" if is_enabled else "disabled"
        messages.success(request, f"Rule {changed.name} is {now}.")
    return HttpResponseRedirect(reverse("rule-list"))


@form_for(Role.ADMIN)
def delete_rule(request: HttpRequest, rule_id: UUID) -> HttpResponse:
    """Confirm the deletion of a rule, and delete it once the form is sent."""
    known = rules.one(rule_id)
    if request.method == "POST":
        rules.delete(account(request), known.pk)
        messages.success(request, f"Rule {known.name} was deleted.")
        return HttpResponseRedirect(reverse("rule-list"))
    words = Words(
        f"Delete rule {known.name}?",
        f"Delete rule {known.name} for good",
        "Its alerts are resolved and stay in the list; silences of this rule alone go with it. "
        "To pause it, disable it instead.",
        is_danger=True,
    )
    return _form_page(request, words, None, known)


def _form_page(
    request: HttpRequest,
    words: Words,
    form: RuleForm | None,
    rule: Rule | None = None,
    tried: Tried | None = None,
) -> HttpResponse:
    context = {"words": words, "rule": rule, "tried": tried, "hours": TRIED_HOURS}
    return form_page(request, "frontend/rule_form.html", form, context)


def _tried(rule: Rule) -> Tried | None:
    """The alerts of the last day; None: the stored parameters are not those of the kind."""
    try:
        return past.would_have_fired(rule, TRIED_HOURS)
    except msgspec.ValidationError:  # As long as it is so, the rule is set aside and says why.
        return None


urlpatterns = [
    path("alerts/rules/", list_rules, name="rule-list"),
    path("alerts/rules/new", choose_kind, name="rule-kinds"),
    path("alerts/rules/new/<str:kind>", new_rule, name="rule-new"),
    path("alerts/rules/<uuid:rule_id>", show_rule, name="rule-page"),
    path("alerts/rules/<uuid:rule_id>/change", change_rule, name="rule-change"),
    path("alerts/rules/<uuid:rule_id>/switch", switch_rule, name="rule-switch"),
    path("alerts/rules/<uuid:rule_id>/delete", delete_rule, name="rule-delete"),
]
