"""Django under ASGI, with each request on one thread of the process's pool.

Django's own handler gives every request a thread and, with it, a database connection of its own.
Here all middlewares and views run synchronously on ``controlplane.base.threads``, whose threads
keep their connections: as many as configured, under any load.
"""

from tempfile import SpooledTemporaryFile
from typing import Any

from django.conf import settings
from django.core import signals
from django.core.handlers.asgi import ASGIHandler, get_script_prefix
from django.http import FileResponse, HttpRequest
from django.http.response import HttpResponseBase
from django.urls import set_script_prefix
from starlette.types import Receive, Scope, Send

from controlplane.base.bodies import ClientGoneError, read_into
from controlplane.base.errors import Refusal, TooLarge
from controlplane.base.requests import body_bytes_max, plain, refusal
from controlplane.base.threads import in_database


class DjangoHandler(ASGIHandler):
    """Django as an ASGI application, for HTTP only."""

    def load_middleware(self, is_async: bool = False) -> None:
        """Load the middlewares as synchronous ones, for threads."""
        super().load_middleware(is_async=False)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        with SpooledTemporaryFile[bytes](settings.FILE_UPLOAD_MAX_MEMORY_SIZE) as body:
            refused: Refusal | None = None
            size = 0
            try:
                size = await read_into(body, scope, receive, body_bytes_max(scope["path"]))
            except TooLarge as error:
                refused = error  # The middleware answers, with a request id and a log line.
                body.seek(0)
                body.truncate()
            except ClientGoneError:
                return
            request, response = self.create_request(scope, body)
            if request is not None:
                # Absent for a chunked body; without it parsers see an empty body.
                request.META["CONTENT_LENGTH"] = str(size)
                request.refused = refused
                try:
                    response = await in_database(self._respond, request)
                except Refusal as error:  # Too many calls wait for a thread.
                    await plain(refusal(error))(scope, receive, send)
                    return
            if response.streaming:
                await self._stream(response, send)
            else:
                await self.send_response(response, send)

    def _respond(self, request: HttpRequest) -> HttpResponseBase:
        set_script_prefix(get_script_prefix(request.scope))
        signals.request_started.send(sender=type(self), scope=request.scope)
        response = self.get_response(request)
        response._handler_class = type(self)
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
