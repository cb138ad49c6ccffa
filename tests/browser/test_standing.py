"""Similar refunds are allowed for a while, seen in a real browser."""

from __future__ import annotations

import pytest
from selenium.webdriver import Keys

from tests.browser.demo_process import Demo
from tests.browser.test_stories import CHANNEL, words_on
from tests.browser.test_two_people import choose_last, press_last
from tests.sandbox.page.screen import Screen

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(600),
    pytest.mark.parametrize("mode", ["socket"]),
]

ANA, BEN, DAN = "U0ANA", "U0BEN", "U0DAN"


def ask(screen: Screen, order: int) -> None:
    """Request a refund of about 20 as a person without a role."""
    screen.open(DAN, CHANNEL)
    screen.type('[data-hook="composer-box"]', f"@keyturn refund order {order}")
    screen.press(Keys.ENTER)
    words_on(screen, f"refund order {order}")


def open_form(screen: Screen, order: int) -> str:
    """Open the form of the newest card; return its words."""
    ask(screen, order)
    screen.open(ANA, CHANNEL)
    words_on(screen, f"for order {order}")
    choose_last(screen, "allow_similar")
    screen.wait(lambda: "Similar calls have" in screen.words(".dialog"), "the form")
    return screen.words(".dialog")


def allow(screen: Screen, uses: int, each: str = "30") -> None:
    """Fill in the form and send it."""
    screen.type('.dialog [data-block-id="uses"] .control', f"{uses}")
    screen.type('.dialog [data-block-id="each"] .control', each)
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "Similar calls are allowed", f"{uses} of {uses} left")


def test_similar_refunds_run_without_a_click_until_it_is_revoked(
    screen: Screen, demo: Demo
) -> None:
    form = open_form(screen, 79001)
    assert "These may be anything" in form
    screen.type('.dialog [data-block-id="uses"] .control', "500")
    screen.click(".modal-submit")
    screen.wait(
        lambda: "Please write a number from 1 to" in screen.words(".dialog"), "a hint"
    )
    allow(screen, 3)

    ask(screen, 79002)
    words_on(screen, "2 of 3 left")
    ask(screen, 79003)
    words_on(screen, "1 of 3 left")
    screen.open(BEN, CHANNEL)
    press_last(screen, "uses")
    screen.wait(lambda: "79003" in screen.words(".dialog"), "the list of uses")
    screen.click(".modal-close")
    screen.gone(".dialog")
    press_last(screen, "revoke_standing")
    screen.click(".confirm-agree")
    words_on(screen, "Revoked by", "Calls that it covered: 2.")
    ask(screen, 79004)
    words_on(screen, "for order 79004")

    orders = [effect["args"]["order_id"] for effect in demo.effects()]
    assert orders == ["79001", "79002", "79003"]
    assert not screen.problems()
