"""Refused access in the audit log: 401, and 403 for an account.

Refusals of one source are counted in one entry per hour (``controlplane.audit.models``), and past
``RATE`` not at all, so that a flood of them costs next to nothing. The access log has each one.
"""

import logging
from collections.abc import Callable

from django.http import HttpRequest
from django.http.response import HttpResponseBase
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controlplane.accounts.models import User
from controlplane.audit.models import record_refusal
from controlplane.base import logs
from controlplane.base.limits import addresses, counters
from controlplane.base.limits.rates import Rate
from controlplane.base.threads import DATABASE_AWAY, Unavailable, in_database

RATE = Rate(60, 60)
REFUSED = frozenset({401, 403})
_PATH_LENGTH_MAX = 200

logger = logging.getLogger(__name__)


class RefusalMiddleware:
    """Middleware that notes refused requests, by the account where there is one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self._get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """The response of the view."""
        response = self._get_response(request)
        if response.status_code in REFUSED:
            user = getattr(request, "user", None)  # By REST framework the token's.
            actor = user if isinstance(user, User) else None
            note(actor, response.status_code, request.method or "", request.path)
        return response


class RefusalNotes:
    """The same for ASGI routes beside Django, by the address; inside ``PlainRequests``."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass an HTTP request on."""

        async def note_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] in REFUSED:
                status = message["status"]
                try:
                    await in_database(note, None, status, scope["method"], scope["path"])
                except Unavailable:
                    logger.warning("a refused request is not in the audit log: no thread is free")
            await send(message)

        await self._app(scope, receive, note_and_send)


def note(actor: User | None, status: int, method: str, path: str) -> None:
    """Count a refused request in the audit log; the entry has the first one's method and path."""
    address = addresses.plain(logs.current().get("address"))
    holder = addresses.source(address) if actor is None else f"user {actor.pk}"
    if counters.take("refusals", holder, RATE).is_over:
        return
    try:
        record_refusal(
            actor,
            "access.refused",
            "access",
            after={"status": status, "method": method, "path": path[:_PATH_LENGTH_MAX]},
        )
    except DATABASE_AWAY as error:
        logger.warning("a refused request is not in the audit log: %s", str(error).strip())
