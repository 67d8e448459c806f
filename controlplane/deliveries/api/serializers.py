"""Shapes of endpoints and deliveries in the API."""

from dataclasses import asdict
from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from controlplane.base.rest.serializers import RequestSerializer
from controlplane.deliveries import endpoints, shown
from controlplane.deliveries.machine import DeliveryStatus
from controlplane.deliveries.models import (
    DELIVERY_STATUSES,
    ENDPOINT_KINDS,
    Delivery,
    DeliveryAttempt,
    Endpoint,
)
from controlplane.deliveries.sending.addresses import URL_LENGTH_MAX

ENDPOINT_STATES = [(state, state) for state in ("ok", "failing", "disabled")]
SETTLED_STATUSES = [
    (status.value, status.value) for status in (DeliveryStatus.GIVEN_UP, DeliveryStatus.DELIVERED)
]


class EndpointSerializer(serializers.ModelSerializer):
    """An endpoint without its URL and secrets, which are never shown."""

    state = serializers.ChoiceField(
        ENDPOINT_STATES,
        help_text="`failing`: its last attempt failed, and the next one rests for a while.",
    )
    recipients = serializers.ListField(child=serializers.CharField(), help_text="Of e-mail.")
    is_enabled = serializers.BooleanField(help_text="Whether notices are queued for it.")
    created_by = serializers.CharField(source="created_by_name")
    failures = serializers.IntegerField(help_text="Failed attempts in a row.")
    delivered_count = serializers.IntegerField(help_text="Deliveries since it exists.")
    given_up_count = serializers.IntegerField(help_text="Deliveries given up since it exists.")

    class Meta:
        model = Endpoint
        fields = [
            "id",
            "name",
            "kind",
            "description",
            "origin",
            "recipients",
            "allow_internal",
            "is_enabled",
            "state",
            "disabled_at",
            "disabled_reason",
            "failures",
            "failing_since",
            "held_until",
            "delivered_at",
            "delivered_count",
            "given_up_count",
            "secret_set_at",
            "previous_secret_until",
            "created_at",
            "changed_at",
            "created_by",
        ]
        extra_kwargs = {
            "origin": {"help_text": "Scheme, host and port of its URL; the rest is not shown."},
            "disabled_reason": {"help_text": "Why Weir disabled it; empty: a person did."},
            "failing_since": {"help_text": "The first failure after its last success."},
            "held_until": {"help_text": "No attempt is made before."},
            "delivered_at": {"help_text": "The begin of its last successful attempt."},
            "secret_set_at": {"help_text": "Of its signing secret."},
            "previous_secret_until": {"help_text": "The secret before signs as well until then."},
        }
        read_only_fields = fields


class NewEndpointSerializer(EndpointSerializer):
    """A new endpoint with its signing secret, which is shown only once."""

    secret = serializers.SerializerMethodField(
        help_text="The signing secret; null: the kind does not sign."
    )

    class Meta(EndpointSerializer.Meta):
        fields = [*EndpointSerializer.Meta.fields, "secret"]
        read_only_fields = fields

    def get_secret(self, endpoint: Endpoint) -> str | None:
        """The secret, passed by the view."""
        secret: str | None = self.context["secret"]
        return secret


class EndpointChangeRequest(RequestSerializer):
    """Changes of an endpoint; each kind takes some of the fields."""

    name = serializers.CharField(max_length=100, required=False)
    description = serializers.CharField(max_length=500, allow_blank=True, required=False)
    url = serializers.CharField(
        max_length=URL_LENGTH_MAX,
        required=False,
        write_only=True,
        help_text="https://…; never shown again but for its origin.",
    )
    routing_key = serializers.CharField(
        max_length=endpoints.ROUTING_KEY_LENGTH_MAX,
        required=False,
        write_only=True,
        help_text="Of PagerDuty; never shown again.",
    )
    authorization = serializers.CharField(
        max_length=endpoints.AUTHORIZATION_LENGTH_MAX,
        required=False,
        allow_blank=True,
        write_only=True,
        help_text="The header `Authorization`, such as `Bearer …`; never shown again.",
    )
    recipients = serializers.ListField(
        child=serializers.CharField(max_length=254),
        max_length=endpoints.RECIPIENTS_MAX,
        required=False,
        help_text="Addresses of e-mail.",
    )
    allow_internal = serializers.BooleanField(
        required=False,
        help_text="Allow an address in your own network, and plain HTTP to it.",
    )
    is_enabled = serializers.BooleanField(required=False)


class EndpointRequest(EndpointChangeRequest):
    """An endpoint to create; each kind takes some of the fields."""

    name = serializers.CharField(max_length=100)
    kind = serializers.ChoiceField(ENDPOINT_KINDS)
    secret = serializers.CharField(
        max_length=200,
        required=False,
        write_only=True,
        help_text="A signing secret, `whsec_…`; left out: one is generated and shown once.",
    )


class RotationRequest(RequestSerializer):
    """A new signing secret."""

    secret = serializers.CharField(
        max_length=200,
        required=False,
        write_only=True,
        help_text="`whsec_…`; left out: one is generated.",
    )
    keep_previous_s = serializers.IntegerField(
        min_value=0,
        max_value=int(endpoints.ROTATION_MAX.total_seconds()),
        default=int(endpoints.ROTATION.total_seconds()),
        help_text="The secret before signs as well for so many seconds; 0: it does not.",
    )


class RedeliveryRequest(RequestSerializer):
    """Deliveries of a time, to be sent again."""

    after = serializers.DateTimeField(help_text="Created after.")
    before = serializers.DateTimeField(help_text="Created before.")
    status = serializers.ChoiceField(
        SETTLED_STATUSES,
        default=DeliveryStatus.GIVEN_UP.value,
    )


class RedeliverySerializer(serializers.Serializer):
    """The extent of a redelivery."""

    count = serializers.IntegerField(help_text="Deliveries that are sent again.")
    has_more = serializers.BooleanField(help_text="There are more: ask again.")


class DeliverySerializer(serializers.ModelSerializer):
    """A delivery."""

    message_id = serializers.CharField(help_text="Its id as the receiver sees it (`webhook-id`).")
    endpoint = serializers.UUIDField(source="endpoint_id")
    endpoint_name = serializers.CharField(source="endpoint.name")
    status = serializers.ChoiceField(DELIVERY_STATUSES)
    attempts = serializers.IntegerField(help_text="Attempts begun so far.")
    is_in_flight = serializers.SerializerMethodField()

    class Meta:
        model = Delivery
        fields = [
            "id",
            "message_id",
            "endpoint",
            "endpoint_name",
            "alert",
            "sequence",
            "notice_status",
            "severity",
            "rule",
            "job",
            "status",
            "is_in_flight",
            "attempts",
            "created_at",
            "next_at",
            "settled_at",
            "error",
        ]
        extra_kwargs = {
            "job": {"help_text": "The job's id; null: the alert is about none."},
            "next_at": {"help_text": "The next attempt's due time; null: there is none."},
            "error": {"help_text": "The last attempt's problem."},
        }
        read_only_fields = fields

    def get_is_in_flight(self, delivery: Delivery) -> bool:
        """Whether an attempt is under way."""
        return delivery.leased_until is not None


class DeliveryAttemptSerializer(serializers.ModelSerializer):
    """An attempt that has ended, with the endpoint's answer."""

    duration_ms = serializers.SerializerMethodField()
    headers = serializers.DictField(help_text="The answer's first headers.")

    class Meta:
        model = DeliveryAttempt
        fields = [
            "number",
            "began_at",
            "ended_at",
            "duration_ms",
            "outcome",
            "address",
            "status_code",
            "headers",
            "body",
            "error",
        ]
        extra_kwargs = {
            "began_at": {"help_text": "Null: its worker died."},
            "address": {"help_text": "The address that it connected to."},
            "status_code": {"help_text": "The answer's; null: there was none."},
            "body": {"help_text": "The begin of the answer's."},
        }
        read_only_fields = fields

    def get_duration_ms(self, attempt: DeliveryAttempt) -> float | None:
        """From its begin to its end."""
        if attempt.began_at is None:
            return None
        return (attempt.ended_at - attempt.began_at).total_seconds() * 1_000


class DeliveryRequestSerializer(serializers.Serializer):
    """A delivery as it is sent; secrets are stars."""

    to = serializers.CharField(help_text="The URL's origin, or the recipients.")
    headers = serializers.DictField(child=serializers.CharField())
    body = serializers.CharField()


class WholeDeliverySerializer(DeliverySerializer):
    """A delivery with its notice, its request and its newest attempts."""

    notice = serializers.DictField()
    request = serializers.SerializerMethodField()
    ended_attempts = serializers.SerializerMethodField()

    class Meta(DeliverySerializer.Meta):
        fields = [*DeliverySerializer.Meta.fields, "notice", "request", "ended_attempts"]
        read_only_fields = fields

    @extend_schema_field(DeliveryRequestSerializer(allow_null=True))
    def get_request(self, delivery: Delivery) -> dict[str, Any] | None:
        """The request without secrets and signatures; null: the endpoint is deleted."""
        request = shown.shown_request(delivery)
        return None if request is None else asdict(request)

    @extend_schema_field(DeliveryAttemptSerializer(many=True))
    def get_ended_attempts(self, delivery: Delivery) -> Any:
        """The newest attempts, the newest first."""
        return DeliveryAttemptSerializer(shown.newest_attempts(delivery), many=True).data
