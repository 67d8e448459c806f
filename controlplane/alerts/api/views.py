"""Views of rules, alerts and silences. Admins make rules; operators acknowledge and silence."""

from dataclasses import asdict
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import account
from controlplane.alerts import alerting, past, rules, silences
from controlplane.alerts.api import serializers as shapes
from controlplane.alerts.api.filters import AlertFilter, RuleFilter, SilenceFilter
from controlplane.alerts.kinds import KINDS
from controlplane.alerts.models import Alert, Rule, Silence
from controlplane.base.errors import existing
from controlplane.base.rest.preconditions import ETAG, IF_MATCH, Versioned
from controlplane.base.rest.serializers import EmptyRequest
from controlplane.base.rest.views import OneView, list_schema

RULE_EXAMPLE = {
    "name": "Slow checkpoints of flights",
    "kind": "checkpoint_duration",
    "parameters": {"seconds": 30},
    "job_pattern": "flights*",
    "severity": "warning",
}


@list_schema("list_rules", "List rules", tag="alerting")
class RulesView(ListAPIView):
    """The rules that fire alerts."""

    roles = {"POST": "admin"}
    queryset = Rule.objects.none()
    serializer_class = shapes.RuleSerializer
    filterset_class = RuleFilter
    orderings = {"name": ("name",)}
    default_ordering = "name"

    def get_queryset(self) -> QuerySet[Rule]:
        """All rules, with their endpoints."""
        return rules.listed()

    @extend_schema(
        operation_id="create_rule",
        tags=["alerting"],
        summary="Create a rule",
        request=shapes.RuleRequest,
        responses={201: shapes.RuleSerializer},
        examples=[OpenApiExample("Slow checkpoints", RULE_EXAMPLE, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        """Create a rule; `rules/kinds` lists the kinds and their parameters."""
        given = shapes.RuleRequest.read(request)
        rule = rules.create(account(request), given.pop("kind"), given)
        return Response(self.get_serializer(rule).data, status=status.HTTP_201_CREATED)


class RuleKindsView(OneView):
    """A view of the kinds of rules."""

    serializer_class = shapes.RuleKindInfoSerializer
    queryset = Rule.objects.none()

    @extend_schema(
        operation_id="list_rule_kinds",
        tags=["alerting"],
        summary="List kinds of rules",
        responses=shapes.RuleKindInfoSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        """The kinds of rules, with their parameters as JSON schemas."""
        kinds = [
            {
                "name": kind.name,
                "title": kind.title,
                "text": kind.text,
                "parameters": kind.schema(),
                "is_stored": kind.is_stored,
            }
            for kind in KINDS.values()
        ]
        return Response(self.get_serializer(kinds, many=True).data)


class RuleView(Versioned, OneView):
    """A view of one rule."""

    version_of = ("changed_at",)
    roles = {"PATCH": "admin", "DELETE": "admin"}
    serializer_class = shapes.RuleSerializer
    queryset = Rule.objects.none()

    @extend_schema(
        operation_id="get_rule", tags=["alerting"], summary="Show a rule", parameters=[ETAG]
    )
    def get(self, request: Request, id: UUID) -> Response:
        """A rule, and why it was set aside if it was."""
        rule = rules.one(id)
        return self.tagged(rule, Response(self.get_serializer(rule).data))

    @extend_schema(
        operation_id="change_rule",
        tags=["alerting"],
        summary="Change a rule",
        parameters=[IF_MATCH, ETAG],
        request=shapes.RuleChangeRequest,
        responses=shapes.RuleSerializer,
        examples=[OpenApiExample("Disable it", {"is_enabled": False}, request_only=True)],
    )
    def patch(self, request: Request, id: UUID) -> Response:
        """Change a rule. One that was set aside is tried again.

        Its alerts are resolved if its condition changes, or it is disabled.
        """
        given = shapes.RuleChangeRequest.read(request)
        with self.changing(request, lambda: rules.locked(id)):
            changed = rules.change(account(request), id, given)
        return self.tagged(changed, Response(self.get_serializer(changed).data))

    @extend_schema(
        operation_id="delete_rule",
        tags=["alerting"],
        summary="Delete a rule",
        parameters=[IF_MATCH],
        responses={204: OpenApiResponse(description="The rule is deleted.")},
    )
    def delete(self, request: Request, id: UUID) -> Response:
        """Delete a rule. Its alerts are resolved, and stay in the list."""
        with self.changing(request, lambda: rules.locked(id)):
            rules.delete(account(request), id)
        return Response(status=status.HTTP_204_NO_CONTENT)


class RuleTryView(OneView):
    """A view that tries a rule on the past."""

    serializer_class = shapes.TriedSerializer
    queryset = Rule.objects.none()

    @extend_schema(
        operation_id="try_rule",
        tags=["alerting"],
        summary="Try a rule on the past",
        request=shapes.TryRequest,
        responses=shapes.TriedSerializer,
        examples=[
            OpenApiExample(
                "The last day",
                {"kind": "checkpoint_duration", "parameters": {"seconds": 30}, "hours": 24},
                request_only=True,
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """The alerts that a rule would have fired, by what is stored of the past.

        Nothing is changed, and no notice is sent.
        """
        given = shapes.TryRequest.read(request)
        hours = given.pop("hours")
        if "rule" in given:
            rule = rules.one(given["rule"])
        else:
            rule = rules.draft(given.pop("kind"), given)
        tried = past.would_have_fired(rule, hours)
        return Response(self.get_serializer(asdict(tried) | {"count": tried.count}).data)


@list_schema("list_alerts", "List alerts", tag="alerting")
class AlertsView(ListAPIView):
    """Alerts that fire and alerts that are resolved, newest first."""

    queryset = Alert.objects.all()
    serializer_class = shapes.AlertSerializer
    filterset_class = AlertFilter
    orderings = {"fired_at": ("fired_at", "id")}
    default_ordering = "-fired_at"


class AlertView(OneView):
    """A view of one alert."""

    serializer_class = shapes.AlertSerializer
    queryset = Alert.objects.none()

    @extend_schema(operation_id="get_alert", tags=["alerting"], summary="Show an alert")
    def get(self, request: Request, id: UUID) -> Response:
        """An alert; its notices are `deliveries` with its id."""
        return Response(self.get_serializer(alerting.one(id)).data)


class AlertAcknowledgeView(OneView):
    """A view that acknowledges an alert."""

    serializer_class = shapes.AlertSerializer
    queryset = Alert.objects.none()

    @extend_schema(
        operation_id="acknowledge_alert",
        tags=["alerting"],
        summary="Acknowledge an alert",
        request=EmptyRequest,
        responses=shapes.AlertSerializer,
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Say that you look after an alert. A notice that a silence holds back is not sent then."""
        EmptyRequest.read(request)
        return Response(self.get_serializer(alerting.acknowledge(account(request), id)).data)


@list_schema("list_silences", "List silences", tag="alerting")
class SilencesView(ListAPIView):
    """Silences, newest first, those that are over too."""

    queryset = Silence.objects.none()
    serializer_class = shapes.SilenceSerializer
    filterset_class = SilenceFilter
    orderings = {"created_at": ("created_at", "id")}
    default_ordering = "-created_at"

    def get_queryset(self) -> QuerySet[Silence]:
        """All silences, with their rules."""
        return silences.listed()

    @extend_schema(
        operation_id="create_silence",
        tags=["alerting"],
        summary="Create a silence",
        request=shapes.SilenceRequest,
        responses={201: shapes.SilenceSerializer},
        examples=[
            OpenApiExample(
                "Maintenance",
                {
                    "job_pattern": "flights*",
                    "until_at": "2026-03-02T00:00:00Z",
                    "reason": "The cluster is upgraded.",
                },
                request_only=True,
            )
        ],
    )
    def post(self, request: Request) -> Response:
        """Hold the notices of some alerts back for a time; the alerts fire all the same.

        Those that still fire when it ends are told then, unless they were acknowledged.
        """
        silence = silences.create(account(request), shapes.SilenceRequest.read(request))
        return Response(self.get_serializer(silence).data, status=status.HTTP_201_CREATED)


class SilenceView(OneView):
    """A view of one silence."""

    serializer_class = shapes.SilenceSerializer
    queryset = Silence.objects.none()

    @extend_schema(operation_id="get_silence", tags=["alerting"], summary="Show a silence")
    def get(self, request: Request, id: UUID) -> Response:
        """A silence."""
        silence = existing(silences.listed().filter(pk=id), f"There is no silence {id}.")
        return Response(self.get_serializer(silence).data)


class SilenceEndView(OneView):
    """A view that ends a silence."""

    serializer_class = shapes.SilenceSerializer
    queryset = Silence.objects.none()

    @extend_schema(
        operation_id="end_silence",
        tags=["alerting"],
        summary="End a silence",
        request=EmptyRequest,
        responses=shapes.SilenceSerializer,
    )
    def post(self, request: Request, id: UUID) -> Response:
        """End a silence now; its alerts that still fire are told."""
        EmptyRequest.read(request)
        return Response(self.get_serializer(silences.end(account(request), id)).data)
