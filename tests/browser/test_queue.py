"""A queue is reviewed in one form in a real browser, with the keyboard alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import Stack
from tests.bot.listeners.test_review_together import states, waiting
from tests.browser.acts import words_on
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

DESKTOP = (1100, 1000)


@pytest.fixture
async def stack(store: Store) -> AsyncIterator[Stack]:
    async with Sandbox() as sandbox:
        yield Stack(sandbox, store)


def dialog_shows(screen: Screen, *expected: str) -> None:
    """Wait until the modal on top shows all of these words."""

    def shown() -> bool:
        text = screen.words(".dialog")
        return all(word in text for word in expected)

    screen.wait(shown, f"the words {expected} in a modal")


def press(screen: Screen, css: str) -> None:
    """Press Enter on an element, also when the tab is drawn anew in between."""
    screen.with_one(css, lambda node: node.send_keys(Keys.ENTER))


def by_keyboard(screen: Screen) -> None:
    screen.size(*DESKTOP)
    screen.open("U0ANA", "home")
    words_on(screen, "Review 2 together")
    press(screen, '[data-action-id="review_together"]')
    dialog_shows(screen, "Calls 1-2")
    screen.with_one(
        '.dialog input[type="checkbox"]',
        lambda node: node.send_keys(Keys.SPACE),
        last=True,
    )
    press(screen, ".modal-submit")
    dialog_shows(screen, "1 approved", "1 still waiting")
    press(screen, ".modal-submit")
    dialog_shows(screen, "1 approved")
    press(screen, ".modal-close")
    screen.gone(".dialog")


async def test_a_queue_is_reviewed_with_the_keyboard_alone(
    chrome: Chrome, stack: Stack
) -> None:
    async with stack.running():
        verdicts = await waiting(stack, 2)
        await stack.actor("U0ANA").open_home()
        screen = Screen(chrome, stack.sandbox.url)

        await asyncio.to_thread(by_keyboard, screen)

        assert sorted(await states(stack, verdicts)) == [
            ItemState.AUTHORIZED,
            ItemState.PENDING,
        ]
