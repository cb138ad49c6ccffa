"""A real Bolt app works against the sandbox over both transports."""

from typing import Any

import pytest

from keyturn.sandbox.client import Person, UserActionFailed
from keyturn.sandbox.server import Sandbox
from tests.sandbox.blocks import card
from tests.sandbox.bolt_app import RunningApp

APPROVALS = "C0APPROVALS"


async def post_card(app: RunningApp, *action_ids: str) -> str:
    posted = await app.client.chat_postMessage(
        channel=APPROVALS, text="card", blocks=card("please", *action_ids)
    )
    return str(posted["ts"])


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
