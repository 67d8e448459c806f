"""Views of endpoints and deliveries. Admins make endpoints; operators test and redeliver."""

from datetime import timedelta
from uuid import UUID

from django.db.models import QuerySet
from drf_spectacular.utils import OpenApiExample, OpenApiResponse, extend_schema
from rest_framework import status
from rest_framework.generics import ListAPIView
from rest_framework.request import Request
from rest_framework.response import Response

from controlplane.accounts.permissions import account
from controlplane.base.errors import existing
from controlplane.base.rest.preconditions import ETAG, IF_MATCH, Versioned
from controlplane.base.rest.serializers import EmptyRequest
from controlplane.base.rest.views import OneView, list_schema
from controlplane.deliveries import endpoints, redelivery
from controlplane.deliveries.api import serializers as shapes
from controlplane.deliveries.api.filters import DeliveryFilter
from controlplane.deliveries.models import Delivery, Endpoint

EXAMPLE = {"name": "On call", "kind": "webhook", "url": "https://alerts.example/weir"}


@list_schema("list_endpoints", "List endpoints", tag="alerting")
class EndpointsView(ListAPIView):
    """The endpoints that alerts can be sent to, without their URLs and secrets."""

    roles = {"POST": "admin"}
    queryset = Endpoint.objects.none()
    serializer_class = shapes.EndpointSerializer
    orderings = {"name": ("name",)}
    default_ordering = "name"

    def get_queryset(self) -> QuerySet[Endpoint]:
        """All endpoints, without their secrets."""
        return endpoints.listed()

    @extend_schema(
        operation_id="create_endpoint",
        tags=["alerting"],
        summary="Create an endpoint",
        request=shapes.EndpointRequest,
        responses={201: shapes.NewEndpointSerializer},
        examples=[OpenApiExample("A webhook", EXAMPLE, request_only=True)],
    )
    def post(self, request: Request) -> Response:
        """Create an endpoint. Its signing secret is in this response, and never shown again.

        An address in an internal network is refused, unless `allow_internal` says otherwise.
        """
        given = shapes.EndpointRequest.read(request)
        endpoint, secret = endpoints.create(account(request), given.pop("kind"), given)
        shown = shapes.NewEndpointSerializer(endpoint, context={"secret": secret})
        return Response(shown.data, status=status.HTTP_201_CREATED)


class _OneEndpointView(OneView):
    """A view of one endpoint, or of an action on it."""

    serializer_class = shapes.EndpointSerializer
    queryset = Endpoint.objects.none()


class EndpointView(Versioned, _OneEndpointView):
    """A view of one endpoint."""

    version_of = ("changed_at",)
    roles = {"PATCH": "admin", "DELETE": "admin"}

    @extend_schema(
        operation_id="get_endpoint",
        tags=["alerting"],
        summary="Show an endpoint",
        parameters=[ETAG],
    )
    def get(self, request: Request, id: UUID) -> Response:
        """An endpoint and its state, without its URL and secrets."""
        endpoint = endpoints.one(id)
        return self.tagged(endpoint, Response(self.get_serializer(endpoint).data))

    @extend_schema(
        operation_id="change_endpoint",
        tags=["alerting"],
        summary="Change an endpoint",
        parameters=[IF_MATCH, ETAG],
        request=shapes.EndpointChangeRequest,
        responses=shapes.EndpointSerializer,
        examples=[OpenApiExample("Enable it", {"is_enabled": True}, request_only=True)],
    )
    def patch(self, request: Request, id: UUID) -> Response:
        """Change an endpoint, or enable one that was disabled.

        With a URL that leads to another place, its keys have to be given again.
        """
        given = shapes.EndpointChangeRequest.read(request)
        with self.changing(request, lambda: endpoints.locked(id)):
            changed = endpoints.change(account(request), id, given)
        return self.tagged(changed, Response(self.get_serializer(changed).data))

    @extend_schema(
        operation_id="delete_endpoint",
        tags=["alerting"],
        summary="Delete an endpoint",
        parameters=[IF_MATCH],
        responses={204: OpenApiResponse(description="The endpoint is deleted.")},
    )
    def delete(self, request: Request, id: UUID) -> Response:
        """Delete an endpoint and its secrets; waiting deliveries to it are given up."""
        with self.changing(request, lambda: endpoints.locked(id)):
            endpoints.delete(account(request), id)
        return Response(status=status.HTTP_204_NO_CONTENT)


class EndpointSecretView(_OneEndpointView):
    """A view that replaces an endpoint's signing secret."""

    roles = {"POST": "admin"}

    @extend_schema(
        operation_id="rotate_endpoint_secret",
        tags=["alerting"],
        summary="Replace the signing secret",
        request=shapes.RotationRequest,
        responses=shapes.NewEndpointSerializer,
        examples=[OpenApiExample("For an hour", {"keep_previous_s": 3_600}, request_only=True)],
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Replace the signing secret; it is in this response, and never shown again.

        The secret before signs as well for a while, a day unless asked otherwise: requests then
        have two signatures, and receivers change over without losing one.
        """
        given = shapes.RotationRequest.read(request)
        endpoint, secret = endpoints.rotate(
            account(request), id, given.get("secret"), timedelta(seconds=given["keep_previous_s"])
        )
        return Response(shapes.NewEndpointSerializer(endpoint, context={"secret": secret}).data)


class EndpointTestView(_OneEndpointView):
    """A view that tests an endpoint."""

    @extend_schema(
        operation_id="test_endpoint",
        tags=["alerting"],
        summary="Test an endpoint",
        request=EmptyRequest,
        responses={200: shapes.DeliverySerializer(many=True)},
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Queue a test notice; the delivery says how it went.

        Receivers that keep alerts open get two, so that the test is resolved again.
        """
        EmptyRequest.read(request)
        posted = redelivery.test(account(request), id)
        return Response(shapes.DeliverySerializer(posted, many=True).data)


class EndpointRedeliverView(_OneEndpointView):
    """A view that sends an endpoint's deliveries of a time again."""

    @extend_schema(
        operation_id="redeliver_range",
        tags=["alerting"],
        summary="Redeliver a range",
        request=shapes.RedeliveryRequest,
        responses=shapes.RedeliverySerializer,
        examples=[
            OpenApiExample(
                "A day",
                {"after": "2026-03-01T00:00:00Z", "before": "2026-03-02T00:00:00Z"},
                request_only=True,
            )
        ],
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Send the deliveries again that were created within a time, the oldest first.

        Those that were given up, unless asked otherwise, and at most 1,000 in one request. Their
        ids stay the same.
        """
        count, has_more = redelivery.redeliver_range(
            account(request), id, **shapes.RedeliveryRequest.read(request)
        )
        shown = shapes.RedeliverySerializer({"count": count, "has_more": has_more})
        return Response(shown.data)


@list_schema("list_deliveries", "List deliveries", tag="alerting")
class DeliveriesView(ListAPIView):
    """The delivery log: each notice for each endpoint, newest first."""

    queryset = Delivery.objects.select_related("endpoint").defer("notice", "endpoint__sealed")
    serializer_class = shapes.DeliverySerializer
    filterset_class = DeliveryFilter
    orderings = {"created_at": ("created_at", "id")}
    default_ordering = "-created_at"


class DeliveryView(OneView):
    """A view of one delivery."""

    serializer_class = shapes.WholeDeliverySerializer
    queryset = Delivery.objects.none()

    @extend_schema(operation_id="get_delivery", tags=["alerting"], summary="Show a delivery")
    def get(self, request: Request, id: UUID) -> Response:
        """A delivery with its notice, the request that is sent, and the answers to its attempts."""
        return Response(self.get_serializer(_delivery(id)).data)


class DeliveryRedeliverView(OneView):
    """A view that sends a delivery again."""

    serializer_class = shapes.WholeDeliverySerializer
    queryset = Delivery.objects.none()

    @extend_schema(
        operation_id="redeliver",
        tags=["alerting"],
        summary="Redeliver",
        request=EmptyRequest,
        responses=shapes.WholeDeliverySerializer,
    )
    def post(self, request: Request, id: UUID) -> Response:
        """Send a delivery again, or at once if it waits for its next attempt."""
        EmptyRequest.read(request)
        redelivery.redeliver(account(request), id)
        return Response(shapes.WholeDeliverySerializer(_delivery(id)).data)


def _delivery(id: UUID) -> Delivery:
    return existing(
        Delivery.objects.select_related("endpoint").filter(pk=id),
        f"There is no delivery {id}.",
    )
