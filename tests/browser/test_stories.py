"""Reviewers' stories in a real browser, against the real bot over both transports.

The transports take turns; a deep run plays each story over both.
`tests/stories` always plays over both, without a browser.
"""

from __future__ import annotations

import pytest
from selenium.webdriver import Keys

from tests.browser.acts import ANA, CHANNEL, REASON, amount_field, words_on
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


def final_message(screen: Screen) -> str:
    """Open the thread of the first request and return its text."""

    def said() -> str:
        if not _is_open(screen):
            screen.click(".replies")
        return screen.words("#thread") if _is_open(screen) else ""

    return screen.wait(said, "the thread")


def _is_open(screen: Screen) -> bool:
    return any(node.is_displayed() for node in screen.all("#thread"))


def test_edit_with_an_inline_error_first(screen: Screen, demo: Demo) -> None:
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="edit"]')
    amount = amount_field(screen)
    screen.type(amount, "0")
    screen.type('.dialog [data-block-id="reason"] .control', REASON)
    screen.click(".modal-submit")
    error = screen.words(".dialog .error")

    screen.type(amount, "449.50")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    text = words_on(screen, ", done ", "449.5", REASON)

    assert error
    assert "899" in text, "the card keeps what was requested"
    assert [effect["args"]["amount"] for effect in demo.effects()] == [449.5]
    screen.wait(
        lambda: "449.50 instead of 899.00" in final_message(screen), "the last words"
    )


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
