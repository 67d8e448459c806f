"""Addresses of rules, alerts and silences below ``/api/v1/``."""

from django.urls import path

from controlplane.alerts.api import views

urlpatterns = [
    path("rules", views.RulesView.as_view(), name="rules"),
    path("rules/kinds", views.RuleKindsView.as_view(), name="rule-kinds"),
    path("rules/try", views.RuleTryView.as_view(), name="rule-try"),
    path("rules/<uuid:id>", views.RuleView.as_view(), name="rule"),
    path("alerts", views.AlertsView.as_view(), name="alerts"),
    path("alerts/<uuid:id>", views.AlertView.as_view(), name="alert"),
    path(
        "alerts/<uuid:id>/acknowledge",
        views.AlertAcknowledgeView.as_view(),
        name="alert-acknowledge",
    ),
    path("silences", views.SilencesView.as_view(), name="silences"),
    path("silences/<uuid:id>", views.SilenceView.as_view(), name="silence"),
    path("silences/<uuid:id>/end", views.SilenceEndView.as_view(), name="silence-end"),
]
