"""A turn of 56 refunds in a real browser: one card, three submissions, eight clicks."""

from __future__ import annotations

from collections import Counter

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.support.select import Select

from keyturn.cli.demo_scripts import EDITED, LAMPS, REJECTED
from tests.browser.demo_process import Demo
from tests.browser.test_queue import dialog_shows
from tests.browser.test_stories import (
    CARD,
    CHANNEL,
    amount_field,
    words_on,
)
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]


@pytest.fixture
def mode() -> str:
    return "socket"


def test_56_refunds_take_three_submissions_and_eight_clicks(
    screen: Screen, chrome: Chrome, demo: Demo
) -> None:
    screen.open("U0ANA", CHANNEL)
    ask = f"refund {LAMPS} recalled lamps at once"
    screen.wait(
        lambda: screen.run(
            "const found = [...document.querySelectorAll('button')]"
            ".find((one) => one.innerText.trim() === arguments[0]);"
            "found?.click(); return Boolean(found)",
            ask,
        ),
        "the button of the demo",
    )
    words_on(screen, f"{LAMPS} × process_refund")
    counted = Counter[str]()

    screen.click(f'{CARD} [data-action-id="choose"]')
    counted["clicks"] += 1
    dialog_shows(screen, "Ticked calls will be approved")

    # The menu is opened, and a call is chosen in it.
    menu = '.dialog [data-action-id="choose_edit"] select'
    screen.with_one(
        menu, lambda node: Select(node).select_by_visible_text(f"Call {EDITED + 1}")
    )
    counted["clicks"] += 2
    screen.type(amount_field(screen), "9.95")
    screen.type('.dialog [data-block-id="reason"] .control', "A part was sent back.")
    screen.click(".modal-submit", last=True)
    counted += Counter(clicks=1, submissions=1)

    dialog_shows(screen, "Ticked calls will be approved", "9.95")
    _tick(screen, f"{REJECTED + 1}. ")
    _tick(screen, "reject")
    screen.click(".modal-submit", last=True)
    counted += Counter(clicks=3, submissions=1)

    dialog_shows(screen, f"{LAMPS - 2} approved · 1 edited · 1 rejected")
    screen.type('.dialog [data-block-id="reason"] .control', "It was refunded before.")
    screen.click(".modal-submit", last=True)
    counted += Counter(clicks=1, submissions=1)
    screen.gone(".dialog")

    words_on(screen, "1 rejected")
    screen.wait(lambda: len(demo.effects()) == LAMPS - 1, "the refunds that ran")
    amounts = [effect["args"]["amount"] for effect in demo.effects()]
    assert amounts.count(9.95) == 1
    assert counted == {"clicks": 8, "submissions": 3}
    assert chrome.title
    assert not screen.problems()


def _tick(screen: Screen, words: str) -> None:
    """Click the box or the radio button whose label begins with these words."""
    screen.wait(
        lambda: screen.run(
            "const found = [...document.querySelectorAll('.dialog label')]"
            ".find((one) => one.innerText.trim().startsWith(arguments[0]));"
            "found?.click(); return Boolean(found)",
            words,
        ),
        f"the choice {words!r}",
    )
