"""The page and the real sandbox server mean the same things."""

import asyncio
from typing import Any

import pytest
from selenium.webdriver import Chrome

from keyturn.sandbox.server import Sandbox
from tests.sandbox.bolt_app import RunningApp
from tests.sandbox.page.scenes import (
    approval_card,
    button,
    input_block,
    option,
    plain,
)
from tests.sandbox.page.screen import Screen

pytestmark = pytest.mark.browser

CHANNEL = "C0APPROVALS"


def listens(app: RunningApp) -> None:
    """Make the app open a form, object once, and then change its card."""
    posted: dict[str, Any] = {}

    @app.on("action", "edit")
    async def edit(ack: Any, body: dict[str, Any], client: Any) -> None:
        await ack()
        posted["ts"] = body["container"]["message_ts"]
        amount = input_block(
            "amount", "amount", "number_input", is_decimal_allowed=True
        )
        form = {
            "type": "modal",
            "callback_id": "edit",
            "title": plain("Edit the call"),
            "submit": plain("Approve"),
            "blocks": [amount],
        }
        await client.views_open(trigger_id=body["trigger_id"], view=form)

    @app.on("view", "edit")
    async def submitted(ack: Any, view: dict[str, Any], client: Any) -> None:
        amount = view["state"]["values"]["amount"]["value"]["value"]
        app.heard.append({"amount": amount})
        if amount == "900":
            await ack(response_action="errors", errors={"amount": "At most 899.00."})
            return
        await ack()
        done = {"type": "header", "block_id": "done", "text": plain("Approved")}
        await client.chat_update(
            channel=CHANNEL, ts=posted["ts"], text="Approved", blocks=[done]
        )

    @app.on("action", "more")
    async def more(ack: Any, body: dict[str, Any]) -> None:
        app.heard.append({"more": body["actions"][0]["selected_option"]["value"]})
        await ack()


def story(screen: Screen) -> None:
    """Edit a call with an error first; choose from a menu; post a message."""
    amount = '[data-block-id="amount"] .control'
    screen.open("U0ANA", CHANNEL)
    screen.click('[data-action-id="more"]')
    screen.click('.menu [data-value="show"]')
    screen.gone(".menu")

    screen.click('[data-action-id="edit"]')
    screen.type(amount, "900")
    screen.click(".modal-submit")
    screen.wait(lambda: screen.one(".dialog .error").text, "the app's objection")
    assert screen.one(".dialog .error").text == "At most 899.00."
    screen.type(amount, "449.50")
    screen.click(".modal-submit")

    screen.gone(".dialog")
    assert screen.one('[data-block-id="done"]').text == "Approved"
    screen.one("#composer .composer-box").send_keys("<!here> @ben & you\n")
    screen.wait(lambda: len(screen.all("article")) == 2, "the message")
    text = screen.one("article[data-ts]:last-child .message-text").text
    assert text == "<!here> @Ben Boer & you"
    change_and_delete(screen)


def change_and_delete(screen: Screen) -> None:
    """Edit the last message and delete it; only its author has a menu."""
    assert len(screen.all(".own-message")) == 1
    show = "document.querySelector('.own-message').focus()"
    screen.run(show)
    screen.click(".own-message")
    screen.click('.menu [data-value="edit"]')
    assert screen.one(".edit-box").get_attribute("value") == "<!here> @ben & you"
    screen.type(".edit-box", "<!here> @ana & me")
    screen.click(".edit-save")
    last = "article[data-ts]:last-child .message-text"
    screen.wait(lambda: "Ana Alves & me" in screen.one(last).text, "the edit")
    screen.run(show)
    screen.click(".own-message")
    screen.click('.menu [data-value="delete"]')
    screen.wait(lambda: len(screen.all("article")) == 1, "the deletion")


@pytest.mark.parametrize("mode", ["http"])
async def test_a_person_edits_a_call_on_the_page_and_the_app_answers(
    sandbox: Sandbox, app: RunningApp, browser: Chrome
) -> None:
    listens(app)
    options = [option("Freeze", "freeze"), option("Show", "show")]
    card = approval_card()
    card[-1]["elements"][-1] = button("View all", "view_all")
    card[-1]["elements"].append(
        {"type": "overflow", "action_id": "more", "options": options}
    )
    await app.client.chat_postMessage(channel=CHANNEL, text="x", blocks=card)

    screen = Screen(browser, sandbox.url)
    screen.size(1280, 860)
    await asyncio.to_thread(story, screen)
    await asyncio.to_thread(browser.get, "about:blank")

    assert app.heard == [{"more": "show"}, {"amount": "900"}, {"amount": "449.50"}]
    assert screen.problems() == []
    assert sandbox.problems == []
