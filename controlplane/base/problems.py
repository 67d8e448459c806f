"""Every error of the API as a problem document (RFC 9457), from services, views and middleware.

A document has ``type``, ``title``, ``status``, ``detail`` and ``instance``, a ``code`` that does
not change between versions, the ``request_id`` under which the log has more, and for an invalid
request ``errors``: the messages by field, nested fields joined by dots.
"""

import logging
import sys
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from django.core.exceptions import PermissionDenied, RequestDataTooBig
from django.db import InterfaceError, OperationalError
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.template.loader import get_template
from django.views import defaults
from redis.exceptions import OutOfMemoryError, RedisError
from rest_framework import exceptions

from controlplane.base import logs, server_losses, unusable_database
from controlplane.base.errors import DiskFull, Refusal, TooLarge, is_disk_full
from controlplane.base.limits.throttling import AnonymousThrottle

CONTENT_TYPE = "application/problem+json"
TYPE_PREFIX = "urn:weir:problem:"  # A name, not an address; the code follows.
DATABASE_RETRY_AFTER_S = 2
_API_PREFIX = "/api/"
# By SQLSTATE, PostgreSQL's class 53.
_DATABASE_FULL = {
    "53100": "the disk of PostgreSQL",
    "53200": "the memory of PostgreSQL",
}

logger = logging.getLogger(__name__)


def problem(
    request: HttpRequest | None,
    status: int,
    code: str,
    title: str,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    **extra: Any,
) -> JsonResponse:
    """The response with a problem document; ``extra`` are further members of it."""
    document: dict[str, Any] = {
        "type": TYPE_PREFIX + code,
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
    }
    if request is not None:
        document["instance"] = request.path
    if request_id := logs.current().get("request_id"):
        document["request_id"] = request_id
    return JsonResponse(
        document | extra, status=status, content_type=CONTENT_TYPE, headers=dict(headers or {})
    )


def of_refusal(
    request: HttpRequest | None, refusal: Refusal, headers: Mapping[str, str] | None = None
) -> JsonResponse:
    """A service's refusal as a response."""
    return problem(
        request,
        refusal.status,
        refusal.code,
        refusal.title,
        refusal.detail,
        headers=headers,
        **refusal.extra,
    )


def exception_handler(error: Exception, context: Mapping[str, Any]) -> HttpResponse:
    """Turn any exception of a view into a response; REST framework calls this."""
    request = context["request"]
    if isinstance(error, exceptions.NotAuthenticated | exceptions.AuthenticationFailed):
        throttle = AnonymousThrottle()
        if not throttle.allow_request(request, context["view"]):
            error = exceptions.Throttled(throttle.wait())
    return of_exception(getattr(request, "_request", request), error)


def of_exception(request: HttpRequest | None, error: BaseException) -> JsonResponse:
    """Any exception as a response; an unexpected one is logged with its traceback."""
    if (full := disk_full(error)) is not None:
        return of_refusal(request, full)
    match error:
        case Refusal():
            return of_refusal(request, error)
        case exceptions.ValidationError():
            errors = dict(_by_field(error.detail))
            return problem(
                request,
                400,
                "invalid",
                "Invalid request",
                "; ".join(f"{name}: {' '.join(said)}" for name, said in errors.items()),
                errors=errors,
            )
        case exceptions.APIException():
            return _of_api_exception(request, error)
        case Http404():
            return problem(
                request, 404, "not_found", "Not found", "There is nothing at this address."
            )
        case PermissionDenied():
            return problem(
                request,
                403,
                "permission_denied",
                "Not allowed",
                str(error) or "This account is not allowed to do that.",
            )
        case RequestDataTooBig():
            return of_refusal(request, TooLarge(str(error)))
        case OperationalError() | InterfaceError():
            logger.warning("the database did not answer: %s", error)
            server_losses.note_database_error(error)
            said = "could not be reached or ended the query"
            if isinstance(error, unusable_database.UnusableDatabase):
                said = error.said
            return problem(
                request,
                503,
                "database_unavailable",
                "The database is unavailable",
                f"The database {said}; try again in a moment.",
                headers={"Retry-After": str(DATABASE_RETRY_AFTER_S)},
            )
        case _:
            asked = "a request" if request is None else f"{request.method} {request.path}"
            logger.error("%s failed", asked, exc_info=error)
            return problem(
                request,
                500,
                "internal_error",
                "Internal error",
                "The control plane failed; its log has the traceback under this request_id.",
            )


def disk_full(error: BaseException) -> DiskFull | None:
    """The refusal for an error that says that a disk or a server's memory is full, logged.

    That is of this machine, of PostgreSQL (disk_full, out_of_memory) or of Redis (OOM, MISCONF).
    """
    if is_disk_full(error):
        where = "a disk of the control plane"
    elif (
        isinstance(error, OperationalError)
        and (code := unusable_database.sqlstate(error)) in _DATABASE_FULL
    ):
        where = _DATABASE_FULL[code]
    elif isinstance(error, RedisError) and (said := redis_full(error)) is not None:
        where = said
    else:
        return None
    logger.error("%s is full: %s", where, str(error).strip())
    return DiskFull(f"{where} is full, and nothing was changed; free some space and try again")


def redis_full(error: RedisError) -> str | None:
    """The part of Redis that an error says is full: its memory, or the disk under it."""
    if isinstance(error, OutOfMemoryError) or str(error).startswith("OOM "):
        return "the memory of Redis"
    if str(error).startswith("MISCONF "):  # It cannot write its append-only file.
        return "the disk of Redis"
    return None


def database_page(request: HttpRequest, error: BaseException) -> HttpResponse:
    """The page that names the database as lost, and loads again once it is back.

    It needs neither the database nor the session.
    """
    server_losses.note_database_error(error)
    context = {
        "is_sent": request.method not in ("GET", "HEAD"),
        "is_read_only": isinstance(error, unusable_database.DatabaseReadOnly),
        "is_unprepared": isinstance(error, unusable_database.DatabaseUnprepared),
    }
    page = get_template("503.html").render(context)
    headers = {"Retry-After": str(DATABASE_RETRY_AFTER_S), "Cache-Control": "no-store"}
    return HttpResponse(page, status=503, headers=headers)


# For the URL conf -------------------------------------------------------------------------------


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    """``handler400``: a problem below /api/, Django's page elsewhere."""
    if not request.path.startswith(_API_PREFIX):
        return defaults.bad_request(request, exception)
    if isinstance(exception, RequestDataTooBig):
        return of_refusal(request, TooLarge(str(exception)))
    return problem(
        request, 400, "bad_request", "Bad request", "The request could not be understood."
    )


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    """``handler403``: a problem below /api/, Django's page elsewhere."""
    if not request.path.startswith(_API_PREFIX):
        return defaults.permission_denied(request, exception)
    return of_exception(request, PermissionDenied(str(exception)))


def not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    """``handler404``: a problem below /api/, Django's page elsewhere."""
    if not request.path.startswith(_API_PREFIX):
        return defaults.page_not_found(request, exception)
    return of_exception(request, Http404())


def server_error(request: HttpRequest) -> HttpResponse:
    """``handler500``: a problem below /api/, Django's page elsewhere."""
    error = sys.exc_info()[1]  # Django calls this while it handles the exception.
    if not request.path.startswith(_API_PREFIX):
        if error is not None and server_losses.is_database_lost(error):
            return database_page(request, error)
        return defaults.server_error(request)
    return of_exception(request, error or RuntimeError("an uncaught error"))


# --------------------------------------------------------------------------------------------------


def _of_api_exception(request: HttpRequest | None, error: exceptions.APIException) -> JsonResponse:
    headers: dict[str, str] = {}
    if challenge := getattr(error, "auth_header", None):
        headers["WWW-Authenticate"] = challenge
    if (wait_s := getattr(error, "wait", None)) is not None:
        headers["Retry-After"] = str(max(1, int(wait_s)))
    return problem(
        request,
        error.status_code,
        error.default_code,
        HTTPStatus(error.status_code).phrase,
        str(error.detail),
        headers=headers,
    )


def _by_field(detail: Any, field: str = "") -> Iterator[tuple[str, list[str]]]:
    """The messages of a validation error by the dotted name of their field."""
    if isinstance(detail, Mapping):
        for name, inner in detail.items():
            own = field if name == "non_field_errors" else f"{field}.{name}" if field else str(name)
            yield from _by_field(inner, own)
    elif isinstance(detail, list) and any(isinstance(one, Mapping | list) for one in detail):
        for index, inner in enumerate(detail):
            yield from _by_field(inner, f"{field}.{index}" if field else str(index))
    else:
        said = detail if isinstance(detail, list) else [detail]
        if said:
            yield field or "request", [str(one) for one in said]
