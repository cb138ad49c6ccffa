"""Reviewers' stories in a real browser, against the real bot over both transports.

The transports take turns; a deep run plays each story over both.
`tests/stories` always plays over both, without a browser.
"""

from __future__ import annotations

import pytest
from selenium.webdriver import Keys

from tests.browser.acts import ANA, CHANNEL, words_on
from tests.browser.demo_process import SEVERAL, Demo
from tests.levels import is_deep
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

TRANSPORTS = ("socket", "http")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Choose the transport of each story, or both."""
    if "mode" in metafunc.fixturenames:
        stories = [name for name in globals() if name.startswith("test_")]
        turn = stories.index(metafunc.function.__name__) % len(TRANSPORTS)
        is_both = is_deep()
        metafunc.parametrize("mode", TRANSPORTS if is_both else [TRANSPORTS[turn]])


def test_everything_works_with_the_keyboard_alone(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    screen.with_one(
        '[data-action-id="reject"]',
        lambda node: screen.run("arguments[0].focus()", node),
    )
    screen.press(Keys.ENTER)
    screen.one(".dialog")
    screen.press(Keys.ESCAPE)
    screen.gone(".dialog")

    assert screen.has_focus('[data-action-id="reject"]')
    assert not demo.effects()


def test_nothing_is_wider_than_a_phone(screen: Screen, demo: Demo) -> None:
    screen.open(ANA, CHANNEL)
    screen.click(f'[data-hook="{SEVERAL}"]')
    words_on(screen, "Expires", "3 calls: ")
    screen.size(360, 780)

    for place in (CHANNEL, "home"):
        screen.open(ANA, place)
        words_on(screen, "78291")
        widths = screen.run(
            "return [...document.querySelectorAll('main *')]"
            ".filter((n) => n.offsetParent && n.getBoundingClientRect().right > 361)"
            ".filter((n) => !n.closest('.suggestions'))"
            ".map((n) => n.className)"
        )
        assert widths == []
    assert not demo.effects()
