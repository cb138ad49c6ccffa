"""Give a test a browser, a fake Slack server, and a screen that shows it."""

from collections.abc import Iterator

import pytest
from selenium.webdriver import Chrome

from tests.sandbox.page import chromium
from tests.sandbox.page.fake_slack import FakeSlack
from tests.sandbox.page.scenes import workspace
from tests.sandbox.page.screen import Screen


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    try:
        driver = chromium.start(tmp_path_factory.mktemp("chromium"))
    except chromium.NoChromium as missing:
        pytest.fail(str(missing), pytrace=False)
    driver.set_script_timeout(10)
    yield driver
    driver.quit()


@pytest.fixture
def slack() -> Iterator[FakeSlack]:
    with FakeSlack(workspace()) as running:
        yield running


@pytest.fixture
def screen(browser: Chrome, slack: FakeSlack) -> Iterator[Screen]:
    """Show the fake server, and fail the test if the console complained."""
    shown = Screen(browser, slack.url)
    shown.size(1280, 860)
    yield shown
    browser.get("about:blank")
    problems = shown.problems()
    if problems:
        raise AssertionError(f"The console complained: {problems!r}")
