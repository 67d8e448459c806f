"""Server-sent events: the snapshots of a job's page, as the job changes.

One feed per watched job and process computes the job's snapshot, only while a browser watches; its
streams send the newest snapshot to all browsers of the job. A slow browser gets fewer snapshots,
never old ones.

A change after a quiet moment is sent at once. After each snapshot a feed rests, the longer the more
the snapshot cost: a small job's page follows every subtask, a large one's takes half of one thread
at most.
"""

import asyncio
import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from django.conf import settings
from django.core.serializers.json import DjangoJSONEncoder
from django.utils.module_loading import import_string
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from controlplane.accounts.authentication import user_of_session
from controlplane.base import logs, server_losses, wakeups
from controlplane.base.errors import NotFound, Refusal, Unauthorized
from controlplane.base.hub import Bell, Hub
from controlplane.base.limits import addresses
from controlplane.base.limits.admission import Admission
from controlplane.base.requests import plain, refusal
from controlplane.base.threads import DATABASE_AWAY, Unavailable, in_database
from controlplane.driver_http import guarded
from controlplane.process_metrics import event_streams

logger = logging.getLogger(__name__)

PER_SECOND = 10  # Snapshots of one job, at most: a tenth of a second is soon enough to look live.
REST = 1.0  # Between two snapshots, as a multiple of the time that the first one took.
LOOK_AGAIN_S = 1.0  # Without wake-ups.
HANGS_AFTER_S = 5.0  # A database that does not answer for so long is away, as for ``/readyz``.
REFRESH_S = 10.0  # Ages on the page grow also while nothing else changes.
FIRST_TIMEOUT_S = 10.0
HEARTBEAT_S = 15.0  # Proxies end idle connections.
SESSION_CHECK_S = 30.0
SEND_TIMEOUT_S = 60.0  # A browser that reads nothing for so long has gone.
RETRY_MS = 2_000

Json = dict[str, Any]


def rest_s(took_s: float) -> float:
    """The pause of a feed after a snapshot that took ``took_s``, including the wait for a thread.

    On a busy process snapshots take longer, so all feeds give way.
    """
    return min(max(1 / PER_SECOND, REST * took_s), LOOK_AGAIN_S)


class Feed:
    """The newest snapshot of one job, kept up to date while the feed runs."""

    def __init__(self, hub: Hub, job_id: str) -> None:
        self.topic = f"snapshot:{job_id}"
        self.version = 0  # 0: none yet.
        self.data = ""
        self.is_gone = False  # The job does not exist, or no longer.
        self.has_failed = False
        self.is_away = False  # The database could not be read last.
        self.watchers = 0
        self._hub = hub
        self._job_id = job_id
        self._shown: Json | None = None
        self._shown_at = 0.0

    @property
    def has_ended(self) -> bool:
        """Whether no snapshot will follow."""
        return self.is_gone or self.has_failed

    async def run(self) -> None:
        """Read the snapshot whenever the job may have changed, until the job is deleted."""
        with logs.about(job=self._job_id), self._hub.listen(wakeups.job(self._job_id)) as bell:
            while not self.has_ended:
                started = time.monotonic()
                await self._read()
                pause_s = rest_s(time.monotonic() - started)
                await asyncio.sleep(pause_s)
                await bell.wait(LOOK_AGAIN_S - pause_s)

    async def _read(self) -> None:
        try:
            snapshot = await self._snapshot()
        except (*DATABASE_AWAY, Unavailable) as error:
            logger.warning(
                "the snapshot of the job's page cannot be updated: %s", str(error).strip()
            )
            server_losses.note_database_error(error)
            if not server_losses.is_database_lost(error):
                return
            self._mark_away()
        except Exception:
            logger.exception("the snapshot of the job's page failed")
            self.has_failed = True
        else:
            self.is_away = False
            self.is_gone = snapshot is None
            if snapshot is not None and not self._shows(snapshot):
                return
        self._hub.ring(self.topic)

    async def _snapshot(self) -> "_Snapshot | None":
        reading = asyncio.ensure_future(in_database(_snapshot, self._job_id))
        try:
            await asyncio.wait({reading}, timeout=HANGS_AFTER_S)
            if not reading.done():
                logger.warning("the snapshot of the job's page is not read in %g s", HANGS_AFTER_S)
                server_losses.note_database_lost()
                self._mark_away()
                self._hub.ring(self.topic)
            return await reading
        finally:
            reading.cancel()

    def _mark_away(self) -> None:
        self.is_away = True
        self._shown = None  # The first snapshot afterwards is sent, even if it equals the last.

    def _shows(self, snapshot: "_Snapshot") -> bool:
        """Whether the snapshot differs from the last one, or is due again; keeps it if so."""
        now = time.monotonic()
        if snapshot.changes == self._shown and now < self._shown_at + REFRESH_S:
            return False
        self._shown, self._shown_at = snapshot.changes, now
        self.data = snapshot.text
        self.version += 1
        return True


@dataclass(frozen=True, slots=True)
class _Snapshot:
    text: str  # JSON, one line.
    changes: Json  # Without values that change with time alone.


def _snapshot(job_id: str) -> _Snapshot | None:
    read: Callable[[str], Json | None] = import_string(settings.WEIR_JOB_SNAPSHOT)
    changes: Callable[[Json], Json] = import_string(settings.WEIR_JOB_SNAPSHOT_CHANGES)
    value = read(job_id)
    if value is None:
        return None
    text = json.dumps(value, cls=DjangoJSONEncoder, separators=(",", ":"))
    return _Snapshot(text=text, changes=changes(value))


class Feeds:
    """The feeds of this process: one for each job that a browser watches."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._feeds: dict[str, tuple[Feed, asyncio.Task[None]]] = {}

    @contextmanager
    def watch(self, job_id: str) -> Iterator[Feed]:
        """The job's feed, which runs as long as a browser watches."""
        if job_id in self._feeds:
            feed, task = self._feeds[job_id]
        else:
            feed = Feed(self._hub, job_id)
            task = asyncio.create_task(feed.run(), name=f"feed of {job_id}")
            self._feeds[job_id] = feed, task
        feed.watchers += 1
        try:
            yield feed
        finally:
            feed.watchers -= 1
            if feed.watchers == 0:
                del self._feeds[job_id]
                task.cancel()


def admission() -> Admission:
    """The bound on this process's open event streams."""
    return Admission(
        "event streams",
        settings.WEIR_STREAMS_MAX,
        {
            "account": settings.WEIR_STREAMS_PER_USER_MAX,
            "address": settings.WEIR_STREAMS_PER_ADDRESS_MAX,
        },
    )


@guarded
async def job_events(request: Request) -> Response:
    """``GET /events/jobs/{job_id}``: the event stream, for logged-in browsers."""
    session_key = request.cookies.get(settings.SESSION_COOKIE_NAME, "")
    name = await in_database(_name_of, session_key) if session_key else None
    if name is None:
        raise Unauthorized("this session is not logged in; log in to see the job")
    return EventStream(request, session_key, name)


def _name_of(session_key: str) -> str | None:
    user = user_of_session(session_key)
    return None if user is None else user.get_username()


class EventStream(Response):
    """One browser's stream of one job; it ends with the session, the job's row or the process."""

    def __init__(self, request: Request, session_key: str, name: str) -> None:
        self._job_id: str = request.path_params["job_id"]
        self._hub: Hub = request.app.state.hub
        self._feeds: Feeds = request.app.state.feeds
        self._admission: Admission = request.app.state.streams
        self._session_key = session_key
        self._name = name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the stream ends; refuse it where too many are open."""
        holders = {"account": self._name, "address": addresses.source(addresses.in_scope(scope))}
        try:
            with self._admission.admit(**holders):
                await self._run(scope, receive, send)
        except Refusal as refused:
            await plain(refusal(refused))(scope, receive, send)

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        with (
            event_streams.track_inprogress(),
            self._feeds.watch(self._job_id) as feed,
            self._hub.listen(feed.topic) as bell,
        ):
            gone = asyncio.create_task(_until_gone(receive, bell))
            try:
                refused = await self._first(feed, bell)
                if refused is not None:
                    await plain(refusal(refused))(scope, receive, send)
                    return
                await self._follow(feed, bell, gone, send)
            except TimeoutError:  # The browser reads nothing; the server closes the connection.
                logger.info("a browser read no event within %g s; its stream ends", SEND_TIMEOUT_S)
            finally:
                gone.cancel()

    async def _first(self, feed: Feed, bell: Bell) -> Refusal | None:
        deadline = time.monotonic() + FIRST_TIMEOUT_S
        while not (feed.version or feed.has_ended or self._hub.is_closed):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                break
            await bell.wait(left_s)
        if feed.is_gone:
            return NotFound(f"there is no job {self._job_id}")
        if not feed.version:
            return Unavailable("the job's snapshot cannot be read at the moment; try again soon")
        return None

    async def _follow(self, feed: Feed, bell: Bell, gone: "asyncio.Task[None]", send: Send) -> None:
        await _send(send, _START)
        await _send(send, _part(f"retry: {RETRY_MS}\n\n"))
        sent, knows_away = 0, False
        beat_at = time.monotonic() + HEARTBEAT_S
        check_at = time.monotonic() + SESSION_CHECK_S
        while not (gone.done() or self._hub.is_closed):
            now = time.monotonic()
            if now >= check_at:
                if not await self._may_go_on():
                    break
                check_at = now + SESSION_CHECK_S
            if feed.is_away and not knows_away:
                knows_away = True
                await _send(send, _part(_event("away", "database", str(sent))))
            elif sent != feed.version:
                sent, knows_away = feed.version, False
                await _send(send, _part(_event("snapshot", feed.data, str(sent))))
                beat_at = now + HEARTBEAT_S
            elif now >= beat_at:
                await _send(send, _part(":\n\n"))
                beat_at = now + HEARTBEAT_S
            if feed.has_ended:
                break
            await bell.wait(min(beat_at, check_at) - time.monotonic())
        if not gone.done():
            await _send(send, {"type": "http.response.body"})

    async def _may_go_on(self) -> bool:
        try:
            # A database that hangs must not keep the stream from saying so.
            async with asyncio.timeout(HANGS_AFTER_S):
                return await in_database(_name_of, self._session_key) is not None
        except (*DATABASE_AWAY, Unavailable, TimeoutError):
            return True  # Checked again later; without the database there are no snapshots either.


_START: Message = {
    "type": "http.response.start",
    "status": 200,
    "headers": [
        (b"content-type", b"text/event-stream; charset=utf-8"),
        (b"cache-control", b"no-store"),
        (b"x-accel-buffering", b"no"),  # Asks nginx to pass events on at once.
    ],
}


def _event(kind: str, data: str, identity: str) -> str:
    return f"id: {identity}\nevent: {kind}\ndata: {data}\n\n"


def _part(text: str) -> Message:
    return {"type": "http.response.body", "body": text.encode(), "more_body": True}


async def _send(send: Send, message: Message) -> None:
    async with asyncio.timeout(SEND_TIMEOUT_S):
        await send(message)


async def _until_gone(receive: Receive, bell: Bell) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    bell.ring()
