"""The web process: one ASGI application on one event loop.

::

    /gateway/v1/jobs/{id}/events, /commands   drivers             controlplane.driver_http
    /events/jobs/{id}                         event streams       controlplane.event_streams
    /healthz, /readyz                         probes              controlplane.health
    /static/                                  files               controlplane.static
    everything else                           pages and the API   Django

Drivers and browsers wait on the event loop, a few hundred bytes each. The threads of
``controlplane.base.threads`` do all work with the database, Django's requests included.
"""

import asyncio
import gc
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

from django.conf import settings
from starlette.applications import Starlette
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.types import Receive, Scope, Send

from controlplane import driver_http, event_streams, health
from controlplane.accounts.refusals import RefusalNotes
from controlplane.base import converters, threads, watchdog
from controlplane.base.hub import Hub
from controlplane.base.limits.addresses import ClientAddress
from controlplane.base.requests import PlainRequests, http_problem, plain
from controlplane.handler import DjangoHandler
from controlplane.static import Static

GARBAGE_MIN = 10_000  # Objects beyond those that went, before the collector looks at them.
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class _JobId(StringConvertor):
    """The id of a job in a path, as in Django's URLs; other text does not match."""

    regex = converters.JobId.regex


register_url_convertor("job", _JobId())


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    """Run wake-ups, feeds and database threads for the life of the process."""
    hub = app.state.hub = Hub(settings.REDIS_URL)
    app.state.feeds = event_streams.Feeds(hub)
    app.state.streams = event_streams.admission()
    app.state.polls = driver_http.admission()
    app.state.batches = driver_http.BatchesInHand()
    lookout = app.state.lookout = driver_http.Lookout(hub)
    tasks = [
        asyncio.create_task(hub.run()),
        asyncio.create_task(lookout.run()),
        asyncio.create_task(_come_round()),
    ]
    watchdog.start(settings.WEIR_STUCK_AFTER_S)
    _settle_collector()
    try:
        with _on_signal(hub.close):
            yield
    finally:
        watchdog.stop()  # Open requests end in their own time; the server has a deadline for them.
        hub.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.to_thread(threads.close)


def _settle_collector() -> None:
    """Leave what the process has loaded out of every later collection of garbage.

    A batch of acknowledgements is ten thousand objects, and there are half a million loaded ones to
    walk over. Hence also the larger first generation.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE_MIN, *gc.get_threshold()[1:])


async def _come_round() -> None:
    """Tell the watchdog that the event loop runs, and whether a database thread is idle."""
    while True:
        watchdog.came_round()
        threads.shared().came_round()
        await asyncio.sleep(watchdog.LOOK_S)


@contextmanager
def _on_signal(act: Callable[[], None]) -> Iterator[None]:
    """Call ``act`` on signals that end the process, before the server's own handlers.

    Uvicorn waits for open responses before it ends the lifespan: event streams would hold it up
    until they were cut off.
    """
    loop = asyncio.get_running_loop()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(act)
        server = before[signal.Signals(number)]
        if callable(server):
            server(number, frame)

    try:
        for number in _SIGNALS:
            signal.signal(number, handle)
    except ValueError:  # Not the main thread; a server gets no signals here either.
        before = {}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return plain(http_problem(error))


_django = DjangoHandler()


async def _everything_else(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1000})  # Before it was accepted: 403.
        return
    await _django(scope, receive, send)


def _application() -> Starlette:
    ours = [Middleware(PlainRequests)]
    doors = [*ours, Middleware(RefusalNotes)]
    job = "/gateway/v1/jobs/{job_id:job}"
    app = Starlette(
        routes=[
            Route(f"{job}/events", driver_http.events, methods=["POST"], middleware=doors),
            Route(f"{job}/commands", driver_http.commands, methods=["GET"], middleware=doors),
            Route(
                "/events/jobs/{job_id:job}",
                event_streams.job_events,
                methods=["GET"],
                middleware=doors,
            ),
            Route("/healthz", health.alive, methods=["GET"], middleware=ours),
            Route("/readyz", health.ready, methods=["GET"], middleware=ours),
            Mount(settings.STATIC_URL, Static(settings.STATIC_ROOT), middleware=ours),
        ],
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
        middleware=[Middleware(ClientAddress)],
    )
    app.router.redirect_slashes = False
    app.router.default = _everything_else
    return app


application = _application()
