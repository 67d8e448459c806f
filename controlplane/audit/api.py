"""The API of the audit log. Admins only: entries name accounts and addresses."""

import django_filters
from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.audit.models import AuditEntry
from controlplane.base.rest.filters import after, before


class AuditEntrySerializer(serializers.ModelSerializer):
    """One change, by an account or by the control plane itself."""

    class Meta:
        model = AuditEntry
        fields = [
            "id",
            "at",
            "count",
            "last_at",
            "actor",
            "action",
            "target",
            "before",
            "after",
            "address",
            "request_id",
        ]
        extra_kwargs = {
            "count": {
                "help_text": "1 for a change; for a refusal the number of its kind within an hour."
            },
            "last_at": {"help_text": "The time of the last of several refusals."},
        }
        read_only_fields = fields

    actor = serializers.CharField(
        source="actor_name",
        help_text="The account's name at that time, `control plane` or `unknown client`.",
    )
    before = serializers.DictField(allow_null=True)
    after = serializers.DictField(allow_null=True)


class AuditFilter(django_filters.FilterSet):
    """The filters of audit entries."""

    actor = django_filters.CharFilter(field_name="actor_name")
    action = django_filters.CharFilter(
        lookup_expr="startswith", help_text="The action, or its first characters."
    )
    target = django_filters.CharFilter(
        lookup_expr="startswith", help_text="The target, or its first characters."
    )
    after = after("at")
    before = before("at")


class AuditView(ListAPIView):
    """The list of audit entries."""

    roles = {"GET": "admin"}  # By name: accounts are built on top of the audit log.
    queryset = AuditEntry.objects.all()
    serializer_class = AuditEntrySerializer
    filterset_class = AuditFilter
    orderings = {"at": ("at", "id")}
    default_ordering = "-at"

    @extend_schema(operation_id="list_audit_entries", tags=["audit"], summary="List audit entries")
    def get(self, request: Request, *args: object, **kwargs: object) -> Response:
        """Every change by an account or by the control plane itself, newest first."""
        return super().get(request, *args, **kwargs)


urlpatterns = [path("audit", AuditView.as_view(), name="audit")]
