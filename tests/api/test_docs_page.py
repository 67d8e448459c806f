"""The API's page in a real browser, under the content policy of a real web process."""

import json
from pathlib import Path

import pytest
from selenium.webdriver.common.by import By

from controlplane.embedded.redis import Redis
from tests.api import rows
from tests.frontend.server import chromium, needs_chromium, wait_for, web_process
from tests.services import database_url


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_the_page_shows_every_operation_and_calls_one(redis: Redis, tmp_path: Path) -> None:
    needs_chromium()
    user = rows.user("viewer", "vera")
    with (
        web_process(tmp_path, database_url(), redis.url) as web,
        chromium() as browser,
    ):
        browser.get(f"{web.url}/api/v1/docs")
        browser.find_element(By.ID, "id_username").send_keys(user.username)
        browser.find_element(By.ID, "id_password").send_keys(rows.PASSWORD)
        browser.find_element(By.CSS_SELECTOR, "form.stack button").click()
        wait_for(lambda: browser.current_url.endswith("/api/v1/docs"), "back on the page")

        def shown() -> list[str]:
            found = browser.find_elements(By.CSS_SELECTOR, ".opblock-summary")
            return [block.text for block in found]

        wait_for(lambda: len(shown()) > 30, "the operations", 30)
        assert any("/api/v1/jobs/{job_id}/checkpoint\n" in text for text in shown())

        me = next(
            block
            for block in browser.find_elements(By.CSS_SELECTOR, ".opblock")
            if "/api/v1/me" in block.text
        )
        me.find_element(By.CSS_SELECTOR, ".opblock-summary-control").click()
        for button in (".try-out__btn", ".execute"):
            wait_for(lambda button=button: me.find_elements(By.CSS_SELECTOR, button), button)
            me.find_element(By.CSS_SELECTOR, button).click()
        body = ".live-responses-table .response-col_description pre"
        wait_for(lambda: me.find_elements(By.CSS_SELECTOR, body), "the answer")
        answer = json.loads(me.find_element(By.CSS_SELECTOR, body).text)
        assert (answer["username"], answer["role"]) == ("vera", "viewer")

        complaints = [line for line in browser.get_log("browser") if line["level"] == "SEVERE"]
        assert complaints == []
