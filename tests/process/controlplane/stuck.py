"""Services that get stuck on demand, for ``test_watchdog``: the real ones, with one thing added."""

import asyncio
import re
import sys
import time
from typing import Any

from celery import shared_task
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from controlplane.base.schedules import WatchedScheduler
from controlplane.base.threads import in_database, shared


@shared_task(name="tests.hang")
def hang() -> None:
    """Hold the process for ever."""
    time.sleep(3_600)


class HangingScheduler(WatchedScheduler):
    """Beat's scheduler, whose third tick never ends."""

    _ticks = 0

    def tick(self, *args: Any, **kwargs: Any) -> float:
        """Send what is due."""
        interval_s = super().tick(*args, **kwargs)
        self._ticks += 1
        if self._ticks == 3:
            time.sleep(3_600)
        return interval_s


async def hang_loop(_: Request) -> JSONResponse:
    """Hold the event loop and the interpreter lock: no Python code runs meanwhile."""
    re.match(r"(a+)+$", "a" * 60 + "b")
    return JSONResponse({})


async def hang_threads(_: Request) -> JSONResponse:
    """Hold all database threads."""
    pool = shared()
    calls = [asyncio.ensure_future(in_database(time.sleep, 3_600)) for _ in range(pool.size)]
    _held.extend(calls)
    return JSONResponse({})


_held: list[Any] = []

if "uvicorn" in sys.orig_argv:  # Celery imports the task alone.
    from controlplane.asgi import application

    application.router.routes[:0] = [
        Route("/hang-loop", hang_loop),
        Route("/hang-threads", hang_threads),
    ]
