"""Middleware of all HTTP requests: an id, a limit on the body, a log line, a content policy.

Django's requests pass ``RequestMiddleware``; the routes beside Django pass ``PlainRequests``.
"""

import logging
import re
import time
import uuid
from collections.abc import Callable
from functools import partial
from http import HTTPStatus

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.functional import LazyObject
from django.views import defaults
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.base import logs, problems, request_metrics, server_losses
from controlplane.base.bodies import too_large
from controlplane.base.errors import (
    DiskFull,
    Refusal,
    TooBusy,
    TooLarge,
    TooSlow,
    Unauthorized,
)
from controlplane.base.limits.admission import TooManyOpen
from controlplane.base.threads import DATABASE_AWAY, Unavailable

logger = logging.getLogger("controlplane.access")

RETRY_AFTER_S = 1
API_PREFIX = "/api/"
UPLOADS_PATH = "/api/v1/uploads"
SUBMIT_PATH = "/jobs/new"  # The page's form takes a script as well.
# The beginnings of the paths whose POST requests hash a password.
PASSWORD_PATHS = ("/login/", "/admin/", "/api/v1/users", "/account/password", "/accounts/")
STRANGERS_BYTES_MAX = 64 << 10  # A larger body is read only with a valid token or login.
MULTIPART_BYTES_MAX = 64 << 10  # The parts of an upload's form beside the file.
# Requested so often that their lines would be most of the log; failures are logged all the same.
QUIET_PATHS = ("/gateway/", "/healthz", "/metrics", "/readyz", "/static/")

_CHANGES = re.compile(r"/api/v1/jobs/[^/]+/(fork|upgrade)")  # They may bring a script.
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:+/=-]{1,64}")

GetResponse = Callable[[HttpRequest], HttpResponseBase]


def request_id(given: str | None) -> str:
    """The id that the client gave its request if short and plain, else a new one."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return uuid.uuid4().hex


def body_bytes_max(path: str) -> int:
    """The limit on the body of a request to one of Django's paths."""
    if is_upload(path):
        return int(settings.WEIR_UPLOAD_BYTES_MAX) + MULTIPART_BYTES_MAX
    return int(settings.WEIR_BODY_BYTES_MAX)


def hashes_password(method: str, path: str) -> bool:
    """Whether a request may hash a password, which takes a core for half a second."""
    return method == "POST" and path.startswith(PASSWORD_PATHS)


def is_upload(path: str) -> bool:
    """Whether requests to a path may have a script in their body."""
    return path.startswith(UPLOADS_PATH) or path == SUBMIT_PATH or bool(_CHANGES.fullmatch(path))


def may_be_large(headers: Headers) -> bool:
    """Whether a request declares more than ``STRANGERS_BYTES_MAX`` bytes, or not how many."""
    length = headers.get("content-length", "")
    if length.isdecimal():
        return int(length) > STRANGERS_BYTES_MAX
    return bool(length) or "transfer-encoding" in headers


class RequestMiddleware:
    """The outermost middleware of Django's requests."""

    def __init__(self, get_response: GetResponse) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response to a request, with its id."""
        started = time.monotonic()
        given = request_id(request.headers.get("X-Request-ID"))
        address = request.META.get("REMOTE_ADDR") or None
        with logs.about(request_id=given, address=address, user=partial(_user_name, request)):
            response = self._refused(request) or self._get_response(request)
            response.headers["X-Request-ID"] = given
            if request.path.startswith(API_PREFIX):
                response.headers["Cache-Control"] = "no-store"
            log_access(request.method or "", request.path, response.status_code, started)
        return response

    def process_exception(self, request: HttpRequest, exception: Exception) -> HttpResponse | None:
        """Answer 503 for a page whose database is unavailable, 507 for a full disk.

        The API does so by itself.
        """
        if (full := problems.disk_full(exception)) is not None:
            return refusal(full, request)
        if not isinstance(exception, DATABASE_AWAY):
            return None
        logger.warning("the database did not answer: %s", str(exception).strip())
        if server_losses.is_database_lost(exception):
            return problems.database_page(request, exception)
        response = defaults.server_error(request)
        response.status_code = Unavailable.status
        response.headers["Retry-After"] = str(RETRY_AFTER_S)
        return response

    def _refused(self, request: HttpRequest) -> HttpResponse | None:
        bytes_max = body_bytes_max(request.path)
        length = request.META.get("CONTENT_LENGTH") or "0"
        is_too_large = length.isdecimal() and int(length) > bytes_max
        refused = too_large(bytes_max) if is_too_large else getattr(request, "refused", None)
        if refused is None:
            return None
        response = refusal(refused, request)
        response.headers["Connection"] = "close"  # The rest of the body is not read.
        return response


def refusal(refused: Refusal, request: HttpRequest | None = None) -> HttpResponse:
    """The response to a request that was refused before, or outside of, any view."""
    return problems.of_refusal(request, refused, _headers_of(refused))


def plain(response: HttpResponse) -> Response:
    """A Django response as an ASGI response."""
    return Response(response.content, response.status_code, dict(response.items()))


def http_problem(error: HTTPException) -> HttpResponse:
    """The problem document of a request that no Starlette route accepts."""
    title = HTTPStatus(error.status_code).phrase
    code = title.lower().replace(" ", "_")
    return problems.problem(
        None, error.status_code, code, title, error.detail, headers=error.headers
    )


def _headers_of(refused: Refusal) -> dict[str, str]:
    match refused:
        case Unavailable() | TooBusy() | TooManyOpen():
            return {"Retry-After": str(RETRY_AFTER_S)}
        case Unauthorized():
            return {"WWW-Authenticate": "Bearer"}
        case TooLarge() | TooSlow() | DiskFull():
            return {"Connection": "close"}  # The rest of the body is not read.
        case _:
            return {}


def _user_name(request: HttpRequest) -> str | None:
    """The account's name if already looked up: a log record must not cost a query."""
    user = request.__dict__.get("user")
    if isinstance(user, LazyObject):
        user = getattr(request, "_cached_user", None)  # Set once it was looked up.
    return None if user is None else str(user.get_username())


class PlainRequests:
    """Request ids and log lines for ASGI routes beside Django; records also get the path's job."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an HTTP request on."""
        started = time.monotonic()
        given = request_id(Headers(scope=scope).get("X-Request-ID"))
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(raw=list(message["headers"]))
                headers["X-Request-ID"] = given
                headers["X-Content-Type-Options"] = "nosniff"
                headers.setdefault("Cache-Control", "no-store")
                message = {**message, "headers": headers.raw}
            await send(message)

        client = scope.get("client")
        about = {"request_id": given, "address": client[0] if client else None}
        if "job_id" in scope.get("path_params", {}):
            about["job"] = scope["path_params"]["job_id"]
        with logs.about(**about):
            try:
                await self._app(scope, receive, send_with_id)
            except HTTPException as error:  # From Starlette's own parts, such as 404 for a file.
                await plain(http_problem(error))(scope, receive, send_with_id)
            finally:
                log_access(scope["method"], scope["path"], status, started)


def log_access(method: str, path: str, status: int, started: float) -> None:
    """Log and measure a request; ``started`` is its begin by the monotonic clock."""
    request_metrics.observe(path, status, time.monotonic() - started)
    is_quiet = status < 400 and path.startswith(QUIET_PATHS)
    logger.log(
        logging.DEBUG if is_quiet else logging.INFO,
        "%s %s %d",
        method,
        path,
        status,
        extra={
            "method": method,
            "path": path,
            "status": status,
            "duration_ms": round((time.monotonic() - started) * 1000, 1),
        },
    )


class ContentSecurityPolicyMiddleware:
    """Middleware that lets browsers run scripts from this server's files only, none inline."""

    POLICY = (
        "default-src 'self'; script-src 'self'; style-src {styles}; img-src 'self' data: blob:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
    # Pages with Plotly or Swagger UI, which write style elements and attributes.
    STYLED_PATHS = ("/jobs/", "/api/v1/docs")

    def __init__(self, get_response: GetResponse) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response, with the policy unless it has one of its own."""
        response = self._get_response(request)
        is_styled = request.path.startswith(self.STYLED_PATHS)
        policy = self.POLICY.format(styles="'self' 'unsafe-inline'" if is_styled else "'self'")
        response.headers.setdefault("Content-Security-Policy", policy)
        return response
