"""Rows of the pages themselves: the filters that accounts have saved."""

from django.conf import settings
from django.db import models

NAME_LENGTH_MAX = 60


class SavedFilter(models.Model):
    """A name that an account has given to filters of the overview."""

    user = models.ForeignKey(
        settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="saved_filters"
    )
    name = models.CharField(max_length=NAME_LENGTH_MAX)
    # As frontend.overview.filters writes it, which bounds it.
    query = models.TextField()
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["name", "id"]
        constraints = [
            models.UniqueConstraint(fields=["user", "name"], name="saved_filter_name"),
        ]

    def __str__(self) -> str:
        return f"{self.name} of {self.user_id}"
