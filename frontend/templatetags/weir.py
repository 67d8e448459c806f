"""Formats for templates: the pages' own rules for numbers and times."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import template
from django.conf import settings
from django.templatetags.static import static

from controlplane.base import formatting

register = template.Library()


@register.simple_tag
def plotly_bundle() -> str:
    """The address of plotly.js."""
    return static(f"plotly/{settings.WEIR_PLOTLY.name}")


@register.filter
def moment(at: datetime | None) -> str:
    """A point in time in UTC."""
    return formatting.moment(at)


@register.filter
def iso(at: datetime | None) -> str:
    """A point in time for a ``datetime`` attribute."""
    return formatting.iso(at) or ""


@register.filter
def get(values: Mapping[str, Any], name: str) -> Any:
    """The entry of a name that is a template variable."""
    return values.get(name, "")
