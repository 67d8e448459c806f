"""Filters of the lists of jobs, operations, attempts, drivers, subtasks and exceptions."""

from enum import StrEnum

import django_filters
from django.db.models import QuerySet

from controlplane.base.rest.filters import (
    ChoicesFilter,
    LabelFilter,
    TrueOrFalseFilter,
    WholeNumberFilter,
    after,
    before,
)
from jobs.models import (
    Artifact,
    DriverStatus,
    Job,
    JobEventKind,
    OperationKind,
    OperationStatus,
    PipelineKind,
)
from jobs.uploads import UNUSED
from weir.protocol.lifecycle import JobStatus, SubtaskStatus


def choices(enum: type[StrEnum]) -> list[tuple[str, str]]:
    """The members of an enum as choices of a filter."""
    return [(member.value, member.value) for member in enum]


class JobFilter(django_filters.FilterSet):
    """The filters of jobs."""

    status = ChoicesFilter(choices(JobStatus))
    name = django_filters.CharFilter(
        lookup_expr="icontains", help_text="Part of the name, in any case."
    )
    pipeline_kind = ChoicesFilter(choices(PipelineKind))
    origin = django_filters.CharFilter(
        field_name="origin_id", help_text="The id of the job that they were forked from."
    )
    created_by = django_filters.CharFilter(
        field_name="created_by__username", help_text="The account's name."
    )
    created_after = after("created_at")
    created_before = before("created_at")
    label = LabelFilter()
    archived = TrueOrFalseFilter(
        field_name="archived_at",
        lookup_expr="isnull",
        exclude=True,
        help_text="`true`: archived jobs; else those that are not archived.",
    )

    def filter_queryset(self, queryset: QuerySet[Job]) -> QuerySet[Job]:
        """Jobs that pass all filters; archived ones only where ``archived`` is given."""
        if self.form.cleaned_data["archived"] is None:
            queryset = queryset.filter(archived_at=None)
        selected: QuerySet[Job] = super().filter_queryset(queryset)
        return selected


class OperationFilter(django_filters.FilterSet):
    """The filters of one job's operations."""

    status = ChoicesFilter(choices(OperationStatus))
    kind = ChoicesFilter(choices(OperationKind))
    requested_by = django_filters.CharFilter(
        field_name="requested_by__username", help_text="The account's name."
    )
    created_after = after("created_at")
    created_before = before("created_at")


class AnyOperationFilter(OperationFilter):
    """The filters of all jobs' operations."""

    job = django_filters.CharFilter(field_name="job_id", help_text="The job's id.")


class UploadFilter(django_filters.FilterSet):
    """The filters of uploads."""

    file_name = django_filters.CharFilter(
        lookup_expr="icontains", help_text="Part of the file's name, in any case."
    )
    uploaded_by = django_filters.CharFilter(
        field_name="uploaded_by__username", help_text="The account's name."
    )
    used = TrueOrFalseFilter(method="only_used", help_text="Whether a job runs it, or has run it.")

    def only_used(self, uploads: QuerySet[Artifact], name: str, value: bool) -> QuerySet[Artifact]:
        """Uploads that a job has, or those that none has."""
        return uploads.exclude(UNUSED) if value else uploads.filter(UNUSED)


class AttemptFilter(django_filters.FilterSet):
    """The filters of attempts."""

    driver = WholeNumberFilter(field_name="driver__number", help_text="The driver's number.")


class DriverFilter(django_filters.FilterSet):
    """The filters of drivers."""

    status = ChoicesFilter(choices(DriverStatus))


class SubtaskFilter(django_filters.FilterSet):
    """The filters of subtasks."""

    chain = django_filters.CharFilter(help_text="The uid of the chain's head.")
    status = ChoicesFilter(choices(SubtaskStatus))


class EventFilter(django_filters.FilterSet):
    """The filters of events."""

    kind = ChoicesFilter(JobEventKind.choices)
    planned = TrueOrFalseFilter(help_text="Whether a request, or the end of the input, led to it.")
    after = after("at")
    before = before("at")


class ExceptionFilter(django_filters.FilterSet):
    """The filters of exceptions."""

    kind = django_filters.CharFilter()
    attempt = WholeNumberFilter(field_name="attempt_number")
    after = after("at")
    before = before("at")
