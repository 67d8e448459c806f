"""Secrets as rows: their names, and their values encrypted."""

from django.conf import settings
from django.db import models

from weir.config import SECRET_NAME_LENGTH_MAX


class Secret(models.Model):
    """A named secret. ``encrypted`` is what ``encryption.encrypt`` made of name and value."""

    name = models.CharField(max_length=SECRET_NAME_LENGTH_MAX, primary_key=True)
    encrypted = models.BinaryField()
    created_at = models.DateTimeField()
    set_at = models.DateTimeField()  # The value's.
    set_by = models.ForeignKey(
        settings.AUTH_USER_MODEL, null=True, on_delete=models.SET_NULL, related_name="+"
    )
    set_by_name = models.CharField(max_length=200)  # Kept when the account is deleted.

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
