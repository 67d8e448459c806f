"""Audit entries, and the one function that writes them."""

from typing import Any

from django.conf import settings
from django.contrib.auth.base_user import AbstractBaseUser
from django.db import models

from controlplane.base import clock, logs


class AuditEntry(models.Model):
    """One change. A null actor is the control plane itself."""

    at = models.DateTimeField()
    actor = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    actor_name = models.CharField(max_length=200)  # Kept when the account is deleted.
    action = models.CharField(max_length=64)  # E.g. "job.cancel".
    target = models.CharField(max_length=200, db_index=True)  # E.g. "job/flights-1a2b3c4d".
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    address = models.GenericIPAddressField(null=True)
    request_id = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["-at", "-id"]
        indexes = [models.Index(fields=["at", "id"])]
        verbose_name_plural = "audit entries"

    def __str__(self) -> str:
        return f"{self.actor_name}: {self.action} {self.target}"


def record(
    actor: AbstractBaseUser | None,
    action: str,
    target: str,
    *,
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
) -> AuditEntry:
    """Note a change, in the transaction that makes it.

    Address and request id come from the request under way (``controlplane.base.logs``), if any.
    """
    context = logs.current()
    return AuditEntry.objects.create(
        at=clock.now(),
        actor=actor,
        actor_name="control plane" if actor is None else actor.get_username(),
        action=action,
        target=target,
        before=before,
        after=after,
        address=context.get("address"),
        request_id=context.get("request_id", ""),
    )
