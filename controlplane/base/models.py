"""Rows that belong to the control plane as a whole."""

from django.db import models
from django.db.models import Q


class ClockCorrection(models.Model):
    """The correction of the database's clock after it was moved: ``controlplane.base.clock``.

    There is one row, written by the first ``look``.

    Units: seconds; points in time are the database's own clock, moved or not.
    """

    id = models.SmallIntegerField(primary_key=True, default=1)
    number = models.BigIntegerField(default=0)  # Grows with every correction.
    offset_s = models.FloatField(default=0.0)  # Added to the database's clock; shrinks from
    since = models.DateTimeField()  # this moment on.
    looked_at = models.DateTimeField()  # When a process last saw that the clock went steadily.

    class Meta:
        app_label = "controlplane"
        constraints = [
            models.CheckConstraint(condition=Q(id=1), name="clock_correction_single"),
        ]

    def __str__(self) -> str:
        return f"correction {self.number}: {self.offset_s:+.1f} s"
