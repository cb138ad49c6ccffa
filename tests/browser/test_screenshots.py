"""Take the pictures of the docs, and check that each shows its subject."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
from selenium.webdriver import Chrome

from keyturn.bot.cards.metrics_messages import metrics_message
from tests.bot.cards.test_metrics_messages import a_busy_week
from tests.browser.acts import (
    REASON,
    REPLY,
    allow,
    amount_field,
    approve_as,
    ask,
    ask_dan,
    ask_for_two,
    choose_last,
    field_of,
    last_thread,
    open_form,
    press_last,
    reply_as_dan,
    words_on,
)
from tests.browser.demo_process import Demo, hasty_demo
from tests.sandbox.page.fake_slack import FakeSlack
from tests.sandbox.page.scenes import BOT, message, ts, workspace
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.deep, pytest.mark.timeout(600)]

CHANNEL = "C0APPROVALS"
ANA, CHLOE, DAN = "U0ANA", "U0CHLOE", "U0DAN"
WIDE = 1100

Take: TypeAlias = Callable[[Screen, str], None]


@pytest.fixture
def mode() -> str:
    """Return the transport of the demo."""
    return "socket"


@pytest.fixture
def take(request: pytest.FixtureRequest, tmp_path: Path) -> Take:
    """Save pictures in the folder that is named, or in a temporary one."""
    named = request.config.getoption("--screenshots")
    folder = Path(named) if named else tmp_path
    folder.mkdir(parents=True, exist_ok=True)

    def save(screen: Screen, name: str) -> None:
        path = folder / f"{name}.png"
        screen.save(path)
        assert path.stat().st_size > 10_000, f"nothing is on {name}"
        if request.config.getoption("--every-look"):
            save_other_looks(screen, folder, name)

    return save


def save_other_looks(screen: Screen, folder: Path, name: str) -> None:
    """Save the same picture of a phone, and of a dark screen."""
    height = screen.run("return window.innerHeight")
    for look, width, high, scheme in (
        ("phone", 390, 844, "light"),
        ("dark", WIDE, height, "dark"),
    ):
        screen.size(width, high, scheme=scheme)
        # The list of channels slides away on a phone.
        moving = "document.getAnimations().map((one) => one.finished)"
        screen.run(f"await Promise.all({moving})")
        screen.save(folder / f"{name}.{look}.png")
    screen.size(WIDE, height, scheme="light")


def opened(screen: Screen, user: str, *words: str, at: str = CHANNEL) -> None:
    """Open a channel as a person, and wait for these words."""
    screen.open(user, at)
    words_on(screen, *words)


def test_pictures_of_a_whole_card(chrome: Chrome, demo: Demo, take: Take) -> None:
    screen = light(chrome, demo.url, 880)
    opened(screen, ANA, "Expires", "78291")
    take(screen, "card-light")
    screen.click('[data-action-id="edit"]')
    screen.type(amount_field(screen), "449.50")
    screen.type('.dialog [data-block-id="reason"] .control', REASON)
    take(screen, "edit")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "done", "€899.00 → €449.50")
    take(screen, "edited")

    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "Expires", "3 calls: ")
    screen.size(WIDE, 1640)
    take(screen, "several")


def test_pictures_of_two_people(chrome: Chrome, tmp_path: Path, take: Take) -> None:
    demo = hasty_demo(tmp_path)
    demo.start()
    try:
        screen = light(chrome, demo.url, 1080)
        ask_for_two(screen)
        words_on(screen, "Escalated")
        approve_as(screen, ANA)
        words_on(screen, "1 of 2 approvals")
        choose_last(screen, "take")
        words_on(screen, "is on it until")
        opened(screen, CHLOE, "1 of 2 approvals")
        last_thread(screen)
        take(screen, "two-people-light")
        screen.size(WIDE, 960)
        screen.open(ANA, CHANNEL)
        screen.click('[data-action-id="edit"]')
        screen.type(amount_field(screen), "1250")
        screen.type('.dialog [data-block-id="reason"] .control', "Shipping, too.")
        screen.click(".modal-submit")
        screen.wait(lambda: "This change needs" in screen.words(".dialog"), "it")
        take(screen, "raise")

        screen.size(WIDE, 560)
        opened(screen, CHLOE, "Waiting for you: 2", at="home")
        take(screen, "home")
    finally:
        demo.stop()


def test_a_picture_of_a_direct_message(chrome: Chrome, demo: Demo, take: Take) -> None:
    screen = light(chrome, demo.url, 900)
    ask_for_two(screen)
    opened(screen, CHLOE, "Sent to you directly", "Needs 2 approvals", at="D0CHLOE")
    take(screen, "direct-light")


def test_a_picture_of_many_calls(chrome: Chrome, demo: Demo, take: Take) -> None:
    screen = light(chrome, demo.url, 900)
    screen.open(DAN, CHANNEL)
    screen.click('[data-hook="suggestion-6"]')
    opened(screen, ANA, "56 × refund", "far from the others")
    screen.run("[...document.querySelectorAll('article')].at(-1).scrollIntoView()")
    take(screen, "batch-light")


def test_a_picture_of_an_email(chrome: Chrome, demo: Demo, take: Take) -> None:
    screen = light(chrome, demo.url, 1060)
    screen.open(ANA, CHANNEL)
    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "Expires", "3 calls: ", "Subject")
    press_last(screen, "edit")
    changed = "Hello Sam,\n\nwe have sent your refund.\n\nThe shop"
    screen.type(field_of(screen, "body"), changed)
    screen.type('.dialog [data-block-id="reason"] .control', "Say what was done.")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    opened(screen, ANA, "⟦-taken care of")
    take(screen, "email-light")


def test_pictures_of_a_question(chrome: Chrome, demo: Demo, take: Take) -> None:
    screen = light(chrome, demo.url, 1200)
    screen.open(DAN, CHANNEL)
    screen.click('[data-hook="suggestion-7"]')
    words_on(screen, "Waiting for an answer", "How shall I tell the customer?")
    opened(screen, DAN, "Waiting for an answer")
    take(screen, "question-light")
    press_last(screen, "answer")
    screen.wait(lambda: "Which country" in screen.words(".dialog"), "the form")
    take(screen, "answer-light")


def test_pictures_of_a_standing_approval(
    chrome: Chrome, demo: Demo, take: Take
) -> None:
    screen = light(chrome, demo.url, 1100)
    open_form(screen, 79001)
    take(screen, "similar-light")
    allow(screen, 3)
    ask(screen, 79002)
    screen.size(WIDE, 900)
    opened(screen, ANA, "2 of 3 calls left")
    take(screen, "standing-light")


def test_a_picture_of_a_question(chrome: Chrome, demo: Demo, take: Take) -> None:
    screen = light(chrome, demo.url, 1000)
    ask_dan(screen)
    words_on(screen, "has not replied yet")
    reply_as_dan(screen)
    opened(screen, ANA, REPLY)
    last_thread(screen)
    take(screen, "asked-light")


def test_a_picture_of_a_digest(chrome: Chrome, take: Take) -> None:
    # A week of a busy team; the message is the product's own.
    digest = metrics_message(a_busy_week())
    said = message(ts(1), BOT, digest.text, blocks=[*digest.blocks])
    with FakeSlack(workspace([said])) as slack:
        screen = light(chrome, slack.url, 1000)
        screen.open(ANA, CHANNEL)
        screen.one(".chart-picture svg")
        words_on(screen, "Calls of each day", "process_refund")
        take(screen, "digest-light")


def light(chrome: Chrome, url: str, height: int) -> Screen:
    """Return a light screen of a desktop."""
    screen = Screen(chrome, url)
    screen.size(WIDE, height, scheme="light")
    return screen
