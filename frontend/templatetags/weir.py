"""Formats for templates: the pages' own rules for numbers and times."""

from datetime import datetime

from django import template

from frontend import formatting

register = template.Library()


@register.filter
def moment(at: datetime | None) -> str:
    """A point in time in UTC."""
    return formatting.moment(at)


@register.filter
def iso(at: datetime | None) -> str:
    """A point in time for a ``datetime`` attribute."""
    return formatting.iso(at) or ""
