"""Take the pictures of the docs, and check that each shows its subject."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from selenium.webdriver import Chrome

from keyturn.bot.cards.metrics_messages import metrics_message
from tests.bot.samples_of_metrics import a_busy_week
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
from tests.browser.demo_process import Demo
from tests.browser.hasty import hasty_demo
from tests.sandbox.page.fake_slack import FakeSlack
from tests.sandbox.page.scenes import BOT, message, ts, workspace
from tests.sandbox.page.screen import Screen

pytestmark = [pytest.mark.browser, pytest.mark.deep, pytest.mark.timeout(600)]

CHANNEL = "C0APPROVALS"
ANA, CHLOE, DAN = "U0ANA", "U0CHLOE", "U0DAN"
WIDE, PHONE = 1100, 390


class Gallery:
    """A screen, and the folder for its pictures."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def take(self, screen: Screen, name: str) -> None:
        """Save what the screen shows."""
        path = self.folder / f"{name}.png"
        screen.save(path)
        assert path.stat().st_size > 10_000, f"nothing is on {name}"

    def in_each_look(
        self,
        screen: Screen,
        name: str,
        show: Callable[[], object],
        *,
        heights: tuple[int, int] = (900, 1080),
        has_thread: bool = False,
    ) -> None:
        """Take a light and a dark picture, and one of a phone, without a thread."""
        wide, phone = heights
        for look, size, scheme in (
            ("light", (WIDE, wide), "light"),
            ("dark", (WIDE, wide), "dark"),
            ("phone", (PHONE, phone), "light"),
        ):
            screen.size(*size, scheme=scheme)
            show()
            if has_thread and look != "phone":
                last_thread(screen)
            self.take(screen, f"{name}-{look}")
        screen.size(WIDE, wide, scheme="light")


@pytest.fixture
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Gallery:
    """Return where pictures go: a temporary folder unless one is named."""
    named = request.config.getoption("--screenshots")
    folder = Path(named) if named else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return Gallery(folder)


def opened(screen: Screen, user: str, *words: str, at: str = CHANNEL) -> None:
    """Open a channel as a person, and wait for these words."""
    screen.open(user, at)
    words_on(screen, *words)


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_card_from_asked_to_done(
    chrome: Chrome, demo: Demo, gallery: Gallery
) -> None:
    screen = Screen(chrome, demo.url)
    waits = ("Approval needed", "78291")
    gallery.in_each_look(screen, "card", lambda: opened(screen, ANA, *waits))
    opened(screen, ANA, *waits)
    screen.click('[data-action-id="edit"]')
    screen.type(amount_field(screen), "449.50")
    screen.type('.dialog [data-block-id="reason"] .control', REASON)
    gallery.take(screen, "edit")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "done", "€899.00 → €449.50")
    gallery.take(screen, "edited")

    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "Approval needed", "3 calls: ")
    screen.size(WIDE, 1640)
    gallery.take(screen, "several")


def test_pictures_of_what_takes_two_people(
    chrome: Chrome, tmp_path: Path, gallery: Gallery
) -> None:
    demo = hasty_demo(tmp_path)
    demo.start()
    try:
        screen = Screen(chrome, demo.url)
        screen.size(WIDE, 900, scheme="light")
        ask_for_two(screen)
        words_on(screen, "Escalated")
        approve_as(screen, ANA)
        words_on(screen, "1 of 2 approvals")
        choose_last(screen, "take")
        words_on(screen, "is on it until")
        gallery.in_each_look(
            screen,
            "two-people",
            lambda: opened(screen, CHLOE, "1 of 2 approvals"),
            heights=(1080, 1180),
            has_thread=True,
        )

        screen.size(WIDE, 960)
        screen.open(ANA, CHANNEL)
        screen.click('[data-action-id="edit"]')
        screen.type(amount_field(screen), "1250")
        screen.type('.dialog [data-block-id="reason"] .control', "Shipping, too.")
        screen.click(".modal-submit")
        screen.wait(lambda: "This change needs" in screen.words(".dialog"), "it")
        gallery.take(screen, "raise")

        screen.size(WIDE, 560)
        opened(screen, CHLOE, "Waiting for you: 2", at="home")
        gallery.take(screen, "home")
    finally:
        demo.stop()


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_direct_message(
    chrome: Chrome, demo: Demo, gallery: Gallery
) -> None:
    screen = Screen(chrome, demo.url)
    ask_for_two(screen)
    words = ("Sent to you directly", "Needs 2 approvals")
    gallery.in_each_look(
        screen, "direct", lambda: opened(screen, CHLOE, *words, at="D0CHLOE")
    )

    press_last(screen, "reject")
    screen.type('.dialog [data-block-id="reason"] .control', "Ask for a photo first.")
    screen.click(".modal-submit")
    words_on(screen, "Rejected")
    gallery.take(screen, "direct-decided")
    opened(screen, ANA, "Rejected")


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_many_calls(chrome: Chrome, demo: Demo, gallery: Gallery) -> None:
    screen = Screen(chrome, demo.url)
    screen.open(DAN, CHANNEL)
    screen.click('[data-hook="suggestion-6"]')

    def show() -> None:
        opened(screen, ANA, "56 × process_refund", "Far from the others")
        show_last(screen)

    gallery.in_each_look(screen, "batch", show, heights=(900, 900))
    press_last(screen, "approve_all")
    screen.wait(lambda: "in total" in screen.words(".dialog-small"), "the total")
    gallery.take(screen, "batch-confirm")
    screen.click(".confirm-agree")
    words_on(screen, "56 done")
    show_last(screen)
    gallery.take(screen, "batch-done")


def show_last(screen: Screen) -> None:
    """Scroll to the head of the newest card."""
    screen.run("[...document.querySelectorAll('article')].at(-1).scrollIntoView()")


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_an_email(chrome: Chrome, demo: Demo, gallery: Gallery) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(WIDE, 880)
    screen.open(ANA, CHANNEL)
    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "Approval needed", "3 calls: ", "Subject")
    press_last(screen, "edit")
    changed = "Hello Sam,\n\nwe have sent your refund.\n\nThe shop"
    screen.type(field_of(screen, "body"), changed)
    screen.type('.dialog [data-block-id="reason"] .control', "Say what was done.")
    gallery.take(screen, "email-edit")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    gallery.in_each_look(
        screen,
        "email",
        lambda: opened(screen, ANA, "⟦-taken care of"),
        heights=(1060, 1180),
    )


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_question(chrome: Chrome, demo: Demo, gallery: Gallery) -> None:
    screen = Screen(chrome, demo.url)
    screen.open(DAN, CHANNEL)
    screen.click('[data-hook="suggestion-7"]')
    words_on(screen, "Waiting for an answer", "How shall I tell the customer?")

    def show() -> None:
        opened(screen, DAN, "Waiting for an answer")

    def show_form() -> None:
        screen.run("document.querySelector('.modal-close')?.click()")
        show()
        press_last(screen, "answer")
        screen.wait(lambda: "Which country" in screen.words(".dialog"), "the form")

    gallery.in_each_look(screen, "question", show, heights=(1200, 1200))
    gallery.in_each_look(screen, "answer", show_form, heights=(1200, 1200))
    show_form()
    screen.type('.dialog [data-block-id="question.0"] .control', "12 Mill Lane")
    screen.type('.dialog [data-block-id="question.1"] .control', "CB1 2AB Cambridge")
    screen.click('.dialog [data-block-id="question.2"] [data-value="2"]')
    screen.click('.dialog [data-block-id="question.3"] [data-value="0"]')
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "Answered", "Send order 78304 to another address")
    screen.size(WIDE, 1640)
    gallery.take(screen, "answered")


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_standing_approval(
    chrome: Chrome, demo: Demo, gallery: Gallery
) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(WIDE, 880)
    open_form(screen, 79001)
    gallery.in_each_look(
        screen,
        "similar",
        lambda: screen.words(".dialog"),
        heights=(1100, 1100),
    )
    allow(screen, 3)
    ask(screen, 79002)
    gallery.in_each_look(screen, "standing", lambda: opened(screen, ANA, "2 of 3 left"))
    opened(screen, ANA, "2 of 3 left")
    press_last(screen, "revoke_standing")
    gallery.take(screen, "revoke")
    screen.click(".confirm-agree")
    words_on(screen, "Revoked by")
    gallery.take(screen, "revoked")


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_question_to_the_requester(
    chrome: Chrome, demo: Demo, gallery: Gallery
) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(WIDE, 880)
    ask_dan(screen, is_sent=False)
    gallery.take(screen, "ask")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "has not replied yet")
    reply_as_dan(screen)
    words_on(screen, REPLY)
    gallery.in_each_look(
        screen,
        "asked",
        lambda: opened(screen, ANA, REPLY),
        heights=(1000, 1180),
        has_thread=True,
    )


def test_pictures_of_a_digest(chrome: Chrome, gallery: Gallery) -> None:
    # A week of a busy team; the message is the product's own.
    digest = metrics_message(a_busy_week())
    said = message(ts(1), BOT, digest.text, blocks=[*digest.blocks])
    with FakeSlack(workspace([said])) as slack:
        screen = Screen(chrome, slack.url)

        def show() -> None:
            screen.open(ANA, CHANNEL)
            screen.one(".chart-picture svg")
            words_on(screen, "Calls of each day", "process_refund")

        gallery.in_each_look(screen, "digest", show, heights=(1000, 1240))
