"""No page keeps anybody out: axe-core's rules, in light and dark, and what it cannot judge.

axe-core rates what it finds; nothing serious or critical may be left on any page, and no page may
make the browser complain. Each page is loaded once: its structure is examined in light, and what
depends on colours in dark again.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page

from controlplane.accounts.models import Role
from tests import factories
from tests.browser import browser_pages
from tests.browser.browser import Window
from tests.browser.browser_pages import Shown
from tests.database.frontend import flights

pytestmark = [
    pytest.mark.django_db(transaction=True),
]

AXE = Axe().axe_script
GRAVE = ("serious", "critical")
EVERYTHING: dict[str, Any] = {"resultTypes": ["violations"]}
COLOURS: dict[str, Any] = EVERYTHING | {"runOnly": ["color-contrast"]}


def violations(window: Window, options: dict[str, Any]) -> Iterator[str]:
    """The serious and critical violations on the page, each in a line that says where."""

    def run_axe(page: Page) -> list[dict[str, Any]]:
        if not page.evaluate("'axe' in window"):  # Half a megabyte, once for each page.
            page.evaluate(AXE)
        answer: list[dict[str, Any]] = page.evaluate(
            "options => axe.run(options).then(results => results.violations)", options
        )
        return answer

    for violation in window.do(run_axe):
        if violation["impact"] in GRAVE:
            for node in violation["nodes"]:
                reasons = [check["message"] for check in node["any"] + node["all"] + node["none"]]
                yield f"{violation['id']}: {node['html'][:160]} -- {' '.join(reasons)}"


def examine(window: Window, pages: Sequence[Shown]) -> list[str]:
    """Everything grave on these pages, in both themes, and what the browser complained of."""
    problems = []
    for page in pages:
        window.show_dark(False)
        status = window.open(page.path)
        if status != page.status:
            problems.append(f"{page.name}: answered {status}")
            continue
        window.await_figures()
        problems += [f"{page.name}: {line}" for line in violations(window, EVERYTHING)]
        window.show_dark()
        problems += [f"{page.name} (dark): {line}" for line in violations(window, COLOURS)]
    return problems


def test_axe_finds_nothing_grave_on_any_page(window: Window, tmp_path: Path, home: Path) -> None:
    window.may_complain("status of 404")  # The page that is not found.
    problems = examine(window, [browser_pages.LOGIN])
    by = browser_pages.administrator()
    window.log_in(by.username, factories.PASSWORD)
    problems += examine(window, [browser_pages.EMPTY_OVERVIEW])
    pages = browser_pages.seeded(tmp_path, by, home)
    problems += examine(window, pages)
    assert problems == [], "\n".join(["", *problems])


def test_axe_finds_what_is_wrong(window: Window) -> None:
    """The examination itself can fail."""
    window.open("/login/")
    window.evaluate(
        "document.querySelector('main').innerHTML = '<img src=\"/static/frontend/weir.svg\">'"
        " + '<p id=\"faint\">hardly to be seen</p>'"
    )
    window.evaluate("document.getElementById('faint').style.color = '#ddd'")
    lines = list(violations(window, EVERYTHING))
    assert {line.split(":")[0] for line in lines} >= {"image-alt", "color-contrast"}


def test_the_keyboard_reaches_the_content_first_and_everything_else(window: Window) -> None:
    window.log_in(factories.user(Role.OPERATOR).username, factories.PASSWORD)
    job = flights.running()
    window.open(f"/jobs/{job.pk}/")
    focused = "document.activeElement.textContent.trim()"
    window.do(lambda page: page.keyboard.press("Tab"))
    assert window.evaluate(focused) == "Skip to the content"
    assert window.evaluate("document.activeElement.getBoundingClientRect().width > 20")
    window.do(lambda page: page.keyboard.press("Enter"))
    assert window.evaluate("document.activeElement.id") == "main"
    reached = set()
    for _ in range(60):
        window.do(lambda page: page.keyboard.press("Tab"))
        reached.add(window.evaluate(focused))
    assert set(window.buttons()) <= reached
