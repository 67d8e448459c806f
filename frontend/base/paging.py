"""Lists of the pages, filtered and paged as by the API.

The filters and the cursors are the API's own: a page and an API client see the same rows, and a
page costs the same wherever in the list it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.http import HttpRequest, QueryDict
from django_filters import FilterSet
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request

from controlplane.base.rest.pagination import Cursor, CursorPagination

_PLACE = ("cursor", "page_size", "ordering")


@dataclass(frozen=True, slots=True)
class Paged:
    """One page of a list."""

    rows: list[Any]
    older: str = ""  # The query of the next page; empty: this is the last one.
    newer: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)  # By filter; with any, no rows.
    is_lost: bool = False  # The cursor belongs to other filters; this is the first page.


class _Ordering:
    """The part of a view that ``CursorPagination`` reads: newest first, by one column."""

    def __init__(self, column: str, tie: str) -> None:
        self.orderings: Mapping[str, tuple[str, ...]] = {column: (column, tie)}
        self.default_ordering = f"-{column}"


def paged(
    request: HttpRequest,
    rows: QuerySet[Any],
    filters: type[FilterSet],
    column: str,
    tie: str = "id",
) -> Paged:
    """The page that the request's query selects, newest first. One query.

    Args:
        column: The time by which rows are sorted.
        tie: The unique column by which those of the same time are.
    """
    given = without_empty(request.GET)
    wanted = filters(data=given, queryset=rows)
    if not wanted.is_valid():
        said = {name: " ".join(errors) for name, errors in wanted.form.errors.items()}
        return Paged([], errors=said)
    view = _Ordering(column, tie)
    request.GET = given  # type: ignore[assignment]
    pages, is_lost = CursorPagination(), False
    try:
        chosen = pages.paginate_queryset(wanted.qs, Request(request), view)
    except ValidationError:  # The cursor is from an old link, or was edited.
        for name in _PLACE:
            given.pop(name, None)
        pages, is_lost = CursorPagination(), True
        chosen = pages.paginate_queryset(wanted.qs, Request(request), view)
    return Paged(
        list(chosen),
        _query(given, filters, pages.next),
        _query(given, filters, pages.previous),
        is_lost=is_lost,
    )


def without_empty(query: QueryDict) -> QueryDict:
    """The query without its empty values: a form sends those of fields that are not filled in."""
    given = query.copy()
    for name, values in query.lists():
        given.setlist(name, [value for value in values if value])
        if not given.getlist(name):
            del given[name]
    return given


def _query(given: QueryDict, filters: type[FilterSet], cursor: Cursor | None) -> str:
    """The query with the same filters and another cursor."""
    if cursor is None:
        return ""
    kept = {name: values for name, values in given.lists() if name in filters.base_filters}
    return "?" + urlencode(kept | {"cursor": [cursor.encode()]}, doseq=True)
