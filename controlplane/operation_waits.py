"""``GET /api/v1/operations/{id}?wait=30``: the request is held back until the operation changes.

Waiting takes neither a thread nor a connection of the database: the request waits on the event
loop, for the job's wake-ups, and between two looks at the row. Then it goes on to Django, which
checks and answers it as any other. A request that Django is going to refuse does not wait.
"""

import asyncio
import logging
import math
import re
import time
from typing import Any
from urllib.parse import parse_qs
from uuid import UUID

from django.conf import settings
from starlette.datastructures import Headers
from starlette.requests import cookie_parser
from starlette.types import Receive, Scope

from controlplane.accounts.authentication import role_of_headers
from controlplane.base import wakeups
from controlplane.base.bodies import ClientGoneError
from controlplane.base.hub import Bell, Hub
from controlplane.base.limits import addresses
from controlplane.base.limits.admission import Admission
from controlplane.base.threads import DATABASE_AWAY, in_database
from jobs.models import OPEN_OPERATIONS, Operation
from jobs.operations import WAIT_S_MAX

LOOK_AGAIN_S = 1.0  # Without wake-ups.
REST_S = 0.1  # Between two looks: a job may change more often than its operation.
_PATH = re.compile(r"/api/v1/operations/([0-9a-f-]{36})")

logger = logging.getLogger(__name__)

Version = tuple[Any, ...]


def admission() -> Admission:
    """The bound on this process's waiting requests, that of event streams."""
    return Admission(
        "waiting requests",
        settings.WEIR_STREAMS_MAX,
        {
            "account": settings.WEIR_STREAMS_PER_USER_MAX,
            "address": settings.WEIR_STREAMS_PER_ADDRESS_MAX,
        },
    )


async def wait_for_change(scope: Scope, receive: Receive, admitted: Admission) -> None:
    """Return once the request of ``scope`` is to be answered; at once if it asks for no wait.

    Raises:
        TooManyOpen, Unavailable: Too many requests wait already.
        ClientGoneError: The client went away meanwhile.
    """
    wait_s, path = _wait_s(scope), _PATH.fullmatch(scope["path"])
    if wait_s <= 0 or path is None or "app" not in scope:
        return
    deadline = time.monotonic() + wait_s
    hub: Hub = scope["app"].state.hub
    headers = Headers(scope=scope)
    session = cookie_parser(headers.get("cookie", "")).get(settings.SESSION_COOKIE_NAME, "")
    try:
        known = await in_database(role_of_headers, headers.get("authorization", ""), session)
        begun = await in_database(_read, path[1])
        if known is None or begun is None:
            return
        (job_id, is_open), version = begun
        holders = {"account": known[0], "address": addresses.source(addresses.in_scope(scope))}
        with admitted.admit(**holders), hub.listen(wakeups.job(job_id)) as bell:
            gone = asyncio.create_task(_until_gone(receive, bell))
            try:
                while is_open and not (gone.done() or hub.is_closed):
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        return
                    await asyncio.sleep(min(REST_S, left_s))
                    await bell.wait(min(LOOK_AGAIN_S, left_s))
                    now = await in_database(_read, path[1])
                    is_open = now is not None and now[0][1] and now[1] == version
                if gone.done():
                    raise ClientGoneError
            finally:
                gone.cancel()
    except DATABASE_AWAY as error:
        logger.warning("an operation cannot be waited for: %s", str(error).strip())


def _wait_s(scope: Scope) -> float:
    """The seconds asked for; 0 for a request that asks for none, or has them wrong."""
    if scope["method"] != "GET" or b"wait=" not in scope["query_string"]:
        return 0.0
    given = parse_qs(scope["query_string"].decode("latin1")).get("wait", ["0"])
    try:
        wait_s = float(given[-1])
    except ValueError:
        return 0.0
    return wait_s if math.isfinite(wait_s) and 0 <= wait_s <= WAIT_S_MAX else 0.0


def _read(text: str) -> tuple[tuple[str, bool], Version] | None:
    """The operation's job, whether it is open, and what of it may change; None: it is unknown."""
    try:
        rows = Operation.objects.filter(pk=UUID(text))
    except ValueError:
        return None
    columns = ("job_id", "status", "progress", "result", "deadline_at")
    row = rows.values_list(*columns).first()
    return None if row is None else ((row[0], row[1] in OPEN_OPERATIONS), row[1:])


async def _until_gone(receive: Receive, bell: Bell) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    bell.ring()
