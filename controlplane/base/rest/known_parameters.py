"""The refusal of unknown query parameters of the API: a typo must not go unnoticed.

A view's parameters are those of its filters, its orderings and its pages, from which the OpenAPI
document takes them as well, and the fields of its ``query_class``. A view that reads others names
them in ``query_parameters``.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.settings import api_settings

from controlplane.base.errors import Invalid
from controlplane.base.rest.pagination import Ordering

if TYPE_CHECKING:  # REST framework reads its settings, which name this module, on import.
    from rest_framework.views import APIView


def known_parameters(view: "type[APIView]", method: str) -> list[str]:
    """The names of the query parameters that a method of a view reads, in order."""
    return sorted(set(_known(view, method)))


def _known(view: "type[APIView]", method: str) -> Iterator[str]:
    if len(view.renderer_classes) > 1:
        yield str(api_settings.URL_FORMAT_OVERRIDE)
    if method != "GET":
        return
    yield from getattr(view, "query_parameters", ())
    if (query := getattr(view, "query_class", None)) is not None:
        yield from query().fields
    backends = getattr(view, "filter_backends", ())
    if any(issubclass(backend, DjangoFilterBackend) for backend in backends):
        filters = getattr(view, "filterset_class", None)
        yield from filters.base_filters if filters is not None else ()
    pages = getattr(view, "pagination_class", None)
    sources = [backend() for backend in backends if issubclass(backend, Ordering)]
    for source in [*sources, *([pages()] if pages is not None else [])]:
        for parameter in source.get_schema_operation_parameters(view):
            yield parameter["name"]


class KnownParameters(BasePermission):
    """The check of each request to the API, once its sender and their role are known."""

    def has_permission(self, request: Request, view: "APIView") -> bool:
        """Refuse a request whose query has a name that its view does not read.

        Raises:
            Invalid: It has one; the message names those that the view reads.
        """
        method = "GET" if request.method == "HEAD" else request.method or ""
        if not request.query_params or not hasattr(view, method.lower()):
            return True  # A method that the view does not have is 405.
        known = known_parameters(type(view), method)
        unknown = sorted(set(request.query_params) - set(known))
        if not unknown:
            return True
        said = f"There is no such query parameter here; those known are: {', '.join(known)}."
        if not known:
            said = "There is no such query parameter here; this request takes none."
        names = ", ".join(unknown)
        raise Invalid(f"{names}: {said}", errors={name: [said] for name in unknown})
