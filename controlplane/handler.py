"""Django under ASGI, with each request on one thread of the process's pool.

Django's own handler gives every request a thread and, with it, a database connection of its own.
Here all middlewares and views run synchronously on ``controlplane.base.threads``, whose threads
keep their connections: as many as configured, under any load. A body is read before its request
takes a thread; a large one only once its sender is known by the headers.
"""

import asyncio
import logging
from contextlib import ExitStack
from http import HTTPStatus
from tempfile import SpooledTemporaryFile
from typing import Any

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, ASGIRequest, get_script_prefix
from django.http import FileResponse
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Receive, Scope, Send

from controlplane.accounts.authentication import role_of_headers
from controlplane.accounts.models import Role
from controlplane.base import threads
from controlplane.base.bodies import ClientGoneError, read_into
from controlplane.base.errors import Forbidden, Refusal, TooLarge, Unauthorized
from controlplane.base.limits import addresses
from controlplane.base.limits.admission import Admission
from controlplane.base.problems import disk_full
from controlplane.base.requests import (
    STRANGERS_BYTES_MAX,
    body_bytes_max,
    hashes_password,
    is_upload,
    may_be_large,
    plain,
    refusal,
)
from controlplane.base.threads import Unavailable, in_database
from controlplane.operation_waits import admission, wait_for_change

# Before the refusal of a login: a loop of them waits instead of coming again at once.
REFUSED_LOGIN_PAUSE_S = 1.0
HASHES_MAX = 1_000  # The threads' own bound is smaller; an address has half of that at most.
LARGE_BODIES_MAX = 32  # At once: each has up to WEIR_UPLOAD_BYTES_MAX bytes, in memory or on disk.
LARGE_BODIES_PER_ACCOUNT_MAX = 4

logger = logging.getLogger(__name__)


class _Request(ASGIRequest):
    refused: Refusal | None = None  # The middleware answers with it.


class DjangoHandler(ASGIHandler):
    """Django as an ASGI application, for HTTP only."""

    request_class = _Request

    def __init__(self) -> None:
        super().__init__()
        self._hashes = Admission(
            "logins", HASHES_MAX, {"address": max(1, settings.WEIR_PASSWORD_WAITING_MAX // 2)}
        )
        self._large_bodies = Admission(
            "large requests", LARGE_BODIES_MAX, {"account": LARGE_BODIES_PER_ACCOUNT_MAX}
        )
        self._waits = admission()

    def load_middleware(self, is_async: bool = False) -> None:
        """Load the middlewares as synchronous ones, for threads."""
        super().load_middleware(is_async=False)

    # Django's stubs call the messages of ASGI immutable, Starlette's types do not.
    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # type: ignore[override]
        """Answer one request."""
        with (
            SpooledTemporaryFile[bytes](settings.FILE_UPLOAD_MAX_MEMORY_SIZE) as body,
            ExitStack() as holds,
        ):
            refused: Refusal | None = None
            size = 0
            beyond: Refusal | None = None
            try:
                bytes_max, beyond = await self._limit(scope, holds)
                size = await read_into(body, scope, receive, bytes_max)
                await wait_for_change(scope, receive, self._waits)
            except ClientGoneError:
                return
            except TooLarge as error:
                refused = beyond or error
            except Refusal as error:
                refused = error  # The middleware answers, with a request id and a log line.
            except threads.DATABASE_AWAY as error:
                logger.warning("the sender of a large body is unknown: %s", str(error).strip())
                refused = Unavailable("the database does not answer; try again in a moment")
            except OSError as error:
                refused = disk_full(error)
                if refused is None:
                    raise
            if refused is not None:
                body.seek(0)
                body.truncate()
            request, response = self.create_request(scope, body)
            if isinstance(request, _Request):
                # Absent for a chunked body; without it parsers see an empty body.
                request.META["CONTENT_LENGTH"] = str(size)
                request.refused = refused
                try:
                    if hashes_password(scope["method"], scope["path"]):
                        response = await self._hashing(scope, request)
                    else:
                        response = await in_database(self._respond, request)
                except Refusal as error:  # Too many calls wait for a thread.
                    await plain(refusal(error))(scope, receive, send)
                    return
            assert response is not None  # The request was malformed, or is answered.
            if response.streaming:
                await self._stream(response, send)
            else:
                await self.send_response(response, send)  # type: ignore[arg-type]  # As above.

    async def _limit(self, scope: Scope, holds: ExitStack) -> tuple[int, Refusal | None]:
        """The limit on the body of a request, and the refusal of a larger one; None: too large.

        Raises:
            TooManyOpen: The account sends too many large bodies at once.
            Unavailable: All accounts together do, or no thread is free.
        """
        headers, bytes_max = Headers(scope=scope), body_bytes_max(scope["path"])
        small = min(STRANGERS_BYTES_MAX, bytes_max)
        if not may_be_large(headers):
            return small, None
        session = cookie_parser(headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME, "")
        known = await in_database(role_of_headers, headers.get("authorization", ""), session)
        if known is None:
            return small, Unauthorized(
                f"a body of more than {small} bytes needs a valid token or login, and this request "
                "has neither"
            )
        name, role = known
        if is_upload(scope["path"]) and role.rank < Role.OPERATOR.rank:
            return small, Forbidden(f"this needs the role operator; yours is {role.value}")
        holds.enter_context(self._large_bodies.admit(account=name))
        return bytes_max, None

    async def _hashing(self, scope: Scope, request: ASGIRequest) -> HttpResponseBase:
        """The response to a request that may hash; a refusal of one comes after a pause.

        Raises:
            TooManyOpen: The address has enough of them under way.
            Unavailable: Too many wait for a thread.
        """
        address = addresses.source(addresses.in_scope(scope))
        try:
            with self._hashes.admit(address=address):
                response = await threads.passwords().run(self._respond, request)
        except Refusal:
            await asyncio.sleep(REFUSED_LOGIN_PAUSE_S)
            raise
        if response.status_code == HTTPStatus.TOO_MANY_REQUESTS:
            await asyncio.sleep(REFUSED_LOGIN_PAUSE_S)
        return response

    def _respond(self, request: ASGIRequest) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(request.scope))
        signals.request_started.send(sender=type(self), scope=request.scope)
        response = self.get_response(request)
        response._handler_class = type(self)  # type: ignore[attr-defined]  # Not in the stubs.
        if isinstance(response, FileResponse):
            response.block_size = self.chunk_size
        if not response.streaming:
            response.close()  # Signals the end of the request; the content stays.
        return response

    async def _stream(self, response: HttpResponseBase, send: Send) -> None:
        """Send a streaming response; each part takes a thread for itself."""
        parts = iter(response)
        try:
            await send(self._start(response))
            while part := await in_database(next, parts, b""):
                await send({"type": "http.response.body", "body": part, "more_body": True})
            await send({"type": "http.response.body"})
        finally:
            await in_database(response.close)

    def _start(self, response: HttpResponseBase) -> dict[str, Any]:
        headers = [(k.encode("ascii"), v.encode("latin1")) for k, v in response.items()]
        for cookie in response.cookies.values():
            headers.append((b"Set-Cookie", cookie.output(header="").strip().encode("ascii")))
        return {"type": "http.response.start", "status": response.status_code, "headers": headers}
