"""The API's page in a real browser, under the content policy of a real web process."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Page

from controlplane.embedded.redis import Redis
from tests import factories
from tests.browser.browser import chromium, needs_chromium
from tests.browser.server import web_process
from tests.services import database_url


@pytest.mark.django_db(transaction=True)
def test_the_page_shows_every_operation_and_calls_one(redis: Redis, tmp_path: Path) -> None:
    needs_chromium()
    user = factories.user(name="vera")
    with (
        web_process(tmp_path, database_url(), redis.url) as web,
        chromium() as browser,
        browser.window(web.url) as window,
    ):
        window.open("/api/v1/docs")  # Asks for a login, and comes back.
        window.do(lambda page: page.fill("#id_username", user.username))
        window.do(lambda page: page.fill("#id_password", factories.PASSWORD))
        window.click("Log in")
        window.sees(".opblock-summary >> nth=30", "/api/v1/")
        blocks = window.texts(".opblock-summary")
        assert any("/api/v1/jobs/{job_id}/checkpoint " in text for text in blocks)

        def tried(page: Page) -> str:
            me = page.locator(".opblock").filter(has_text="/api/v1/me")
            me.locator(".opblock-summary-control").click()
            me.locator(".try-out__btn").click()
            me.locator(".execute").click()
            body = me.locator(".live-responses-table .response-col_description pre").first
            return body.inner_text()

        answer = json.loads(window.do(tried))
        assert (answer["username"], answer["role"]) == ("vera", "viewer")
