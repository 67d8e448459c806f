"""Tallies of retention: what it removed so far, by kind and place."""

from django.db import models


class Tally(models.Model):
    """The work of one rule; for files that of one machine."""

    kind = models.CharField(max_length=40)  # Of controlplane.retention.rules.
    place = models.CharField(max_length=200, blank=True)  # A machine's name; empty: the database.
    removed = models.BigIntegerField(default=0)  # Rows or files, since the first start.
    removed_at = models.DateTimeField(null=True)
    looked_at = models.DateTimeField(null=True)
    counted_at = models.DateTimeField(null=True)  # When the limit by number was last applied.
    kept = models.BigIntegerField(null=True)  # Files.
    kept_bytes = models.BigIntegerField(null=True)  # Their size.
    problem = models.TextField(blank=True)  # Why the last look failed.

    class Meta:
        ordering = ["kind", "place"]
        constraints = [
            models.UniqueConstraint(fields=["kind", "place"], name="tally_kind_and_place"),
        ]

    def __str__(self) -> str:
        return f"{self.kind} {self.place}".strip()
