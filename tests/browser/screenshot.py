"""Take pictures of the pages.

``python -m tests.browser.screenshot all DIRECTORY [PART ...]``
    Every page (or those with one of the parts in their name) over rows made for the purpose, in
    light and dark, 1280 and 390 pixels wide.
``python -m tests.browser.screenshot readme DIRECTORY``
    Those of the README: the page of a job down to its history while a checkpoint is under way, the
    page of a checkpoint down to its heat map, and savepoints; light, 1280 pixels wide.
``python -m tests.browser.screenshot one URL USER PASSWORD FILE``
    A page of a control plane that runs: light, 1280 pixels wide, and where it is the page of a job,
    down to its charts and while a checkpoint is under way, if one is within ten seconds.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from tests.browser.browser import Window, chromium
from tests.waiting import wait_until

WIDTHS = (1280, 390)
UNDER_WAY_TIMEOUT_S = 10.0
SOME = "document.querySelector('.operators [data-state=some], svg [data-state=some]') !== null"


def take_one(address: str, username: str, password: str, file: Path) -> None:
    """Log in, open the page and save what it shows."""
    parts = urlsplit(address)
    with chromium() as browser, browser.window(f"{parts.scheme}://{parts.netloc}") as window:
        window.log_in(username, password)
        window.open(parts.path)
        window.await_figures()
        with suppress(AssertionError):  # Of a job without one.
            wait_until(lambda: window.evaluate(SOME), "some are under way", UNDER_WAY_TIMEOUT_S)
        window.screenshot(file)


def take_all(directory: Path, parts: list[str]) -> None:
    """Pictures of every page that is wanted, and of the login and the empty overview."""
    from tests import factories
    from tests.browser import browser_pages

    directory.mkdir(parents=True, exist_ok=True)

    def take(window: Window, page: browser_pages.Shown) -> None:
        if parts and not any(part in page.name for part in parts):
            return
        window.open(page.path)
        window.await_figures()
        for width in WIDTHS:
            window.resize(width)
            for theme in ("light", "dark"):
                window.show_dark(theme == "dark")
                time.sleep(0.3)  # Figures are drawn anew in other colours and sizes.
                window.screenshot(directory / f"{page.name}-{width}-{theme}.png")
        window.show_dark(False)
        window.resize(WIDTHS[0])

    with _server() as (url, home), chromium() as browser, browser.window(url) as window:
        window.may_complain("status of 404")
        by = browser_pages.administrator()
        take(window, browser_pages.LOGIN)
        window.log_in(by.username, factories.PASSWORD)
        take(window, browser_pages.EMPTY_OVERVIEW)
        with tempfile.TemporaryDirectory() as files:
            for page in browser_pages.seeded(Path(files), by, home):
                take(window, page)


def take_readme(directory: Path) -> None:
    """The README's pictures of a job, of a checkpoint and of savepoints."""
    from tests import factories
    from tests.browser import browser_pages
    from tests.database.frontend import rows_pictures

    with _server() as (url, _), chromium() as browser, browser.window(url) as window:
        window.resize(WIDTHS[0])
        by = browser_pages.administrator()
        window.log_in(by.username, factories.PASSWORD)
        late = rows_pictures.late(by)
        window.open(f"/jobs/{late.job_id}/checkpoints/{late.number}/")
        window.await_figures()
        _down_to(window, "#alignment", directory / "checkpoint.png")
        job = rows_pictures.under_way(by)
        window.open(f"/jobs/{job.pk}/")
        window.await_figures()
        _down_to(window, "#history", directory / "dashboard.png")
        job = rows_pictures.with_savepoints(by)
        window.open(f"/jobs/{job.pk}/savepoints/")
        window.await_figures()
        _down_to(window, "main", directory / "going-back.png")


def _down_to(window: Window, section: str, file: Path) -> None:
    """The page from its top to the end of a section."""
    end = "(at) => document.querySelector(at).getBoundingClientRect().bottom + scrollY + 16"
    height = window.evaluate(end, section)
    clip = {"x": 0, "y": 0, "width": WIDTHS[0], "height": height}
    window.do(lambda page: page.screenshot(path=file, full_page=True, clip=clip))


@contextmanager
def _server() -> Iterator[tuple[str, Path]]:
    """The address of a web process over an empty database, and its own directory."""
    from django.core.management import call_command
    from django.test import override_settings

    from tests.browser.server import web_process
    from tests.services import (
        celery_on,
        database_url,
        running_postgres,
        running_redis,
        use_database,
    )

    with running_postgres() as postgres, running_redis() as redis:
        use_database(postgres.url)
        call_command("migrate", verbosity=0)
        with (
            tempfile.TemporaryDirectory() as home,
            override_settings(REDIS_URL=redis.url, CELERY_BROKER_URL=redis.url),
            celery_on(redis.url),
            web_process(Path(home), database_url(), redis.url) as web,
        ):
            yield web.url, Path(home)


def main() -> None:
    """As the module says."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "controlplane.settings.test")
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, dest="command")
    every = commands.add_parser("all", help="every page, over rows made for the purpose")
    every.add_argument("directory", type=Path)
    every.add_argument("part", nargs="*", help="of the names of the pages that are wanted")
    readme = commands.add_parser("readme", help="those of the README")
    readme.add_argument("directory", type=Path)
    one = commands.add_parser("one", help="a page of a control plane that runs")
    for name in ("url", "user", "password"):
        one.add_argument(name)
    one.add_argument("file", type=Path)
    asked = parser.parse_args()
    if asked.command == "one":
        take_one(asked.url, asked.user, asked.password, asked.file)
        return
    import django

    django.setup()
    if asked.command == "readme":
        take_readme(asked.directory)
    else:
        take_all(asked.directory, asked.part)


if __name__ == "__main__":
    main()
