"""A web process and a browser, started once for all tests here."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pytest_django.plugin import DjangoDbBlocker

from controlplane.base import ticks
from controlplane.embedded.redis import Redis
from tests.browser.browser import Chromium, Window, chromium, needs_chromium
from tests.browser.server import WebProcess, web_process
from tests.services import database_url, others_at_work
from tests.waiting import wait_until


@pytest.fixture(scope="package")
def browser() -> Iterator[Chromium]:
    """One browser for all tests; each has a window of its own."""
    needs_chromium()
    with chromium() as launched:
        yield launched


@pytest.fixture(scope="package")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The web process's own directory, where the drivers' directories are."""
    return tmp_path_factory.mktemp("web")


@pytest.fixture(scope="package")
def process(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, redis_server: Redis, home: Path
) -> Iterator[WebProcess]:
    """One web process for all tests; it keeps nothing between two requests."""
    needs_chromium()
    with django_db_blocker.unblock():
        url = database_url()
    with web_process(home, url, redis_server.url) as process:
        yield process


@pytest.fixture
def web(transactional_db: None, redis: Redis, process: WebProcess) -> Iterator[WebProcess]:
    """The web process over this test's rows.

    It answers its open requests before the rows are deleted: emptying tables that a request reads
    from would be a deadlock. To pages that ask, it is ready, as where ticks run.
    """
    for task in ticks.TASKS:
        ticks.note(task)
    yield process
    quiet_looks = 0

    def is_quiet() -> bool:
        nonlocal quiet_looks
        quiet_looks = 0 if others_at_work() else quiet_looks + 1
        return quiet_looks == 3

    wait_until(is_quiet, "the web process has answered everything")


@pytest.fixture
def window(web: WebProcess, browser: Chromium) -> Iterator[Window]:
    """A browser's window, logged out, that must have nothing to complain of."""
    with browser.window(web.url) as opened:
        yield opened
