"""Give a browser story the real demo and a screen that shows its page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from tests.browser.demo_process import Demo
from tests.sandbox.page import chromium
from tests.sandbox.page.screen import Screen

Open = Callable[[str], Screen]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--screenshots", default=None, help="Write the pictures of the docs here."
    )
    parser.addoption(
        "--every-look",
        action="store_true",
        help="Also write each picture as on a phone, and on a dark screen.",
    )


@pytest.fixture(scope="session")
def chrome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    try:
        driver = chromium.start(tmp_path_factory.mktemp("chromium"))
    except chromium.NoChromium as missing:
        pytest.fail(str(missing), pytrace=False)
    driver.set_script_timeout(10)
    yield driver
    driver.quit()


@pytest.fixture
def demo(mode: str, tmp_path: Path) -> Iterator[Demo]:
    """Run the demo over a transport."""
    running = Demo(tmp_path, mode)
    running.start()
    yield running
    running.stop()


@pytest.fixture
def screen(chrome: Chrome, demo: Demo) -> Iterator[Screen]:
    """Show the demo's page; the console may not complain."""
    shown = Screen(chrome, demo.url)
    shown.size(1280, 900)
    yield shown
    chrome.get("about:blank")
