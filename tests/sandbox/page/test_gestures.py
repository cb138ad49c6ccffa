"""A click on a card acts once, and shows that it is on its way."""

import pytest
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from tests.sandbox.page.fake_slack import FakeSlack, Json
from tests.sandbox.page.scenes import (
    BOT,
    CARD_TS,
    approval_card,
    button,
    message,
    option,
    plain,
    ts,
    workspace,
)
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

APPROVE = '[data-action-id="approve"]'
CONFIRM: Json = {
    "title": plain("Refund 899.00?"),
    "text": plain("*This* cannot be undone."),
    "confirm": plain("Refund"),
    "deny": plain("Not yet"),
}


def shows(slack: FakeSlack, *elements: Json) -> None:
    block = {"type": "actions", "block_id": "b", "elements": list(elements)}
    slack.state = workspace([message(ts(1), BOT, "x", blocks=[block])])


def test_a_card_is_redrawn_after_the_click(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    mouse = ActionChains(screen.driver)
    mouse.click_and_hold(screen.one(APPROVE)).perform()

    changed = message(CARD_TS, BOT, "Changed", blocks=approval_card("amount 1"))
    slack.show(channels=workspace([changed])["channels"])
    screen.wait(lambda: slack.told == slack.state["seq"], "the page to hear of it")
    screen.run("await (await fetch('/sandbox/state')).json()")  # a later answer
    mouse.release().perform()

    screen.wait(lambda: slack.did("block_actions"), "the click to count")
    screen.one('article[aria-label$="Changed"]')


def test_a_waiting_button_is_not_clicked(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    slack.hold()

    screen.click(APPROVE)
    screen.one(f"{APPROVE}[aria-busy=true]")
    screen.click(APPROVE)
    screen.click(APPROVE)
    slack.let_go()

    screen.wait(lambda: not screen.all("[aria-busy]"), "the ring to stop")
    assert len(slack.acts) == 1


def test_a_button_has_the_name_it_was_given_for_screen_readers(screen: Screen) -> None:
    screen.open()

    assert screen.one(APPROVE).accessible_name == "Approve the refund of 899.00"
    assert screen.one('[data-action-id="edit"]').accessible_name == "Edit"


def test_a_failed_click_is_explained(screen: Screen, slack: FakeSlack) -> None:
    screen.open()
    slack.answers.append(
        {"ok": False, "error": "app_did_not_respond", "reason": "not_connected"}
    )

    screen.click(APPROVE)

    trouble = screen.one(f'[data-ts="{CARD_TS}"] .message-trouble')
    assert trouble.text == "The app is not connected, so nothing reached it."
    screen.click(APPROVE)
    screen.wait(lambda: trouble.text == "", "the trouble to be over")


@pytest.mark.parametrize("way", ["button", "escape"])
def test_a_cancelled_click_is_lost(screen: Screen, slack: FakeSlack, way: str) -> None:
    shows(slack, button("Go", "go", confirm=CONFIRM))
    screen.open()

    screen.click('[data-action-id="go"]')
    dialog = screen.one("[role=alertdialog]")
    assert dialog.text.splitlines() == [
        "Refund 899.00?",
        "*This* cannot be undone.",
        "Not yet",
        "Refund",
    ]
    if way == "button":
        screen.click(".confirm-deny")
    else:
        screen.press(Keys.ESCAPE)

    screen.gone("[role=alertdialog]")
    assert screen.has_focus('[data-action-id="go"]')
    assert slack.acts == []


def test_the_keyboard_opens_an_overflow_menu(screen: Screen, slack: FakeSlack) -> None:
    options = [option("Freeze", "freeze"), option("Show", "show")]
    shows(slack, {"type": "overflow", "action_id": "more", "options": options})
    screen.open()

    screen.run("document.querySelector('[data-action-id=more]').focus()")
    screen.press(Keys.ENTER)
    screen.one(".menu")
    screen.press(Keys.ARROW_DOWN, Keys.ENTER)

    screen.wait(lambda: slack.acts, "the act")
    assert slack.acts[0]["chosen"] == {
        "type": "overflow",
        "selected_option": options[1],
    }
    screen.gone(".menu")


def test_a_message_sends_a_choice_at_once(screen: Screen, slack: FakeSlack) -> None:
    options = [option("Refunds", "r"), option("E-mails", "e")]
    shows(slack, {"type": "static_select", "action_id": "f", "options": options})
    screen.open()

    screen.one('[data-action-id="f"] [data-value="e"]').click()

    screen.wait(lambda: slack.acts, "the act")
    state = {"type": "static_select", "selected_option": options[1]}
    assert slack.acts[0]["chosen"] == state
    assert slack.acts[0]["values"] == {"b": {"f": state}}
