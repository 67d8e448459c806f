"""Middleware that refuses unknown query parameters of the API: a typo must not go unnoticed.

A view's parameters are those of its filters, its orderings and its pages, from which the OpenAPI
document takes them as well, and the fields of its ``query_class``. A view that reads others names
them in ``query_parameters``.
"""

from collections.abc import Callable, Iterator
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django_filters.rest_framework import DjangoFilterBackend
from rest_framework.exceptions import APIException
from rest_framework.permissions import AllowAny
from rest_framework.settings import api_settings
from rest_framework.views import APIView

from controlplane.base import problems
from controlplane.base.errors import Invalid
from controlplane.base.pagination import Ordering
from controlplane.base.requests import API_PREFIX


def known_parameters(view: type[APIView], method: str) -> list[str]:
    """The names of the query parameters that a method of a view reads, in order."""
    return sorted(set(_known(view, method)))


def _known(view: type[APIView], method: str) -> Iterator[str]:
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


def _may_ask(view: type[APIView], request: HttpRequest) -> bool:
    """Whether a request is one of a known account, or one that needs none.

    Any other is the view's to refuse (401), as it is without a query.
    """
    if AllowAny in view.permission_classes:
        return True
    try:
        return bool(view().initialize_request(request).user.is_authenticated)
    except APIException:
        return False


class KnownParametersMiddleware:
    """The check of each request to a view of the API, before the view runs."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response to a request."""
        return self._get_response(request)

    def process_view(
        self,
        request: HttpRequest,
        view_func: Callable[..., HttpResponseBase],
        view_args: tuple[Any, ...],
        view_kwargs: dict[str, Any],
    ) -> HttpResponse | None:
        """Refuse a request whose query has a name that its view does not read."""
        view = getattr(view_func, "cls", None)
        if not (isinstance(view, type) and issubclass(view, APIView)):
            return None
        if not (request.GET and request.path.startswith(API_PREFIX)):
            return None
        method = "GET" if request.method == "HEAD" else request.method or ""
        if not hasattr(view, method.lower()):
            return None  # 405, by the view.
        known = known_parameters(view, method)
        unknown = sorted(set(request.GET) - set(known))
        if not unknown or not _may_ask(view, request):
            return None
        said = f"There is no such query parameter here; those known are: {', '.join(known)}."
        if not known:
            said = "There is no such query parameter here; this request takes none."
        names = ", ".join(unknown)
        refused = Invalid(f"{names}: {said}", errors={name: [said] for name in unknown})
        return problems.of_refusal(request, refused)
