"""A card links the conversation that started its agent, in a real browser."""

from __future__ import annotations

import pytest
from selenium.webdriver import Chrome

from tests.browser.demo_process import Demo
from tests.browser.test_stories import CHANNEL, words_on
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.mark.parametrize("mode", ["socket"])
def test_the_link_on_a_card_opens_the_thread_that_asked(
    chrome: Chrome, demo: Demo
) -> None:
    screen = Screen(chrome, demo.url)
    screen.open("U0ANA", CHANNEL)
    text = words_on(screen, "Approval needed", "Open the conversation")
    assert "http" not in text

    screen.click("a.link")

    screen.wait(lambda: "refund order 78291" in screen.words("#thread"), "the thread")
    assert chrome.title
    assert not screen.problems()
