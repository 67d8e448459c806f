"""Take the picture of a job's page: ``python -m tests.frontend.screenshot URL USER PASSWORD FILE``.

``URL`` is the page of a job. The picture shows a light page of 1280 pixels down to its charts,
taken while a checkpoint is under way where one is within ten seconds.
"""

import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.frontend.server import chromium, wait_for

WIDTH = 1280
UNDER_WAY_TIMEOUT_S = 10.0


def take(browser: Chrome, address: str, user: str, password: str, file: Path) -> None:
    """Log in, open the page and save what it shows."""
    parts = urlsplit(address)
    browser.get(f"{parts.scheme}://{parts.netloc}/login/?next={parts.path}")
    browser.find_element(By.ID, "id_username").send_keys(user)
    browser.find_element(By.ID, "id_password").send_keys(password)
    browser.find_element(By.CSS_SELECTOR, "form.stack button").click()
    charts = "return [...document.querySelectorAll('[data-figure]')].every((e) => e.dataset.drawn)"
    wait_for(lambda: browser.execute_script(charts), "both charts are drawn", 30.0)
    bottom = (
        "return document.querySelector('[data-figure=alignment]').getBoundingClientRect().bottom"
    )
    metrics = {
        "width": WIDTH,
        "height": int(browser.execute_script(bottom + " + scrollY")) + 60,
        "deviceScaleFactor": 1,
        "mobile": False,
    }
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    some = "return document.querySelector('.operators [data-state=some]') !== null"
    deadline = time.monotonic() + UNDER_WAY_TIMEOUT_S
    while not browser.execute_script(some) and time.monotonic() < deadline:
        time.sleep(0.01)
    browser.save_screenshot(str(file))


if __name__ == "__main__":
    page, name, secret, target = sys.argv[1:]
    with chromium(width=WIDTH) as window:
        take(window, page, name, secret, Path(target))
