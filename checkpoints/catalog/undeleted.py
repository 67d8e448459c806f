"""Checkpoints whose files cannot be deleted, though nothing needs them: the storage grows."""

from typing import TypedDict

from django.db.models import Count, JSONField, Max, OuterRef, QuerySet, Subquery
from django.db.models.functions import JSONObject

from checkpoints.models import Checkpoint

# The fourth begins a quarter of a minute after the first: a storage that was away for a moment is
# no news.
TRIES_MIN = 4


class Undeleted(TypedDict):
    """A job's checkpoints whose files could not be deleted in several tries."""

    count: int
    cause: str  # Of one of them; empty while all of them are tried again.


def undeleted() -> QuerySet[Checkpoint]:
    """All such checkpoints."""
    due = Checkpoint.objects.filter(discard_due_at__isnull=False)
    return due.filter(discard_tries__gte=TRIES_MIN).order_by()


def undeleted_of_job() -> Subquery:
    """Those of the job of the outer query, as ``Undeleted``; null: it has none."""
    own = undeleted().filter(job=OuterRef("pk")).values("job")
    told = JSONObject(count=Count("pk"), cause=Max("discard_error"))
    return Subquery(own.annotate(told=told).values("told"), output_field=JSONField())
