"""Rows of deliveries.

::

    Endpoint ──< Delivery ──< DeliveryAttempt

A delivery has its notice as JSON (``notice.Notice``), so that it is sent as it was posted, though
the alert has changed since. An endpoint that is deleted keeps its row, without its secrets, as long
as deliveries name it.
"""

import uuid
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q

from controlplane.deliveries.machine import DeliveryStatus, Health
from controlplane.deliveries.notice import ID_LENGTH_MAX, NAME_LENGTH_MAX, SEVERITIES, STATUSES
from controlplane.deliveries.receivers import KINDS

ENDPOINT_KINDS = [(kind, kind) for kind in KINDS]
NOTICE_STATUSES: list[tuple[str, str]] = [(status, status) for status in STATUSES]
NOTICE_SEVERITIES: list[tuple[str, str]] = [(severity, severity) for severity in SEVERITIES]
DELIVERY_STATUSES = [(status.value, status.value) for status in DeliveryStatus]
OUTCOMES = [(word, word) for word in ("delivered", "failed", "interrupted")]
ERROR_LENGTH_MAX = 500
PENDING = DeliveryStatus.PENDING.value


class Endpoint(models.Model):
    """A receiver outside: its kind, its address, and how it has done so far."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(max_length=100)
    kind = models.CharField(max_length=24, choices=ENDPOINT_KINDS)
    description = models.CharField(max_length=500, blank=True)
    origin = models.CharField(max_length=300, blank=True)  # Scheme, host and port of its URL.
    recipients = models.JSONField(default=list)  # Addresses of e-mail.
    sealed = models.BinaryField(default=bytes)  # URL and secrets, encrypted: ``sealing``.
    secret_set_at = models.DateTimeField(null=True)  # Of the signing secret.
    previous_secret_until = models.DateTimeField(null=True)  # The one before it signs as well.
    # An internal address, or plain HTTP, is allowed.
    allow_internal = models.BooleanField(default=False)
    created_at = models.DateTimeField()
    changed_at = models.DateTimeField()
    created_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    created_by_name = models.CharField(max_length=200)  # Kept when the account is deleted.
    deleted_at = models.DateTimeField(null=True)

    is_enabled = models.BooleanField(default=True)
    disabled_at = models.DateTimeField(null=True)
    disabled_reason = models.CharField(max_length=300, blank=True)  # Empty: a person disabled it.
    admins_told_at = models.DateTimeField(null=True)  # Of an endpoint that Weir disabled.

    # machine.Health
    failures = models.PositiveIntegerField(default=0)
    failed_at = models.DateTimeField(null=True)
    failing_since = models.DateTimeField(null=True)
    held_until = models.DateTimeField(null=True)

    # Counts since the endpoint exists; rows of deliveries are deleted after a while.
    delivered_at = models.DateTimeField(null=True)  # The last time.
    delivered_count = models.PositiveBigIntegerField(default=0)
    given_up_count = models.PositiveBigIntegerField(default=0)
    failed_attempts = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["name"]
        constraints = [
            models.UniqueConstraint(
                fields=["name"], condition=Q(deleted_at=None), name="endpoint_name"
            ),
            models.CheckConstraint(
                condition=Q(deleted_at=None) | Q(is_enabled=False), name="endpoint_deleted_disabled"
            ),
            models.CheckConstraint(condition=Q(kind__in=list(KINDS)), name="endpoint_kind"),
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def health(self) -> Health:
        """The columns of its health as the machine's value."""
        return Health(self.failures, self.failed_at, self.failing_since, self.held_until)

    @health.setter
    def health(self, health: Health) -> None:
        self.failures, self.failed_at = health.failures, health.failed_at
        self.failing_since, self.held_until = health.failing_since, health.held_until

    @property
    def state(self) -> str:
        """``disabled``, ``failing`` or ``ok``."""
        if not self.is_enabled:
            return "disabled"
        return "failing" if self.failures else "ok"


class Delivery(models.Model):
    """One notice for one endpoint."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    endpoint = models.ForeignKey(
        Endpoint, on_delete=models.PROTECT, related_name="deliveries", db_index=False
    )
    alert = models.CharField(max_length=ID_LENGTH_MAX)
    sequence = models.PositiveIntegerField()
    notice = models.JSONField()
    # Parts of the notice by which lists are filtered.
    notice_status = models.CharField(max_length=16, choices=NOTICE_STATUSES)
    severity = models.CharField(max_length=16, choices=NOTICE_SEVERITIES)
    rule = models.CharField(max_length=NAME_LENGTH_MAX)
    job = models.CharField(max_length=NAME_LENGTH_MAX, null=True)
    created_at = models.DateTimeField()

    status = models.CharField(
        max_length=16, choices=DELIVERY_STATUSES, default=DeliveryStatus.PENDING
    )
    queued_at = models.DateTimeField()  # By ``post``, or by the last redelivery.
    next_at = models.DateTimeField(null=True)  # The next attempt's due time, while it is pending.
    leased_until = models.DateTimeField(null=True)  # In flight; if its worker dies, until then.
    attempts = models.PositiveIntegerField(default=0)  # Begun ones; the number of the last.
    tries = models.PositiveIntegerField(default=0)  # Attempts since ``queued_at``.
    settled_at = models.DateTimeField(null=True)
    error = models.CharField(max_length=ERROR_LENGTH_MAX, blank=True)  # Of the last attempt.

    class Meta:
        ordering = ["-created_at", "-id"]
        verbose_name_plural = "deliveries"
        indexes = [
            models.Index(fields=["next_at"], condition=Q(status=PENDING), name="delivery_due"),
            models.Index(
                fields=["endpoint", "alert", "sequence"],
                condition=Q(status=PENDING),
                name="delivery_lines",
            ),
            models.Index(
                fields=["endpoint", "leased_until"],
                condition=Q(status=PENDING, leased_until__isnull=False),
                name="delivery_flights",
            ),
            models.Index(fields=["created_at", "id"], name="delivery_created"),
            models.Index(fields=["endpoint", "created_at", "id"], name="delivery_of_endpoint"),
            models.Index(fields=["alert", "created_at", "id"], name="delivery_of_alert"),
            models.Index(
                fields=["job", "created_at", "id"],
                condition=Q(job__isnull=False),
                name="delivery_of_job",
            ),
        ]
        constraints = [
            models.UniqueConstraint(
                fields=["endpoint", "alert", "sequence"], name="delivery_once_each"
            ),
            models.CheckConstraint(
                condition=Q(status__in=[status.value for status in DeliveryStatus]),
                name="delivery_status",
            ),
            models.CheckConstraint(
                condition=Q(status=PENDING, next_at__isnull=False, settled_at=None)
                | (
                    Q(next_at=None, leased_until=None, settled_at__isnull=False)
                    & ~Q(status=PENDING)
                ),
                name="delivery_pending_or_settled",
            ),
        ]

    def __str__(self) -> str:
        return self.message_id

    @property
    def message_id(self) -> str:
        """The id that the receiver sees, the same over all attempts."""
        return f"msg_{self.id.hex}"

    def is_flying(self, now: datetime) -> bool:
        """Whether an attempt is under way."""
        return self.leased_until is not None and now < self.leased_until


class DeliveryAttempt(models.Model):
    """One attempt that has ended."""

    delivery = models.ForeignKey(
        Delivery, on_delete=models.CASCADE, related_name="ended_attempts", db_index=False
    )
    number = models.PositiveIntegerField()
    began_at = models.DateTimeField(null=True)  # Null: its worker died, and the time with it.
    ended_at = models.DateTimeField()
    outcome = models.CharField(max_length=16, choices=OUTCOMES)
    address = models.CharField(max_length=64, blank=True)  # The checked one it connected to.
    status_code = models.PositiveSmallIntegerField(null=True)  # Of the answer, if there was one.
    headers = models.JSONField(default=dict)  # The answer's, bounded.
    body = models.TextField(blank=True)  # The begin of the answer's.
    error = models.CharField(max_length=ERROR_LENGTH_MAX, blank=True)

    class Meta:
        ordering = ["delivery", "number"]
        constraints = [
            models.UniqueConstraint(fields=["delivery", "number"], name="delivery_attempt_number"),
            models.CheckConstraint(
                condition=Q(outcome__in=[word for word, _ in OUTCOMES]),
                name="delivery_attempt_outcome",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.delivery_id}#{self.number}"
