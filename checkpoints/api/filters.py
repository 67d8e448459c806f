"""Filters of the lists of checkpoints, savepoints and acknowledgements."""

import django_filters
from django.db.models import QuerySet

from checkpoints.models import Savepoint
from controlplane.base.rest.filters import (
    ChoicesFilter,
    LabelFilter,
    TrueOrFalseFilter,
    WholeNumberFilter,
    after,
    before,
)
from jobs.api.filters import choices
from weir.protocol.elements import CheckpointKind
from weir.protocol.lifecycle import CheckpointStatus, FailureReason

SAVEPOINT_KINDS = [one for one in choices(CheckpointKind) if one[0] != CheckpointKind.CHECKPOINT]


class CheckpointFilter(django_filters.FilterSet):
    """Filters for the checkpoints of one job."""

    status = ChoicesFilter(choices(CheckpointStatus))
    kind = ChoicesFilter(choices(CheckpointKind))
    reason = ChoicesFilter(choices(FailureReason))
    attempt = WholeNumberFilter()
    abandoned = TrueOrFalseFilter(
        field_name="abandoned_at",
        lookup_expr="isnull",
        exclude=True,
        help_text="Whether a rollback went behind it.",
    )
    triggered_after = after("triggered_at")
    triggered_before = before("triggered_at")


class AnyCheckpointFilter(CheckpointFilter):
    """Filters for the checkpoints of all jobs."""

    job = django_filters.CharFilter(field_name="job_id", help_text="The job's id.")


class SavepointFilter(django_filters.FilterSet):
    """Filters for the savepoints of one job; deleted ones only on request."""

    name = django_filters.CharFilter(lookup_expr="icontains", help_text="Part of the name.")
    kind = ChoicesFilter(SAVEPOINT_KINDS, field_name="checkpoint__kind")
    status = ChoicesFilter(choices(CheckpointStatus), field_name="checkpoint__status")
    label = LabelFilter()
    created_by = django_filters.CharFilter(
        field_name="created_by__username", help_text="The account's name."
    )
    created_after = after("created_at")
    created_before = before("created_at")
    deleted = TrueOrFalseFilter(
        method="only_deleted",
        help_text="`true`: deleted savepoints; else those that are not deleted.",
    )

    def only_deleted(
        self, savepoints: QuerySet[Savepoint], name: str, value: bool
    ) -> QuerySet[Savepoint]:
        """Savepoints that were deleted, or those that were not."""
        return savepoints.filter(deleted_at__isnull=not value)

    def filter_queryset(self, queryset: QuerySet[Savepoint]) -> QuerySet[Savepoint]:
        """Savepoints that pass all filters; deleted ones only where ``deleted`` is given."""
        if self.form.cleaned_data["deleted"] is None:
            queryset = queryset.filter(deleted_at__isnull=True)
        selected: QuerySet[Savepoint] = super().filter_queryset(queryset)
        return selected


class AnySavepointFilter(SavepointFilter):
    """Filters for the savepoints of all jobs."""

    job = django_filters.CharFilter(field_name="job_id", help_text="The job's id.")


class AckFilter(django_filters.FilterSet):
    """Filters for the acknowledgements of a checkpoint."""

    operator = django_filters.CharFilter(help_text="The operator's uid.")
    chain = django_filters.CharFilter(help_text="The uid of the chain's head.")
