"""The HTTP side of ``weir.protocol.driver_messages``: drivers post events and wait for commands.

Waiting takes neither a thread nor a connection. ``checkpoints.driver_protocol`` carries out the
requests.

A batch is read only once its sender is known, unpacked piece by piece up to a bound, and applied
beside few others (``BatchesInHand``): a driver with a valid token takes a bounded share of this
process and no more.
"""

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from tempfile import SpooledTemporaryFile
from typing import NoReturn

from django.conf import settings
from starlette.requests import Request
from starlette.responses import Response

from checkpoints import driver_protocol
from controlplane.base import problems, wakeups
from controlplane.base.bodies import ClientGoneError, discard, gunzip, read_into
from controlplane.base.errors import Invalid, Refusal, TooBusy, TooSlow, Unauthorized
from controlplane.base.hub import Bell, Hub
from controlplane.base.limits import addresses
from controlplane.base.limits.admission import Admission
from controlplane.base.requests import plain, refusal
from controlplane.base.threads import DATABASE_AWAY, Unavailable, in_database
from controlplane.process_metrics import command_polls, driver_refusals
from jobs.models import OutboxCommand
from weir.protocol.driver_messages import CommandBatch
from weir.wire import batches
from weir.wire.batches import VERSION_HEADER, VERSION_MAX, VERSION_MIN

WAIT_S_MAX = 30.0
LOOK_S = 1.0  # Without wake-ups: between queries for the commands of all waiting drivers.
ASK_AGAIN_S = 10.0  # Between checks of a poll without wake-up: its driver may have been replaced.
AFTER_MAX = 2**63 - 1
MEMORY_BYTES_MAX = 256 << 10  # A larger body waits on disk until it is its turn.
BODY_TIMEOUT_S = 15.0  # As long as a driver waits for its answer.
TURN_TIMEOUT_S = 5.0  # Until a batch that waits for others is refused.
BODIES_MAX = 500  # Of different drivers, that come in or wait for their turn.

logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


def guarded(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose refusals, and database outages, become problem documents."""

    async def answer(request: Request) -> Response:
        try:
            return await endpoint(request)
        except Refusal as error:
            return _refused(error)
        except DATABASE_AWAY as error:
            return plain(problems.of_exception(None, error))
        except ClientGoneError:
            return Response(status_code=400)  # The client has gone.
        except OSError as error:
            if (full := problems.disk_full(error)) is None:
                raise
            return _refused(full)  # The driver keeps its events and sends them again.

    return answer


def _refused(error: Refusal) -> Response:
    driver_refusals.labels(error.code).inc()
    return plain(refusal(error))


def versioned(endpoint: Endpoint) -> Endpoint:
    """An endpoint whose every answer names the highest version that the control plane speaks."""

    async def answer(request: Request) -> Response:
        response = await guarded(endpoint)(request)
        response.headers[VERSION_HEADER] = str(VERSION_MAX)
        return response

    return answer


class BatchesInHand:
    """Drivers' batches that this process reads, holds and applies, each bounded in number.

    A driver sends one batch after another, so a second one at the same time repeats the first, or
    is an attack.
    """

    def __init__(self) -> None:
        self._drivers: set[int] = set()
        # At least one thread is left for pages, however few there are.
        others: int = settings.WEIR_DATABASE_THREADS - 1
        self._turns = asyncio.Semaphore(max(1, min(settings.WEIR_GATEWAY_BATCHES_MAX, others)))

    @contextmanager
    def hold(self, driver_id: int) -> Iterator[None]:
        """Hold a driver's batch, from before its body is read until it is answered.

        Raises:
            TooBusy: There is one of this driver already, or there are too many.
        """
        if driver_id in self._drivers:
            raise TooBusy("an earlier batch of this driver is still in hand; send it again soon")
        if len(self._drivers) >= BODIES_MAX:
            raise TooBusy(f"{BODIES_MAX} drivers' batches are in hand; send it again soon")
        self._drivers.add(driver_id)
        try:
            yield
        finally:
            self._drivers.discard(driver_id)

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[None]:
        """Wait until the batch may be unpacked and applied.

        Raises:
            TooBusy: Those before it take too long.
        """
        try:
            async with asyncio.timeout(TURN_TIMEOUT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise TooBusy("other drivers' batches take long; send it again soon") from None
        try:
            yield
        finally:
            self._turns.release()


@versioned
async def events(request: Request) -> Response:
    """``POST …/events``: the driver's next batch; the response acknowledges the applied events."""
    in_hand: BatchesInHand = request.app.state.batches
    with ExitStack() as held:
        try:
            job_id, token = request.path_params["job_id"], _token(request)
            version, is_packed = _version(request), _is_packed(request)
            driver_id = await in_database(driver_protocol.authenticate, job_id, token)
            held.enter_context(in_hand.hold(driver_id))
        except Refusal:
            await discard(request.receive)
            raise
        file = held.enter_context(SpooledTemporaryFile[bytes](MEMORY_BYTES_MAX))
        bytes_max: int = settings.WEIR_GATEWAY_BODY_BYTES_MAX
        try:
            async with asyncio.timeout(BODY_TIMEOUT_S):
                await read_into(file, request.scope, request.receive, bytes_max)
        except TimeoutError:
            raise TooSlow(f"the body did not come within {BODY_TIMEOUT_S:g} s") from None

        def receive() -> bytes:
            body = file.read()
            unpacked = gunzip(body, bytes_max) if is_packed else body
            return driver_protocol.receive(job_id, token, unpacked, version)

        async with in_hand.turn():
            answer = await in_database(receive)
    return Response(answer, media_type="application/json")


@versioned
async def commands(request: Request) -> Response:
    """``GET …/commands?after=n&wait=s``: the commands after number n, as soon as there are any."""
    job_id, token = request.path_params["job_id"], _token(request)
    version = _version(request)
    after, wait_s = _after(request), _wait_s(request)
    hub: Hub = request.app.state.hub
    lookout: Lookout = request.app.state.lookout
    polls: Admission = request.app.state.polls
    holders = {"job": job_id, "address": addresses.source(addresses.in_scope(request.scope))}
    deadline = time.monotonic() + wait_s
    with (
        ExitStack() as admitted,
        command_polls.track_inprogress(),
        lookout.listen(job_id) as bell,
    ):
        is_admitted = False
        while True:
            batch = await in_database(driver_protocol.take_commands, job_id, token, after, version)
            left_s = deadline - time.monotonic()
            if batch.commands or left_s <= 0 or hub.is_closed or await request.is_disconnected():
                return _batch(batch, version)
            if not is_admitted:  # Only here is its token known to be the driver's.
                admitted.enter_context(polls.admit(**holders))
                is_admitted = True
            await bell.wait(min(ASK_AGAIN_S, left_s))


def admission() -> Admission:
    """The bound on this process's waiting polls."""
    return Admission(
        "polls for commands",
        settings.WEIR_POLLS_MAX,
        {
            "job": settings.WEIR_POLLS_PER_JOB_MAX,
            "address": settings.WEIR_POLLS_PER_ADDRESS_MAX,
        },
    )


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


def _batch(batch: CommandBatch, version: int) -> Response:
    return Response(batches.encode_commands(batch, version), media_type="application/json")


def _token(request: Request) -> str:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    token = token.strip()
    if scheme.lower() != "bearer" or not token:
        raise Unauthorized("the driver's token is missing; send Authorization: Bearer …")
    return token


def _version(request: Request) -> int:
    """The version that the request is written in."""
    given = request.headers.get(VERSION_HEADER, "")
    is_number = given.isdecimal() and given.isascii() and len(given) < 10
    if not is_number or not VERSION_MIN <= int(given) <= VERSION_MAX:
        raise Invalid(
            f"{VERSION_HEADER} is {given[:20]!r}, and this control plane speaks {VERSION_MIN} to "
            f"{VERSION_MAX}: write {VERSION_MAX}, or run drivers of a version of Weir at most one "
            "older than the control plane's",
            schema_version=VERSION_MAX,
        )
    return int(given)


def _is_packed(request: Request) -> bool:
    encoding = request.headers.get("Content-Encoding", "identity").strip().lower()
    if encoding not in ("gzip", "identity"):
        raise Invalid(f"Content-Encoding {encoding[:20]!r} is unknown; send gzip, or no encoding")
    return encoding == "gzip"


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
