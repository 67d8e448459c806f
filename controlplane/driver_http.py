"""The HTTP side of ``weir.protocol.driver_messages``: drivers post events and wait for commands.

Waiting takes neither a thread nor a connection. ``checkpoints.driver_protocol`` carries out the
requests.
"""

import asyncio
import json
import logging
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from tempfile import SpooledTemporaryFile
from typing import NoReturn

from django.conf import settings
from starlette.requests import Request
from starlette.responses import Response

from checkpoints import driver_protocol
from controlplane.accounts.models import digest_of
from controlplane.base import problems, wakeups
from controlplane.base.bodies import ClientGoneError, gunzip, read_into
from controlplane.base.errors import Invalid, NotFound, Refusal, Unauthorized
from controlplane.base.hub import Bell, Hub
from controlplane.base.requests import plain, refusal
from controlplane.base.threads import DATABASE_AWAY, Unavailable, in_database
from controlplane.process_metrics import command_polls
from jobs.models import Driver, Job, OutboxCommand
from weir.protocol import wire
from weir.protocol.driver_messages import CommandBatch
from weir.protocol.messages import SCHEMA_VERSION

VERSION_HEADER = "Weir-Schema-Version"
WAIT_S_MAX = 30.0
LOOK_S = 1.0  # Without wake-ups: between queries for the commands of all waiting drivers.
ASK_AGAIN_S = 10.0  # Between checks of a poll without wake-up: its driver may have been replaced.
AFTER_MAX = 2**63 - 1
STRANGERS_BYTES_MAX = 256 << 10  # A larger body is read only with a token of the job.
MEMORY_BYTES_MAX = 1 << 20  # A larger body waits on disk until it is complete.

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose refusals, and database outages, become problem documents."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refusal as error:
            return plain(refusal(error))
        except DATABASE_AWAY as error:
            return plain(problems.of_exception(None, error))
        except ClientGoneError:
            return Response(status_code=400)  # The client has gone.

    return answer


@guarded
async def events(request: Request) -> Response:
    """``POST …/events``: the driver's next batch; the response acknowledges the applied events."""
    job_id, token = request.path_params["job_id"], _token(request)
    _check_version(request)
    is_packed = _is_packed(request)
    if _may_be_large(request):
        await in_database(_check_known, job_id, token)
    bytes_max: int = settings.WEIR_GATEWAY_BODY_BYTES_MAX
    with SpooledTemporaryFile[bytes](MEMORY_BYTES_MAX) as file:
        await read_into(file, request.scope, request.receive, bytes_max)

        def receive() -> bytes:
            body = file.read()
            return driver_protocol.receive(
                job_id, token, gunzip(body, bytes_max) if is_packed else body
            )

        answer = await in_database(receive)
    return Response(answer, media_type="application/json")


@guarded
async def commands(request: Request) -> Response:
    """``GET …/commands?after=n&wait=s``: the commands after number n, as soon as there are any."""
    job_id, token = request.path_params["job_id"], _token(request)
    _check_version(request)
    after, wait_s = _after(request), _wait_s(request)
    hub: Hub = request.app.state.hub
    lookout: Lookout = request.app.state.lookout
    deadline = time.monotonic() + wait_s
    with command_polls.track_inprogress(), lookout.listen(job_id) as bell:
        while True:
            batch = await in_database(driver_protocol.take_commands, job_id, token, after)
            left_s = deadline - time.monotonic()
            if batch.commands or left_s <= 0 or hub.is_closed or await request.is_disconnected():
                return _batch(batch)
            await bell.wait(min(ASK_AGAIN_S, left_s))


class Lookout:
    """Wakes polls whose jobs have commands, also after a lost wake-up.

    One query a second serves all polls: with a query per poll, many polls would keep the database
    threads busy, and commands waiting.
    """

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._waiting: Counter[str] = Counter()

    @contextmanager
    def listen(self, job_id: str) -> Iterator[Bell]:
        """A bell that rings when there may be commands for the job's driver."""
        self._waiting[job_id] += 1
        try:
            with self._hub.listen(wakeups.commands(job_id)) as bell:
                yield bell
        finally:
            self._waiting[job_id] -= 1
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    async def run(self) -> NoReturn:
        """Query for commands every ``LOOK_S`` seconds, for ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            if not self._waiting:
                continue
            try:
                job_ids = await in_database(_with_commands, list(self._waiting))
            except (*DATABASE_AWAY, Unavailable) as error:
                logger.warning("commands could not be queried: %s", str(error).strip())
                continue
            except Exception:  # A bug here must not end the queries for good.
                logger.exception("commands could not be queried")
                continue
            for job_id in job_ids:
                self._hub.ring(wakeups.commands(job_id))


def _with_commands(job_ids: list[str]) -> list[str]:
    rows = OutboxCommand.objects.filter(job__in=job_ids).order_by()
    return list(rows.values_list("job", flat=True).distinct())


def _batch(batch: CommandBatch) -> Response:
    return Response(json.dumps(wire.to_wire(batch)), media_type="application/json")


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("the driver's token is missing; send Authorization: Bearer …")
    return token


def _check_version(request: Request) -> None:
    version = request.headers.get(VERSION_HEADER)
    if version != str(SCHEMA_VERSION):
        given = "none" if version is None else repr(version[:20])
        raise Invalid(
            f"{VERSION_HEADER} is {given}, and this control plane speaks {SCHEMA_VERSION}: run the "
            "drivers and the control plane with the same version of Weir",
            schema_version=SCHEMA_VERSION,
        )


def _is_packed(request: Request) -> bool:
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        raise Invalid(f"Content-Encoding {encoding[:20]!r} is unknown; send gzip, or no encoding")
    return encoding == "gzip"


def _may_be_large(request: Request) -> bool:
    length = request.headers.get("Content-Length", "")
    return not length.isdecimal() or int(length) > STRANGERS_BYTES_MAX


def _check_known(job_id: str, token: str) -> None:
    if not Driver.objects.filter(job=job_id, token_digest=digest_of(token)).exists():
        # In the order in which small requests are refused.
        if not Job.objects.filter(pk=job_id).exists():
            raise NotFound(f"there is no job {job_id}")
        raise Unauthorized("this token belongs to no driver of the job")


def _after(request: Request) -> int:
    given = request.query_params.get("after", "0")
    if not given.isdecimal() or not given.isascii() or int(given) > AFTER_MAX:
        raise Invalid(f"after={given[:30]!r} is not the number of a command; give 0 or more")
    return int(given)


def _wait_s(request: Request) -> float:
    given = request.query_params.get("wait", "0")
    try:
        wait_s = float(given)
    except ValueError:
        wait_s = math.nan
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise Invalid(f"wait={given[:30]!r} is not between 0 and {WAIT_S_MAX:g} seconds")
    return wait_s
