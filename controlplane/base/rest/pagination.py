"""Pages by position: each begins after the last row of the one before, also when rows are added.

A view names its ``orderings``: for each name that ``?ordering=`` may have, the columns to sort by.
Together they have to be unique, not null and lead an index, so that a page costs the same wherever
it is and rows with equal times are neither skipped nor shown twice. All columns of an ordering are
sorted in one direction; ``-name`` is the opposite one.
"""

import base64
import binascii
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar, runtime_checkable

from django.core.exceptions import FieldDoesNotExist, ValidationError
from django.db.models import Field, Model, Q, QuerySet
from rest_framework import exceptions
from rest_framework.filters import BaseFilterBackend
from rest_framework.pagination import BasePagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

if TYPE_CHECKING:  # REST framework reads its settings, which name this module, on import.
    from rest_framework.views import APIView

PAGE_SIZE = 50
PAGE_SIZE_MAX = 200
CURSOR_LENGTH_MAX = 2_000

_Model = TypeVar("_Model", bound=Model)
_Row = TypeVar("_Row")


@runtime_checkable
class OrderedView(Protocol):
    """The part of a view that its pages read."""

    @property
    def orderings(self) -> Mapping[str, Sequence[str]]:
        """The columns to sort by, for each name that ``?ordering=`` may have."""

    @property
    def default_ordering(self) -> str:
        """The ordering of a request that names none."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place between two rows: after the row with these ``values``, or before it."""

    ordering: str
    values: tuple[Any, ...]
    is_backward: bool = False

    def encode(self) -> str:
        """The cursor as text for a link."""
        text = json.dumps(
            [self.ordering, int(self.is_backward), *self.values],
            default=str,  # Of times to the microsecond, which Django's encoder cuts off.
            separators=(",", ":"),
        )
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> "Cursor":
        """The cursor of a link; its values are still JSON's.

        Raises:
            ValueError: The text is no cursor.
        """
        if len(text) > CURSOR_LENGTH_MAX:
            raise ValueError("too long")
        try:
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            ordering, is_backward, *values = json.loads(raw)
        except (binascii.Error, RecursionError, TypeError) as error:
            raise ValueError("malformed") from error
        is_plain = all(isinstance(value, str | int | float) for value in values)
        if not isinstance(ordering, str) or is_backward not in (0, 1) or not is_plain:
            raise ValueError("malformed")
        return cls(ordering, tuple(values), bool(is_backward))


class Ordering(BaseFilterBackend):
    """``?ordering=``: one of the view's ``orderings``, reversed by a minus."""

    parameter: ClassVar[str] = "ordering"

    def filter_queryset(
        self, request: Request, queryset: QuerySet[_Model, _Row], view: "APIView"
    ) -> QuerySet[_Model, _Row]:
        """Refuse an unknown ordering; the page does the sorting."""
        assert isinstance(view, OrderedView)
        self.chosen(request, view)
        return queryset

    def chosen(self, request: Request, view: OrderedView) -> str:
        """The ordering asked for, else the view's ``default_ordering``."""
        given = request.query_params.get(self.parameter, view.default_ordering)
        if given.removeprefix("-") not in view.orderings:
            known = ", ".join(self._names(view))
            raise exceptions.ValidationError(
                {self.parameter: f"Unknown ordering {given!r}; give one of {known}."}
            )
        return given

    def get_schema_operation_parameters(self, view: "APIView") -> list[dict[str, Any]]:
        """For the OpenAPI document."""
        if not isinstance(view, OrderedView) or not view.orderings:
            return []
        return [
            {
                "name": self.parameter,
                "in": "query",
                "required": False,
                "description": "The column to sort by; a minus reverses the order.",
                "schema": {
                    "type": "string",
                    "enum": self._names(view),
                    "default": view.default_ordering,
                },
            }
        ]

    @staticmethod
    def _names(view: OrderedView) -> list[str]:
        return [sign + name for name in view.orderings for sign in ("", "-")]


class Page(BasePagination):
    """The base of all pages: their parameters, their links and the shape of the response."""

    def begin(self, request: Request, view: OrderedView) -> None:
        """Read the parameters.

        Raises:
            ValidationError: A parameter is not valid.
        """
        self.url = request.build_absolute_uri()
        self.ordering = Ordering().chosen(request, view)
        self.size = self._size(request)
        self.columns = view.orderings[self.ordering.removeprefix("-")]
        self.cursor: Cursor | None = None
        if given := request.query_params.get("cursor"):
            try:
                self.cursor = Cursor.decode(given)
                if self.cursor.ordering != self.ordering:
                    raise ValueError("for another ordering")
                if len(self.cursor.values) != len(self.columns):
                    raise ValueError("malformed")
            except ValueError as error:
                raise bad_cursor(str(error)) from error

    @property
    def is_descending(self) -> bool:
        """Whether the rows of this page are read from the largest on."""
        is_backward = self.cursor is not None and self.cursor.is_backward
        return self.ordering.startswith("-") != is_backward

    def end(self, rows: list[Any], position: Any) -> list[Any]:
        """The page's rows in order, from up to ``size + 1`` rows as they were read.

        Args:
            rows: Beginning at the cursor, in the direction of reading.
            position: Maps a row to its values in the ordering's columns.
        """
        more, rows = len(rows) > self.size, rows[: self.size]
        is_backward = self.cursor is not None and self.cursor.is_backward
        if is_backward:
            rows.reverse()
        has_next = bool(rows) and (is_backward or more)
        has_previous = bool(rows) and (more if is_backward else self.cursor is not None)
        self.next = Cursor(self.ordering, position(rows[-1])) if has_next else None
        self.previous = Cursor(self.ordering, position(rows[0]), True) if has_previous else None
        return rows

    def get_paginated_response(self, data: Any) -> Response:
        """The response: the rows, and links to the pages before and after."""
        return Response(
            {"next": self._link(self.next), "previous": self._link(self.previous), "results": data}
        )

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """For the OpenAPI document."""
        link = {"type": ["string", "null"], "format": "uri"}
        return {
            "type": "object",
            "required": ["next", "previous", "results"],
            "properties": {
                "next": link | {"description": "The page after this one; null at the end."},
                "previous": link
                | {"description": "The page before this one; null at the beginning."},
                "results": schema,
            },
        }

    def get_schema_operation_parameters(self, view: "APIView") -> list[dict[str, Any]]:
        """For the OpenAPI document."""
        return [
            {
                "name": "cursor",
                "in": "query",
                "required": False,
                "description": "The position of the page, taken from the links of another page.",
                "schema": {"type": "string", "maxLength": CURSOR_LENGTH_MAX},
            },
            {
                "name": "page_size",
                "in": "query",
                "required": False,
                "description": "The number of rows per page.",
                "schema": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": PAGE_SIZE_MAX,
                    "default": PAGE_SIZE,
                },
            },
        ]

    def _size(self, request: Request) -> int:
        given = request.query_params.get("page_size")
        if given is None:
            return PAGE_SIZE
        if not (given.isascii() and given.isdecimal() and len(given) < 10):
            raise exceptions.ValidationError({"page_size": "Give a whole number."})
        if not 1 <= int(given) <= PAGE_SIZE_MAX:
            raise exceptions.ValidationError(
                {"page_size": f"Give a number between 1 and {PAGE_SIZE_MAX}."}
            )
        return int(given)

    def _link(self, cursor: Cursor | None) -> str | None:
        if cursor is None:
            return None
        return replace_query_param(self.url, "cursor", cursor.encode())


class CursorPagination(Page):
    """Pages of a QuerySet by cursor."""

    def paginate_queryset(
        self, queryset: QuerySet[Any], request: Request, view: "APIView | OrderedView | None" = None
    ) -> list[Any]:
        """The rows of the page that the request asks for."""
        assert isinstance(view, OrderedView)
        self.begin(request, view)
        if self.cursor is not None:
            values = _typed(queryset.model, self.columns, self.cursor.values)
            queryset = queryset.filter(_beyond(self.columns, values, self.is_descending))
        sign = "-" if self.is_descending else ""
        ordered = queryset.order_by(*(sign + column for column in self.columns))
        return self.end(list(ordered[: self.size + 1]), self._position)

    def _position(self, row: Model) -> tuple[Any, ...]:
        return tuple(getattr(row, column) for column in self.columns)


def bad_cursor(why: str) -> exceptions.ValidationError:
    """The error for a cursor that does not fit; ``why`` completes "This cursor is"."""
    return exceptions.ValidationError(
        {"cursor": f"This cursor is {why}; take one from the links of a page with these filters."}
    )


def _typed(model: type[Model], columns: Sequence[str], values: Sequence[Any]) -> list[Any]:
    typed = []
    for column, value in zip(columns, values, strict=True):
        if isinstance(value, str) and "\0" in value:
            raise bad_cursor("malformed")
        try:
            field = model._meta.get_field(column)
            assert isinstance(field, Field)  # A column: never the other end of a relation.
            # ``clean`` checks the range too: PostgreSQL refuses to compare with a value beyond it.
            value = field.clean(value, None)
            if isinstance(value, datetime):
                value = _in_utc(value)
        except (ValidationError, FieldDoesNotExist, TypeError, ValueError, OverflowError) as error:
            raise bad_cursor("malformed") from error
        typed.append(value)
    return typed


def _in_utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError("without an offset")
    return moment.astimezone(UTC)


def _beyond(columns: Sequence[str], values: Sequence[Any], is_descending: bool) -> Q:
    """Rows after these values, compared as a tuple."""
    comparison = "lt" if is_descending else "gt"
    condition = Q()
    equal: Mapping[str, Any] = {}
    for column, value in zip(columns, values, strict=True):
        condition |= Q(**equal, **{f"{column}__{comparison}": value})
        equal = {**equal, column: value}
    if len(columns) > 1:
        # Implied by the rest, but it lets PostgreSQL enter the index where the page begins.
        condition &= Q(**{f"{columns[0]}__{comparison}e": values[0]})
    return condition
