"""Filters that the API's lists share."""

from datetime import UTC
from typing import TYPE_CHECKING, Any

import django_filters
import django_filters.rest_framework
from django import forms
from django.core.exceptions import ValidationError
from django.db.models import Model, QuerySet
from rest_framework import exceptions
from rest_framework.request import Request

if TYPE_CHECKING:  # REST framework reads its settings, which name this module, on import.
    from rest_framework.views import APIView


class FilterBackend(django_filters.rest_framework.DjangoFilterBackend):
    """The filters of a view; a filter without a value is refused, not ignored."""

    def filter_queryset(
        self, request: Request, queryset: QuerySet[Model], view: "APIView"
    ) -> QuerySet[Model]:
        """The rows that all filters let pass.

        Raises:
            ValidationError: A filter's value is not valid.
        """
        filters = self.get_filterset_class(view, queryset)
        for name, one in filters.base_filters.items() if filters else ():
            if not isinstance(one, django_filters.CharFilter) and "" in (
                request.query_params.getlist(name)
            ):
                raise exceptions.ValidationError({name: "Give a value, or leave the filter out."})
        selected: QuerySet[Any] = super().filter_queryset(request, queryset, view)
        return selected


class _MomentField(django_filters.fields.IsoDateTimeField):
    def clean(self, value: Any) -> Any:
        try:
            moment = super().clean(value)
            # PostgreSQL reads offsets up to 16 hours only; Python's, up to 24, are valid ISO 8601.
            return moment and moment.astimezone(UTC)
        except (OverflowError, ValueError) as error:  # Near the ends of time.
            raise ValidationError(
                "Out of range: give a point in time within the years 1 to 9999 of UTC."
            ) from error


class _TrueOrFalseField(forms.Field):
    def to_python(self, value: Any) -> bool | None:
        if value in self.empty_values:
            return None
        if value not in ("true", "false"):
            raise ValidationError("Give true or false.")
        return bool(value == "true")


class TrueOrFalseFilter(django_filters.BooleanFilter):
    """`true` or `false`, and nothing else."""

    field_class = _TrueOrFalseField


class WholeNumberFilter(django_filters.NumberFilter):
    """A filter that takes a whole number."""

    field_class = forms.IntegerField


class MomentFilter(django_filters.IsoDateTimeFilter):
    """A filter that takes a point in time, ISO 8601."""

    field_class = _MomentField


def after(column: str) -> MomentFilter:
    """A filter for rows at a point in time or later."""
    return MomentFilter(field_name=column, lookup_expr="gte", help_text="At this time or later.")


def before(column: str) -> MomentFilter:
    """A filter for rows before a point in time."""
    return MomentFilter(field_name=column, lookup_expr="lt", help_text="Earlier than this time.")


def with_label(rows: QuerySet[Any], name: str, value: str) -> QuerySet[Any]:
    """The rows with a label `name`, or with one of this name and text, `name:text`."""
    label, has_text, text = value.partition(":")
    if has_text:
        return rows.filter(labels__contains={label: text})
    return rows.filter(labels__has_key=label)


class LabelFilter(django_filters.CharFilter):
    """A filter by a label."""

    def __init__(self) -> None:
        super().__init__(
            method=with_label, help_text="A label's name, or `name:text` for one with that text."
        )


class ChoicesFilter(django_filters.MultipleChoiceFilter):
    """A filter that takes several choices: `?status=running&status=failing`."""

    def __init__(self, choices: list[tuple[str, str]], **options: Any) -> None:
        super().__init__(
            choices=choices,
            help_text="May be given several times; rows that match any of them.",
            **options,
        )
