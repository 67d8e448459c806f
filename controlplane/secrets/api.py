"""The API of secrets: names are listed, values are only written."""

from django.db.models import QuerySet
from django.urls import path
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import serializers, status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import account
from controlplane.base.rest.preconditions import ETAG, IF_MATCH, Versioned
from controlplane.base.rest.serializers import TypedRequest
from controlplane.base.rest.views import OneView, list_schema
from controlplane.secrets import services
from controlplane.secrets.models import Secret


class SecretSerializer(serializers.ModelSerializer):
    """A secret without its value, which is never shown."""

    set_by = serializers.CharField(
        source="set_by_name", help_text="The account that stored the value."
    )

    class Meta:
        model = Secret
        fields = ["name", "created_at", "set_at", "set_by"]
        extra_kwargs = {"set_at": {"help_text": "The time when the value was stored."}}
        read_only_fields = fields


class SecretRequest(TypedRequest):
    """The value of a secret."""

    value = serializers.CharField(
        max_length=services.VALUE_BYTES_MAX,
        trim_whitespace=False,
        write_only=True,
        help_text=f"At most {services.VALUE_BYTES_MAX:,} bytes of UTF-8. It is never shown again.",
    )


@list_schema("list_secrets", "List secrets", tag="secrets")
class SecretsView(ListAPIView):
    """The names of all secrets. No request shows a value."""

    queryset = Secret.objects.none()
    serializer_class = SecretSerializer
    orderings = {"name": ("name",)}
    default_ordering = "name"

    def get_queryset(self) -> QuerySet[Secret]:
        """All secrets, without their values."""
        return services.listed()


class SecretView(Versioned, OneView):
    """A view of one secret."""

    version_of = ("set_at",)
    queryset = Secret.objects.none()
    serializer_class = SecretSerializer

    @extend_schema(
        operation_id="get_secret",
        tags=["secrets"],
        summary="Show a secret’s name",
        parameters=[ETAG],
    )
    def get(self, request: Request, name: str) -> Response:
        """When the secret was stored, and by whom; not its value."""
        secret = services.one(name)
        return self.tagged(secret, Response(self.get_serializer(secret).data))

    @extend_schema(
        operation_id="store_secret",
        tags=["secrets"],
        summary="Store a secret",
        parameters=[IF_MATCH, ETAG],
        request=SecretRequest,
        responses={200: SecretSerializer, 201: SecretSerializer},
        examples=[OpenApiExample("A password", {"value": "correct horse"}, request_only=True)],
    )
    def put(self, request: Request, name: str) -> Response:
        """Store a secret (201), or replace its value (200).

        The value is encrypted and never shown again. Jobs that name the secret get the new value
        with their next driver: restart them.
        """
        value = SecretRequest.read(request)["value"]
        with self.changing(request, lambda: services.locked(name)):
            secret, is_new = services.store(account(request), name, value)
        code = status.HTTP_201_CREATED if is_new else status.HTTP_200_OK
        return self.tagged(secret, Response(self.get_serializer(secret).data, status=code))

    @extend_schema(
        operation_id="delete_secret",
        tags=["secrets"],
        summary="Delete a secret",
        parameters=[IF_MATCH],
        responses={204: OpenApiResponse(description="The secret is deleted.")},
    )
    def delete(self, request: Request, name: str) -> Response:
        """Delete a secret. Jobs that name it run on, but their next driver cannot start."""
        with self.changing(request, lambda: services.locked(name)):
            services.delete(account(request), name)
        return Response(status=status.HTTP_204_NO_CONTENT)


urlpatterns = [
    path("secrets", SecretsView.as_view(), name="secrets"),
    path("secrets/<str:name>", SecretView.as_view(), name="secret"),
]
