"""The cost of the dashboard, and its delay after an event.

Real PostgreSQL (with fsync), Redis and a web process on this machine; browsers are Debian's
Chromium.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from controlplane.embedded.stack import Stack
from tests.benchmarks import pages
from tests.benchmarks.dashboard_data import CHECKPOINTS, Stored, fill
from tests.benchmarks.report import Row
from tests.benchmarks.web_stack import web_stack


def dashboard(quick: bool) -> list[Row]:
    """Pages over a full database, what a page load weighs, an acknowledgement's way to a pixel."""
    with web_stack() as stack:
        # They import models, which only now can be.
        from tests.benchmarks import dashboard_browsers, dashboard_loads, dashboard_pixels

        viewer = Viewer(stack)
        stored = fill(CHECKPOINTS // 10 if quick else CHECKPOINTS)
        shown = pages.start_addresses(stored)
        rows = _page_rows(viewer, stored, shown, quick=quick)
        loads = asyncio.run(dashboard_loads.measure(viewer.url, viewer.cookie, shown))
        rows += dashboard_loads.rows(loads)
        samples = {
            parallelism: asyncio.run(
                dashboard_pixels.measure(
                    viewer.url, viewer.cookie, viewer.web_pid, parallelism, 10 if quick else 40
                )
            )
            for parallelism in dashboard_pixels.PARALLELISMS
        }
        rows += dashboard_pixels.rows(samples)
        browsers = dashboard_browsers.Browsers(viewer.url, viewer.cookie, viewer.web_pid)
        rows += asyncio.run(browsers.run(4.0 if quick else 8.0))
    return rows


def _page_rows(
    viewer: "Viewer", stored: Stored, shown: Sequence[pages.Address], *, quick: bool
) -> list[Row]:
    parts = pages.linked_addresses(viewer.client, shown, stored)
    cost = pages.costs(viewer.client, [*shown, *parts], rounds=1 if quick else 3)
    reader = viewer.reader()
    try:
        took = pages.timed(reader, [*shown, *parts], seconds=5.0 if quick else 30.0)
    finally:
        reader.close()
    return pages.rows(took, cost, shown, parts, stored)


class Viewer:
    """An administrator, whom no page is kept from."""

    def __init__(self, stack: Stack) -> None:
        from django.conf import settings
        from django.test import Client

        from controlplane.accounts.models import Role
        from tests import factories

        self.url = stack.url
        self.web_pid = stack.process("web").pid
        # What fails is answered as the web process answers it, which ends the measurement.
        self.client: Any = Client(SERVER_NAME="127.0.0.1", raise_request_exception=False)
        self.client.force_login(factories.user(Role.ADMIN))
        name = settings.SESSION_COOKIE_NAME
        self.cookie = name, self.client.cookies[name].value

    @property
    def port(self) -> int:
        """The web process'."""
        return int(self.url.rpartition(":")[2])

    def reader(self) -> pages.Reader:
        """A connection to the web process."""
        from tests.process.controlplane.web import Web

        return pages.Reader(Web.at(self.port).connect(), "=".join(self.cookie))
