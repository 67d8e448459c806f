"""Filters of the lists of jobs, operations, attempts, drivers, subtasks and exceptions."""

from enum import StrEnum

import django_filters

from controlplane.base.filters import (
    ChoicesFilter,
    TrueOrFalseFilter,
    WholeNumberFilter,
    after,
    before,
)
from jobs.models import (
    DriverStatus,
    JobEventKind,
    OperationKind,
    OperationStatus,
    PipelineKind,
)
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
