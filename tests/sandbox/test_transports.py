"""A real Bolt app works against the sandbox over both transports."""

from typing import Any

import pytest

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import card, modal
from tests.sandbox.bolt_app import RunningApp

APPROVALS = "C0APPROVALS"


async def post_card(app: RunningApp, *action_ids: str) -> str:
    posted = await app.client.chat_postMessage(
        channel=APPROVALS, text="card", blocks=card("please", *action_ids)
    )
    return str(posted["ts"])


def opens_modal(app: RunningApp, view: dict[str, Any]) -> None:
    @app.on("action", "edit")
    async def edit(ack: Any, body: dict[str, Any], client: Any) -> None:
        await client.views_open(trigger_id=body["trigger_id"], view=view)
        await ack()


async def test_a_button_in_a_modal_pushes_a_second_one(
    app: RunningApp, ana: Person
) -> None:
    opens_modal(app, modal(*card("look", "more")))

    @app.on("action", "more")
    async def more(ack: Any, body: dict[str, Any], client: Any) -> None:
        app.heard.append(body)
        await client.views_push(
            trigger_id=body["trigger_id"],
            view=modal(callback_id="details", notify_on_close=True),
        )
        await ack()

    @app.on("view_closed", "details")
    async def closed(ack: Any, body: dict[str, Any]) -> None:
        app.heard.append(body)
        await ack()

    await ana.click(APPROVALS, await post_card(app, "edit"), "edit")
    await ana.act_in_view("more")
    on_top = await ana.view()
    await ana.close_view()

    below = await ana.view()
    assert on_top is not None
    assert below is not None
    assert on_top["callback_id"] == "details"
    assert on_top["previous_view_id"] == below["id"] == on_top["root_view_id"]
    assert "channel" not in app.heard[0]
    assert app.heard[0]["container"] == {"type": "view", "view_id": below["id"]}
    assert app.heard[1]["type"] == "view_closed"
    assert app.heard[1]["is_cleared"] is False


async def test_a_direct_message_needs_the_history_scope(
    app: RunningApp, ana: Person, sandbox: Sandbox
) -> None:
    @app.on("event", "message")
    async def message(body: dict[str, Any]) -> None:
        app.heard.append(body)

    scopes = sandbox.workspace.bot_scopes
    sandbox.control.scopes([scope for scope in scopes if scope != "im:history"])
    await ana.say("D0ANA", "hello")
    sandbox.control.scopes(scopes)
    await ana.say("D0ANA", "hello again")

    (notice,) = await ana.notices()
    assert "im:history" in notice["text"]
    assert [h["event"]["text"] for h in app.heard] == ["hello again"]
    assert app.heard[0]["event"]["channel_type"] == "im"


async def test_a_listener_that_does_not_acknowledge_shows_a_warning(
    app: RunningApp, ana: Person, sandbox: Sandbox
) -> None:
    @app.on("action", "approve")
    async def approve(body: dict[str, Any]) -> None:
        app.heard.append(body)
        sandbox.clock.advance(3)

    ts = await post_card(app)

    with pytest.raises(UserActionFailed) as caught:
        await ana.click(APPROVALS, ts, "approve")

    assert caught.value.error == "app_did_not_respond"
    (notice,) = await ana.notices()
    assert notice["level"] == "warning"
    assert len(app.heard) == 1
