"""Take the pictures of the docs, and check that each shows its subject."""

from __future__ import annotations

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
DESKTOP, PHONE = (1100, 880), (390, 844)


@pytest.fixture
def gallery(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return where pictures go: a temporary folder unless one is named."""
    named = request.config.getoption("--screenshots")
    folder = Path(named) if named else tmp_path
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_card_from_asked_to_done(
    chrome: Chrome, demo: Demo, gallery: Path
) -> None:
    screen = Screen(chrome, demo.url)
    for name, size, scheme in (
        ("card-light", DESKTOP, "light"),
        ("card-dark", DESKTOP, "dark"),
        ("card-phone", PHONE, "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0ANA", CHANNEL)
        words_on(screen, "Approval needed", "78291")
        screen.save(gallery / f"{name}.png")

    screen.size(*DESKTOP)
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="edit"]')
    screen.type(amount_field(screen), "449.50")
    screen.type('.dialog [data-block-id="reason"] .control', REASON)
    screen.save(gallery / "edit.png")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "done", "€899.00 → €449.50")
    screen.save(gallery / "edited.png")

    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "Approval needed", "3 calls: ")
    screen.size(1100, 1640)
    screen.save(gallery / "several.png")
    ensure_pictures(gallery, 6)


def test_pictures_of_what_takes_two_people(
    chrome: Chrome, tmp_path: Path, gallery: Path
) -> None:
    demo = hasty_demo(tmp_path)
    demo.start()
    try:
        screen = Screen(chrome, demo.url)
        screen.size(1100, 900, scheme="light")
        ask_for_two(screen)
        words_on(screen, "Escalated")
        approve_as(screen, "U0ANA")
        words_on(screen, "1 of 2 approvals")
        choose_last(screen, "take")
        words_on(screen, "is on it until")
        for name, size, scheme in (
            ("two-people-light", (1100, 1080), "light"),
            ("two-people-dark", (1100, 1080), "dark"),
            ("two-people-phone", (360, 1180), "light"),
        ):
            screen.size(*size, scheme=scheme)
            screen.open("U0CHLOE", CHANNEL)
            words_on(screen, "1 of 2 approvals")
            if name != "two-people-phone":
                last_thread(screen)
            screen.save(gallery / f"{name}.png")

        screen.size(1100, 960)
        screen.open("U0ANA", CHANNEL)
        screen.click('[data-action-id="edit"]')
        screen.type(amount_field(screen), "1250")
        screen.type('.dialog [data-block-id="reason"] .control', "Shipping, too.")
        screen.click(".modal-submit")
        screen.wait(lambda: "This change needs" in screen.words(".dialog"), "it")
        screen.save(gallery / "raise.png")

        screen.size(1100, 560)
        screen.open("U0CHLOE", "home")
        words_on(screen, "Waiting for you: 2")
        screen.save(gallery / "home.png")
    finally:
        demo.stop()
    ensure_pictures(gallery, 5)


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_direct_message(
    chrome: Chrome, demo: Demo, gallery: Path
) -> None:
    screen = Screen(chrome, demo.url)
    ask_for_two(screen)
    for name, size, scheme in (
        ("direct-light", (1100, 900), "light"),
        ("direct-dark", (1100, 900), "dark"),
        ("direct-phone", (390, 1080), "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0CHLOE", "D0CHLOE")
        words_on(screen, "Sent to you directly", "Needs 2 approvals")
        screen.save(gallery / f"{name}.png")

    press_last(screen, "reject")
    screen.type('.dialog [data-block-id="reason"] .control', "Ask for a photo first.")
    screen.click(".modal-submit")
    words_on(screen, "Rejected")
    screen.save(gallery / "direct-decided.png")
    screen.open("U0ANA", CHANNEL)
    words_on(screen, "Rejected")
    ensure_pictures(gallery, 4)


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_many_calls(chrome: Chrome, demo: Demo, gallery: Path) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(*DESKTOP)
    screen.open("U0DAN", CHANNEL)
    screen.click('[data-hook="suggestion-6"]')
    words_on(screen, "56 × process_refund", "Far from the others")
    for name, size, scheme in (
        ("batch-light", (1100, 900), "light"),
        ("batch-dark", (1100, 900), "dark"),
        ("batch-phone", (390, 900), "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0ANA", CHANNEL)
        words_on(screen, "56 × process_refund", "Far from the others")
        show_last(screen)
        screen.save(gallery / f"{name}.png")

    screen.size(*DESKTOP)
    screen.open("U0ANA", CHANNEL)
    press_last(screen, "approve_all")
    screen.wait(lambda: "in total" in screen.words(".dialog-small"), "the total")
    screen.save(gallery / "batch-confirm.png")
    screen.click(".confirm-agree")
    words_on(screen, "56 done")
    show_last(screen)
    screen.save(gallery / "batch-done.png")
    ensure_pictures(gallery, 5)


def show_last(screen: Screen) -> None:
    """Scroll to the head of the newest card."""
    screen.run("[...document.querySelectorAll('article')].at(-1).scrollIntoView()")


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_an_email(chrome: Chrome, demo: Demo, gallery: Path) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(*DESKTOP)
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-hook="suggestion-1"]')
    words_on(screen, "Approval needed", "3 calls: ", "Subject")
    press_last(screen, "edit")
    changed = "Hello Sam,\n\nwe have sent your refund.\n\nThe shop"
    screen.type(field_of(screen, "body"), changed)
    screen.type('.dialog [data-block-id="reason"] .control', "Say what was done.")
    screen.save(gallery / "email-edit.png")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "⟦-taken care of")
    for name, size, scheme in (
        ("email-light", (1100, 1060), "light"),
        ("email-dark", (1100, 1060), "dark"),
        ("email-phone", (390, 1180), "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0ANA", CHANNEL)
        words_on(screen, "⟦-taken care of")
        screen.save(gallery / f"{name}.png")
    ensure_pictures(gallery, 4)


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_question(chrome: Chrome, demo: Demo, gallery: Path) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(*DESKTOP)
    screen.open("U0DAN", CHANNEL)
    screen.click('[data-hook="suggestion-7"]')
    words_on(screen, "Waiting for an answer", "How shall I tell the customer?")
    for name, size, scheme in (
        ("question-light", (1100, 1200), "light"),
        ("question-dark", (1100, 1200), "dark"),
        ("question-phone", (390, 1200), "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0DAN", CHANNEL)
        words_on(screen, "Waiting for an answer")
        screen.save(gallery / f"{name}.png")
        press_last(screen, "answer")
        screen.wait(lambda: "Which country" in screen.words(".dialog"), "the form")
        screen.save(gallery / f"{name.replace('question', 'answer')}.png")
        screen.click(".modal-close")
        screen.gone(".dialog")

    screen.size(*DESKTOP, scheme="light")
    screen.open("U0DAN", CHANNEL)
    press_last(screen, "answer")
    screen.type('.dialog [data-block-id="question.0"] .control', "12 Mill Lane")
    screen.type('.dialog [data-block-id="question.1"] .control', "CB1 2AB Cambridge")
    screen.click('.dialog [data-block-id="question.2"] [data-value="2"]')
    screen.click('.dialog [data-block-id="question.3"] [data-value="0"]')
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "Answered", "Send order 78304 to another address")
    screen.size(1100, 1640)
    screen.save(gallery / "answered.png")
    ensure_pictures(gallery, 7)


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_standing_approval(
    chrome: Chrome, demo: Demo, gallery: Path
) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(*DESKTOP)
    open_form(screen, 79001)
    for name, size, scheme in (
        ("similar-light", (1100, 1100), "light"),
        ("similar-dark", (1100, 1100), "dark"),
        ("similar-phone", (390, 1100), "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.save(gallery / f"{name}.png")
    screen.size(*DESKTOP)
    allow(screen, 3)
    ask(screen, 79002)
    words_on(screen, "2 of 3 left")
    for name, size, scheme in (
        ("standing-light", (1100, 900), "light"),
        ("standing-dark", (1100, 900), "dark"),
        ("standing-phone", (390, 1000), "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0ANA", CHANNEL)
        words_on(screen, "2 of 3 left")
        screen.save(gallery / f"{name}.png")
    screen.size(*DESKTOP, scheme="light")
    screen.open("U0ANA", CHANNEL)
    press_last(screen, "revoke_standing")
    screen.save(gallery / "revoke.png")
    screen.click(".confirm-agree")
    words_on(screen, "Revoked by")
    screen.save(gallery / "revoked.png")
    ensure_pictures(gallery, 8)


@pytest.mark.parametrize("mode", ["socket"])
def test_pictures_of_a_question_to_the_requester(
    chrome: Chrome, demo: Demo, gallery: Path
) -> None:
    screen = Screen(chrome, demo.url)
    screen.size(*DESKTOP)
    ask_dan(screen, is_sent=False)
    screen.save(gallery / "ask.png")
    screen.click(".modal-submit")
    screen.gone(".dialog")
    words_on(screen, "has not replied yet")
    reply_as_dan(screen)
    words_on(screen, REPLY)
    for name, size, scheme in (
        ("asked", (1100, 1000), "light"),
        ("asked-dark", (1100, 1000), "dark"),
        ("asked-phone", (390, 1180), "light"),
    ):
        screen.size(*size, scheme=scheme)
        screen.open("U0ANA", CHANNEL)
        words_on(screen, REPLY)
        if name != "asked-phone":
            last_thread(screen)
        screen.save(gallery / f"{name}.png")
    ensure_pictures(gallery, 4)


def test_pictures_of_a_digest(chrome: Chrome, gallery: Path) -> None:
    # A week of a busy team; the message is the product's own.
    digest = metrics_message(a_busy_week())
    said = message(ts(1), BOT, digest.text, blocks=[*digest.blocks])
    with FakeSlack(workspace([said])) as slack:
        screen = Screen(chrome, slack.url)
        for name, size, scheme in (
            ("digest-light", (1100, 1000), "light"),
            ("digest-dark", (1100, 1000), "dark"),
            ("digest-phone", (390, 1240), "light"),
        ):
            screen.size(*size, scheme=scheme)
            screen.open("U0ANA", CHANNEL)
            screen.one(".chart-picture svg")
            words_on(screen, "Calls of each day", "process_refund")
            screen.save(gallery / f"{name}.png")
    ensure_pictures(gallery, 3)


def ensure_pictures(gallery: Path, count: int) -> None:
    """Check that there are so many pictures, and something on each."""
    pictures = list(gallery.glob("*.png"))
    assert len(pictures) >= count
    assert all(picture.stat().st_size > 10_000 for picture in pictures)
