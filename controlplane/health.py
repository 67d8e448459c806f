"""Health checks: whether the process is alive, and whether the control plane is ready."""

import asyncio
import logging

import redis
from django.conf import settings
from django.db import connection
from starlette.requests import Request
from starlette.responses import JSONResponse

from controlplane.base import problems, ticks, unusable_database, wakeups, watchdog
from controlplane.base.threads import DATABASE_AWAY, Unavailable, in_database

logger = logging.getLogger(__name__)

OK = "ok"
AWAY = "cannot be reached"
REFUSES = "refuses the connection; the log of this service says why"
_REFUSED = (redis.AuthenticationError, redis.ResponseError)
DATABASE_TIMEOUT_S = 5.0

Report = dict[str, str]


async def alive(_: Request) -> JSONResponse:
    """``GET /healthz``: 200 while loop and threads come round, else 503; needs no other process."""
    problem = watchdog.problem()
    if problem is not None:
        return JSONResponse({"status": "stuck", "detail": problem}, 503)
    return JSONResponse({"status": OK})


async def ready(_: Request) -> JSONResponse:
    """``GET /readyz``: 200 when database, migrations, Redis and ticks are well; else 503."""
    async with asyncio.TaskGroup() as group:
        database = group.create_task(_database())
        others = group.create_task(asyncio.to_thread(_redis))
    checks = database.result() | others.result()
    is_ready = all(said == OK for said in checks.values())
    status = OK if is_ready else "not ready"
    return JSONResponse({"status": status, "checks": checks}, 200 if is_ready else 503)


async def _database() -> Report:
    try:
        async with asyncio.timeout(DATABASE_TIMEOUT_S):
            is_read_only, missing = await in_database(_look)
    except (*DATABASE_AWAY, Unavailable, TimeoutError) as error:
        if (full := problems.disk_full(error)) is not None:
            return {"database": full.detail, "migrations": "unknown"}
        logger.warning("not ready: %s", str(error).strip() or "no thread was free in time")
        said = REFUSES if "FATAL:" in str(error) else AWAY
        return {"database": said, "migrations": "unknown"}
    applied = f"{missing} to be applied: run manage.py weir_prepare" if missing else OK
    said = unusable_database.DatabaseReadOnly.said if is_read_only else OK
    return {"database": said, "migrations": applied}


def _look() -> tuple[bool, int]:
    missing = unusable_database.missing_migrations(connection)
    return unusable_database.is_read_only(connection), missing


def _redis() -> Report:
    client = wakeups.client(settings.REDIS_URL)
    try:
        client.ping()
        ages = ticks.ages_s(client)
        memory = client.info("memory")
    except redis.RedisError as error:
        logger.warning("not ready: Redis: %s", error)
        if (full := problems.redis_full(error)) is not None:
            said = f"{full} is full"
        else:
            said = REFUSES if isinstance(error, _REFUSED) else AWAY
        return {"redis": said, "ticks": "unknown"}
    is_full = 0 < memory.get("maxmemory", 0) <= memory["used_memory"]
    return {"redis": "the memory of Redis is full" if is_full else OK, "ticks": _late(ages)}


def _late(ages_s: dict[str, float | None]) -> str:
    late = [
        f"{task}: {'no run noted within a day' if age_s is None else f'{age_s:.0f} s ago'}"
        for task, age_s in ages_s.items()
        if age_s is None or age_s > settings.WEIR_TICK_AGE_MAX_S
    ]
    return "; ".join(late) or OK
