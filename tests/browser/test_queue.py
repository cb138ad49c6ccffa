"""A queue of 20 calls in a real browser: seen, filtered, reviewed in one modal."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome
from selenium.webdriver.common.keys import Keys

from keyturn.gateway.protocol.records import ItemState
from keyturn.gateway.store.store import Store
from keyturn.sandbox.server import Sandbox
from tests.bot.bot_stack import Stack
from tests.bot.listeners.test_review_together import COUNT, states, waiting
from tests.browser.test_stories import words_on
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.timeout(600)]

DESKTOP, PHONE = (1100, 1000), (390, 1000)


@pytest.fixture
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    named = request.config.getoption("--screenshots")
    folder = Path(named) if named else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


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


def pictures(screen: Screen, gallery: Path) -> None:
    for name, size, scheme in (
        ("queue-light", DESKTOP, "light"),
        ("queue-dark", DESKTOP, "dark"),
        ("queue-phone", PHONE, "light"),
        ("queue-phone-dark", PHONE, "dark"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0ANA", "home")
        words_on(screen, f"Waiting for you: {COUNT + 1}", f"Review {COUNT} together")
        screen.save(gallery / f"{name}.png")
    screen.size(*PHONE)
    screen.click('[data-action-id="review_together"]')
    dialog_shows(screen, "Calls 11-20")
    screen.save(gallery / "review-phone.png")
    screen.click(".modal-close")
    screen.gone(".dialog")
    assert len(list(gallery.glob("queue-*.png"))) == 4


def decides(screen: Screen, gallery: Path) -> None:
    """Review all calls in three clicks, each of them counted."""
    screen.size(*DESKTOP)
    screen.open("U0ANA", "home")
    clicks = 0
    for css, words in (
        ('[data-action-id="review_together"]', "Calls 1-10"),
        (".modal-submit", f"{COUNT} approve"),
        (".modal-submit", f"{COUNT} approved"),
    ):
        screen.click(css)
        clicks += 1
        dialog_shows(screen, words)
        screen.save(gallery / f"review-{clicks}.png")
    screen.click(".modal-close")
    # Without any action, the tab shows the remaining calls.
    words_on(screen, "Waiting for you: 1")
    assert clicks == 3
    assert not screen.problems()


async def test_20_threads_are_reviewed_in_one_modal_by_three_clicks(
    chrome: Chrome, stack: Stack, gallery: Path
) -> None:
    async with stack.running():
        verdicts = await waiting(stack)
        await stack.submit(("send_email", {"to": "kim@example.com"}), thread="mail")
        await stack.actor("U0ANA").open_home()
        screen = Screen(chrome, stack.sandbox.url)

        await asyncio.to_thread(pictures, screen, gallery)
        await asyncio.to_thread(decides, screen, gallery)

        assert await states(stack, verdicts) == [ItemState.AUTHORIZED] * COUNT


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
